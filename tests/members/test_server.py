"""A member on a server says and scores what the same weights say and score in this process; and how it asks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("httpx")

from langchain_specfuse import SpecFuseChatModel, unload
from langchain_specfuse._registry import checked_member, names_of
from langchain_specfuse.core.values import (
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Sampling,
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members._exact import rest
from langchain_specfuse.members.server import ServerMember

from . import tiny
from .fake_server import INST_END, FakeServer

Serve = Callable[..., tuple[FakeServer, ServerMember]]
ENGINES = ("vllm", "sglang", "llama.cpp")


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server and a member on it."""
    made: list[tuple[FakeServer, ServerMember]] = []

    def make(
        engine: str = "vllm", arch: str = "llama", seed: int = 1, lends: bool = False, **kwargs: Any
    ) -> tuple[FakeServer, ServerMember]:
        model, tokenizer = tiny.cached(arch, seed, **kwargs.pop("made_with", {}))
        server = FakeServer(engine, model, tokenizer)
        own = None if lends else tokenizer
        made.append((server, ServerMember(server.url, **({"tokenizer": own, "retries": 1} | kwargs))))
        return made[-1]

    yield make
    for server, member in made:
        member.unload()
        server.stop()


# --- equal to the same weights in this process ------------------------------------------------------------------


@pytest.mark.parametrize("lends", [False, True], ids=["local tokenizer", "the server's tokenizer"])
@pytest.mark.parametrize("engine", ENGINES)
def test_one_answer_wherever_the_weights_are(serve: Serve, engine: str, lends: bool) -> None:
    # With this template one token ends a turn: what a server with its own tokenizer can know. With this tokenizer no
    # token is half a character, of which llama.cpp tells no numbers.
    made_with = {"chat_template": INST_END} | ({"tokenizer": "unigram"} if engine == "llama.cpp" else {})
    seed = 3 if engine == "llama.cpp" else 2
    _, served = serve(engine, "llama", seed, lends, made_with=made_with, name="m")
    here = tiny.member("llama", seed, made_with=made_with, name="m")
    for size in (3, 10):
        settings = Settings(segment_tokens=size, max_tokens=30)
        there, here_told = (tiny.answered([one], tiny.query(id="q"), settings) for one in (served, here))
        assert tiny.text_of(there) == tiny.text_of(here_told)
        assert tiny.tokens_of(there, "m") == tiny.tokens_of(here_told, "m")
        for one, other in zip(there, here_told, strict=True):
            assert tiny.difference(one.drafts["m"], other.drafts["m"]) < 1e-4


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2"])
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_one_score_wherever_the_weights_are(serve: Serve, engine: str, arch: str) -> None:
    """Own segments, others' text, ends by token and (gpt2, which has no chat template) in words."""
    _, served = serve(engine, arch, name="m")
    here = tiny.member(arch, 1, name="m")
    draft = tiny.reply_of(here, DraftJob(tiny.query(id="q"), (), 5, 9, Sampling()))
    assert isinstance(draft, Draft)
    answer = (Segment(draft.text, False, {"m": draft.tokens}), Segment(" The sky is"))
    texts = ((" blue because", False), ("", True), (" 天空 and\n\n- one", True), ("\nx", False))
    job = ScoreJob(tiny.query(id="q"), answer, tuple(Candidate(*one, ("x",)) for one in texts))
    assert tiny.difference(tiny.reply_of(served, job), tiny.reply_of(here, job)) < 1e-4


def test_llama_cpp_scores_halves_of_characters_too(serve: Serve) -> None:
    """There its grammar breaks, and no number is told of them: they are read token by token."""
    made_with = {"chat_template": INST_END, "tokenizer": "pieces-bare"}
    server, served = serve("llama.cpp", made_with=made_with, name="m")
    here = tiny.member("llama", 1, made_with=made_with, name="m")
    server.eos = server.eos[:1]  # one token ends a turn, here as there
    texts = ((" 🎉 天鵡", False), ("Ω鵡", True))
    job = ScoreJob(tiny.query(id="q"), (Segment("The sky"),), tuple(Candidate(*one, ("x",)) for one in texts))
    assert tiny.difference(tiny.reply_of(served, job), tiny.reply_of(here, job)) < 1e-4
    assert any("logit_bias" in body for _, body in server.asked if body)


def test_both_ways_of_vllm_score_alike(serve: Serve) -> None:
    _, member = serve("vllm", name="m")
    member.probe()
    known = member._speech.known  # type: ignore[union-attr]
    assert list(known) == ["probes", "echo"]
    long = Turn("user", "word " * 200)  # probes from here on
    for query in (tiny.query(id="short"), replace(tiny.query(id="long"), turns=(long,))):
        told = []
        for way in ("probes", "echo"):
            member._speech.known = {way: known[way]}  # type: ignore[union-attr]
            candidates = (Candidate(" is blue", False, ("x",)), Candidate(" is red", True, ("y",)))
            told.append(tiny.reply_of(member, ScoreJob(query, (Segment("The sky"),), candidates)))
        assert tiny.difference(*told) < 1e-4


