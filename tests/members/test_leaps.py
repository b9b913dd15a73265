"""Several tokens without asking the host are the tokens that are drawn one by one, whoever else leaps along."""

import gc
import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

from langchain_specfuse.core.values import (
    Candidate,
    Constraint,
    DraftJob,
    Failure,
    Sampling,
    ScoreJob,
    Segment,
    Settings,
    Turn,
)
from langchain_specfuse.members import _ahead, _dice, _graphs, _trial
from langchain_specfuse.members._dice import Dice
from langchain_specfuse.members._leaps import Leaps, Leapt, Start, bucket
from langchain_specfuse.members._pen import Pen
from langchain_specfuse.members._sampling import chosen, end_logprobs, logprobs_of
from langchain_specfuse.members._stores import Read

from . import tiny
from .adapters import saved
from .tape import Tape, Taped
from .test_lookahead import guessing, hints_for

NEAR = 1e-4
SAMPLED = Sampling(temperature=3.0, top_p=0.95, top_k=80, min_p=0.0001, seed=5)
HOWS = [Sampling(), SAMPLED, replace(SAMPLED, repetition_penalty=1.4), Sampling(repetition_penalty=1.6)]


def leaping(arch, seed=0, **kwargs):
    """A member that draws as one on a GPU does, except that nothing is captured: every step is launched by itself."""
    return in_leaps(tiny.member(arch, seed, **kwargs))


def in_leaps(one, graphs=None):
    leaps = Leaps(one.store, one.stops, graphs)
    one.drawing = replace(one.drawing, leaps=leaps)
    one.thinking = replace(one.thinking, leaps=leaps)
    return one


def job(query, answer, size, most, how=HOWS[0], stop=()):
    return DraftJob(query, answer, size, most, how, stop)


class Compared:
    """A member that leaps beside itself without leaps: every reply is compared."""

    def __init__(self, arch, seed=0, wrap=in_leaps, **kwargs):
        self.quick, self.slow = wrap(tiny.member(arch, seed, **kwargs)), tiny.member(arch, seed, **kwargs)
        self.name, self.worst, self.drafts = self.quick.name, 0.0, 0

    def draft(self, jobs):
        return self._asked("draft", jobs)

    def score(self, jobs):
        return self._asked("score", jobs)

    def forget(self, query_id):
        self.quick.forget(query_id)
        self.slow.forget(query_id)

    def _asked(self, work, jobs):
        told, wanted = getattr(self.quick, work)(jobs), getattr(self.slow, work)(jobs)
        self.worst = max([self.worst, *(tiny.difference(*pair) for pair in zip(told, wanted, strict=True))])
        self.drafts += work == "draft"
        return told


# --- what is drawn ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arch", "size"), [("llama", 10), ("gpt2", 10), ("mistral", 4), ("gemma3", 20), ("opt", 1)])
def test_an_answer_in_leaps_is_the_answer_drawn_one_by_one(arch, size):
    members = [Compared(arch, 1), Compared("phi3" if arch != "phi3" else "qwen3", 1), Compared(arch, 3)]
    tiny.relayed(members, tiny.query(), size, 6)
    assert all(one.drafts == 6 for one in members)
    assert max(one.worst for one in members) < NEAR


@pytest.mark.parametrize("arch", ["llama", "mistral", "gpt2"])
@pytest.mark.parametrize("how", HOWS[1:])
def test_so_is_one_that_is_sampled_or_penalised(arch, how):
    one = Compared(arch, 1, own_seed=3)
    answer = ()
    query = tiny.query()
    for _ in range(6):
        (draft,) = one.draft([job(query, answer, 6, 64, how)])
        answer = (*answer, Segment(draft.text, False, {one.name: draft.tokens}))
    assert one.worst < NEAR
    assert len({token for segment in answer for token in segment.tokens[one.name]}) > 6


@pytest.mark.parametrize("arch", ["llama", "gemma3", "opt"])
def test_in_a_ragged_batch_each_row_ends_where_it_would_alone(arch):
    """Other prompts, other lengths, other ways to pick, some with tokens known ahead, and limits of their own."""
    one = Compared(arch, 1)
    texts = ["Why?", "Why is the sky blue, and since when? " * 6, "def add(a, b):\n", "Hi 😀", "| one | two |"]
    queries = [tiny.query(text) for text in texts]
    answers = [()] * len(queries)
    for turn in range(5):
        wanted = [
            job(query, answer, 3 + at, 1 + (7 * at + turn) % 9 if at == 3 else 40, HOWS[at % len(HOWS)])
            for at, (query, answer) in enumerate(zip(queries, answers, strict=True))
        ]
        wanted = wanted[turn % 2 :] if turn % 3 else wanted[::-1]
        for each, draft in zip(wanted, one.draft(wanted), strict=True):
            at = queries.index(each.query)
            answers[at] = (*answers[at], Segment(draft.text, False, {one.name: draft.tokens}))
    assert one.worst < NEAR


