"""Drafts that may not begin with certain tokens, from servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import pytest

from langchain_specfuse import ServerMember
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.engine import Ensemble

from .. import tiny
from ..contract import draft_job, drafted
from ..fake_server import FakeServer
from ..tiny import NEAR

ENGINES = ["vllm", "llama.cpp"]
PATHS = ("/v1/completions", "/completion")

Serve: TypeAlias = Callable[..., tuple[FakeServer, ServerMember]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers: list[FakeServer] = []
    members: list[ServerMember] = []

    def start(engine: str, name: str = "served", **fields: Any) -> tuple[FakeServer, ServerMember]:
        model, tokenizer = tiny.cached("llama", 1)
        server = FakeServer(engine, model, tokenizer)
        vars(server).update(fields)
        servers.append(server)
        members.append(ServerMember(server.url, "tiny", name=name, tokenizer=tokenizer))
        return server, members[-1]

    yield start
    for member in members:
        member.unload()
    for server in servers:
        server.stop()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_server_draws_what_the_same_weights_draw_in_this_process(
    serve: Serve, engine: str
) -> None:
    _, member = serve(engine)
    assert member.probe().excludes
    local, job = tiny.member("llama", 1, name=member.name), draft_job(segment_tokens=5)
    excluded: tuple[int, ...] = ()
    others: tuple[tuple[int, str], ...] = ()
    for _ in range(4):
        restricted = replace(job, excluded=excluded)
        there, here = drafted(member, restricted), drafted(local, restricted)
        assert (there.text, there.tokens) == (here.text, here.tokens)
        if there.logprobs is not None:
            assert there.logprobs == pytest.approx(here.logprobs, abs=NEAR)
        assert there.others == here.others[: len(there.others)]
        others += there.others
        excluded += here.tokens[:1]
    assert others


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_first_token_is_drawn_under_the_exclusion(serve: Serve, engine: str) -> None:
    server, member = serve(engine)
    job = draft_job(segment_tokens=12)
    first = drafted(member, job).tokens[:1]
    server.asked.clear()
    draft = drafted(member, replace(job, excluded=first))
    bodies = [body for path, body in server.asked if path in PATHS]
    sizes = [body.get("max_tokens", body.get("n_predict")) for body in bodies]
    assert len(draft.tokens) > 1
    assert sizes[0] == 1 < sizes[1]
    assert ["logit_bias" in body for body in bodies] == [True, *[False] * (len(bodies) - 1)]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("how", ["refuses", "without"])
def test_a_server_without_the_field_ignores_exclusions(serve: Serve, engine: str, how: str) -> None:
    """``without``: it ignores the field silently. llama-server scores the tokens that hold part of
    a character by this field, so it is draft-only then."""
    _, usual = serve(engine)
    plain = drafted(usual, draft_job())
    _, member = serve(engine, **{how: {"logit_bias"}})
    probe = member.probe()
    assert probe.scores == (engine != "llama.cpp")
    assert not probe.excludes
    restricted = drafted(member, replace(draft_job(), excluded=plain.tokens[:1]))
    assert restricted.tokens == plain.tokens
    assert restricted.others == ()


def test_a_choice_is_still_guided_after_the_first_token(serve: Serve) -> None:
    _, member = serve("vllm")
    query = tiny.query(constraint=Constraint("choice", '["red", "green", "blue"]'))
    job = replace(draft_job(), query=query)
    texts = set()
    excluded: tuple[int, ...] = ()
    for _ in range(3):
        draft = drafted(member, replace(job, excluded=excluded))
        texts.add(draft.text)
        excluded += draft.tokens[:1]
    assert texts == {"red", "green", "blue"}


def test_the_panel_knows_who_excludes(serve: Serve) -> None:
    members = [
        serve("vllm", "able")[1],
        serve("vllm", "unable", without={"logit_bias"})[1],
        tiny.member("llama", 1, name="local"),
    ]
    ensemble = Ensemble(members)
    ensemble.loaded().result()
    panel = ensemble.panel(Settings(lead=None))
    able = [member.name for member in panel.members if member.excludes]
    assert able == ["able", "local"]
    assert [member.size > 0 for member in panel.members] == [False, False, True]
