"""A member on a fake server drafts and scores like the same weights in this process."""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, ModuleType
from typing import Any

import pytest

from langchain_specfuse import Method, ServerMember, SpecFuseChatModel
from langchain_specfuse.chat.references import checked_member, names_of
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Candidate, DraftJob, Sampling, ScoreJob, Segment
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.server.tokenizers import (
    KEPT_CHARS,
    KEPT_REPLIES,
    ServerTokenizer,
    TokenizingEngine,
)
from langchain_specfuse.members.text.templates import Template
from langchain_specfuse.members.text.words import Words

from .. import tiny
from ..contract import drafted, streamed
from ..fake_server import INST_END, FakeServer

Serve = Callable[..., tuple[FakeServer, ServerMember]]
ENGINES = ("vllm", "llama.cpp")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a fake server and a member on it; ``lends`` makes the member
    use the server's tokenizer."""
    running: list[tuple[FakeServer, ServerMember]] = []

    def make(
        engine: str = "vllm", arch: str = "llama", seed: int = 1, lends: bool = False, **kwargs: Any
    ) -> tuple[FakeServer, ServerMember]:
        model, tokenizer = tiny.cached(arch, seed, **kwargs.pop("made_with", {}))
        server = FakeServer(engine, model, tokenizer)
        running.append(
            (server, ServerMember(server.url, tokenizer=None if lends else tokenizer, **kwargs))
        )
        return running[-1]

    yield make
    for server, member in running:
        member.unload()
        server.stop()


def draft_job() -> DraftJob:
    return DraftJob(tiny.query(id="q"), (), 5, 64, Sampling())


def first_prompt(server: FakeServer, member: ServerMember, job: DraftJob) -> list[int]:
    """Return the token ids of the first request for this draft."""
    member.probe()
    server.asked.clear()
    drafted(member, job)
    paths = ("/v1/completions", "/completion")
    ids = next(body["prompt"] for path, body in server.asked if path in paths)
    return list(ids[0] if isinstance(ids[0], list) else ids)


def test_the_tokens_of_a_conversation_are_asked_for_once(serve: Serve) -> None:
    """vLLM renders it as tokens; their text shows what would be read as a control token, if a text
    could be a part of one."""
    made_with = {"chat_template": INST_END}
    server, member = serve("vllm", "llama", 2, True, made_with=made_with)

    def asked_for(text: str) -> list[str]:
        server.asked.clear()
        job = DraftJob(tiny.query(text), (), 5, 20, Sampling(), leads=True)
        streamed(member, job)
        return [path for path, _ in server.asked]

    for text in ("Why is the sky blue? " * 20, "Why is the sea green? " * 20):
        plain, bracket = asked_for(text), asked_for(f"{text} 1 < 2")
    assert plain == ["/tokenize", "/v1/completions"]
    assert bracket == ["/tokenize", "/detokenize", "/v1/completions"]


@pytest.mark.parametrize(
    "text", ["Why is the sky blue?", " Why?\n", "INST", "/", "1 < 2", "[INST]"]
)
def test_the_tokens_of_a_conversation_do_not_depend_on_how_they_are_asked_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    server, member = serve("vllm", "llama", 2, True, made_with={"chat_template": INST_END})
    job = DraftJob(tiny.query(text), (), 5, 20, Sampling())
    found = first_prompt(server, member, job)
    member.forget(job.query.id)
    monkeypatch.setattr(Template, "tokens", lambda self, turns: [])
    assert first_prompt(server, member, job) == found


def test_several_texts_are_tokenized_on_a_server_at_once() -> None:
    """Answers that began together waited for each other's requests."""
    both = threading.Barrier(2)

    class Engine(TokenizingEngine):
        def encode(self, text: str, marks: bool) -> list[int]:
            both.wait(30.0)
            return [len(text)]

        def decode(self, ids: Sequence[int]) -> str:
            return ""

        def render(self, body: Mapping[str, Any]) -> str:
            return ""

    words = Words(ServerTokenizer(Engine()))
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(words.encode, ["a", "bc"])) == [[1], [2]]


