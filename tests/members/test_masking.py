"""Drafting under a constraint: every token is what a slow loop draws under a mask made by brute force."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from langchain_specfuse.constraints import State, referee_for, vocabulary
from langchain_specfuse.core.values import (
    Candidate,
    Constraint,
    Draft,
    DraftJob,
    Failure,
    Sampling,
    ScoreJob,
    Segment,
    Settings,
)
from langchain_specfuse.members import _bound
from langchain_specfuse.members._bound import masked, unpacked
from langchain_specfuse.members._loading import width
from langchain_specfuse.members._sampling import chosen, end_logprobs, logprobs_of
from langchain_specfuse.members._stores import Read, Rereading

from . import tiny
from .test_transformers_cache import NEAR, Doubled

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
    schema = {"type": "object", "properties": keys, "required": list(keys), "additionalProperties": False}
    return {"name": name, "parameters": schema}


WEATHER = tool("get_weather", city={"type": "string", "maxLength": 10}, unit={"enum": ["celsius", "fahrenheit"]})
ADD = tool("add", first={"type": "integer", "maximum": 99, "minimum": 0}, second={"enum": [1, 22, 333]})


def calls(*tools, parallel=False):
    return json.dumps({"tools": tools, "parallel": parallel})


BOUND = {
    "schema": Constraint("json_schema", json.dumps(SCHEMA)),
    "json": Constraint("json"),
    "regex": Constraint("regex", "[a-c]{3,9}-[0-9]+ and [a-z ]{2,20}!"),
    "choice": Constraint("choice", '["New York", "New Delhi", "Paris", "天空 is é"]'),
    "calls": Constraint("calls", calls(WEATHER, ADD)),
    "parallel": Constraint("calls", calls(ADD, parallel=True)),
    "union": Constraint("any_of", json.dumps([["calls", calls(WEATHER)], ["json_schema", json.dumps(SCHEMA)]])),
}
AUTO = Constraint("any_of", json.dumps([["prose", ""], ["calls", calls(WEATHER, ADD, parallel=True)]]))
ARCHS = ["llama", "gpt2", "gemma3", "mistral", "bloom", "mamba"]
"""Byte-level, byte-level with a space before everything, pieces with and without one, unigram; attention and not."""

# --- drawn = brute force ----------------------------------------------------------------------------------------


def brute(state, size, stops):
    """The mask, by asking about every single token."""
    return torch.tensor([state.may_end() if k in stops else state.fork().put(k) for k in range(size)])


@torch.inference_mode()
def retraced(member, job, draft):
    """The draft drawn again by a loop that knows neither caches nor bit masks; how many tokens were really drawn."""
    read = Rereading(Read(member._weights.model))
    state = vocabulary(member.words.tokenizer, width(member._weights), member.stops).grammar(job.query.constraint)
    state = state.start()
    text = "".join(segment.text for segment in job.answer)
    assert state.advance(text) == len(text.encode())
    ids = member.words.answer_ids(
        member.name, member._prompt_ids(job.query.turns, (), job.query.constraint), job.answer
    )
    how = replace(job.sampling, seed=job.sampling.seed + 1_000_003 * member.seed, repetition_penalty=None)
    drawn = run = 0
    for at, token in enumerate(draft.tokens):
        if state.in_call and len(state.forced().decode().rstrip()) >= 2:
            run = len(state.forced().decode().rstrip())
        (logits,) = read.lead([("x", ids)])
        assert draft.logprobs[at] == pytest.approx(logprobs_of(logits[None], [token])[0], abs=NEAR)
        legal = brute(state, len(logits), member.stops)
        assert legal[token]
        wanted = chosen(logits.masked_fill(~legal, float("-inf"))[None], [how], [ids])[0]
        if wanted != token:  # text that was not drawn, but read: no other was possible
            assert run >= len(member.words.added(ids, [token]))
            assert state.forced().decode().startswith(member.words.added(ids, [token]))
        drawn, run = drawn + (wanted == token), run - len(member.words.added(ids, [token]))
        assert state.put(token)
        ids = [*ids, token]
    if draft.ended and not state.must_end():
        (logits,) = read.lead([("x", ids)])
        legal = brute(state, len(logits), member.stops)
        assert chosen(logits.masked_fill(~legal, float("-inf"))[None], [how], [ids])[0] in member.stops
        assert draft.logprobs[-1] == pytest.approx(end_logprobs(logits[None], member.stops)[0], abs=NEAR)
    elif draft.ended:
        assert draft.logprobs[-1] == 0.0 and len(draft.logprobs) == len(draft.tokens) + 1
    return drawn


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", BOUND)
def test_every_draft_is_what_a_brute_force_loop_draws(arch, kind):
    member, query = tiny.member(arch, 1), tiny.query(constraint=BOUND[kind])
    jobs = []
    how = Sampling(temperature=0.8, top_p=0.95, seed=5) if kind in ("schema", "regex") else Sampling()
    settings = Settings(max_tokens=40, segment_tokens=5, sampling=how)
    told = tiny.answered([member], query, settings, after=lambda a, r: jobs.append((*a.jobs.values(), *r.values())))
    drawn = sum(retraced(member, job, draft) for job, draft in jobs[:4])
    assert drawn > 0
    text = "".join(round.segment.text + round.forced for round in told[1:])
    assert referee_for(query.constraint).legal("", tiny.text_of(told)) == len(tiny.text_of(told))
    assert text in tiny.text_of(told)


@pytest.mark.parametrize("arch", ARCHS)
def test_prose_is_what_it_is_without_a_constraint(arch):
    """Also with tools at hand, as long as nobody calls one."""
    member = tiny.member(arch, 2)
    job = DraftJob(tiny.query(), (), 10, 40, Sampling(repetition_penalty=1.3))
    for constraint in (Constraint("prose"), AUTO):
        answer = ()
        for _ in range(4):
            plain, bound = tiny.query(), tiny.query(constraint=constraint)
            member._memo(bound).prompt = member._memo(plain).prompt  # a prompt that tells nothing of tools
            (one,), (other,) = (member.draft([replace(job, query=query, answer=answer)]) for query in (plain, bound))
            assert replace(other, effort=one.effort, ends=None) == one
            assert other.ends == tuple(
                member.words.told(member._memo(plain).read(member.name, member.words, answer), one.tokens)[1]
            )
            answer = (*answer, Segment(one.text, False, {member.name: one.tokens}))


# --- cached = fresh, crowd = alone ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("kind", ["schema", "calls", "regex"])
def test_every_reply_equals_one_without_memory(arch, kind):
    doubled = Doubled(tiny.member(arch, 1))
    others = [tiny.member("phi3", 1), tiny.member(arch, 3)]
    answer = tiny.relayed([doubled, *others], tiny.query(constraint=BOUND[kind]), 4, turns=7)
    assert doubled.worst < NEAR and doubled.compared >= 2
    assert any(doubled.name in segment.tokens for segment in answer)
    assert any(doubled.name not in segment.tokens for segment in answer)


def test_a_cache_that_is_far_too_small_is_slower_and_never_wrong():
    for arch in ("llama", "gemma3"):
        member, intruder = tiny.member(arch, 1, cache_bytes=1), tiny.query(constraint=BOUND["json"])

        def another(member=member, intruder=intruder):
            member.draft([DraftJob(intruder, (), 2, 2, Sampling())])

        doubled = Doubled(member, before=another)
        tiny.relayed([doubled, tiny.member("phi3", 1)], tiny.query(constraint=BOUND["schema"]), 4, turns=5)
        assert doubled.worst < NEAR and doubled.compared > 4


@pytest.mark.parametrize("arch", ARCHS)
def test_in_a_crowd_each_query_gets_what_it_gets_alone(arch):
    """Some bound and some not, at different places of their answers."""
    member, apart = tiny.member(arch, 1), tiny.member(arch, 1)
    queries = [tiny.query("Sky. " * (1 + k), constraint=c) for k, c in enumerate([*BOUND.values(), None, AUTO, None])]
    answers = {query.id: () for query in queries}
    for _ in range(4):
        jobs = [DraftJob(query, answers[query.id], 4 + k, 60, Sampling()) for k, query in enumerate(queries)]
        replies = member.draft(jobs)
        for job, reply in zip(jobs, replies, strict=True):
            assert tiny.difference(reply, apart.draft([job])[0]) < NEAR
            new = (*answers[job.query.id], Segment(reply.text, tokens={member.name: reply.tokens}))
            text = "".join(segment.text for segment in new)
            forced = referee_for(job.query.constraint).forced(text)
            answers[job.query.id] = (*new, Segment(forced)) if forced else new
            if reply.ended:
                queries.remove(job.query)
                member.forget(job.query.id)
    for query in queries:
        member.forget(query.id)
    assert not getattr(member.store, "rows", {})


def test_an_answer_that_turned_out_otherwise_is_read_from_its_job():
    """Two answers to one query, in turn: what is kept of the one must not be taken for the other."""
    member, query = tiny.member("llama", 1), tiny.query(constraint=BOUND["schema"])
    answers = [(Segment('{"name": "x", "age": '),), (Segment('{"name": "'),), (Segment('{"name": "x'),), ()]
    jobs = [DraftJob(query, answer, 6, 40, Sampling()) for answer in answers]
    first = [member.draft([job])[0] for job in (*jobs, *jobs)]
    member.forget(query.id)
    fresh = []
    for job in jobs:
        fresh += member.draft([job])
        member.forget(query.id)
    assert [tiny.difference(a, b) < NEAR for a, b in zip(first, fresh * 2, strict=True)] == [True] * 8
    assert len({draft.text for draft in fresh}) > 2


# --- what goes wrong --------------------------------------------------------------------------------------------


def test_what_a_member_cannot_write_is_its_failure_alone():
    member = tiny.member("bloom", 1)  # its vocabulary knows no such letters
    odd = tiny.query(constraint=Constraint("choice", '["Жы", "Ща"]'))
    jobs = [DraftJob(query, (), 5, 20, Sampling()) for query in (tiny.query(), odd, tiny.query(constraint=AUTO))]
    one, none, other = member.draft(jobs)
    assert isinstance(none, Failure) and none.kind == "error" and "constraint" in none.message
    assert isinstance(one, Draft) and isinstance(other, Draft)


@pytest.mark.parametrize("broken", ["put", "mask", "forced", "must_end", "fork"])
def test_a_grammar_that_fails_takes_no_other_query_along(broken, monkeypatch):
    member, query = tiny.member("llama", 1), tiny.query(constraint=BOUND["regex"])
    whole = getattr(State, broken)
    grammar = vocabulary(member.words.tokenizer, width(member._weights), member.stops).grammar(query.constraint)
    bad = type(grammar.start())._leaf if hasattr(type(grammar.start()), "_leaf") else grammar.start()._leaf

    def fails(state, *arguments):
        if getattr(state, "_leaf", None) is bad:
            raise RuntimeError("the grammar broke")
        return whole(state, *arguments)

    monkeypatch.setattr(State, broken, fails)
    others = [tiny.query(), tiny.query(constraint=BOUND["schema"])]
    one, none, other = member.draft([DraftJob(q, (), 5, 20, Sampling()) for q in (others[0], query, others[1])])
    assert isinstance(none, Failure) and "the grammar broke" in none.message
    assert isinstance(one, Draft) and isinstance(other, Draft) and one.text and other.text


def test_an_answer_that_does_not_fit_is_a_failure_and_the_next_job_is_answered():
    member, query = tiny.member("llama", 1), tiny.query(constraint=BOUND["schema"])
    wrong, right = (DraftJob(query, (Segment(text),), 5, 20, Sampling()) for text in ('{"nome": 1', '{"name": "'))
    assert "does not fit" in member.draft([wrong])[0].message
    assert isinstance(member.draft([right])[0], Draft)


def test_an_answer_that_is_whole_is_ended_without_a_token():
    member, query = tiny.member("llama", 1), tiny.query(constraint=Constraint("choice", '["yes", "no"]'))
    (draft,) = member.draft([DraftJob(query, (Segment("yes"),), 5, 20, Sampling())])
    assert (draft.text, draft.ended, draft.tokens, draft.logprobs, draft.ends) == ("", True, (), (0.0,), ())


# --- where drafts end -------------------------------------------------------------------------------------------


class Following(Rereading):
    """Logits of a model that is sure of one text, whatever tokens it is read in."""

    def __init__(self, member, query, text):
        super().__init__(Read(member._weights.model))
        self.member, self.text = member, text
        self.start = len(member._prompt_ids(query.turns, query.tools, query.constraint))

    def _whole(self, ids):
        self.passed += len(ids)
        size = width(self.member._weights)
        logits = torch.full((len(ids), size), -9.0)
        for at in range(self.start - 1, len(ids)):
            said = self.member.words.added(ids[: self.start], ids[self.start : at + 1])
            rest = self.text[len(said.rstrip("\ufffd")) :]
            wish = self.member.words.after(ids[: at + 1], rest)[0] if rest else self.member.stops[0]
            logits[at, wish] = 9.0
        return logits


def following(query, text, **how):
    """A member that wants to write this text."""
    member = tiny.member("llama", 1, name="wishful", **how)
    member.store = Following(member, query, text)
    member.drawing = replace(member.drawing, store=member.store)
    member.thinking = replace(member.thinking, store=member.store)
    return member


SHORT = json.loads(calls(tool("f", a={"enum": [1, 22, 333]}), parallel=True)) | {"begin": "[[", "end": "]]"}
CHAT = Constraint("any_of", json.dumps([["prose", ""], ["calls", json.dumps(SHORT)]]))
CALLED = '[[{"name": "f", "arguments": {"a": 22}}]]'
CALL = '<tool_call>\n{"name": "add", "arguments": {"first": 20, "second": 22}}\n</tool_call>'


def test_what_is_said_before_a_call_is_a_draft_of_its_own_and_a_call_is_drafted_whole():
    query = tiny.query(constraint=CHAT)
    told = tiny.answered([following(query, f"Let me see.\n{CALLED}")], query, Settings(max_tokens=120))
    texts = [round.segment.text for round in told]
    assert "".join(texts) == f"Let me see.\n{CALLED}"
    assert texts[-1] == CALLED and not any("[" in text for text in texts[:-1])
    assert told[-1].finish == "stop" and told[-1].segment.ended


def test_forced_text_inside_a_call_is_read_in_one_pass():
    query = tiny.query(constraint=BOUND["calls"])
    member = following(query, CALL)
    steps = []
    step = member.store.step
    member.store.step = lambda keys, tokens: steps.append(tokens) or step(keys, tokens)
    told = tiny.answered([member], query, Settings(segment_tokens=10, max_tokens=120))
    assert tiny.text_of(told) == CALL and len(told) == 1
    assert len(told[0].segment.tokens["wishful"]) > 2 * len(steps)


def test_parallel_calls_are_voted_on_one_by_one():
    query = tiny.query(constraint=CHAT)
    other = CALLED.replace("22", "333")
    told = tiny.answered([following(query, f"{CALLED}\n{other}")], query, Settings(max_tokens=300))
    assert tiny.text_of(told) == f"{CALLED}\n{other}"
    assert told[0].segment.text == CALLED and not told[0].segment.ended
    assert told[-1].finish == "stop"


def test_a_call_that_is_repeated_ends_the_answer():
    query = tiny.query(constraint=CHAT)
    told = tiny.answered([following(query, "\n".join([CALLED] * 9))], query, Settings(max_tokens=900))
    assert (tiny.text_of(told), told[-1].finish, len(told)) == (CALLED, "stop", 2)


def test_a_call_longer_than_its_budget_goes_on_in_the_next_draft():
    query = tiny.query(constraint=BOUND["calls"])
    member = following(query, CALL)
    job = DraftJob(query, (), 4, 200, Sampling(), call_tokens=16)
    answer, texts = (Segment('<tool_call>\n{"name": "'),), []
    for _ in range(9):
        (draft,) = member.draft([replace(job, answer=answer)])
        texts.append(draft.text)
        answer = (*answer, Segment(draft.text, tokens={"wishful": draft.tokens}))
        if draft.ended:
            break
    assert "".join(segment.text for segment in answer) == CALL and 1 < len(texts) < 9
    assert draft.ended and draft.logprobs[-1] == 0.0


def test_a_draft_stops_where_there_is_only_one_way_on():
    query = tiny.query(constraint=BOUND["schema"])
    text = '{"name": "Ada", "age": 36, "tags": ["red", "blue"]}'
    told = tiny.answered([following(query, text)], query, Settings(max_tokens=100))
    assert tiny.text_of(told) == text and told[-1].segment.ended
    assert told[0].forced.startswith('{"name": "') and '"age":' in told[0].forced
    for round in told:
        assert round.drafts["wishful"].logprobs is not None
        assert all(at <= len(round.segment.text) for at in round.drafts["wishful"].ends)


def test_json_without_spaces_is_cut_behind_its_punctuation():
    query = tiny.query(constraint=Constraint("regex", r"[\[\]0-9,]+"))
    text = "[[1],[2],[3],[4],[5],[6],[7],[8],[9],[10],[11],[12]]"
    told = tiny.answered([following(query, text)], query, Settings(segment_tokens=5, max_tokens=100))
    assert tiny.text_of(told) == text and len(told) > 3
    assert all(round.segment.text[-1] in "{}[],:" for round in told)


def test_a_stop_string_in_prose_ends_a_draft():
    query = tiny.query(constraint=AUTO)
    told = tiny.answered([following(query, "one two END three")], query, Settings(stop=("END",)))
    assert tiny.text_of(told) == "one two " and told[-1].finish == "stop_string"


# --- ends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_ends_say_where_each_token_of_drafts_and_candidates_ends(arch):
    member, query = tiny.member(arch, 1), tiny.query(constraint=BOUND["schema"])
    answer = (Segment('{"name":'),)
    candidates = (
        Candidate(' "天é"', False, ("x",)),
        Candidate(' "a", "age": 3', True, ("y",)),
        Candidate("", True, ()),
    )
    (scored,) = member.score([ScoreJob(query, answer, candidates)])
    assert member.score([ScoreJob(tiny.query(), answer, candidates)])[0].ends is None
    for row, ends, candidate in zip(scored.logprobs, scored.ends, candidates, strict=True):
        assert len(ends) == len(row) - candidate.ended
        assert list(ends) == sorted(ends) and (ends[-1] if ends else 0) == len(candidate.text)
    (draft,) = member.draft([DraftJob(query, answer, 6, 20, Sampling())])
    assert len(draft.ends) == len(draft.tokens) and draft.ends[-1] == len(draft.text)
    member.forget(query.id)


def test_tokens_before_a_candidate_end_at_nothing():
    """A candidate whose beginning is read together with the text before it."""
    member, query = tiny.member("llama", 1), tiny.query(constraint=AUTO)
    words = member.words
    pair = next(
        (left, right)
        for left, right in [("th", "e"), ("bl", "ue"), ("ligh", "t"), ("mor", "e"), ("a", "ir")]
        if words.continuing(" " + left + right)[: len(words.continuing(" " + left))] != words.continuing(" " + left)
    )
    (scored,) = member.score([ScoreJob(query, (Segment(f" {pair[0]}"),), (Candidate(f"{pair[1]} sky", False, ()),))])
    assert scored.ends[0][-1] == len(pair[1]) + 4 and len(scored.ends[0]) == len(scored.logprobs[0])


# --- masks ------------------------------------------------------------------------------------------------------


def test_bits_become_bools_lowest_first():
    words = np.array([[0b101, -1], [0, 1 << 30]], dtype=np.int32)
    for count in (40, 64, 70):
        told = unpacked(words, count)
        assert told.shape == (2, count)
        assert told[0].nonzero().flatten().tolist() == [k for k in (0, 2, *range(32, 64)) if k < count]
        assert told[1].nonzero().flatten().tolist() == ([62] if count > 62 else [])


def test_rows_without_a_mask_are_left_alone():
    rows = torch.randn(3, 40)
    assert masked(rows, [None] * 3) is rows
    told = masked(rows, [None, np.array([1, 1], dtype=np.int32), None])
    assert torch.equal(told[[0, 2]], rows[[0, 2]])
    assert told[1].isfinite().nonzero().flatten().tolist() == [0, 32]
    assert torch.equal(masked(rows, [np.full(2, -1, dtype=np.int32)] * 3), rows)


def test_cutting_in_structure_never_cuts_a_character():
    assert _bound.cut_in_structure("ab", [1, 2], 2) == 0
    assert _bound.cut_in_structure('{"a":', [1, 1, 5, 5], 4) == 3
