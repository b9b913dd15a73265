"""The promises on real weights: SmolLM2-135M-Instruct and Gemma-3-270M in float32."""

from __future__ import annotations

import json

import pytest

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import (
    Constraint,
    DraftJob,
    Query,
    Sampling,
    Turn,
)
from langchain_specfuse.demo import GEMMA, SMOLLM2

from .. import engines, tiny
from ..tiny import NEAR

pytestmark = [pytest.mark.real, pytest.mark.long]
NAMES = [SMOLLM2.name, GEMMA.name]
QUESTIONS = [
    "Why is the sky blue?",
    "Write a Python function that adds two numbers.",
    "List three colours. 😀",
]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "known_for": {
            "type": "array",
            "items": {"enum": ["music", "science", "sport"]},
            "maxItems": 2,
        },
    },
    "required": ["name", "born", "known_for"],
}


@pytest.fixture(scope="module")
def members():
    return {member.name: member for member in engines.in_transformers()}


@pytest.mark.parametrize("name", NAMES)
def test_alone_it_writes_what_generate_writes(members, name):
    member, query = members[name], tiny.query(QUESTIONS[1])
    expected = tiny.greedy(member, query, 24)
    rounds = tiny.answered([member], query, Settings(max_tokens=24))
    tokens, text = tiny.tokens_of(rounds, name), tiny.text_of(rounds)
    assert len(text) > 40 and member.words.decode(expected).startswith(text)
    assert tokens == expected[: len(tokens)]
    # a base model writes its end in words
    assert len(tokens) == len(expected) or rounds[-1].finish == "stop"


def test_every_reply_equals_one_without_a_cache(members):
    compared, other = tiny.Compared(members[NAMES[0]]), members[NAMES[1]]
    tiny.relayed([compared, other], tiny.query(QUESTIONS[0]), 3, turns=1)
    constraint = Constraint("json_schema", json.dumps(PERSON))
    tiny.relayed([compared, other], tiny.query(QUESTIONS[0], constraint=constraint), 4, turns=1)
    assert compared.count >= 3 and compared.worst < NEAR


def test_same_replies_alone_or_in_a_crowd_with_and_without_constraints(members):
    member, constraint = members[NAMES[0]], Constraint("json_schema", json.dumps(PERSON))
    queries = [
        *(tiny.query(text) for text in (*QUESTIONS, "Hi! " * 40)),
        tiny.query("Who?", constraint=constraint),
    ]
    jobs = [DraftJob(query, (), 6, 30, Sampling()) for query in queries]
    together = member.draft(jobs)
    for job in jobs:
        member.forget(job.query.id)
    for job, reply in zip(jobs, together, strict=True):
        assert tiny.difference(reply, member.draft([job])[0]) < NEAR
        member.forget(job.query.id)


def test_text_is_conserved_between_two_tokenizers(members):
    settings = Settings(max_tokens=24, method=Method(exit="never", segment_tokens=4))
    rounds = tiny.answered(list(members.values()), tiny.query(QUESTIONS[2]), settings)
    segments, text = [round.segment for round in rounds], tiny.text_of(rounds)
    for member in members.values():
        prompt = member.words.encode("Answer:\n")
        ids = member.words.answer_ids(member.name, prompt, segments)
        assert member.words.added(prompt, ids[len(prompt) :]) == text


@pytest.mark.parametrize("name", NAMES)
def test_every_constrained_answer_parses(members, name):
    query = Query(
        "person",
        (Turn("user", "Who was Marie Curie?"),),
        (),
        Constraint("json_schema", json.dumps(PERSON)),
    )
    answer = json.loads(
        tiny.text_of(tiny.answered([members[name]], query, Settings(max_tokens=80)))
    )
    assert set(answer) == set(PERSON["required"]) and 1000 <= answer["born"] <= 2100
    choice = Query(
        "choice",
        (Turn("user", "Is the sky blue?"),),
        (),
        Constraint("choice", '["Yes", "No, never"]'),
    )
    assert tiny.text_of(tiny.answered([members[name]], choice, Settings(max_tokens=80))) in (
        "Yes",
        "No, never",
    )


def test_the_next_turn_reads_only_new_text_and_equals_a_fresh_reading(members):
    member, query = members[NAMES[0]], tiny.query("Hello there! " * 25 + QUESTIONS[0])
    (draft,) = member.draft([DraftJob(query, (), 6, 30, Sampling())])
    member.forget(query.id)
    answer = Turn("assistant", f"{draft.text} and nothing else.")
    job = DraftJob(tiny.query("And at night?", *query.turns, answer), (), 2, 30, Sampling())
    (warm,), (fresh,) = member.draft([job]), tiny.uncached(member).draft([job])
    assert tiny.difference(warm, fresh) < NEAR
    assert warm.effort.prompt - 40 < warm.effort.reused < warm.effort.prompt
    member.forget(job.query.id)
