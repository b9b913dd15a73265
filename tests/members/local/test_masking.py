"""Drafts under a constraint equal those of a slow loop with masks made by brute force."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from langchain_specfuse.constraints import State, referee_for, vocabulary
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import (
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Failure,
    Sampling,
    ScoreJob,
    Segment,
)
from langchain_specfuse.members.local.logits import end_logprobs, logprobs_of, sample
from tests.methods import in_method

from .. import tiny
from ..tiny import NEAR

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def tool(name, **keys):
    schema = {
        "type": "object",
        "properties": keys,
        "required": list(keys),
        "additionalProperties": False,
    }
    return {"name": name, "parameters": schema}


WEATHER = tool(
    "get_weather",
    city={"type": "string", "maxLength": 10},
    unit={"enum": ["celsius", "fahrenheit"]},
)
ADD = tool(
    "add", first={"type": "integer", "maximum": 99, "minimum": 0}, second={"enum": [1, 22, 333]}
)


def calls(*tools, parallel=False):
    return json.dumps({"tools": tools, "parallel": parallel})


BOUND = {
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "json": Constraint("json"),
    "regex": Constraint("regex", "[a-c]{3,9}-[0-9]+ and [a-z ]{2,20}!"),
    "choice": Constraint("choice", '["New York", "New Delhi", "Paris", "天空 is é"]'),
    "calls": Constraint("calls", calls(WEATHER, ADD)),
    "union": Constraint(
        "any_of", json.dumps([["calls", calls(WEATHER)], ["json_schema", json.dumps(SCHEMA)]])
    ),
}
AUTO = Constraint(
    "any_of", json.dumps([["prose", ""], ["calls", calls(WEATHER, ADD, parallel=True)]])
)
ARCHS = ["llama", "gemma3", "bloom", "qwen3-next"]
"""Byte-level, BPE and unigram tokenizers; models with and without attention."""


def text_of(answer):
    return "".join(segment.text for segment in answer)


# --- comparison with brute force ------------------------------------------------------------------


def brute_force(state, size, stops):
    """Return the mask by asking about every single token."""
    return np.array([state.may_end() if k in stops else state.fork().put(k) for k in range(size)])


@torch.inference_mode()
def retraced(member, job, draft):
    """Return the draft as a loop without caches or bit masks writes it."""
    weights, words = member.cache.weights, member.words
    state = (
        vocabulary(words.tokenizer, weights.vocabulary_size, member.stops)
        .grammar(job.query.constraint)
        .start()
    )
    text = text_of(job.answer)
    assert state.advance(text) == len(text.encode())
    prompt = member.prompts.prompt(job.query.turns, (), job.query.constraint)
    ids = words.answer_ids(member.name, prompt, job.answer)
    how = replace(job.sampling, repetition_penalty=None)
    for at, token in enumerate(draft.tokens):
        logits = (
            weights.model(torch.tensor([ids], device=tiny.DEVICE), use_cache=False)
            .logits[0, -1]
            .cpu()
            .numpy()
        )
        assert draft.logprobs[at] == pytest.approx(logprobs_of(logits[None], [token])[0], abs=NEAR)
        legal = brute_force(state, len(logits), member.stops)
        assert legal[token]
        assert sample(np.where(legal, logits, -np.inf)[None], [how], [ids]) == [token]
        assert state.put(token)
        ids = [*ids, token]
    if draft.ended and not state.must_end():
        logits = (
            weights.model(torch.tensor([ids], device=tiny.DEVICE), use_cache=False)
            .logits[0, -1]
            .cpu()
            .numpy()
        )
        assert draft.logprobs[-1] == pytest.approx(
            end_logprobs(logits[None], member.stops)[0], abs=NEAR
        )
    elif draft.ended:
        assert draft.logprobs[-1] == 0.0 and len(draft.logprobs) == len(draft.tokens) + 1


@pytest.mark.parametrize(
    ("kind", "arch"),
    [
        # each kind with two architectures; with all in the long tests
        pytest.param(kind, arch, marks=() if (first + second) % 2 else pytest.mark.long)
        for first, kind in enumerate(BOUND)
        for second, arch in enumerate(ARCHS)
    ],
)
def test_every_draft_is_what_a_brute_force_loop_writes(arch, kind):
    member, query, jobs = tiny.member(arch, 1), tiny.query(constraint=BOUND[kind]), []
    warm = {"temperature": 0.8, "top_p": 0.95, "seed": 5} if kind in ("schema", "regex") else {}
    settings = Settings(**in_method(max_tokens=40, segment_tokens=5, **warm))
    rounds = tiny.answered(
        [member], query, settings, after=lambda a, r: jobs.append((*a.jobs.values(), *r.values()))
    )
    for job, draft in jobs[:3]:
        retraced(member, job, draft)
    text = tiny.text_of(rounds)
    assert referee_for(query.constraint).legal("", text) == len(text)


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["llama", pytest.param("qwen3-next", marks=pytest.mark.long)])
def test_same_constrained_drafts_alone_or_in_a_crowd(arch):
    """Some queries are constrained and some are not, at different positions of their answers."""
    member, apart = tiny.member(arch, 1), tiny.member(arch, 1)
    queries = [
        tiny.query("Sky. " * (1 + k), constraint=c)
        for k, c in enumerate([*BOUND.values(), None, AUTO])
    ]
    answers = {query.id: () for query in queries}
    for _ in range(4):
        jobs = [
            DraftJob(query, answers[query.id], 4 + k, 60, Sampling())
            for k, query in enumerate(queries)
        ]
        for job, reply in zip(jobs, member.draft(jobs), strict=True):
            assert tiny.difference(reply, apart.draft([job])[0]) < NEAR
            new = (*answers[job.query.id], Segment(reply.text, tokens={member.name: reply.tokens}))
            forced = referee_for(job.query.constraint).forced(text_of(new))
            answers[job.query.id] = (*new, Segment(forced)) if forced else new
            if reply.ended:
                queries.remove(job.query)


# --- failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", ["put", "mask", "forced", "must_end"])
def test_a_grammar_that_fails_is_a_failure_of_its_query_alone(broken, monkeypatch):
    member, choice = tiny.member("llama", 1), Constraint("choice", '["abc", "abd"]')
    honest = getattr(State, broken)

    def fails(state, *arguments):
        # only the choice begins like this, and only at its start
        if state.fork().advance("ab") == 2:
            raise RuntimeError("the grammar broke")
        return honest(state, *arguments)

    monkeypatch.setattr(State, broken, fails)
    queries = [tiny.query(), tiny.query(constraint=choice), tiny.query(constraint=BOUND["schema"])]
    answers = [(), (), (Segment('{"name": "x", "age": 3, "tags": ['),)]
    jobs = [
        DraftJob(query, answer, 5, 20, Sampling())
        for query, answer in zip(queries, answers, strict=True)
    ]
    bound, none, other = member.draft(jobs)
    assert isinstance(none, Failure) and "the grammar broke" in none.message
    assert isinstance(bound, Draft) and isinstance(other, Draft) and bound.text and other.text


def test_an_answer_that_does_not_fit_is_a_failure_and_the_next_job_is_answered():
    member, query = tiny.member("llama", 1), tiny.query(constraint=BOUND["schema"])
    wrong, right = (
        DraftJob(query, (Segment(text),), 5, 20, Sampling())
        for text in ('{"nome": 1', '{"name": "')
    )
    assert "does not fit" in member.draft([wrong])[0].message
    assert isinstance(member.draft([right])[0], Draft)


def test_a_complete_answer_ends_without_a_token():
    member, query = (
        tiny.member("llama", 1),
        tiny.query(constraint=Constraint("choice", '["yes", "no"]')),
    )
    (draft,) = member.draft([DraftJob(query, (Segment("yes"),), 5, 20, Sampling())])
    assert (draft.text, draft.ended, draft.tokens, draft.logprobs, draft.ends) == (
        "",
        True,
        (),
        (0.0,),
        (),
    )


# --- ends of drafts -------------------------------------------------------------------------------

SHORT = json.loads(calls(tool("f", a={"enum": [1, 22, 333]}), parallel=True)) | {
    "begin": "[[",
    "end": "]]",
}
CHAT = Constraint("any_of", json.dumps([["prose", ""], ["calls", json.dumps(SHORT)]]))
CALLED = '[[{"name": "f", "arguments": {"a": 22}}]]'
CALL = '<tool_call>\n{"name": "add", "arguments": {"first": 20, "second": 22}}\n</tool_call>'


def written(constraint, text, **settings):
    """Return the rounds of a member that wants to write this text and answers alone."""
    query = tiny.query(constraint=constraint)
    return tiny.answered(
        [tiny.wishful(query, text)], query, Settings(**in_method(**{"max_tokens": 300} | settings))
    )


def test_parallel_calls_are_voted_on_one_by_one():
    other = CALLED.replace("22", "333")
    rounds = written(CHAT, f"{CALLED}\n{other}")
    assert tiny.text_of(rounds) == f"{CALLED}\n{other}"
    assert rounds[0].segment.text == CALLED and not rounds[0].segment.ended
    assert rounds[-1].finish == "stop"


def test_a_repeated_call_ends_the_answer():
    rounds = written(CHAT, "\n".join([CALLED] * 9), max_tokens=900)
    assert (tiny.text_of(rounds), rounds[-1].finish, len(rounds)) == (CALLED, "stop", 2)


def test_a_call_longer_than_its_budget_continues_in_the_next_draft():
    query = tiny.query(constraint=BOUND["calls"])
    member, answer = tiny.wishful(query, CALL), (Segment('<tool_call>\n{"name": "'),)
    for count in range(1, 9):  # noqa: B007
        (draft,) = member.draft([DraftJob(query, answer, 4, 200, Sampling(), call_tokens=16)])
        answer = (*answer, Segment(draft.text, tokens={"wishful": draft.tokens}))
        if draft.ended:
            break
    assert text_of(answer) == CALL and count > 1
    assert draft.ended and draft.logprobs[-1] == 0.0


def test_json_without_spaces_is_cut_after_its_punctuation():
    text = "[[1],[2],[3],[4],[5],[6],[7],[8],[9],[10],[11],[12]]"
    rounds = written(Constraint("regex", r"[\[\]0-9,]+"), text, segment_tokens=5)
    assert tiny.text_of(rounds) == text and len(rounds) > 3
    assert all(round.segment.text[-1] in "{}[],:" for round in rounds)


# --- ends and masks -------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_ends_are_the_character_positions_where_tokens_end(arch):
    member, query, answer = (
        tiny.member(arch, 1),
        tiny.query(constraint=BOUND["schema"]),
        (Segment('{"name":'),),
    )
    texts = ((' "天é"', False), (' "a", "age": 3', True), ("", True))
    candidates = tuple(Candidate(text, ended, ()) for text, ended in texts)
    (scored,) = member.score([ScoreJob(query, answer, candidates)])
    assert member.score([ScoreJob(tiny.query(), answer, candidates)])[0].ends is None
    for row, ends, candidate in zip(scored.logprobs, scored.ends, candidates, strict=True):
        assert len(ends) == len(row) - candidate.ended
        assert list(ends) == sorted(ends) and (ends[-1] if ends else 0) == len(candidate.text)
    (draft,) = member.draft([DraftJob(query, answer, 6, 20, Sampling())])
    assert len(draft.ends) == len(draft.tokens) and draft.ends[-1] == len(draft.text)
