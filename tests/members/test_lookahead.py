"""Guessing changes when a draft comes, never what it says: with guesses and others' drafts read along, and without."""

import random
from dataclasses import replace

import pytest
import torch

from langchain_specfuse.core.values import (
    Candidate,
    DraftJob,
    Failure,
    Sampling,
    ScoreJob,
    Seat,
    Segment,
    Settings,
)
from langchain_specfuse.members import _lookahead
from langchain_specfuse.members._lookahead import Foresight, Lookahead, Odds, Prices, Trail, Way

from . import tiny
from .test_masking import BOUND

NEAR = 1e-4
FREE = {1: 1.0, 4: 1.0, 8: 1.0, 16: 1.0}
"""Passes that cost the same whatever they read: every chance to guess is taken."""
DEAR = {1: 1.0, 4: 4.0, 8: 8.0, 16: 16.0}
HOWS = {
    "greedy": Sampling(),
    "penalty": Sampling(repetition_penalty=1.4),
    "warm": Sampling(temperature=0.9, top_p=0.95, seed=7),
    "narrow": Sampling(temperature=0.7, top_k=5, seed=8),
}


def guessing(member, prices=FREE):
    """The member, for which a pass costs what the test says."""
    member.drawing.lookahead.prices.known = dict(prices)
    return member


class Passes:
    """Counts the passes through a member's model."""

    def __init__(self, member):
        self.count, self._read = 0, member.store.read
        member.store.read = self

    def __getattr__(self, name):
        return getattr(self._read, name)

    def __call__(self, *args, **kwargs):
        self.count += 1
        return self._read(*args, **kwargs)


class Failing(Passes):
    """Breaks off at one of the passes."""

    def __init__(self, read, at):
        self.count, self._read, self.at = 0, read, at

    def __call__(self, *args, **kwargs):
        if self.count + 1 == self.at:
            raise RuntimeError("broken")
        return super().__call__(*args, **kwargs)


def spoilt(text, at):
    """The text with another word in its middle."""
    return text[:at] + " zebra" + text[at + 3 :]