# --- equal to the same weights in this process ----------------------------------------------------


@pytest.mark.parametrize("lends", [False, True], ids=["local tokenizer", "the server's tokenizer"])
@pytest.mark.parametrize("engine", ENGINES)
def test_same_answer_on_a_server_and_in_this_process(
    serve: Serve, engine: str, lends: bool
) -> None:
    # With this template one token ends a turn: what a server with its own tokenizer can know. With
    # this tokenizer no token is half a character, for which llama.cpp reports no numbers.
    made_with = {"chat_template": INST_END} | (
        {"tokenizer": "unigram"} if engine == "llama.cpp" else {}
    )
    seed = 3 if engine == "llama.cpp" else 2
    _, served = serve(engine, "llama", seed, lends, made_with=made_with, name="m")
    here = tiny.member("llama", seed, made_with=made_with, name="m")
    for size in (3, 10):
        settings = Settings(method=Method(segment_tokens=size), max_tokens=30, logprobs=True)
        there, expected = (
            tiny.answered([member], tiny.query(id="q"), settings) for member in (served, here)
        )
        assert tiny.text_of(there) == tiny.text_of(expected)
        assert tiny.tokens_of(there, "m") == tiny.tokens_of(expected, "m")
        numbers = [
            [number for round in rounds for number in round.drafts["m"].logprobs or ()]
            for rounds in (there, expected)
        ]
        assert numbers[0] == pytest.approx(numbers[1], abs=1e-4)


@pytest.mark.parametrize("engine", ["vllm", "vllm that we start"])
@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
def test_same_scores_on_a_server_and_in_this_process(serve: Serve, arch: str, engine: str) -> None:
    """This covers own segments, others' text, ends by token, and ends by text (gpt2 has no chat
    template)."""
    _, served = serve(engine, arch, name="m")
    here = tiny.member(arch, 1, name="m")
    draft = drafted(here, draft_job())
    answer = (Segment(draft.text, False, {"m": draft.tokens}), Segment(" The sky is"))
    texts = ((" blue because", False), ("", True), (" 天空 and\n\n- one", True), ("\nx", False))
    job = ScoreJob(
        tiny.query(id="q"),
        answer,
        tuple(Candidate(*text_and_end, ("x",)) for text_and_end in texts),
    )
    assert tiny.difference(tiny.reply_of(served, job), tiny.reply_of(here, job)) < 1e-4


def test_llama_cpp_scores_incomplete_characters(serve: Serve) -> None:
    """llama.cpp's grammar fails at them and reports no number, so they are scored token by
    token."""
    made_with = {"chat_template": INST_END, "tokenizer": "pieces-bare"}
    server, served = serve("llama.cpp", made_with=made_with, name="m")
    here = tiny.member("llama", 1, made_with=made_with, name="m")
    server.eos = server.eos[:1]  # one token ends a turn, as in the local member
    texts = ((" 🎉 天鵡", False), ("Ω鵡", True))
    job = ScoreJob(
        tiny.query(id="q"),
        (Segment("The sky"),),
        tuple(Candidate(*text_and_end, ("x",)) for text_and_end in texts),
    )
    assert tiny.difference(tiny.reply_of(served, job), tiny.reply_of(here, job)) < 1e-4
    assert any("logit_bias" in body for _, body in server.asked if body)


@pytest.mark.parametrize("template", [INST_END, "<s>" + INST_END, "plain"])
def test_a_prompt_has_one_beginning_token(serve: Serve, template: str) -> None:
    """llama.cpp adds the BOS token itself and may remove it from the rendered template."""
    made_with = {"chat_template": INST_END if template == "plain" else template}
    chat_template = "plain" if template == "plain" else None
    server, served = serve(
        "llama.cpp", "llama", 2, True, made_with=made_with, name="m", chat_template=chat_template
    )
    server.begins = True
    prompt = first_prompt(server, served, draft_job())
    assert (
        prompt.count(server.tokenizer.bos_token_id) == 1
        and prompt[0] == server.tokenizer.bos_token_id
    )


