"""Images in requests reach the chat model as LangChain's content blocks."""

from __future__ import annotations

import base64

import openai
import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import HumanMessage, ToolMessage

from langchain_specfuse import SpecFuseChatModel
from langchain_specfuse.serve import Limits
from langchain_specfuse.serve.requests import read_request
from langchain_specfuse.serve.responses import read_response_request

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and so on").decode()
DATA = f"data:image/png;base64,{PNG}"
ADDRESS = "https://example.org/sky,blue.png"
BLOCKS = [
    {"type": "text", "text": "What is this?"},
    {"type": "image", "base64": PNG, "mime_type": "image/png", "extras": {"detail": "low"}},
    {"type": "image", "url": ADDRESS},
]


def parts(*images):
    return [
        {"type": "text", "text": "What is this?"},
        *({"type": "image_url", "image_url": image} for image in images),
    ]


class Seeing(FakeListChatModel):
    seen: list

    def _stream(self, messages, *args, **kwargs):
        self.seen.append(messages)
        return super()._stream(messages, *args, **kwargs)


def test_an_image_is_a_block_in_its_place():
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    images = parts({"url": DATA, "detail": "low"}, {"url": ADDRESS})
    conversation = [
        {"role": "user", "content": images},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": images},
    ]
    asked = read_request({"model": "m", "messages": conversation}, "m", Limits()).messages
    assert asked[0] == HumanMessage(BLOCKS) and asked[2] == ToolMessage(BLOCKS, tool_call_id="c")
    assert asked[1].tool_calls[0]["id"] == "c"
    images = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": DATA, "detail": "low"},
        {"type": "input_image", "image_url": ADDRESS},
    ]
    items = [
        {"role": "user", "content": images},
        {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": images},
    ]
    assert read_response_request({"model": "m", "input": items}, "m", Limits()).messages == asked


def test_a_chat_model_sees_the_image(serve):
    model = Seeing(responses=["A sky."], seen=[])
    client = serve(SpecFuseChatModel(members=[model])).client()
    asked = [{"role": "user", "content": parts({"url": DATA})}]
    answer = client.chat.completions.create(model="specfuse", messages=asked)
    assert answer.choices[0].message.content == "A sky."
    blocks = model.seen[0][-1].content_blocks
    assert {block.get("base64") for block in blocks} == {None, PNG}


@pytest.mark.parametrize(
    "url",
    [
        "/etc/passwd",
        "data:image/png;base64,/etc//passwd",  # this path is valid base64
        "x,/etc/passwd",
        "file:///etc/passwd",
        "http://169.254.169.254/latest/meta-data",
        "data:text/html;base64," + PNG,
        None,
    ],
)
@pytest.mark.parametrize("role", ["user", "system", "assistant"])
def test_an_image_is_neither_a_file_nor_an_address_of_this_network(serve, role, url):
    """``ChatOllama`` reads the file whose path it gets as an image's data, and
    ``ChatGoogleGenerativeAI`` fetches an address from this machine."""
    client = serve().client()
    asked = [{"role": role, "content": parts({"url": url})}]
    with pytest.raises(openai.BadRequestError, match="neither data nor an https address"):
        client.chat.completions.create(model="specfuse", messages=asked)
