"""How a chat model is asked to continue a text. This depends on its provider; each row of the table
names its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, convert_to_openai_messages

from ...core.values import Remark
from .remarks import before_answer, sentence_of

Way: TypeAlias = Literal["prefix", "prefix_field", "prefill", "open_message", "instruct", "anew"]
"""The text is the last message, an assistant's:

- ``prefix``: with Mistral's field, which ChatMistralAI sends;
- ``prefix_field``: with DeepSeek's field of the same name. LangChain's class leaves it out, so the
  messages are sent as a part of the body;
- ``prefill``: with nothing else;
- ``open_message``: with vLLM's parameters.

Or a user message comes last:

- ``instruct``: the text, and then a request for the rest;
- ``anew``: a request for a whole answer that begins with the text. It follows a reply that has
  started over, whatever way was tried."""

QUOTED = 80
"""How many of the text's last characters the request to continue it quotes."""
CONTINUE = (
    "Continue your last message exactly where it stops (after: {!r}). Write only what comes "
    "next; repeat nothing."
)
ANEW = (
    "The answer was interrupted. Write the whole answer, and begin it with exactly this text, "
    "which the reader has seen already:\n\n{}"
)
OPEN_MESSAGE = {"continue_final_message": True, "add_generation_prompt": False}
LOOK_UP_S = 1.0
"""How long a server may take to list its models."""


@dataclass(frozen=True, slots=True)
class Ways:
    """How the models of a provider continue a text, the best way first."""

    provider: str
    """LangChain's name of the provider (``ls_provider``); for a server behind ChatOpenAI,
    ``owned_by=`` and the owner in its list of models (``/v1/models``)."""
    ways: Sequence[Way]
    source: str
    """What says so."""


WAYS: Sequence[Ways] = (
    Ways("mistral", ("prefix", "instruct"), "https://docs.mistral.ai/api (prefix)"),
    Ways(
        "deepseek",
        # Only at the address that ends with /beta; other addresses have no such field.
        ("prefix_field", "instruct"),
        "https://api-docs.deepseek.com/guides/chat_prefix_completion; langchain-deepseek 1.1.1 "
        "leaves the field out",
    ),
    Ways(
        "anthropic",
        # Claude 4.6 and later refuse an assistant message at the end.
        ("prefill", "instruct"),
        "https://platform.claude.com/docs/en/about-claude/models/migration-guide",
    ),
    Ways("ollama", ("prefill", "instruct"), "https://github.com/ollama/ollama/issues/6778"),
    Ways("owned_by=library", ("prefill", "instruct"), "Ollama's server, as above"),
    Ways(
        # Not ChatLlamaCpp: llama-cpp-python ends an assistant message
        # (https://github.com/JamePeng/llama-cpp-python/issues/97).
        "owned_by=llamacpp",
        ("prefill", "instruct"),
        "https://github.com/ggml-org/llama.cpp/tree/master/tools/server (--prefill-assistant)",
    ),
    Ways(
        "owned_by=organization_owner",
        ("prefill", "instruct"),
        "LM Studio's server, with llama.cpp",
    ),
    Ways(
        "owned_by=vllm",
        ("open_message", "instruct"),
        "https://github.com/vllm-project/vllm/pull/8942",
    ),
    Ways(
        "owned_by=sglang",
        ("open_message", "instruct"),
        "https://github.com/sgl-project/sglang/pull/4226",
    ),
    Ways(
        "openai",
        ("instruct",),
        "https://platform.openai.com/docs/api-reference/chat: an assistant message is complete",
    ),
    Ways("azure", ("instruct",), "as OpenAI"),
)
OTHERS: Sequence[Way] = ("instruct", "prefill")
"""The ways of any other provider. All models follow instructions; an assistant message at the end
is continued by some, answered by others, and refused by the rest."""
_WAYS = {row.provider: row.ways for row in WAYS}


def ways_of(model: BaseChatModel) -> list[Way]:
    """The ways in which this model may continue a text, the best first.

    >>> from langchain_core.language_models import FakeListChatModel
    >>> ways_of(FakeListChatModel(responses=[]))
    ['instruct', 'prefill']
    """
    provider = str(model._get_ls_params().get("ls_provider"))
    if provider == "openai":
        owner = f"owned_by={_owner_of(model)}"
        provider = owner if owner in _WAYS else provider
    ways = list(_WAYS.get(provider, OTHERS))
    if provider == "deepseek" and not _address_of(model).rstrip("/").endswith("/beta"):
        ways.remove("prefix_field")
    return ways


def _address_of(model: BaseChatModel) -> str:
    """The address of the server that OpenAI's client asks; empty if it is another client."""
    return str(getattr(getattr(model, "root_client", None), "base_url", ""))


def _owner_of(model: BaseChatModel) -> str:
    """Who owns the model, as a server behind ChatOpenAI lists it; empty if it does not say. The
    replies of vLLM are like those of other servers, but its list names it."""
    address = _address_of(model)
    is_openais = "api.openai.com" in address
    if not address or is_openais or getattr(model, "use_responses_api", None):
        return ""
    try:
        client = model.root_client.with_options(  # type: ignore[attr-defined]
            timeout=LOOK_UP_S, max_retries=0
        )
        listed = {entry.id: str(entry.owned_by) for entry in client.models.list()}
    except Exception:  # it has no list, or none for this key
        return ""
    return listed.get(str(getattr(model, "model_name", "")), "")


def asked_to_continue(
    way: Way,
    messages: Sequence[BaseMessage],
    text: str,
    model: BaseChatModel,
    arguments: Mapping[str, Any],
    remarks: Sequence[Remark] = (),
) -> tuple[list[BaseMessage], dict[str, Any]]:
    """The messages and further arguments of a request for what comes after this text. ``remarks``:
    what checks have refused there."""
    text = text.rstrip()  # some providers refuse a message that ends with white space
    if way == "instruct":
        request = CONTINUE.format(text[-QUOTED:])
        if remarks:
            request += f"\n\n{sentence_of(remarks)}"
        return [*messages, AIMessage(text), HumanMessage(request)], dict(arguments)
    messages = before_answer(messages, remarks)
    if way == "anew":
        return [*messages, HumanMessage(ANEW.format(text))], dict(arguments)
    begun = [*messages, AIMessage(text)]
    if way == "prefix":
        begun[-1] = AIMessage(text, additional_kwargs={"prefix": True})
    body: dict[str, Any] = {}
    if way == "open_message":
        body = OPEN_MESSAGE
    elif way == "prefix_field":
        sent = convert_to_openai_messages(begun, text_format="string")
        assert isinstance(sent, list)
        body = {"messages": [*sent[:-1], {**sent[-1], "prefix": True}]}
    if not body:
        return begun, dict(arguments)
    given = arguments.get("extra_body") or getattr(model, "extra_body", None) or {}
    return begun, {**arguments, "extra_body": {**given, **body}}
