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


@pytest.mark.parametrize("template", [INST_END, "<s>" + INST_END, "plain"])
def test_a_prompt_begins_as_the_engine_begins_it(serve: Serve, template: str) -> None:
    """llama.cpp may take the BOS token from what its template writes, for it puts it there itself."""
    made_with = {"chat_template": INST_END if template == "plain" else template}
    own = "plain" if template == "plain" else None
    server, served = serve("llama.cpp", "llama", 2, True, made_with=made_with, name="m", chat_template=own)
    server.begins = True
    served.probe()
    ids = served._speech.prompt_ids(tiny.query().turns)  # type: ignore[union-attr]
    assert ids.count(server.tokenizer.bos_token_id) == 1 and ids[0] == server.tokenizer.bos_token_id


@pytest.mark.parametrize("room", [1, 2, 5])
def test_a_draft_may_come_to_the_end_of_the_context(serve: Serve, room: int) -> None:
    """There llama.cpp tells that something was truncated, also where the whole prompt was read."""
    _, member = serve("llama.cpp", "llama", 2, made_with={"chat_template": INST_END})
    member.probe()
    exact = member._speech
    query = tiny.query(id="q")
    exact._prompts[query.id] = [7] * (1024 - room)  # type: ignore[union-attr]
    draft = tiny.reply_of(member, DraftJob(query, (), 10, 64, Sampling()))
    assert isinstance(draft, Draft) and 1 <= len(draft.tokens) <= room


@pytest.mark.parametrize("engine", ENGINES)
def test_what_a_server_was_started_with_changes_no_draft(serve: Serve, engine: str) -> None:
    server, member = serve(engine)
    member.draft([DraftJob(tiny.query(id="q"), (), 5, 9, Sampling(0.7))])
    told = server.asked[-1][1]
    told = told.get("sampling_params", told)
    assert told["presence_penalty"] == told["frequency_penalty"] == 0.0
    assert engine != "llama.cpp" or (told["mirostat"], told["dynatemp_range"]) == (0, 0.0)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_template_that_the_server_would_ignore_is_refused(serve: Serve, engine: str) -> None:
    template = "{% for m in messages %}Q: {{ m.content }} A:{% endfor %}"
    _, member = serve(engine, lends=True, chat_template=template)
    with pytest.raises(UsageError, match="renders with its own template"):
        member.probe()
    _, here = serve(engine, chat_template=template)
    here.probe()
    assert here._speech.template.prompt([Turn("user", "x")]) == "Q: x A:"  # type: ignore[union-attr]


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