def test_an_ensemble_of_here_and_there_is_an_ensemble(serve: Serve) -> None:
    """Rounds with a member on each engine agree with those of the same members in this process."""
    served = [serve(engine, "llama", seed, name=f"m{seed}")[1] for seed, engine in ((1, "vllm"), (2, "sglang"))]
    here = [tiny.member("llama", seed, name=f"m{seed}") for seed in (1, 2)]
    settings = Settings(segment_tokens=5, max_tokens=25)
    there, told = (tiny.answered(members, tiny.query(id="q"), settings) for members in (served, here))
    assert [(r.winner, r.text) for r in there] == [(r.winner, r.text) for r in told]
    for one, other in zip(there, told, strict=True):
        for judge, row in other.scores.items():
            assert one.scores[judge] == pytest.approx(row, abs=1e-4)


def test_nothing_of_a_draft_depends_on_stop_strings_being_far(serve: Serve) -> None:
    _, served = serve("vllm", "llama", 2, made_with={"chat_template": INST_END}, name="m")
    here = tiny.member("llama", 2, made_with={"chat_template": INST_END}, name="m")
    whole = tiny.text_of(tiny.answered([here], tiny.query(id="q"), Settings(max_tokens=20)))
    stop = (whole[7:9],)
    settings = Settings(max_tokens=20, stop=stop)
    there, told = (tiny.answered([one], tiny.query(id="q"), settings) for one in (served, here))
    assert tiny.text_of(there) == tiny.text_of(told)
    assert there[-1].finish == told[-1].finish == "stop_string"


# --- finding out what it can do ---------------------------------------------------------------------------------


def test_an_engine_that_ignores_what_it_does_not_know_is_found_out(serve: Serve) -> None:
    server, member = serve("vllm")
    server.without = {"logprob_token_ids"}  # an older vLLM
    assert "scores by echo" in member.probe().detail and "probes" in member.probe().detail


@pytest.mark.parametrize(("engine", "field"), [("sglang", "logprob_start_len"), ("llama.cpp", "grammar")])
def test_a_member_whose_engine_cannot_score_is_draft_only(serve: Serve, engine: str, field: str) -> None:
    server, member = serve(engine)
    server.without = {field}
    probe = member.probe()
    assert not probe.scores and "draft-only" in probe.detail
    assert isinstance(tiny.reply_of(member, DraftJob(tiny.query(), (), 5, 9, Sampling())), Draft)


def test_scores_that_are_shifted_are_found_out(serve: Serve) -> None:
    """As llama-cpp-python tells them: each token with the number of the one before."""
    server, member = serve("vllm")
    server.without = {"logprob_token_ids"}

    def shifted(reply: dict[str, Any]) -> dict[str, Any]:
        for choice in reply.get("choices", ()):
            told = choice["logprobs"]["token_logprobs"]
            if told[0] is None:
                choice["logprobs"]["token_logprobs"] = [None, None, *told[1:-1]]
                choice["logprobs"]["token_logprobs"][1] = -0.5
        return reply

    server.fault = lambda path, _: shifted if path.endswith("completions") else None
    assert not member.probe().scores