@pytest.mark.parametrize("stop", [("e",), ("a", "the"), ("\n",), ("qqqq",)])
def test_a_stop_string_in_the_middle_of_a_leap_ends_the_draft_there(stop):
    one = Compared("llama", 1)
    query = tiny.query()
    for text in ("", " and", " so it is"):
        one.draft([job(query, (Segment("The sky" + text),), 12, 64, Sampling(), stop)])
    assert one.worst < NEAR


def test_a_turn_that_ends_in_the_middle_of_a_leap_has_the_same_end():
    ended = 0
    for arch in ("llama", "qwen3", "mistral"):
        for seed in (0, 1, 2):
            one = Compared(arch, seed)
            told = tiny.answered([one], tiny.query(), Settings(max_tokens=60))
            assert one.worst < NEAR
            ended += told[-1].finish == "stop"
    assert 2 <= ended < 9


def test_at_the_end_of_its_context_nothing_is_read_beyond_it():
    """A position that the model has no embedding for would take the whole device down."""
    model, tokenizer = tiny.made("gpt2", 1, n_positions=320)
    one, slow = (tiny.TransformersMember(model, tokenizer, name="m") for _ in range(2))
    one.probe(), slow.probe()
    in_leaps(one)
    for left in (1, 2, 3, 12):
        query, other = tiny.query(), tiny.query("Hello")
        tokens = tuple(70 + at % 9 for at in range(320 - left - len(one._prompt_ids(query.turns))))
        answer = (Segment("x", False, {"m": tokens}),)
        jobs = [job(query, answer, 10, 64), job(other, (), 10, 64)]
        for told, wanted in zip(one.draft(jobs), slow.draft(jobs), strict=True):
            assert tiny.difference(told, wanted) < NEAR and not isinstance(told, Failure)
        one.forget(query.id), slow.forget(query.id)


def test_what_was_drawn_beyond_the_end_is_not_drawn_again():
    """Rows that are done before the others go on along: what comes of it is the beginning of their next draft."""
    one, slow = leaping("phi3", 1), tiny.member("phi3", 1)
    short, long = tiny.query("Why?"), tiny.query("Who?")
    jobs = [job(short, (), 2, 64), job(long, (), 14, 64)]
    ahead = []
    for member in (one, slow):
        drafts = member.draft(jobs)
        segment = Segment(drafts[0].text, False, {member.name: drafts[0].tokens})
        before = member.store.passed
        (after,) = member.draft([job(short, (segment,), 4, 64)])
        ahead.append((after, member.store.passed - before))
    assert tiny.difference(ahead[0][0], ahead[1][0]) < NEAR
    assert ahead[0][1] < ahead[1][1]


def test_nothing_is_kept_from_behind_the_end_of_a_turn():
    one = leaping("llama", 1)
    pen = Pen(job(tiny.query(), (), 2, 64), "q", [5, 6], HOWS[0], 64, tokens=[70, 71], done=True, kept=2)
    tokens = [72, 73, one.stops[0], 74]
    _ahead._look(one.drawing, pen, Leapt(tokens, [-1.0, -2.0, -3.0, -4.0], [-9.0] * 4, torch.zeros(4, 8)))
    assert (pen.beyond, pen.beyond_logprobs) == ([72, 73], [-1.0, -2.0]) and not pen.ended


def test_it_asks_the_host_once_per_draft():
    """Except where a draft has no boundary at which it could end after all its tokens."""
    one = leaping("llama", 1)
    asked = []
    one.drawing = replace(one.drawing, leaps=Spied(one.drawing.leaps, asked))
    tiny.answered([one], tiny.query(), Settings(segment_tokens=8, max_tokens=64))
    assert [count for count, _ in asked if count > 1] == [count for count, first in asked if first]
    assert sum(first for _, first in asked) > 0.7 * len(asked)


class Spied:
    def __init__(self, leaps, asked):
        self._leaps, self.asked = leaps, asked
        self.serve = leaps.serve

    def take(self, starts, count, like=None):
        self.asked.append((count, starts[0].logits is not None))
        return self._leaps.take(starts, count, like)


def test_under_a_constraint_tokens_are_drawn_one_by_one_beside_leaps():
    one = Compared("llama", 1)
    free, bound = tiny.query(), tiny.query(constraint=Constraint("regex", "[a-z]{2,6} [0-9]{3}"))
    told = one.draft([job(free, (), 6, 64), job(bound, (), 6, 64)])
    assert one.worst < NEAR and len(told) == 2 and not any(isinstance(one, Failure) for one in told)


