"""Fake servers on loopback: vLLM, llama-server, Ollama and LM Studio."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from langchain_specfuse import Method, ServerMember, SpecFuseChatModel
from tests.members import tiny
from tests.members.fake_chat_server import FakeChatServer
from tests.members.fake_server import INST_END, FakeServer

from .record import asked, identity, shortened
from .scripted import BLUE, WIDE, Speaker, members
from .tiny_models import QUESTION, SCHEMA, chat_model, conversation

MODELS: Mapping[str, tuple[str, int, dict[str, Any]]] = {
    "vllm": ("gemma3", 1, {}),
    # In this tokenizer no token is half a character, for which llama.cpp reports no numbers.
    "llama.cpp": ("llama", 3, {"tokenizer": "unigram", "chat_template": INST_END}),
}


@contextmanager
def served(
    engine: str, lends: bool = False, **options: Any
) -> Iterator[tuple[FakeServer, ServerMember]]:
    """A fake server and a member on it. ``lends``: the server turns text into tokens."""
    arch, seed, changes = MODELS[engine]
    model, tokenizer = tiny.build(arch, seed, **changes)
    server = FakeServer(engine, model, tokenizer)
    lent = None if lends else tokenizer
    try:
        yield server, ServerMember(server.url, tokenizer=lent, name=f"m-{engine}", **options)
    finally:
        server.stop()


WORK = ("completions", "completion")
"""Requests for tokens or scores; the others ask about the tokenizer."""


def requests(server: FakeServer) -> list[str]:
    """Every request for tokens or scores, with the length of its prompt instead of the ids."""
    return sorted(
        f"{path} {json.dumps(shortened(body), sort_keys=True)}"
        for path, body in server.asked
        if path.endswith(WORK)
    )


def of_engine(engine: str, lends: bool = False) -> dict[str, Any]:
    with served(engine, lends) as (server, member), chat_model(member, max_tokens=12) as llm:
        record = {turn: undivided(said) for turn, said in conversation(llm).items()}
        requests_of_conversation = requests(server)
        server.asked.clear()
        sampled = asked(llm, QUESTION, temperature=0.8, seed=3)["message"]["content"]
        return record | {
            "requests": requests_of_conversation,
            "temperature 0.8": sampled,
            "requests at temperature 0.8": requests(server),
        }


def undivided(record: dict[str, Any]) -> dict[str, Any]:
    """An answer without its rounds: how a stream is divided depends on its arrival."""
    message = record["message"]
    message["response_metadata"]["specfuse"].pop("rounds")
    return {"message": message}


def vllm() -> dict[str, Any]:
    return of_engine("vllm")


def vllm_tokenizes() -> dict[str, Any]:
    return of_engine("vllm", lends=True)


def llama_server() -> dict[str, Any]:
    return of_engine("llama.cpp")


def llama_server_tokenizes() -> dict[str, Any]:
    return of_engine("llama.cpp", lends=True)


def together() -> dict[str, Any]:
    """Two servers vote, also on a draft that a scripted member wrote."""
    with ExitStack() as stack:
        pairs = [stack.enter_context(served(engine)) for engine in MODELS]
        all_members = [member for _, member in pairs] + members(ann=BLUE)
        llm = stack.enter_context(chat_model(*all_members, max_tokens=15))
        record = asked(llm, QUESTION)
        return record | {
            "requests": {server.engine: requests(server) for server, _ in pairs},
            **identity(llm),
        }


def constrained() -> dict[str, Any]:
    with ExitStack() as stack:
        pairs = [stack.enter_context(served(engine)) for engine in ("vllm", "llama.cpp")]
        llm = stack.enter_context(chat_model(*(member for _, member in pairs), max_tokens=40))
        record = asked(llm, QUESTION, response_format=SCHEMA)
        return record | {"requests": {server.engine: requests(server) for server, _ in pairs}}


def failing() -> dict[str, Any]:
    """A server that fails from its third request on."""
    with ExitStack() as stack:
        server, member = stack.enter_context(served("vllm"))
        member.probe()
        before = len(server.asked)
        server.fault = lambda path, count: 400 if count > before + 2 else None
        llm = stack.enter_context(chat_model(member, *members(ann=BLUE), max_tokens=15))
        return asked(llm, QUESTION)


def chats(kind: str, name: str, path: str) -> dict[str, Any]:
    server = FakeChatServer(kind, Speaker(script=BLUE))
    first = f"{server.url}{path}#{name}"
    all_members = [first, *members(bob=WIDE)]
    llm = SpecFuseChatModel(members=all_members, method=Method(segment_tokens=4), lead=None)
    try:
        record = asked(llm, "Why is the sky blue?")
        sampled = asked(llm, "Why is the sky blue?", temperature=0.7, seed=3)
    finally:
        llm.unload()
        server.stop()
    bodies = sorted(json.dumps(body, sort_keys=True) for body in server.asked)
    return record | {"sampled": sampled["message"]["content"], "requests": bodies}


def ollama() -> dict[str, Any]:
    return chats("ollama", "llama3.2", "")


def lm_studio() -> dict[str, Any]:
    return chats("lm studio", "my-model", "/v1")


SCENARIOS = [
    vllm,
    vllm_tokenizes,
    llama_server,
    llama_server_tokenizes,
    together,
    constrained,
    failing,
    ollama,
    lm_studio,
]