def test_a_server_that_only_chats_drafts_and_says_so(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    _, member = serve("chat", lends=True)
    probe = member.probe()
    assert not probe.scores and "draft-only" in probe.detail and "draft-only" in caplog.text
    other = tiny.member("llama", 2, name="other")
    told = tiny.answered([member, other], tiny.query(), Settings(segment_tokens=5, max_tokens=30))
    assert set(told[0].drafts) == {member.name, "other"} and tiny.text_of(told)


def test_a_chat_that_begins_anew_each_time_is_refused(serve: Serve) -> None:
    server, member = serve("chat", lends=True)
    server.without = {"continue_final_message", "add_generation_prompt"}
    with pytest.raises(MemberError, match="does not go on") as caught:
        member.probe()
    assert "vLLM, SGLang or llama.cpp" in caught.value.__notes__[0]


def test_sampled_drafts_of_sglang_come_without_numbers_and_are_scored(serve: Serve) -> None:
    """There they are those after the temperature; the loop asks for the right ones then."""
    _, member = serve("sglang", name="m")
    job = DraftJob(tiny.query(id="q"), (), 5, 9, Sampling(temperature=0.7, seed=3))
    draft = tiny.reply_of(member, job)
    assert isinstance(draft, Draft) and draft.logprobs is None
    greedy = tiny.reply_of(member, replace(job, sampling=Sampling()))
    assert isinstance(greedy, Draft) and greedy.logprobs is not None


def test_a_member_on_a_server_needs_no_torch() -> None:
    code = "import sys; import langchain_specfuse.members.server; print({'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# --- what is asked ----------------------------------------------------------------------------------------------


def test_a_round_costs_one_question_to_draft_and_one_to_score(serve: Serve) -> None:
    server, member = serve("vllm")
    member.probe()
    server.asked.clear()
    answer = (Segment("The sky"),)
    tiny.reply_of(member, DraftJob(tiny.query(id="q"), answer, 10, 10, Sampling()))
    assert [path for path, _ in server.asked] == ["/v1/completions"]
    server.asked.clear()
    candidates = tuple(Candidate(text, False, ("x",)) for text in (" is blue", " is red and wide"))
    tiny.reply_of(member, ScoreJob(tiny.query(id="q"), answer, candidates))
    assert [path for path, _ in server.asked] == ["/v1/completions"]


def test_own_segments_are_sent_as_the_ids_that_were_drawn(serve: Serve) -> None:
    """Random weights write what no tokenizer would split so: read again as text it would be other ids."""
    server, member = serve("vllm", name="m")
    first = tiny.reply_of(member, DraftJob(tiny.query(id="q"), (), 8, 64, Sampling()))
    assert isinstance(first, Draft)
    server.asked.clear()
    own = Segment(first.text, False, {"m": first.tokens})
    tiny.reply_of(member, DraftJob(tiny.query(id="q"), (own,), 8, 64, Sampling()))
    (prompt,) = server.asked[0][1]["prompt"]
    assert tuple(prompt[-len(first.tokens) :]) == first.tokens
    assert prompt[: -len(first.tokens)] == member._speech.prompt_ids(tiny.query().turns)  # type: ignore[union-attr]


def test_a_choice_is_passed_on_as_what_is_left_of_it(serve: Serve) -> None:
    server, member = serve("vllm", name="m")
    query = tiny.query(id="q", constraint=Constraint("choice", '["blue", "black", "red"]'))
    draft = tiny.reply_of(member, DraftJob(query, (Segment("bl"),), 8, 64, Sampling()))
    assert isinstance(draft, Draft) and draft.text in ("ue", "ack") and draft.ended
    assert draft.logprobs is None  # those are after the mask: it is scored like any other
    assert server.asked[-1][1]["structured_outputs"] == {"choice": ["ue", "ack"]}
    assert rest(Constraint("json_schema", "{}"), '{"a') is None


@pytest.mark.parametrize("company", [False, True], ids=["alone", "with one that masks"])
def test_an_answer_under_a_schema_is_whole_whoever_writes(serve: Serve, company: bool) -> None:
    _, member = serve("vllm", name="served")
    here = [tiny.member("llama", 2, name="here")] if company else []
    llm = SpecFuseChatModel(members=[member, *here], segment_tokens=6, max_tokens=40, exit="never")
    values = {"color": {"enum": ["red", "blue"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}}
    schema = {"type": "object", "properties": values, "required": [*values], "additionalProperties": False}
    told = llm.invoke("Why?", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert set(json.loads(str(told.text))) == set(values)
    assert told.response_metadata["specfuse"]["exits"] == []


def test_the_key_comes_from_the_environment(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    server, member = serve("vllm", api_key_env="TINY_KEY")
    server.key = "s3cret"
    with pytest.raises(MemberError, match="401") as caught:
        member.probe()
    assert "TINY_KEY" in caught.value.__notes__[0] and "s3cret" not in str(member.spec)
    monkeypatch.setenv("TINY_KEY", "s3cret")
    assert member.probe().scores


# --- how it is named --------------------------------------------------------------------------------------------


def test_a_server_is_named_by_its_address_and_model() -> None:
    names = names_of(["http://h:8000/v1#Qwen/Qwen3-8B", "https://h/v1", "http://h:8000/v1#Qwen/Qwen3-8B"])
    assert names == ["Qwen3-8B", "h", "Qwen3-8B#2"]
    assert checked_member({"model": "http://h:1/v1#m", "timeout": 5})["timeout"] == 5
    with pytest.raises(UsageError, match="names no server"):
        checked_member("http:///v1#m")


def test_a_chat_model_takes_a_server_s_address(serve: Serve) -> None:
    server, _ = serve("vllm")
    llm = SpecFuseChatModel(members=[f"{server.url}#tiny"], max_tokens=8)
    assert llm.invoke("Why is the sky blue?").text
    assert llm.invoke("Why?").response_metadata["specfuse"]["rounds"]
    unload(f"{server.url}#tiny")


@pytest.mark.parametrize(
    ("told", "message"),
    [({"base_url": "ftp://h"}, "begins with http"), ({"engine": "ollama"}, "engine must be one of")],
)
def test_a_wrong_argument_is_told(told: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ServerMember(**({"base_url": "http://h:1"} | told))


def test_another_model_than_promised_is_told_with_what_is_served(serve: Serve) -> None:
    _, member = serve("vllm", model="Qwen/Qwen3-8B")
    with pytest.raises(MemberError, match="serves tiny; wanted Qwen/Qwen3-8B") as caught:
        member.probe()
    assert caught.value.kind == "not_found"