def test_a_thought_in_leaps_is_the_thought_drawn_one_by_one():
    template = tiny.CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    told = []
    for wrap in (in_leaps, lambda one: one):
        model, tokenizer = tiny.made("llama", 1, chat_template=template)
        one = tiny.TransformersMember(model, tokenizer, name="m", thinking_tokens=40, repetition_penalty=1.2)
        one.probe()
        (draft,) = wrap(one).draft([job(tiny.query(id="q"), (), 6, 64)])
        told.append((draft.thought, draft.text, one._memos["q"].prompt))
    assert told[0] == told[1] and told[0][0]


# --- what is kept -------------------------------------------------------------------------------------------------


def test_a_leap_leaves_other_queries_rows_alone():
    one = leaping("llama", 1)
    idle, busy = tiny.query("Why?"), tiny.query("What is the answer to all questions?")
    (before,) = one.draft([job(idle, (), 4, 64)])
    one.draft([job(busy, (), 12, 64)])
    (after,) = one.draft([job(idle, (), 4, 64)])
    assert (before.text, before.tokens) == (after.text, after.tokens)
    row = one.store.rows[one._key(idle.id)]
    with torch.inference_mode():
        fresh = tiny.rereading(one).store.lead([("x", row.ids)])[0]
        assert (one.store.lead([(row.key, row.ids)], exact=True)[0] - fresh).abs().max() < NEAR


@torch.inference_mode()
def test_a_row_says_what_it_has_read_and_no_more():
    """Its last token has been picked, and not read: whoever goes on from there must read it."""
    one = tiny.member("mistral", 1)
    leaps, ids, store = Leaps(one.store, one.stops), list(range(60, 75)), one.store
    (logits,) = store.lead([("q", ids)], exact=True)
    (first,) = leaps.take([Start("q", ids, HOWS[0], 9, logits)], 4)
    assert store.rows["q"].ids == ids + first.tokens[:-1]
    before = first.logits.clone()
    (then,) = leaps.take([Start("q", ids + first.tokens, HOWS[0], 2)], 5)
    assert torch.equal(first.logits, before)  # kept for what may be asked again: the next leap leaves it alone
    assert len(then.tokens) == 2 and store.rows["q"].ids == ids + first.tokens + then.tokens[:1]
    further = ids + first.tokens + then.tokens + [70]
    (told,), (fresh,) = (made.lead([("q", further)]) for made in (store, tiny.rereading(one).store))
    assert (told - fresh).abs().max() < NEAR
    store.clear()


def test_a_leap_that_breaks_off_leaves_nothing_that_is_wrong(monkeypatch):
    one, slow = leaping("llama", 1), tiny.member("llama", 1)
    query = tiny.query()
    one.draft([job(query, (), 4, 64)])
    hop, calls = one.store.hop, []

    def breaking(*args):
        calls.append(1)
        if len(calls) == 3:
            raise torch.OutOfMemoryError("no more")
        return hop(*args)

    monkeypatch.setattr(one.store, "hop", breaking)
    answer = (Segment("The sky is"),)
    (told,) = one.draft([job(query, answer, 8, 64)])
    assert isinstance(told, Failure)
    monkeypatch.undo()
    (told,), (wanted,) = one.draft([job(query, answer, 8, 64)]), slow.draft([job(query, answer, 8, 64)])
    assert tiny.difference(told, wanted) < NEAR


def test_memory_that_stays_in_place_stays_right_and_within_its_budget():
    one, slow = leaping("mistral", 1), tiny.member("mistral", 1)
    one.store.static = True
    places = set()
    for turn in range(4):
        queries = [tiny.query(f"Why {turn}? " * (1 + at)) for at in range(3)]
        for query in queries[: 1 + turn % 3]:
            (told,), (wanted,) = (member.draft([job(query, (), 6, 64)]) for member in (one, slow))
            assert tiny.difference(told, wanted) < NEAR
        places.add(one.store.cache.layers[0].keys.data_ptr())
        for query in queries:
            one.forget(query.id), slow.forget(query.id)
    rows, columns = one.store.capacity
    assert rows >= 1 and columns % 256 == 0 and len(places) <= 3
    one.store.budget = 4 * columns * one.store._bytes_per_token()
    for at in range(8):
        one.draft([job(tiny.query(f"What {at}?"), (), 2, 8)])
        assert one.store._bytes() <= one.store.budget
    one.draft([job(tiny.query("What? " * 200), (), 2, 8)])
    assert one.store._bytes() <= one.store.budget
    one.store.clear()
    assert one.store.capacity == (0, 0)


def test_what_one_query_has_spoiled_the_next_does_not_see():
    one, slow = in_leaps(tiny.member("llama", 1)), tiny.member("llama", 1)
    one.store.static = True
    stays, spoiled, after = (tiny.query(text) for text in ("Who?", "Why is that so?", "Why?"))
    for query in (spoiled, stays):
        one.draft([job(query, (), 6, 64)])
    with torch.inference_mode():
        row = one.store.rows[one._key(spoiled.id)]
        for memory in one.store._memories():
            memory[row.index, :, len(row.ids) :] = float("nan")
    one.forget(spoiled.id)
    for query in (after, stays):
        (told,), (wanted,) = (member.draft([job(query, (), 6, 64)]) for member in (one, slow))
        assert tiny.difference(told, wanted) < NEAR


