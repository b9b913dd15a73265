"""Whatever a server replies: a draft of what it sent, scores, or a failure in words; the answer goes on without it.

Real replies of four engines, with something in them exchanged, added or left out.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("httpx")

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from langchain_specfuse import ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import KINDS, Candidate, Draft, DraftJob, Failure, Sampling, Scored, ScoreJob
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members import _http
from langchain_specfuse.members.server import ServerMember
from tests.torture.fuzz import mutations
from tests.torture.texts import broken, places_in

from . import tiny
from .fake_server import INST_END, FakeServer

ENGINES = ("vllm", "sglang", "llama.cpp", "chat")
BLUE = "The sky is blue because the air scatters short waves more than long ones."
HURTING = [
    float("nan"),
    float("inf"),
    -1e308,
    10**30,
    10**400,
    -1,
    0,
    1.5,
    99999,
    True,
    None,
    "",
    "x",
    [],
    {},
    "\ud800",
]
HURTING += [[[]], [None], {"content": "x"}, "token_id:7", "token_id:-1", "token_id:99999", "nan", "\x00", [1, 2, 3]]
values = st.sampled_from(HURTING) | broken | st.lists(st.sampled_from(HURTING), max_size=3)


@dataclass(frozen=True)
class Change:
    """What becomes of one place of a reply."""

    place: int
    how: str
    value: Any = None

    def made(self, told: Any) -> Any:
        places = list(places_in(told))
        value = copy.deepcopy(self.value)  # a second change may lie in what this one put there
        if self.how == "all" or not places:
            return value
        holder, key = places[self.place % len(places)]
        if self.how == "gone":
            holder.pop(key)
        elif self.how == "twice" and isinstance(holder, list):
            holder.insert(key, holder[key])
        else:
            holder[key] = value
        return told


changes = st.builds(Change, st.integers(0, 999), st.sampled_from(["other", "other", "gone", "twice", "all"]), values)


@dataclass
class Ill:
    """A server whose replies are changed, and all that it has sent."""

    server: FakeServer
    member: ServerMember

    def __post_init__(self) -> None:
        self.sent: list[Any] = []
        self.changes: list[Change] = []
        self.server.fault = self._fault

    def _fault(self, path: str, before: int) -> Any:
        """Drafts and scores are changed; what is told of models and tokens once is not."""
        return self._changed if path.endswith(("completions", "/generate", "/completion")) else None

    def _changed(self, told: Any) -> Any:
        told = copy.deepcopy(told)
        for change in self.changes:
            told = change.made(told)
        self.sent.append(told)
        return told

    def well(self) -> None:
        self.changes, self.sent = [], []


@pytest.fixture(scope="module", params=ENGINES)
def ill(request: Any) -> Iterator[Ill]:
    model, tokenizer = tiny.cached("llama", 2, chat_template=INST_END)
    server = FakeServer(request.param, model, tokenizer)
    own = None if request.param == "chat" else tokenizer
    member = ServerMember(server.url, tokenizer=own, name="served", retries=0, timeout=1.0)
    member.probe()
    yield Ill(server, member)
    member.unload()
    server.stop()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "FIRST_PAUSE_S", 0.001)


fewer = settings(
    max_examples=max(1, settings.default.max_examples // 3),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def leaves(told: Any) -> Iterator[Any]:
    if isinstance(told, dict | list):
        for one in told.values() if isinstance(told, dict) else told:
            yield from leaves(one)
    else:
        yield told


def tokens_in(told: Any) -> set[int]:
    """Every number in it that could be a token's."""
    named = [str(one).removeprefix("token_id:") for one in leaves(told) if not isinstance(one, bool)]
    return {int(one) for one in named if one.lstrip("-").isdecimal()}


@pytest.mark.parametrize("value", [[[]], {"content": "x"}], ids=repr)
def test_a_change_within_another_leaves_the_next_example_as_it_was(value: Any) -> None:
    told = Change(0, "all", value).made({})
    Change(0, "other", value).made(told)
    assert json.dumps(told) and Change(0, "all", value).made({}) in ([[]], {"content": "x"})


@fewer
@example(told=[Change(0, "all", {"choices": [{"message": {"content": ["x"]}}]})], temperature=0.0)
@example(told=[Change(0, "all", [[]]), Change(0, "other", [[]])], temperature=0.0)
@example(told=[Change(0, "all", {"choices": [{"message": {"content": "\ud800"}}]})], temperature=0.0)
@given(told=st.lists(changes, min_size=1, max_size=2), temperature=st.sampled_from([0.0, 0.7]))
def test_a_draft_is_what_the_server_sent_or_a_failure(ill: Ill, told: list[Change], temperature: float) -> None:
    ill.well()
    ill.changes = told
    job = DraftJob(tiny.query(id="q"), (), 4, 12, Sampling(temperature))
    (reply,) = ill.member.draft([job])
    if isinstance(reply, Failure):
        assert reply.kind in KINDS and reply.message
        reply.message.encode()
        return
    assert isinstance(reply, Draft) and len(reply.tokens) <= 12
    reply.text.encode()
    if ill.server.engine == "chat":
        assert not reply.text or any(reply.text in one for one in leaves(ill.sent) if isinstance(one, str))
    else:
        assert set(reply.tokens) <= tokens_in(ill.sent) and all(type(one) is int for one in reply.tokens)
        assert reply.logprobs is None or len(reply.logprobs) == len(reply.tokens) + reply.ended
    json.dumps([reply.effort.read, reply.effort.reused], allow_nan=False)
    assert reply.effort.reused >= 0 and all(isinstance(one, int) for one in (reply.effort.read, reply.effort.reused))