def hints_for(truth, chance):
    """Others' drafts that say the same, nearly the same, or something else."""
    kinds = [
        (truth.text, truth.ended),
        (spoilt(truth.text, len(truth.text) // 2), False),
        (truth.text[: len(truth.text) // 2 + 1], False),
        (" and so on", True),
        ("", True),
        (truth.text + truth.text, False),
    ]
    chosen = dict.fromkeys(chance.sample(kinds, chance.choice((0, 1, 2, 3))))
    return tuple(Candidate(text, ended, ("other",)) for text, ended in chosen if text or ended)


@pytest.mark.parametrize(
    ("arch", "how"),
    [
        *((arch, "greedy") for arch in tiny.ALL),
        *((arch, how) for arch in ("llama", "gemma2") for how in list(HOWS)[1:]),
    ],
)
def test_drafts_and_scores_are_what_they_are_without_guesses(arch, how):
    """Over many rounds: own and foreign segments, hints of all kinds, guesses from an answer that was heard before."""
    chance = random.Random(f"{arch} {how}")
    quick, slow = guessing(tiny.member(arch, 1)), tiny.rereading(tiny.member(arch, 1))
    query, answer, worst, read_along = tiny.query("The sky is blue because the sky is blue because"), (), 0.0, 0
    for turn in range(7):
        job = DraftJob(query, answer, 4 + turn % 4, 60, HOWS[how])
        truth = slow.draft([job])[0]
        hinted = replace(job, hints=hints_for(truth, chance))
        if turn % 3 == 1 and (memo := quick._memos.get(query.id)) and memo.trail:
            context = quick._context(job)
            memo.trail.heard([context + list(truth.tokens)], len(context))
        worst = max(worst, tiny.difference(quick.draft([hinted])[0], truth))
        read_along += len(quick._memo(query).known(quick._context(job)))
        fresh = (Candidate(" one more", False, ("x",)), *(hinted.hints or ()))
        score = ScoreJob(query, answer, fresh[turn % 2 :])
        worst = max(worst, tiny.difference(quick.score([score])[0], slow.score([score])[0]))
        said = chance.choice([truth.text or " x", " and then", *(hint.text for hint in hinted.hints if hint.text)])
        own = {quick.name: truth.tokens} if said == truth.text else {}
        answer += (Segment(said, False, own),)
    assert worst < NEAR
    assert bool(read_along) == quick.store.can_turn_back == (arch not in [*tiny.RECURRENT, "bloom"])


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mistral"])
def test_an_answer_that_was_heard_before_takes_fewer_passes(arch):
    for heard, most in ((True, 0.3), (False, 1.0)):
        member, query = guessing(tiny.member(arch, 3)), tiny.query()
        truth = tiny.member(arch, 3).draft([DraftJob(query, (), 10, 40, Sampling())])[0]
        member.draft([DraftJob(query, (), 1, 40, Sampling(temperature=2.0, seed=1), hints=())])
        context = member._context(DraftJob(query, (), 1, 40, Sampling()))
        if heard:
            member._memo(query).trail.heard([context + list(truth.tokens)], len(context))
        passes = Passes(member)
        found = member.draft([DraftJob(query, (), 10, 40, Sampling(), hints=())])[0]
        assert (found.text, found.tokens) == (truth.text, truth.tokens)
        assert passes.count <= most * len(truth.tokens) + 1
        assert heard or passes.count >= len(truth.tokens) - 1


@pytest.mark.parametrize("seed", [1, 3])
def test_a_draft_that_another_wrote_too_takes_two_passes_and_its_score_none(seed):
    member, query = guessing(tiny.member("gemma3", seed)), tiny.query()
    job = DraftJob(query, (), 8, 40, Sampling())
    truth = tiny.member("gemma3", seed).draft([job])[0]
    other = Candidate(spoilt(truth.text, 2), False, ("other",))
    hints = (Candidate(truth.text, truth.ended, ("other",)), other)
    passes = Passes(member)
    assert tiny.difference(member.draft([replace(job, hints=hints)])[0], truth) < NEAR
    beyond = len(member._memo(query).ahead) - len(truth.tokens)  # looked at, for a place to cut
    assert passes.count <= 2 + beyond < len(member._memo(query).ahead)  # the prompt, and the hints
    before = passes.count
    told = member.score([ScoreJob(query, (), hints)])[0]
    assert passes.count == before
    assert tiny.difference(told, tiny.rereading(member).score([ScoreJob(query, (), hints)])[0]) < NEAR
    # The other one wins: it was read already, as a branch, and lies beside the own draft that was drawn meanwhile.
    answer = (Segment(other.text),)
    found = member.draft([replace(job, answer=answer, segment_tokens=1, max_tokens=1)])[0]
    assert passes.count == before
    assert (
        tiny.difference(
            found, tiny.rereading(member).draft([replace(job, answer=answer, segment_tokens=1, max_tokens=1)])[0]
        )
        < NEAR
    )


@pytest.mark.parametrize("how", ["greedy", "warm"])
@pytest.mark.parametrize("arch", ["gemma3", "mistral"])
def test_a_draft_that_differs_from_another_in_one_word_falls_in_with_it_again(arch, how):
    """A pass for the prompt, one for the other draft, one behind the word that differs, then one for each eight."""
    found = 0
    for seed in range(1, 7):
        query = tiny.query()
        job = DraftJob(query, (), 20, 20, HOWS[how])
        plain = tiny.member(arch, seed)
        truth = plain.draft([job])[0]
        other = other_word(plain, job, truth)
        if other is None:
            continue
        member = guessing(tiny.member(arch, seed))
        passes, found = Passes(member), found + 1
        assert tiny.difference(member.draft([replace(job, hints=(other,))])[0], truth) < NEAR
        assert passes.count <= 5 < len(truth.tokens) / 2
    assert found


def other_word(member, job, truth):
    """The draft with another token in its middle, if text says that: tokens of an untrained model often do not."""
    context, ids = member._context(job), list(truth.tokens)
    for at in range(3, 9):
        for token in ids[:at] if len(ids) >= 14 else ():
            said = [*ids[:at], token, *ids[at + 1 :]]
            text = member.words.told(context, said)[0]
            if token != ids[at] and member._candidate_ids(job, text) == context + said:
                return Candidate(text, False, ("other",))
    return None


def test_how_another_draft_goes_on_is_guessed_behind_the_word_that_differs():
    trail = Trail()
    trail.follow([1, 2, 3])
    trail.beside([[1, 2, 3, 10, 11, 12, 13, 14]], 3)
    assert trail.guess([1, 2, 3, 10, 20], 9).ids == [12, 13, 14]  # one word for another
    assert trail.guess([1, 2, 3, 10, 20, 21, 12], 2).ids == [13, 14]  # two words for one
    assert trail.guess([1, 2, 3, 10, 20, 21, 12, 13], 9).ids == [14]
    assert trail.guess([1, 2, 3, 10, 20, 21, 22, 23, 24], 9) is None  # there is nothing in its place
    assert trail.guess([1, 2, 3, 10, 20], 0) is None
    trail.beside([[1, 2, 3, 7, 10, 11, 7, 12]], 3)
    assert trail.guess([1, 2, 3, 7, 20, 21, 7], 9).ids == [12]  # where it stands nearest
    trail.beside([], 9)
    assert trail.guess([*range(30, 39), 10, 11], 9).ids == [7, 12]  # what was drafted once may be said later
    assert trail.guess([*range(30, 39), 7], 9) is None


def test_others_drafts_are_guessed_from_in_their_own_round_only():
    member, query = guessing(tiny.member("llama", 1)), tiny.query()
    job = DraftJob(query, (), 6, 60, Sampling(), hints=(Candidate(" and so on, then", False, ("other",)),))
    told = member.draft([job])[0]
    trail = member._memo(query).trail
    assert trail._others
    member.draft([replace(job, answer=(Segment(told.text, False, {member.name: told.tokens}),), hints=())])
    assert not trail._others


def test_a_hint_that_wins_is_not_read_again_though_the_own_draft_was_drawn_meanwhile():
    member, query = guessing(tiny.member("gemma3", 1), DEAR), tiny.query()
    job = DraftJob(query, (), 8, 40, Sampling())
    hint = Candidate(" and so on, then", False, ("other",))
    passes = Passes(member)
    told = member.draft([replace(job, hints=(hint,))])[0]
    assert passes.count > len(told.tokens) - 2  # nothing of it was foreseen
    before = passes.count
    job = replace(job, answer=(Segment(hint.text),), segment_tokens=1, max_tokens=1)
    found = member.draft([job])[0]
    assert passes.count == before
    assert tiny.difference(found, tiny.rereading(member).draft([job])[0]) < NEAR


def test_passes_that_cost_their_tokens_are_never_made_on_a_guess():
    member, query = guessing(tiny.member("llama", 1), DEAR), tiny.query("one two three one two three one two")
    passes, plain = Passes(member), Passes(other := tiny.member("llama", 1))
    for turn in range(3):
        job = DraftJob(query, (Segment(" one two three" * turn),) if turn else (), 10, 60, Sampling())
        member.draft([replace(job, hints=())])
        other.draft([job])
    assert passes.count == plain.count
    assert member.store.passed == other.store.passed


@pytest.mark.parametrize("arch", ["llama", "gemma3", "gpt2", "qwen3-next"])
def test_in_a_batch_some_guess_right_and_some_wrong(arch):
    """Each gets what it gets alone, whoever else is there: others that guess, others that may not, others' hints."""
    member, slow = guessing(tiny.member(arch, 1)), tiny.rereading(tiny.member(arch, 1))
    queries = [tiny.query("The sky is blue. " * (1 + k)) for k in range(6)]
    answers = {query.id: () for query in queries}
    chance = random.Random(arch)
    for turn in range(5):
        present = [query for k, query in enumerate(queries) if k <= turn + 2 and k != turn]
        jobs = [DraftJob(q, answers[q.id], 3 + k, 60, list(HOWS.values())[k % 4]) for k, q in enumerate(present)]
        truths = [slow.draft([job])[0] for job in jobs]
        told = []
        for k, (job, truth) in enumerate(zip(jobs, truths, strict=True)):
            told.append(replace(job, hints=hints_for(truth, chance)) if k % 3 else job)
        for reply, truth in zip(member.draft(told), truths, strict=True):
            assert tiny.difference(reply, truth) < NEAR
        scores = [ScoreJob(j.query, j.answer, (Candidate(" x", False, ("x",)), *(j.hints or ()))) for j in told]
        for score, reply in zip(scores, member.score(scores), strict=True):
            assert tiny.difference(reply, slow.score([score])[0]) < NEAR
        for job, truth in zip(told, truths, strict=True):
            said = chance.choice([truth.text or " x", *(hint.text or " y" for hint in job.hints or ())])
            own = {member.name: truth.tokens} if said == truth.text else {}
            answers[job.query.id] += (Segment(said, False, own),)
        if turn == 2:
            member.forget(queries[0].id)


@pytest.mark.parametrize(
    ("arch", "kind"), [*(("llama", kind) for kind in BOUND), ("mistral", "calls"), ("mamba", "schema")]
)
def test_a_constraint_masks_what_was_guessed_too(arch, kind):
    quick, slow = guessing(tiny.member(arch, 1)), tiny.rereading(tiny.member(arch, 1))
    query, answer = tiny.query("abc-12 and so on! {} New York", constraint=BOUND[kind]), ()
    for turn in range(4):
        job = DraftJob(query, answer, 5, 40, HOWS["warm" if turn % 2 else "greedy"])
        truth = slow.draft([job])[0]
        memo = quick._memo(query)
        memo.trail = memo.trail or Trail()
        context = quick._context(job)
        memo.trail.heard([context + list(truth.tokens)], len(context))
        hints = (Candidate(truth.text, truth.ended, ("other",)),)
        assert tiny.difference(quick.draft([replace(job, hints=hints)])[0], truth) < NEAR
        score = ScoreJob(query, answer, hints)
        assert tiny.difference(quick.score([score])[0], slow.score([score])[0]) < NEAR
        answer += (Segment(truth.text, truth.ended, {quick.name: truth.tokens}),)
        if truth.ended:
            break
    assert answer


def test_an_end_inside_what_was_guessed_ends_the_draft():
    """Stop tokens, ends in words, stop strings and the budget, each in the middle of an accepted run."""
    seen = set()
    for arch, seed in (("llama", 0), ("llama", 2), ("qwen3", 0), ("qwen3", 2), ("gpt2", 0)):
        quick, slow = guessing(tiny.member(arch, seed)), tiny.rereading(tiny.member(arch, seed))
        for number in range(2):
            query, answer = tiny.query(f"Why {number}?"), ()
            for _ in range(3):
                whole = slow.draft([DraftJob(query, answer, 12, 60, Sampling())])[0]
                stop = (whole.text[5:8],) if len(whole.text) > 9 else ()
                for job in (
                    DraftJob(query, answer, 12, 60, Sampling()),
                    DraftJob(query, answer, 12, 60, Sampling(), stop=stop),
                    DraftJob(query, answer, 12, 5, Sampling()),
                ):
                    truth = slow.draft([job])[0]
                    beyond = Candidate(whole.text + " and more", False, ("other",))
                    hints = (beyond, Candidate(whole.text, whole.ended, ("other",)))
                    assert tiny.difference(quick.draft([replace(job, hints=hints)])[0], truth) < NEAR
                    seen.add((whole.ended, bool(job.stop), job.max_tokens == 5))
                answer += (Segment(whole.text or " x", False, {quick.name: whole.tokens} if whole.text else {}),)
    assert {(True, False, False), (False, True, False), (False, False, True)} <= seen


@pytest.mark.parametrize("arch", ["opt", "llama"])
def test_nothing_is_read_beyond_the_context_s_end(arch):
    size = {"max_position_embeddings": 140, "chat_template": tiny.CHATML}
    member = guessing(tiny.member(arch, 1, made_with=size))
    query, answer = tiny.query("one two three one two three"), ()
    slow = tiny.rereading(tiny.member(arch, 1, made_with=size))
    for _ in range(40):
        job = DraftJob(query, answer, 6, 60, Sampling())
        truth = slow.draft([job])[0]
        memo = member._memo(query)
        memo.trail = memo.trail or Trail()
        context = member._context(job)
        told = getattr(truth, "tokens", ())
        memo.trail.heard([[*context, *told, *told]], len(context))
        hints = (Candidate(getattr(truth, "text", "") + " and so on, and on" * 4, False, ("x",)),)
        assert tiny.difference(member.draft([replace(job, hints=hints)])[0], truth) < NEAR
        if isinstance(truth, Failure):
            break
        answer += (Segment(truth.text, False, {member.name: told}) if told else Segment(" and"),)
    assert truth.kind == "overflow" and len(answer) > 1


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_what_was_read_along_may_be_lost(arch):
    """Another query takes all the room between draft and score, and between score and draft."""
    member = guessing(tiny.member(arch, 1, cache_bytes=1))
    slow, chance = tiny.rereading(member), random.Random(5)
    query, intruder, answer = tiny.query(), tiny.query("Somebody else asks something."), ()
    for turn in range(6):
        job = DraftJob(query, answer, 6, 60, Sampling())
        truth = slow.draft([job])[0]
        hints = hints_for(truth, chance)
        for work, asked in (("draft", replace(job, hints=hints)), ("score", ScoreJob(query, answer, hints))):
            if turn % 2:
                member.draft([DraftJob(intruder, (), 2, 2, Sampling(), hints=())])
            if hints or work == "draft":
                told = getattr(slow, work)([asked])[0]
                assert tiny.difference(getattr(member, work)([asked])[0], told) < NEAR
        answer += (Segment(hints[0].text or " x" if hints else truth.text or " y"),)


def test_a_pass_that_fails_on_a_guess_is_made_again():
    member, query = guessing(tiny.member("llama", 1)), tiny.query()
    job = DraftJob(query, (), 8, 40, Sampling())
    truth = tiny.rereading(member).draft([job])[0]
    hints = (Candidate(spoilt(truth.text, 3), False, ("other",)),)
    for failing in range(2, 6):
        sound = member.store.read
        member.store.read = Failing(sound, failing)
        (told,) = member.draft([replace(job, hints=hints)])
        assert isinstance(told, Failure)
        member.store.read = sound
        assert tiny.difference(member.draft([replace(job, hints=hints)])[0], truth) < NEAR
        member.forget(query.id)


# --- the parts ----------------------------------------------------------------------------------------------------


def test_the_same_question_makes_the_same_guesses():
    """To the bit: prices are measured once, and what came true is counted for each query anew."""
    member = tiny.member("llama", 1)
    told = []
    for _ in range(3):
        query, answer, found = tiny.query("one two one two one two", id="again"), (), []
        for _ in range(6):
            draft = member.draft([DraftJob(query, answer, 6, 60, Sampling(), hints=())])[0]
            found.append((draft.text, draft.logprobs))
            answer += (Segment(draft.text or " x"),)
        member.forget(query.id)
        member.drop_prefixes()
        told.append((found, dict(member.drawing.lookahead.prices.known)))
    assert told[0] == told[1] == told[2]
    assert set(told[0][1]) == set(_lookahead.MEASURED) and told[0][1][1] == 1.0


def test_guesses_that_fail_are_given_up_and_tried_again_now_and_then():
    lookahead, trail = Lookahead(), Trail()
    lookahead.prices.known = {1: 1.0, 4: 1.4, 8: 1.8, 16: 2.6}
    trail.follow([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3])
    guessed = []
    for _ in range(200):
        (guess,) = lookahead.runs([(trail, [1, 2, 3], 9)])
        guessed.append(bool(guess))
        if guess:
            Foresight([Way([0], [None], guess.odds)]).after(4)
    assert guessed[0] and sum(guessed[4:20]) <= 1
    assert sum(guessed[20:]) == pytest.approx(180 / _lookahead.PROBE, abs=1)
    for _ in range(60):
        trail._odds[3].learn(True)
    assert lookahead.runs([(trail, [1, 2, 3], 9)]) != [None]


def test_a_tail_that_is_read_anew_takes_the_old_one_s_place():
    trail = Trail()
    trail.follow([1, 2, 3, 4, 5])
    trail.follow([1, 2, 3, 6, 7, 8])
    assert trail.guess([0, 2, 3], 5).ids == [6, 7, 8]
    trail.heard([[1, 2, 3, 9, 9]], 3)
    assert trail.guess([1, 2, 3], 5).ids == [9, 9]
    assert trail.guess([2, 3], 0) is None and trail.guess([8], 4) is None and trail.guess([7, 8], 4) is None


def test_odds_follow_what_happens():
    odds = Odds(0.5)
    for _ in range(100):
        odds.learn(True)
    assert odds.share > 0.95
    for _ in range(40):
        odds.learn(False)
    assert odds.share < 0.25


@torch.inference_mode()
def test_a_price_is_that_of_a_pass_here():
    member = tiny.member("llama", 1)
    member.store.lead([("other", [1, 2, 3])], exact=True)
    before = member.store.passed, member.store.reused, list(member.store.rows)
    prices = Prices()
    prices.measure(member.store, 1)
    assert (member.store.passed, member.store.reused, list(member.store.rows)) == before
    assert all(1.0 <= price <= size for size, price in prices.known.items())
    known = dict(prices.known)
    prices.measure(member.store, 1)
    assert prices.known == known


# --- whole answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["greedy", "warm", "penalty"])
@pytest.mark.parametrize("kind", ["auto", True])
def test_an_ensemble_writes_the_same_answer_in_fewer_passes(kind, how):
    """A large member, one that mostly says the same in other tokens, and a stranger that cannot turn back."""
    counts = {}
    for speculate in (False, kind):
        large = guessing(tiny.member("llama", 1, name="large"))
        others = [guessing(tiny.member("llama", 1, name="kin", own_seed=5)), tiny.member("mamba", 1, name="stranger")]
        seats = [Seat("large", size=1000), Seat("kin", size=10), Seat("stranger", size=10)]
        passes = Passes(large)
        settings = Settings(segment_tokens=5, max_tokens=60, speculate=speculate, sampling=HOWS[how], exit="never")
        query = tiny.query("The sky is blue. Why is the sky blue?", id="whole")
        told = tiny.answered([large, *others], query, settings, seats=seats)
        counts[speculate] = (tiny.text_of(told), [round.winner for round in told], passes.count)
    assert counts[False][:2] == counts[kind][:2]
    assert counts[kind][2] < counts[False][2]


def test_settings_have_it_off():
    assert Settings().speculate is False