@pytest.mark.parametrize("lasting", [False, True])
def test_a_leap_makes_room_of_rows_that_are_not_in_it(lasting):
    """Then rows change places; and where memory is short there are as many as are needed, no power of two."""
    one = tiny.member("mistral", 1)
    with torch.inference_mode():
        store = one.store
        store.static = lasting
        leaps = Leaps(store, one.stops, Taped(store, "m") if lasting else None)
        store.budget = 5 * 128 * store._bytes_per_token()
        texts = {key: [60 + (at * 7 + i) % 40 for i in range(100)] for at, key in enumerate("abcde")}
        logits = dict(zip(texts, store.lead(list(texts.items()), exact=True), strict=True))
        starts = [Start(key, texts[key], SAMPLED, 40, logits[key]) for key in "ce"]
        first = leaps.take(starts, 16)
        assert store.capacity == (5, 128) and len(store.rows) == 5
        further = [Start(a.key, a.ids + b.tokens, SAMPLED, 24) for a, b in zip(starts, first, strict=True)]
        then = leaps.take(further, 16)
        assert store.capacity[0] == 2 and set(store.rows) == {"c", "e"}
        for start, leapt in zip(further, then, strict=True):
            ids = start.ids + leapt.tokens
            for at, size in ((0, len(start.ids)), (15, len(ids) - 1)):
                fresh = tiny.rereading(one).store.lead([("x", ids[:size])])[0]
                assert (leapt.logits[at] - fresh).abs().max() < NEAR
            fresh = tiny.rereading(one).store.lead([("x", ids)])[0]
            assert (store.lead([(start.key, ids)], exact=True)[0] - fresh).abs().max() < NEAR
        store.clear()


def test_memory_that_stays_in_place_cuts_no_row_that_is_longer_than_a_new_one():
    one = tiny.member("llama", 1)
    with torch.inference_mode():
        store = one.store
        store.static = True
        store.budget = 3 * 384 * store._bytes_per_token()
        texts = {"a": [60 + i % 40 for i in range(300)], "b": [61, 62, 63], "c": [64, 65]}
        for key, ids in texts.items():
            store.lead([(key, ids)], exact=True)
        assert set(store.rows) == set(texts) and store._bytes() <= store.budget
        for key, ids in texts.items():
            told, fresh = store.lead([(key, [*ids, 70])])[0], tiny.rereading(one).store.lead([("x", [*ids, 70])])[0]
            assert store.found[key] == len(ids) and (told - fresh).abs().max() < NEAR
        store.clear()


def test_memory_that_stays_in_place_goes_when_others_need_it_and_not_before():
    one = tiny.member("llama", 1)
    with torch.inference_mode():
        store, budget = one.store, one.store.budget
        store.static = True
        for at in range(8):
            store.lead([(str(at), [60 + at, 61, 62])], exact=True)
        before = store.capacity
        store.captured["a step"] = object()
        for at in range(8):
            store.forget(str(at))
        assert store.capacity == before and store.captured and store.held >= store._bytes() > 0
        store.fit(0, 0)
        assert store.held == 0 and not store.captured
        store.fit(budget, budget)
        told = store.lead([("x", [60, 61])])[0]
        assert (told - tiny.rereading(one).store.lead([("x", [60, 61])])[0]).abs().max() < NEAR
        store.clear()


def test_what_was_captured_is_void_when_the_memory_moves():
    one = leaping("llama", 1)
    one.draft([job(tiny.query(), (), 4, 64)])
    one.store.captured["a step"] = object()
    one.draft([job(tiny.query("Why? " * 300), (), 4, 64)])
    assert one.store.captured == {}


