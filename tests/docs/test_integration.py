"""What the page for LangChain's documentation claims is true, and the listing claims the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from pydantic import BaseModel

from langchain_specfuse import ScriptedMember, SpecFuseChatModel

from .blocks import PROPOSED

LISTING = PROPOSED.with_name("listing.yaml")
FLAGS = ("stream", "tool_calling", "structured_output", "multimodal")
SKY = "The sky is blue because the air scatters short waves of light more than long ones."


class City(BaseModel):
    """A city."""

    name: str


class Listener(BaseChatModel):
    """Keeps the messages that it is sent."""

    heard: list[Any]

    @property
    def _llm_type(self) -> str:
        return "listener"

    def _generate(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    def _stream(self, messages: Any, *args: Any, **options: Any) -> Any:
        self.heard.extend(messages)
        yield ChatGenerationChunk(message=AIMessageChunk("I see."))


def model(script: Any = SKY) -> SpecFuseChatModel:
    return SpecFuseChatModel(members=[ScriptedMember(script)])


def takes(kind: str) -> bool:
    """Whether a block of this kind reaches a member that is a chat model."""
    listener = Listener(heard=[])
    block = {"type": kind, "base64": "AAAA", "mime_type": f"{kind}/x-any"}
    SpecFuseChatModel(members=[listener]).invoke([HumanMessage([block])])
    return block in listener.heard[-1].content


def calls_tools() -> bool:
    call = ScriptedMember.call("City", name="Rome")
    return bool(model(call).bind_tools([City]).invoke("Which?").tool_calls)


def returns_objects() -> bool:
    answer = model({"name": "Rome"}).with_structured_output(City).invoke("Which?")
    return answer == City(name="Rome")


def streams_tokens() -> bool:
    chunks = [chunk.text for chunk in model().stream("Why?") if chunk.text]
    return len(chunks) == len(SKY.split())


def is_natively_async() -> bool:
    return SpecFuseChatModel._astream is not BaseChatModel._astream


def counts_tokens() -> bool:
    return model().invoke("Why?").usage_metadata["output_tokens"] == len(SKY.split())


def has_logprobs() -> bool:
    return bool(model().invoke("Why?", logprobs=True).response_metadata["logprobs"]["content"])


FEATURES: dict[str, Callable[[], bool]] = {
    "Tool calling": calls_tools,
    "Structured output": returns_objects,
    "Image input": lambda: takes("image"),
    "Audio input": lambda: takes("audio"),
    "Video input": lambda: takes("video"),
    "Token-level streaming": streams_tokens,
    "Native async": is_natively_async,
    "Token usage": counts_tokens,
    "Logprobs": has_logprobs,
}


def table() -> dict[str, str]:
    """The page's table of features: column -> cell."""
    lines = PROPOSED.read_text(encoding="utf-8").splitlines()
    head = next(number for number, line in enumerate(lines) if "Tool calling" in line)
    names = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", cell) for cell in cells(lines[head])]
    return dict(zip(names, cells(lines[head + 2]), strict=True))


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_has_the_columns_of_the_template():
    assert list(table()) == list(FEATURES)


@pytest.mark.parametrize("feature", FEATURES)
def test_every_cell_of_the_table_is_true(feature):
    assert table()[feature] == ("✅" if FEATURES[feature]() else "❌")


def test_the_page_and_the_listing_claim_the_same():
    page = yaml.safe_load(PROPOSED.read_text(encoding="utf-8").split("---\n")[1])["integration"]
    listing = yaml.safe_load(LISTING.read_text(encoding="utf-8"))
    assert (page["name"], page["pypi"]) == (listing["display_name"], listing["pypi_package"])
    assert {flag: page[flag] for flag in FLAGS} == listing["capabilities"]