# --- finding out what it can do -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "field", "scores"),
    [
        ("vllm", "logprob_token_ids", "echo"),
        ("llama.cpp", "grammar", ""),
    ],
)
def test_an_engine_that_ignores_unknown_fields_is_detected(
    serve: Serve, engine: str, field: str, scores: str
) -> None:
    """Older versions ignore them. A member that cannot score only drafts."""
    server, member = serve(engine)
    server.without = {field}
    probe = member.probe()
    assert (
        probe.scores == bool(scores)
        and (f"scores by {scores}" if scores else "draft-only") in probe.detail
    )
    assert drafted(member, draft_job())


def test_shifted_scores_are_detected(serve: Serve) -> None:
    """llama-cpp-python reports each token with the number of the token before."""
    server, member = serve("vllm")
    server.without = {"logprob_token_ids"}

    def shifted(reply: dict[str, Any]) -> dict[str, Any]:
        for choice in reply.get("choices", ()):
            row = choice["logprobs"]["token_logprobs"]
            if row[0] is None:
                choice["logprobs"]["token_logprobs"] = [None, -0.5, *row[1:-1]]
        return reply

    server.fault = lambda path, _: shifted if path.endswith("completions") else None
    assert not member.probe().scores


def test_any_other_server_joins_as_a_chat_model_only(serve: Serve) -> None:
    _, member = serve("other")
    refused = "tokenizer= for a server other than vLLM and llama-server is no longer supported"
    with pytest.raises(UsageError, match=refused) as caught:
        member.probe()
    (note,) = caught.value.notes
    assert "leave out tokenizer=" in note and "ChatOpenAI(base_url=..., model=...)" in note


def test_a_template_of_your_own_needs_a_tokenizer_here(serve: Serve) -> None:
    """Both engines render with their own."""
    for engine in ENGINES:
        _, member = serve(engine, lends=True, chat_template=INST_END)
        with pytest.raises(UsageError, match="renders with its own template") as caught:
            member.probe()
        assert "tokenizer=" in caught.value.notes[0]


def test_a_gateway_that_passes_on_completions_only_needs_a_tokenizer_here(serve: Serve) -> None:
    server, member = serve("vllm", lends=True)
    server.fault = lambda path, _: None if path.startswith("/v1") else 404
    with pytest.raises(UsageError, match="it offers no tokenizer") as caught:
        member.probe()
    assert "tokenizer=" in caught.value.notes[0]


# --- requests -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "score"),
    [("vllm", "/v1/completions"), ("vllm that we start", "/v1/specfuse/score")],
)
def test_a_round_costs_one_request_to_draft_and_one_to_score(
    serve: Serve, engine: str, score: str
) -> None:
    server, member = serve(engine)
    member.probe()
    answer = (Segment("The sky"),)
    candidates = tuple(Candidate(text, False, ("x",)) for text in (" is blue", " is red and wide"))
    jobs = (
        DraftJob(tiny.query(id="q"), answer, 10, 10, Sampling()),
        ScoreJob(tiny.query(id="q"), answer, candidates),
    )
    for job, path in zip(jobs, ("/v1/completions", score), strict=True):
        server.asked.clear()
        tiny.reply_of(member, job)
        assert [asked for asked, _ in server.asked] == [path]


def test_an_answer_under_a_schema_is_complete_whichever_member_writes(serve: Serve) -> None:
    _, member = serve("vllm", name="served")
    here = tiny.member("llama", 2, name="here")
    llm = SpecFuseChatModel(
        members=[member, here], max_tokens=40, method={"exit": "never", "segment_tokens": 6}
    )
    values = {
        "color": {"enum": ["red", "blue"]},
        "n": {"type": "integer", "minimum": 0, "maximum": 9},
    }
    schema = {
        "type": "object",
        "properties": values,
        "required": [*values],
        "additionalProperties": False,
    }
    answer = llm.invoke(
        "Why?",
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    )
    assert set(json.loads(str(answer.text))) == set(values)
    assert answer.response_metadata["specfuse"]["exits"] == []