# --- beside guesses -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lasting", [False, True])
@pytest.mark.parametrize(("arch", "how"), [("llama", 0), ("llama", 2), ("gemma3", 1), ("mistral", 3), ("opt", 0)])
def test_others_drafts_are_read_first_and_the_rest_leaps(arch, how, lasting):
    """In a batch in which some have been told of others' drafts and some have not, and one is under a constraint."""
    quick, slow = (
        (on_tape if lasting else in_leaps)(guessing(tiny.member(arch, 1))),
        tiny.rereading(tiny.member(arch, 1)),
    )
    chance, worst, read_along = random.Random(f"{arch} {how}"), 0.0, 0
    queries = [tiny.query("The sky is blue. " * (1 + k)) for k in range(4)]
    queries.append(tiny.query("Which?", constraint=Constraint("regex", "[a-z ]{300}")))
    answers = {query.id: () for query in queries}
    for turn in range(5):
        present = [query for k, query in enumerate(queries) if k != turn]
        jobs = [job(q, answers[q.id], 3 + 3 * k, 60, HOWS[(how + k) % 4]) for k, q in enumerate(present)]
        truths = [slow.draft([each])[0] for each in jobs]
        told = [
            replace(each, hints=hints_for(truth, chance)) if k != 1 else each
            for k, (each, truth) in enumerate(zip(jobs, truths, strict=True))
        ]
        worst = max([worst, *(tiny.difference(*pair) for pair in zip(quick.draft(told), truths, strict=True))])
        scores = [ScoreJob(one.query, one.answer, (Candidate(" x", False, ("x",)), *(one.hints or ()))) for one in told]
        read_along += sum(len(quick._memo(one.query).known(quick._context(one))) for one in scores)
        for score, reply in zip(scores, quick.score(scores), strict=True):
            worst = max(worst, tiny.difference(reply, slow.score([score])[0]))
        for one, truth in zip(told, truths, strict=True):
            others = [] if one.query.constraint else [hint.text or " y" for hint in one.hints or ()]
            said = chance.choice([truth.text or " x", *others])
            own = {quick.name: truth.tokens} if said == truth.text else {}
            answers[one.query.id] += (Segment(said, False, own),)
    assert worst < NEAR and read_along > 5
    assert not lasting or quick.drawing.leaps.graphs.replayed