def test_numbers_after_a_temperature_are_found_out_and_not_used(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """As vLLM tells them with ``--logprobs-mode processed_logprobs``; the loop asks for the right ones then."""
    server, member = serve("vllm", name="m")
    plain = server.drawn

    def processed(ids: Any, count: int, temperature: float, *more: Any) -> Any:
        tokens, rows, ended = plain(ids, count, temperature, *more)
        return tokens, [(row / (temperature or 1.0)).log_softmax(-1) for row in rows], ended

    jobs = [DraftJob(tiny.query(id="q"), (), 5, 9, Sampling(temperature, seed=3)) for temperature in (0.0, 0.4, 1.0)]
    assert all(tiny.reply_of(member, job).logprobs for job in jobs)  # type: ignore[union-attr]
    member.unload()
    monkeypatch.setattr(server, "drawn", processed)
    told = [tiny.reply_of(member, job).logprobs for job in jobs]  # type: ignore[union-attr]
    assert member.probe().scores and told[0] and told[1] is None and told[2]


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


def test_a_chat_that_loses_white_space_is_refused(serve: Serve) -> None:
    server, member = serve("chat", lends=True)

    def stripped(told: dict[str, Any]) -> dict[str, Any]:
        message = told["choices"][0]["message"]
        message["content"] = message["content"].strip()
        return told

    server.fault = lambda path, _: stripped if path.endswith("completions") else None
    with pytest.raises(MemberError, match="glues words together"):
        member.probe()


@pytest.mark.parametrize("refuses", [False, True])
def test_a_chat_is_sampled_as_far_as_its_server_takes_it(
    serve: Serve, refuses: bool, caplog: pytest.LogCaptureFixture
) -> None:
    server, member = serve("chat", lends=True, repetition_penalty=1.2)
    member.probe()
    server.fault = lambda path, before: 400 if refuses and "top_k" in (server.asked[before][1] or ()) else None
    server.asked.clear()
    job = DraftJob(tiny.query(id="q"), (), 5, 5, Sampling(0.7, top_k=5, min_p=0.1))
    for _ in range(2):
        assert isinstance(tiny.reply_of(member, job), Draft)
    wanted = {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.2}
    told = [wanted.items() <= body.items() for _, body in server.asked]
    assert told == ([True, False, False] if refuses else [True, True])
    assert caplog.text.count("samples without top_k, min_p") == refuses


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


def test_questions_at_once_have_slots_of_their_own(serve: Serve) -> None:
    server, member = serve("llama.cpp", name="m")
    plain = server.reply
    server.reply = lambda path, body: plain(path, body) | ({"total_slots": 4} if path == "/props" else {})  # type: ignore
    member.probe()

    def slots(keys: list[str]) -> list[int]:
        server.asked.clear()
        for key in keys:
            tiny.reply_of(member, DraftJob(tiny.query(key, id=key), (), 1, 1, Sampling()))
        return [body["id_slot"] for path, body in server.asked if path == "/completion"]

    for batch in range(3):
        keys = [f"{batch} {number}" for number in range(4)]
        first = slots(keys)
        assert len(set(first)) == 4 and slots(keys) == first
        for key in keys:
            member.forget(key)
    held = slots(["a", "b", "c", "d"])
    member.forget("c")
    assert slots(["e"]) == [held[2]]


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


@pytest.mark.parametrize("engine", ENGINES)
def test_an_object_that_a_model_spaces_in_its_own_way_is_a_draft(serve: Serve, engine: str) -> None:
    server, member = serve(engine, lends=False)
    member.probe()
    job = DraftJob(tiny.query(id="q", constraint=Constraint("json")), (Segment("{"),), 40, 64, Sampling())
    for written, numbers in (('\n  "a":[1,\n 2],  "b c" : " , "\n}', False), ('"a": [1, 2], "b c": " , "}', True)):
        ids = server.encode(written)

        def drawn(before: Any, count: int, *_: Any, ids: list[int] = ids) -> Any:
            said = next((at for at in range(len(ids), 0, -1) if list(before[-at:]) == ids[:at]), 0)
            told = [*ids, *server.eos][said : said + count]
            rows = [server.rows([*before, *told[:at]])[-1] for at in range(len(told))]
            return told, rows, told[-1] in server.eos

        server.drawn = drawn  # type: ignore[method-assign]
        draft = tiny.reply_of(member, job)
        assert isinstance(draft, Draft) and '"a": [1, 2], "b c": " , "}'.startswith(draft.text or "nothing")
        assert draft.ends is not None and draft.ends[-1] == len(draft.text) and len(draft.ends) == len(draft.tokens)
        assert (draft.logprobs is not None) == numbers


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
    [
        ({"base_url": "ftp://h"}, "begins with http"),
        ({"engine": "ollama"}, "engine must be one of"),
        ({"parallel": 0}, "whole number from 1 on, got 0"),
        ({"timeout": None}, "seconds above 0, got None"),
        ({"timeout": "5"}, "seconds above 0, got '5'"),
        ({"timeout": float("nan")}, "seconds above 0, got nan"),
        ({"retries": 1.5}, "whole number from 0 on, got 1.5"),
        ({"retries": -1}, "whole number from 0 on, got -1"),
        ({"verify": 7}, "path of a file, got 7"),
        ({"seed": "x"}, "seed must be a whole number, got 'x'"),
    ],
)
def test_a_wrong_argument_is_told(told: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        ServerMember(**({"base_url": "http://h:1"} | told))
    assert caught.value.__notes__


@pytest.mark.parametrize(("what", "message"), [("verify", "authorities in"), ("tokenizer", "no tokenizer can be read")])
def test_a_file_that_is_not_there_is_told_with_its_path(serve: Serve, what: str, message: str) -> None:
    _, member = serve("vllm", **{what: "/nowhere/at.all"})
    with pytest.raises(UsageError, match=f"{message}.*/nowhere/at.all") as caught:
        member.probe()
    assert caught.value.__notes__


def test_another_model_than_promised_is_told_with_what_is_served(serve: Serve) -> None:
    _, member = serve("vllm", model="Qwen/Qwen3-8B")
    with pytest.raises(MemberError, match="serves tiny; wanted Qwen/Qwen3-8B") as caught:
        member.probe()
    assert caught.value.kind == "not_found"
