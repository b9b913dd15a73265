"""Any reply of a server becomes a draft, scores or a failure, and the answer goes on.

The replies of two fake engines are changed: values are replaced, added or removed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from langchain_specfuse import ServerMember
from langchain_specfuse.core.values import (
    KINDS,
    Candidate,
    Draft,
    DraftJob,
    Failure,
    Sampling,
    Scored,
    ScoreJob,
)
from langchain_specfuse.members.server import client
from tests.torture.texts import broken, places_in

from .. import tiny
from ..fake_server import INST_END, FakeServer

ENGINES = ("vllm", "llama.cpp")
HURTING = [
    float("nan"), float("inf"), -1e308, 10**30, 10**400, -1, 0, 1.5, 99999, True, None, "", "x", [], {}, "\ud800", [[]],
    [None], {"content": "x"}, "token_id:7", "token_id:-1", "token_id:99999", "nan", "\x00", [1, 2, 3],
]  # fmt: skip
values = st.sampled_from(HURTING) | broken | st.lists(st.sampled_from(HURTING), max_size=3)


@dataclass(frozen=True)
class Change:
    """A change of one value in a reply."""

    place: int
    how: str
    value: Any = None

    def applied(self, reply: Any) -> Any:
        places = list(places_in(reply))
        value = copy.deepcopy(self.value)  # a second change may modify this value
        if self.how == "all" or not places:
            return value
        holder, key = places[self.place % len(places)]
        if self.how == "gone":
            holder.pop(key)
        elif self.how == "twice" and isinstance(holder, list):
            holder.insert(key, holder[key])
        else:
            holder[key] = value
        return reply


changes = st.builds(
    Change, st.integers(0, 999), st.sampled_from(["other", "other", "gone", "twice", "all"]), values
)


@dataclass
class Faulty:
    """A server whose replies are changed; it records everything that it sent."""

    server: FakeServer
    member: ServerMember

    def __post_init__(self) -> None:
        self.sent: list[Any] = []
        self.changes: list[Change] = []
        self.server.fault = self.fault

    def fault(self, path: str, before: int) -> Any:
        """Change drafts and scores, but not what the server reports about its models and tokens."""
        return self._changed if path.endswith(("completions", "/completion")) else None

    def _changed(self, reply: Any) -> Any:
        reply = copy.deepcopy(reply)
        for change in self.changes:
            reply = change.applied(reply)
        self.sent.append(reply)
        return reply

    def reset(self) -> None:
        self.changes, self.sent = [], []


@pytest.fixture(scope="module", params=ENGINES)
def faulty(request: Any) -> Iterator[Faulty]:
    model, tokenizer = tiny.cached("llama", 2, chat_template=INST_END)
    server = FakeServer(request.param, model, tokenizer)
    member = ServerMember(server.url, tokenizer=tokenizer, name="served", timeout=5.0)
    member.probe()
    yield Faulty(server, member)
    member.unload()
    server.stop()


@pytest.fixture(autouse=True)
def one_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "RETRIES", 0)


fewer = settings(
    max_examples=max(1, settings.default.max_examples // 5),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def leaves(reply: Any) -> Iterator[Any]:
    if isinstance(reply, dict | list):
        for inner in reply.values() if isinstance(reply, dict) else reply:
            yield from leaves(inner)
    else:
        yield reply


def tokens_in(reply: Any) -> set[int]:
    """Return every number in the reply that could be a token."""
    named = [
        str(leaf).removeprefix("token_id:") for leaf in leaves(reply) if not isinstance(leaf, bool)
    ]
    return {int(text) for text in named if text.lstrip("-").isdecimal()}


@fewer
@example(edits=[Change(0, "all", {"choices": [{"message": {"content": ["x"]}}]})], temperature=0.0)
@example(edits=[Change(0, "all", [[]]), Change(0, "other", [[]])], temperature=0.0)
@example(
    edits=[Change(0, "all", {"choices": [{"message": {"content": "\ud800"}}]})], temperature=0.0
)
@given(edits=st.lists(changes, min_size=1, max_size=2), temperature=st.sampled_from([0.0, 0.7]))
def test_a_draft_is_what_the_server_sent_or_a_failure(
    faulty: Faulty, edits: list[Change], temperature: float
) -> None:
    faulty.reset()
    faulty.changes = edits
    job = DraftJob(tiny.query(id="q"), (), 4, 12, Sampling(temperature))
    (reply,) = faulty.member.draft([job])
    if isinstance(reply, Failure):
        assert reply.kind in KINDS and reply.message
        reply.message.encode()
        return
    assert isinstance(reply, Draft) and len(reply.tokens) <= 12
    reply.text.encode()
    assert set(reply.tokens) <= tokens_in(faulty.sent) and all(
        type(token) is int for token in reply.tokens
    )
    assert reply.logprobs is None or len(reply.logprobs) == len(reply.tokens) + reply.ended


@fewer
@given(edits=st.lists(changes, min_size=1, max_size=2))
def test_scores_are_numbers_for_every_candidate_or_a_failure(
    faulty: Faulty, edits: list[Change]
) -> None:
    faulty.reset()
    faulty.changes = edits
    candidates = (Candidate("The sky", False, ("a",)), Candidate(" is blue.", True, ("b",)))
    (reply,) = faulty.member.score([ScoreJob(tiny.query(id="q"), (), candidates)])
    if isinstance(reply, Failure):
        assert reply.kind in KINDS and reply.message
    else:
        assert isinstance(reply, Scored) and len(reply.logprobs) == 2
        assert all(
            isinstance(score, float) and score <= 0 for row in reply.logprobs for score in row
        )