def test_a_draft_that_another_wrote_in_part_is_two_readings_and_a_leap(monkeypatch):
    """The prompt, the others' drafts, and what is behind the part that they share. Nothing else is guessed."""
    one, work = on_tape(guessing(tiny.member("llama", 1))), []
    each = job(tiny.query("The sky is blue because the sky is blue because"), (), 12, 40)
    truth = tiny.rereading(one).draft([each])[0]
    half = Candidate(truth.text[: len(truth.text) // 2], False, ("other",))
    for name in ("step", "stride", "fan", "lead"):
        real = getattr(one.store, name)
        monkeypatch.setattr(
            one.store, name, lambda *a, real=real, name=name, **k: (work.append(name), real(*a, **k))[1]
        )
    take = one.drawing.leaps.take
    monkeypatch.setattr(
        one.drawing.leaps, "take", lambda starts, count, like: (work.append(count), take(starts, count, like))[1]
    )
    (told,) = one.draft([replace(each, hints=(half,))])
    assert tiny.difference(told, truth) < NEAR
    assert work[:3] == ["lead", "fan", "lead"] and all(isinstance(count, int) for count in work[3:])
    assert 0 < work[3] < 12  # not those that were foreseen
    work.clear()
    (told,) = one.draft([replace(each, query=tiny.query("The sky is blue because the sky is blue"), hints=())])
    assert work[:2] == ["lead", 12] and all(isinstance(count, int) for count in work[1:])


def test_a_hint_that_wins_beside_a_leap_is_not_read_again():
    one = in_leaps(guessing(tiny.member("gemma3", 1)))
    each = job(tiny.query(), (), 8, 40)
    hint = Candidate(" and so on, then", False, ("other",))
    one.draft([replace(each, hints=(hint,))])
    before, each = one.store.passed, job(each.query, (Segment(hint.text),), 1, 1)
    (told,) = one.draft([each])
    assert one.store.passed == before
    assert tiny.difference(told, tiny.rereading(one).draft([each])[0]) < NEAR


# --- captured, as far as that can be told without a GPU -----------------------------------------------------------


def on_tape(one):
    one.store.static = True
    return in_leaps(one, Taped(one.store, one.name))


@pytest.mark.parametrize("arch", tiny.SLAB)
def test_captured_steps_draw_what_is_drawn_one_by_one(arch):
    one = Compared(arch, 1, on_tape)
    answers, queries = [(), ()], [tiny.query("Why?"), tiny.query("Why is the sky blue? " * 9)]
    for turn in range(6):
        jobs = [job(q, a, 7, 64, HOWS[turn % 4]) for q, a in zip(queries, answers, strict=True)]
        jobs = jobs[: 1 + turn % 2]
        for at, draft in enumerate(one.draft(jobs)):
            answers[at] = (*answers[at], Segment(draft.text, False, {one.name: draft.tokens}))
    graphs = one.quick.drawing.leaps.graphs
    assert one.worst < NEAR and graphs.replayed > 20 and not graphs.refused


def test_captured_steps_serve_one_query_after_another():
    one = Compared("llama", 1, on_tape)
    made = []
    for text in ("Why?", "Who is it?", "What is the answer to all this?"):
        query = tiny.query(text)
        one.draft([job(query, (), 6, 64)])
        one.forget(query.id)
        made.append([id(tape) for tape, _ in one.quick.store.captured.values()])
    assert one.worst < NEAR and made[0] == made[1] == made[2] and len(made[0]) == 1


def test_captured_steps_are_captured_anew_when_their_memory_or_their_weights_have_moved():
    one = Compared("llama", 1, on_tape)
    store, tapes = one.quick.store, []

    def asked(text):
        query = tiny.query(text)
        one.draft([job(query, (), 6, 64)])
        one.forget(query.id)
        tapes.append([tape for tape, _ in store.captured.values()])

    asked("Why?")
    asked("Why? " * 500)
    assert len(tapes[0]) == len(tapes[1]) == 1 and tapes[0][0] is not tapes[1][0]
    asked("Why? " * 490)
    assert tapes[2][0] is tapes[1][0]
    with torch.no_grad():
        weight = one.quick._weights.model.lm_head.weight
        weight.data = weight.data.clone()
    asked("Why? " * 480)
    assert len(tapes[3]) == 1 and tapes[3][0] is not tapes[2][0]
    assert one.worst < NEAR


def test_captured_steps_are_captured_anew_when_the_weights_were_on_the_shelf(tmp_path):
    told = {"name": "m", "dtype": "float32", "device": "cpu"}
    one = tiny.TransformersMember(saved("gemma3", tmp_path), **told)
    one.probe()
    on_tape(one)
    query, tapes, drafts = tiny.query("Why?"), [], []
    for _ in range(3):
        drafts += one.draft([job(query, (Segment("Well"),), 6, 64, SAMPLED)])
        tapes += [tape for tape, _ in one.store.captured.values()]
        one.forget(query.id)
        if len(tapes) == 1:
            assert one._weights.shelf.put_away()
    assert tapes[0] is not tapes[1] and tapes[1] is tapes[2]
    assert max(tiny.difference(draft, drafts[0]) for draft in drafts) < NEAR


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_whatever_a_captured_step_reads_is_still_there(arch):
    """A graph knows addresses: it keeps nothing alive."""
    one = on_tape(tiny.member(arch, 1))
    one.draft([job(tiny.query(), (), 6, 64, HOWS[2])])
    ((tape, _),) = one.store.captured.values()
    read = {place(t) for _, args, kwargs, *_ in tape.work for t in tree_leaves((args, kwargs)) if torch.is_tensor(t)}
    new = {place(t) for *_, made, mutable in tape.work if not mutable for t in tree_leaves(made) if torch.is_tensor(t)}
    tape.work.clear()
    gc.collect()
    alive = {place(t) for t in gc.get_objects() if issubclass(type(t), torch.Tensor) and t.numel()}
    assert len(read - new) > 20 and read - new <= alive


def place(tensor):
    return tensor.untyped_storage().data_ptr()


def test_few_captured_steps_are_held(monkeypatch):
    monkeypatch.setattr(_graphs, "MOST", 2)
    one = Compared("llama", 1, on_tape)
    query = tiny.query()
    for how in (*HOWS, *HOWS):
        one.draft([job(query, (), 6, 64, how)])
    assert one.worst < NEAR and len(one.quick.store.captured) == 2


def test_a_step_that_no_graph_can_hold_is_done_by_itself(monkeypatch, caplog):
    one = Compared("llama", 1, on_tape)
    hop = one.quick.store.hop

    def asking(*args):
        logits = hop(*args)
        logits.nonzero()  # how many there are decides the shape
        return logits

    monkeypatch.setattr(one.quick.store, "hop", asking)
    for _ in range(2):
        one.draft([job(tiny.query(), (), 6, 64)])
    graphs = one.quick.drawing.leaps.graphs
    assert one.worst < NEAR and graphs.refused and not graphs.replayed
    assert caplog.text.count("cannot be captured") == 1


def test_a_step_is_captured_while_nothing_is_at_stake():
    """Capturing runs it: no row may notice."""
    one = on_tape(tiny.member("llama", 1))
    seen = []
    capture = one.drawing.leaps.graphs._capture

    def watched(step):
        before = [memory[: len(one.store.rows), :, :-1].clone() for memory in one.store._memories()]
        tape = capture(step)
        after = [memory[: len(one.store.rows), :, :-1] for memory in one.store._memories()]
        seen.extend(torch.equal(*pair) for pair in zip(before, after, strict=True))
        return tape

    one.drawing.leaps.graphs._capture = watched
    one.draft([job(tiny.query(), (), 6, 64), job(tiny.query("Who?"), (), 6, 64)])
    assert seen and all(seen)


def test_the_trial_takes_captured_steps_and_gives_up_what_is_wrong_with_them(monkeypatch):
    monkeypatch.setattr(_graphs.Graphs, "fit", lambda store: True)
    monkeypatch.setattr(_trial, "Graphs", Taped)
    one = tiny.member("qwen3", 1)
    with torch.inference_mode():
        told = _trial.graphed(one.store, one.stops, one._vocabulary(one._weights), "m")
        assert told is not None and told.graphs.replayed and one.store.static
        monkeypatch.setattr(Tape, "replay", lambda self: None)
        assert _trial.graphed(one.store, one.stops, one._vocabulary(one._weights), "m") is None
    assert not one.store.static and not one.store.captured


def test_a_model_has_one_place_unless_it_is_parted_or_moved_about():
    model, _ = tiny.made("llama", 1)
    assert _graphs.place_of(model) == torch.device("cpu")
    model.hf_device_map = {"": "cpu"}  # transformers says so of every model that it has put somewhere
    assert _graphs.place_of(model) == torch.device("cpu")
    model.model.layers[1]._hf_hook = object()
    assert _graphs.place_of(model) is None
    del model.model.layers[1]._hf_hook
    model.lm_head.to("meta")
    assert _graphs.place_of(model) is None


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "opt"])
def test_masks_that_are_numbers_hide_the_same(arch, monkeypatch):
    """As they are on a GPU."""
    slow = [tiny.member(arch, 1), tiny.member("qwen3", 1)]
    query = tiny.query()
    answer = tiny.relayed(slow, query, 6, 5)
    monkeypatch.setattr(Read, "adds_masks", True)
    assert tiny.relayed([on_tape(tiny.member(arch, 1)), leaping("qwen3", 1)], query, 6, 5) == answer
    told = {one.name: one.draft([job(query, answer, 6, 64)])[0] for one in (tiny.member(arch, 1), leaping(arch, 1))}
    monkeypatch.undo()
    assert tiny.difference(told[slow[0].name], slow[0].draft([job(query, answer, 6, 64)])[0]) < NEAR


