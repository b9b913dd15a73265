"""Who waits for whom when members speculate, and what they are told: the answer is the same."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.casting import in_turn
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Scored, Seat, Settings

from .play import play
from .test_casting import always, sayer
from .test_late import TOO_LATE
from .test_recorded import CASES, TOLD, field_told, members

LARGE, SMALL, MID = (
    Seat("large", size=100, desk="cpu"),
    Seat("small", size=2, desk="cpu"),
    Seat("mid", size=60, desk="cpu"),
)
FAR_AWAY = Seat("far", size=900, desk="gpu")
SEATS = [LARGE, SMALL, MID, FAR_AWAY]
NAMES = [seat.name for seat in SEATS]


def speakers(**sayings):
    return {name: sayer(word, always(-0.5 - len(word) / 9)) for name, word in sayings.items()}


ALL = speakers(large="one", small="two", mid="three", far="four")


def told_of(played):
    """The rounds, without who was asked when."""
    return [[field_told(round, name) for name in TOLD] for round in played.rounds]


def asks_of(played, round):
    return [ask for ask in played.asks if ask.round == round and isinstance(next(iter(ask.jobs.values())), DraftJob)]


@pytest.mark.parametrize(
    ("speculate", "parts"),
    [
        (False, [{"large", "small", "mid", "far"}]),
        ("auto", [{"small", "far"}, {"large", "mid"}]),  # nobody at the desk of the one that is far away is smaller
        (True, [{"small"}, {"mid", "far"}, {"large"}]),  # at one desk one after another, by size
    ],
)
def test_much_larger_members_wait_at_their_desk_and_all_larger_ones_if_told(speculate, parts):
    played = play(ALL, Settings(max_tokens=12, segment_tokens=3, speculate=speculate, exit="never"), SEATS)
    for round in played.rounds:
        asks = asks_of(played, round.number)
        assert [set(ask.jobs) for ask in asks] == parts
        hints = [{job.hints for job in ask.jobs.values()} for ask in asks]
        if speculate is False:
            assert hints == [{None}]
        else:
            assert hints[0] == {()}
            for turn, hinted in enumerate(hints):
                before = {name for part in parts[:turn] for name in part}
                assert [{hint.text for hint in told} for told in hinted] == [{round.drafts[n].text for n in before}]


@pytest.mark.parametrize("drafters", [None, 1, 2])
def test_an_answer_is_the_same_whoever_waits(drafters):
    told = [
        play(ALL, Settings(max_tokens=30, segment_tokens=3, drafters=drafters, speculate=kind, exit="never"), SEATS)
        for kind in (False, "auto", True)
    ]
    assert told_of(told[0]) == told_of(told[1]) == told_of(told[2])
    assert any(len(round.drafts) < 4 for round in told[0].rounds) == (drafters is not None)


@pytest.mark.parametrize("case", CASES)
def test_recorded_answers_are_the_same_to_the_last_digit(case):
    sized = [Seat(name, size=10**k, desk="cpu") for k, name in enumerate(members(case))]
    settings = Settings(max_tokens=60, segment_tokens=4)
    assert told_of(play(members(case), settings, sized)) == told_of(
        play(members(case), replace(settings, speculate="auto"), sized)
    )


def test_who_is_called_in_doubt_is_told_what_was_drafted():
    wavers = sayer("y", lambda number: -3.0 if number == 3 else -0.1)
    answerers = {"a": sayer("x", always(-0.5)), "b": wavers, "c": sayer("z", always(-0.5))}
    settings = Settings(max_tokens=30, segment_tokens=3, drafters=1, speculate="auto")
    played = play(answerers, settings)
    first, then = asks_of(played, 3)
    assert (set(first.jobs), set(then.jobs)) == ({"b"}, {"a", "c"})
    assert {hint.text for job in then.jobs.values() for hint in job.hints} == {" y30 y31 y32"}


def test_who_fails_is_no_hint_and_those_who_wait_go_on():
    def fails(job, number):
        return Failure("error", "broken") if number == 2 else Draft(f" s{number}", tokens=(1,), logprobs=(-1.0,))

    def scores(job, number):
        if isinstance(job, DraftJob):
            return Draft(f" l{number}", tokens=(1,), logprobs=(-1.0,))
        return Scored(tuple((-2.0,) for _ in job.candidates))

    seats = [Seat("large", size=100), Seat("small", size=1, scores=False)]
    played = play({"large": scores, "small": fails}, Settings(max_rounds=3, speculate="auto"), seats)
    assert played.left == ["small"]
    assert [job.hints for ask in asks_of(played, 2) for job in ask.jobs.values()] == [(), ()]
    assert [set(ask.jobs) for ask in asks_of(played, 3)] == [{"large"}]
    assert played.error is None and len(played.rounds) == 3


def test_nothing_to_say_is_no_hint_and_what_two_say_is_one():
    same = Draft(" same", tokens=(1,), logprobs=(-1.0,))
    replies = {"small": lambda j, n: same, "mid": lambda j, n: same, "mute": lambda j, n: Draft("")}
    seats = [Seat("large", size=1000), *(Seat(name, size=1, scores=False) for name in replies)]
    played = play({"large": lambda j, n: same, **replies}, Settings(max_rounds=1, speculate="auto"), seats)
    (hint,) = asks_of(played, 1)[1].jobs["large"].hints
    assert (hint.text, hint.ended, hint.authors) == (" same", False, ("small", "mid"))


@given(
    st.lists(st.tuples(st.integers(0, 100), st.sampled_from("ab")), min_size=1, max_size=6),
    st.sampled_from([False, "auto", True]),
)
def test_everybody_is_asked_once_and_somebody_at_once(sizes, speculate):
    seats = [Seat(f"m{k}", size=size, desk=desk) for k, (size, desk) in enumerate(sizes)]
    names = [seat.name for seat in seats]
    parts = in_turn(seats, names, speculate)
    assert sorted(name for part in parts for name in part) == names
    assert parts and all(parts) and (speculate is True or len(parts) <= 2)
    if speculate is False:
        assert parts == [tuple(names)]
    by_name = {seat.name: seat for seat in seats}
    for turn, part in enumerate(parts[1:], 1):  # nobody waits who is not larger than somebody who drafts
        before = [by_name[name] for earlier in parts[:turn] for name in earlier]
        assert all(any(0 < other.size < by_name[name].size for other in before) for name in part)
        if turn > 1:  # and for a third turn only where somebody has the desk until then
            latest = [by_name[name] for name in parts[turn - 1]]
            assert all(any(0 < o.size < by_name[n].size and o.desk == by_name[n].desk for o in latest) for n in part)
    if speculate is True:
        for desk in "ab":  # at one desk nobody drafts beside somebody of another size that it could have waited for
            sizes_at_once = [{by_name[n].size for n in part if by_name[n].desk == desk} for part in parts[1:]]
            assert all(len(at_once) <= 1 for at_once in sizes_at_once)


def lates(name, *numbers):
    """All speakers, one of whom drafts late in these rounds."""
    told = lambda job, number: TOO_LATE if number in numbers and isinstance(job, DraftJob) else ALL[name](job, number)
    return {**ALL, name: told}


def test_who_waits_goes_on_without_a_smaller_one_that_is_late():
    settings = Settings(max_rounds=2, segment_tokens=3, speculate=True, exit="never")
    played = play(lates("small", 2), settings, SEATS)
    first, then, last = asks_of(played, 2)
    assert (set(first.jobs), first.spare) == ({"small"}, True)
    assert (set(then.jobs), then.spare) == ({"mid", "far"}, True)  # nobody has answered, but one is there to ask
    assert {job.hints for job in then.jobs.values()} == {()}
    assert (set(last.jobs), last.spare) == ({"large"}, True)
    assert played.rounds[1].late == {"draft": ("small",)} and set(played.rounds[1].drafts) == {"large", "mid", "far"}
    assert played.left == []


def test_who_is_waited_for_is_enough_when_those_who_waited_are_late():
    settings = Settings(max_rounds=2, segment_tokens=3, speculate=True, exit="never")
    played = play(lates("far", 2), settings, SEATS)
    assert [ask.spare for ask in asks_of(played, 2)] == [True, True, True]
    assert played.rounds[1].late == {"draft": ("far",)} and set(played.rounds[1].drafts) == {"large", "mid", "small"}


def test_in_doubt_who_was_late_is_asked_again_with_those_who_wait():
    settings = Settings(max_rounds=3, segment_tokens=3, drafters=1, speculate=True, exit="never")
    played = play(lates("small", 3), settings, SEATS, prior={"small": 5.0})
    assert [(set(ask.jobs), ask.spare) for ask in asks_of(played, 3)] == [
        ({"small"}, True),
        ({"mid"}, True),
        ({"small", "large", "far"}, True),
    ]