# --- arguments ------------------------------------------------------------------------------------


def test_a_server_is_named_by_its_address_and_model() -> None:
    first, second = (ServerMember("http://h:8000/v1", "m", name=name) for name in "ab")
    # They need not wait for each other, because the server forms batches.
    assert first.device != second.device
    names = names_of(
        ["http://h:8000/v1#Qwen/Qwen3-8B", "https://h/v1", "http://h:8000/v1#Qwen/Qwen3-8B"]
    )
    assert names == ["Qwen3-8B", "h", "Qwen3-8B#2"]
    with pytest.raises(UsageError, match="does not name a server"):
        checked_member("http:///v1#m")


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ({"base_url": "ftp://h"}, ["http://", "'ftp://h'"]),
        ({"max_concurrency": 0}, ["max_concurrency", "at least 1", "got 0"]),
        ({"timeout": "5"}, ["timeout", "above 0", "got '5'"]),
        ({"timeout": float("nan")}, ["timeout", "above 0", "got nan"]),
        ({"verify": 7}, ["verify", "True or False or a string", "got 7"]),
        ({"engine": "vllm"}, ["'engine'", "its arguments are base_url, model"]),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused_with_advice(
    argument: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        ServerMember(**({"base_url": "http://h:1"} | argument))
    (note,) = caught.value.notes
    assert [word for word in words if word not in f"{caught.value}{note}"] == []


def test_a_server_with_another_model_is_reported_with_the_models_it_serves(serve: Serve) -> None:
    _, member = serve("vllm", model="Qwen/Qwen3-8B")
    with pytest.raises(MemberError, match=r"serves tiny.*Qwen/Qwen3-8B") as caught:
        member.probe()
    assert caught.value.kind == "not_found"


# --- what it remembers ----------------------------------------------------------------------------


def bytes_of(root: Any) -> int:
    """Return the bytes of text and numbers that are reachable from an object, without modules and
    classes."""
    seen: set[int] = set()
    todo, size = [root], 0
    while todo:
        item = todo.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | threading.Thread):
            continue
        seen.add(id(item))
        size += sys.getsizeof(item) if isinstance(item, str | bytes | int | tuple | list) else 0
        todo += item.__closure__ or () if isinstance(item, FunctionType) else gc.get_referents(item)
    return size


def test_finished_queries_leave_almost_nothing_in_memory(serve: Serve) -> None:
    _, member = serve(lends=True)
    member.probe()
    sizes = []
    for asked in range(9):
        query = tiny.query(f"{asked} The air scatters blue light. " * 30, id=f"long {asked}")
        drafted(member, DraftJob(query, (), 4, 8, Sampling()))
        member.score([ScoreJob(query, (), (Candidate(" blue", False, ("x",)),))])
        open_size = bytes_of(member)
        member.forget(query.id)
        sizes.append(bytes_of(member))
    prompt = open_size - sizes[-1]
    assert prompt > 9 * 900
    assert (sizes[-1] - sizes[0]) / 8 < prompt / 4


class Counting(TokenizingEngine):
    def __init__(self) -> None:
        self.asked: list[str] = []

    def encode(self, text: str, marks: bool) -> list[int]:
        self.asked.append(text)
        return [len(text)]

    def decode(self, ids: Any) -> str:
        return ""

    def render(self, body: Any) -> str:
        return ""


def test_tokens_of_short_texts_are_requested_once_and_few_are_kept() -> None:
    engine = Counting()
    remote = ServerTokenizer(engine)
    long = "x" * (KEPT_CHARS + 1)
    for text in ("short", "short", long, long):
        assert remote(text) == {"input_ids": [len(text)]}
    assert engine.asked == ["short", long, long]
    for number in range(KEPT_REPLIES):
        remote(str(number))
    remote("short")
    assert engine.asked.count("short") == 2