# --- whether it is right for a model ------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [*tiny.SLAB, "gemma2", "phi3-long"])
def test_the_trial_finds_leaps_right_where_the_slab_is(arch):
    one = tiny.member(arch, 1)
    leaps = Leaps(one.store, one.stops)
    with torch.inference_mode():
        assert _trial.leaps_right(leaps, one._vocabulary(one._weights))
    assert not one.store.rows


@pytest.mark.parametrize("wrong", ["position", "column", "token", "window", "noise", "penalty"])
def test_the_trial_finds_out_what_is_wrong(wrong, monkeypatch):
    one = tiny.member("mistral", 1)
    leaps = Leaps(one.store, one.stops)
    hop, window = one.store.hop, dict(one.store._mask_kinds)
    if wrong == "position":
        monkeypatch.setattr(one.store, "hop", lambda ids, at, columns, width: hop(ids, at + 1, columns, width))
    elif wrong == "column":
        monkeypatch.setattr(one.store, "hop", lambda ids, at, columns, width: hop(ids, at, columns - 1, width))
    elif wrong == "token":
        monkeypatch.setattr(one.store, "hop", lambda ids, *rest: hop(ids * 0 + 5, *rest))
    elif wrong == "window":

        def unbounded(*args):
            one.store._mask_kinds = dict.fromkeys(window)
            try:
                return hop(*args)
            finally:
                one.store._mask_kinds = window

        monkeypatch.setattr(one.store, "hop", unbounded)
    elif wrong == "noise":
        monkeypatch.setattr(_dice, "noise", lambda seed, position: 0.999)
    elif wrong == "penalty":
        monkeypatch.setattr(Dice, "_penalised", lambda self, rows: rows)
    with torch.inference_mode():
        assert not _trial.leaps_right(leaps, one._vocabulary(one._weights))


def test_on_a_cpu_nothing_leaps_by_itself():
    """There it saves no launches, and rows that are done would go on for nothing."""
    one = tiny.member("llama", 1)
    assert one.drawing.leaps is None and one.thinking.leaps is None
    assert "captured" not in one.probe().detail


# --- picking ------------------------------------------------------------------------------------------------------


@given(
    st.integers(0, 10**6),
    st.lists(
        st.tuples(
            st.sampled_from([0.0, 0.3, 1.0, 4.0]),
            st.sampled_from([None, 0.2, 0.9, 1.0]),
            st.sampled_from([None, 0, 1, 3, 50]),
            st.sampled_from([None, 0.01, 0.5]),
            st.sampled_from([None, 1.0, 1.7, 0.6]),
        ),
        min_size=1,
        max_size=5,
    ),
)
def test_many_rows_are_picked_on_the_device_as_one_by_one(seed, told):
    torch.manual_seed(seed)
    hows = [Sampling(t, p, k, m, r, seed=seed + at) for at, (t, p, k, m, r) in enumerate(told)]
    rows = 3 * torch.randn(len(hows), 40)
    rows[:, 7] = rows[:, 9]  # a tie
    contexts = [[(seed * (at + 3) + i) % 40 for i in range(at + 2)] for at in range(len(hows))]
    stops = [3, 11]
    dice = Dice.of(hows, contexts, steps=1, width=40, stops=stops, device=rows.device)
    tokens, logprobs, ends = dice.thrown(rows, torch.zeros(1, dtype=torch.long))
    wanted = chosen(rows, hows, contexts)
    assert tokens.tolist() == wanted
    assert torch.allclose(logprobs, torch.tensor(logprobs_of(rows, wanted)))
    assert torch.allclose(ends, torch.tensor(end_logprobs(rows, stops)))