@pytest.mark.parametrize("count", [float("inf"), float("nan"), -5, 2.5, "x", True, 10**30], ids=repr)
def test_a_cache_that_is_told_wrongly_changes_no_count(ill: Ill, count: Any) -> None:
    ill.well()

    def changed(told: Any) -> Any:
        if "meta_info" in told:
            told["meta_info"]["cached_tokens"] = count
        elif "timings" in told:
            told["timings"]["cache_n"] = count
        else:
            told["usage"] = {"prompt_tokens_details": {"cached_tokens": count}}
        return told

    ill.server.fault = lambda path, before: changed
    try:
        (reply,) = ill.member.draft([DraftJob(tiny.query(id="q"), (), 4, 8, Sampling())])
    finally:
        ill.server.fault = ill._fault
    assert isinstance(reply, Draft) and 0 <= reply.effort.reused <= 10_000 and 0 <= reply.effort.read <= 10_000


@fewer
@given(told=st.lists(changes, min_size=1, max_size=2))
def test_scores_are_numbers_for_every_candidate_or_a_failure(ill: Ill, told: list[Change]) -> None:
    ill.well()
    ill.changes = told
    candidates = (Candidate("The sky", False, ("a",)), Candidate(" is blue.", True, ("b",)))
    (reply,) = ill.member.score([ScoreJob(tiny.query(id="q"), (), candidates)])
    if isinstance(reply, Failure):
        assert reply.kind in KINDS and reply.message
    else:
        assert isinstance(reply, Scored) and len(reply.logprobs) == 2
        assert all(isinstance(one, float) and one <= 0 for row in reply.logprobs for one in row)


@settings(fewer, max_examples=max(1, settings.default.max_examples // 6))
@given(told=st.lists(changes, min_size=1, max_size=2), after=st.integers(0, 3))
def test_an_answer_goes_on_whatever_one_server_replies(ill: Ill, told: list[Change], after: int) -> None:
    ill.well()
    count = after

    class Later(list[Change]):
        def __iter__(self) -> Iterator[Change]:
            nonlocal count
            count -= 1
            return iter(told if count < 0 else [])

    ill.changes = Later()
    here = ScriptedMember(BLUE, name="here")
    llm = SpecFuseChatModel(members=[ill.member, here], segment_tokens=4, max_tokens=12)
    answer = llm.invoke("Why is the sky blue?")
    answer.text.encode()
    json.dumps([answer.response_metadata, answer.usage_metadata], allow_nan=False)
    assert answer.response_metadata["specfuse"]["rounds"] >= 1
    ill.well()
    assert llm.invoke("Why?").response_metadata["specfuse"]["exits"] == []


@fewer
@given(told=st.lists(changes, min_size=1, max_size=2), path=st.integers(0, 9))
def test_a_server_that_tells_nonsense_of_itself_is_met_or_refused(ill: Ill, told: list[Change], path: int) -> None:
    """Its list of models, its properties, its tokenizer: what is asked before the first question."""
    server, asked = ill.server, ["models", "props", "tokenize", "detokenize", "template", "completion", "generate"]

    def changed(reply: Any) -> Any:
        reply = copy.deepcopy(reply)
        for change in told:
            reply = change.made(reply)
        return reply

    server.fault = lambda one, before: changed if asked[path % len(asked)] in one else None
    member = ServerMember(server.url, name="new", retries=0, timeout=0.5)
    try:
        reply = member.draft([DraftJob(tiny.query(id="q"), (), 4, 8, Sampling())])[0]
        assert isinstance(reply, Draft | Failure)
    except (MemberError, UsageError):  # a template that refuses is the second
        pass
    finally:
        member.unload()
        server.fault = ill._fault


@fewer
@given(seed=st.integers(0, 255))
def test_bytes_that_are_nearly_json_are_failures_or_drafts(ill: Ill, seed: int) -> None:
    ill.well()
    job = DraftJob(tiny.query(id="q"), (), 4, 8, Sampling())
    ill.member.draft([job])
    right = json.dumps(ill.sent[0]).encode()
    wrong = next(mutations(right, 1, seed))
    ill.server.fault = lambda path, before: wrong
    try:
        (reply,) = ill.member.draft([job])
    finally:
        ill.server.fault = ill._fault
    assert isinstance(reply, Draft | Failure)
    (reply.text if isinstance(reply, Draft) else reply.message).encode()