def test_without_stop_tokens_no_end_is_probable():
    dice = Dice.of([Sampling()], [[1]], steps=1, width=5, stops=[], device=torch.device("cpu"))
    assert dice.thrown(torch.randn(1, 5), torch.zeros(1, dtype=torch.long))[2].tolist() == [-math.inf]


@pytest.mark.parametrize(("width", "wanted"), [(1, 256), (256, 256), (257, 512), (1025, 1280), (2049, 2560)])
def test_few_widths_serve_many_lengths(width, wanted):
    assert bucket(width) == wanted


def test_no_width_wastes_more_than_a_quarter_of_a_long_row():
    assert all(width <= bucket(width) <= max(1.25 * width, width + 255) for width in range(1, 9000, 7))
    assert len({bucket(width) for width in range(1, 9000)}) < 20


# --- on a GPU -----------------------------------------------------------------------------------------------------

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(arch, seed=1, **kwargs):
    model, tokenizer = tiny.made(arch, seed)
    one = tiny.TransformersMember(model.to("cuda"), tokenizer, name=f"{arch}-{seed}", **kwargs)
    one.probe()
    return one


@gpu
@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral", "qwen3", "gpt2"])
@pytest.mark.parametrize("how", HOWS)
def test_captured_drafts_are_the_drafts_drawn_one_by_one(arch, how):
    quick, slow = on_gpu(arch), on_gpu(arch, graphs=False)
    assert quick.drawing.leaps is not None and slow.drawing.leaps is None
    assert "captured" in quick.probe().detail
    queries = [tiny.query(text) for text in ("Why?", "Why is the sky blue? " * 20, "def add(a, b):\n")]
    answers = [()] * len(queries)
    for turn in range(8):
        jobs = [job(query, answer, 6, 64, how) for query, answer in zip(queries, answers, strict=True)]
        jobs = jobs[: 1 + turn % 3]
        for at, (told, wanted) in enumerate(zip(quick.draft(jobs), slow.draft(jobs), strict=True)):
            assert tiny.difference(told, wanted) < 1e-3
            answers[at] = (*answers[at], Segment(told.text, False, {quick.name: told.tokens}))
    assert quick.store.captured, "nothing was captured"


@gpu
def test_captured_steps_survive_a_query_that_ends_and_memory_that_grows():
    quick, slow = on_gpu("llama"), on_gpu("llama", graphs=False)
    for words in (1, 1, 200, 1):
        query = tiny.query("Why? " * words)
        (told,), (wanted,) = (one.draft([job(query, (), 6, 64)]) for one in (quick, slow))
        assert tiny.difference(told, wanted) < 1e-3
        quick.forget(query.id), slow.forget(query.id)


@gpu
def test_weights_that_were_moved_are_captured_anew():
    quick = on_gpu("llama")
    (before,) = quick.draft([job(tiny.query("Why?"), (), 6, 64)])
    quick._weights.model.to("cpu")
    torch.cuda.empty_cache()
    taken = torch.full((1 << 22,), float("nan"), device="cuda")  # where the weights were
    quick._weights.model.to("cuda")
    quick.store.clear()
    (after,) = quick.draft([job(tiny.query("Why?"), (), 6, 64)])
    assert (before.text, before.tokens) == (after.text, after.tokens) and len(taken)


@gpu
def test_a_step_that_cannot_be_captured_is_launched_by_itself(monkeypatch, caplog):
    quick, slow = on_gpu("llama"), on_gpu("llama", graphs=False)
    quick.store.captured.clear()
    hop = quick.store.hop

    def asking(*args):
        logits = hop(*args)
        float(logits[0, 0])  # asks the host: no graph can hold that
        return logits

    monkeypatch.setattr(quick.store, "hop", asking)
    query = tiny.query("Why?")
    (told,), (wanted,) = (one.draft([job(query, (), 6, 64)]) for one in (quick, slow))
    assert tiny.difference(told, wanted) < 1e-3 and not quick.store.captured
    assert "cannot be captured" in caplog.text


@gpu
def test_an_ensemble_on_a_gpu_writes_the_same_with_and_without_graphs():
    answers = []
    for graphs in (True, False):
        members = [on_gpu("llama", 1, graphs=graphs), on_gpu("qwen3", 1, graphs=graphs)]
        turns = (Turn("user", "Why is the sky blue?"),)
        told = tiny.answered(members, replace(tiny.query(), turns=turns), Settings(max_tokens=40))
        answers.append(tiny.text_of(told))
    assert answers[0] == answers[1]
