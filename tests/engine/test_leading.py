"""A lead writes a whole answer by one stream: nothing of it is lost, repeated or delayed, whatever
the loop does with the text."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace

import pytest

from langchain_specfuse.core.call import note_arrival
from langchain_specfuse.core.checks import Check
from langchain_specfuse.core.drafts import joined
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import Draft, Effort, Failure
from langchain_specfuse.engine import Ensemble, calls, limits
from langchain_specfuse.engine.checker import Checker
from langchain_specfuse.engine.leading import in_complete_words, without_beginning
from langchain_specfuse.engine.worker import call
from langchain_specfuse.errors import EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember
from tests import late
from tests.late import three_tries
from tests.methods import in_method

from .conftest import BLUE, collected, query, text, until

TOKENS = ("The sky", " is bl", "ue, wr", "ote 12", "34", "56 of", " us, and", " then", ".")
TEXT = "".join(TOKENS)


class Streaming(ScriptedMember):
    """Streams its answer from where the agreed text ends, one chunk of TOKENS after another."""

    waits = True

    def __init__(self, tokens=TOKENS, *, breaks_at=None, hangs_at=None, ends=True, **options):
        super().__init__("".join(tokens), **options)
        self.tokens, self.breaks_at, self.hangs_at, self.ends = tokens, breaks_at, hangs_at, ends
        self.opened: list[str] = []
        """What had been agreed when each of its streams was opened."""
        self.open = 0
        self.read = 0
        self.gate = threading.Event()

    def stream(self, job):
        agreed = "".join(segment.text for segment in job.answer)
        self.opened.append(agreed)
        self.open += 1
        try:
            at = 0
            for number, token in enumerate(self.tokens):
                start, at = at, at + len(token)
                rest = token[max(len(agreed) - start, 0) :]
                if not rest:
                    continue
                if number == self.breaks_at:
                    raise ConnectionError("cut")
                if number == self.hangs_at:
                    while not self.gate.wait(0.01):
                        note_arrival() if self.gate is None else None
                self.read += 1
                yield Draft(rest, tokens=(number,), ends=(len(rest),))
            if self.ends:
                yield Draft("", ended=True, ends=())
        finally:
            self.open -= 1


def lead(*members, **options):
    return Ensemble(list(members)), Settings(
        **in_method(lead=members[0].name, segment_tokens=2, **options)
    )


def test_a_lone_member_writes_a_whole_answer_by_one_stream_and_each_chunk_is_shown_at_once():
    member = Streaming(name="a")
    rounds = list(Ensemble([member]).rounds(query(), Settings()))
    assert [round.text for round in rounds] == [*TOKENS, ""]
    assert (member.opened, member.draft_calls, rounds[-1].finish) == ([""], 0, "stop")
    assert until(lambda: not member.open)


def test_with_a_reserve_chunks_end_with_complete_words():
    member = Streaming(name="a")
    ensemble, settings = lead(member, ScriptedMember(TEXT, name="b"))
    rounds = list(ensemble.rounds(query(), settings))
    assert text(rounds) == TEXT
    assert not any(round.text[-1:].isdigit() for round in rounds)
    assert member.opened == [""]


@pytest.mark.parametrize("at", range(len(TOKENS)))
def test_a_reserve_goes_on_where_the_stream_breaks_and_no_word_is_split_lost_or_repeated(at):
    member, reserve = Streaming(breaks_at=at, name="a"), Streaming(name="b")
    ensemble, settings = lead(member, reserve)
    for rounds in (
        list(ensemble.rounds(query(), settings)),
        asyncio.run(collected(ensemble, query(), settings)),
    ):
        assert text(rounds) == TEXT
        assert not any(round.text[-1:].isdigit() for round in rounds if round.winner == "a")
    assert len(reserve.opened) == 2
    assert until(lambda: not member.open and not reserve.open)


def test_a_lone_member_whose_stream_breaks_is_an_error_with_its_text():
    with pytest.raises(EnsembleError, match="ConnectionError: cut") as failed:
        list(Ensemble([Streaming(breaks_at=3, name="a")]).rounds(query(), Settings()))
    assert failed.value.text == "The sky is blue, wr"


def test_a_stream_that_reaches_its_own_limit_is_followed_by_another():
    member = Streaming(name="a")
    whole = member.stream

    def limited(job):
        for number, draft in enumerate(whole(job)):
            if number == 2:
                return
            yield draft

    member.stream = limited
    rounds = list(Ensemble([member]).rounds(query(), Settings()))
    assert text(rounds) == TEXT
    assert len(member.opened) == 5


def test_an_empty_stream_ends_the_answer():
    rounds = list(Ensemble([Streaming((), ends=False, name="a")]).rounds(query(), Settings()))
    assert (text(rounds), rounds[-1].finish, rounds[-1].stalled) == ("", "length", True)


def test_a_refusal_in_a_stream_is_the_answers():
    member = Streaming(name="a")
    member.stream = lambda job: iter([Failure("refusal", "I will not.")])
    rounds = list(Ensemble([member]).rounds(query(), Settings()))
    assert (rounds[-1].finish, dict(rounds[-1].refusals)) == ("refusal", {"a": "I will not."})


def test_stop_strings_and_the_budget_close_the_stream():
    for settings, expected in (
        (Settings(stop=("wrote",)), "The sky is blue, "),
        (Settings(max_tokens=3), "The sky is blue, wr"),
    ):
        member = Streaming(name="a")
        assert text(Ensemble([member]).rounds(query(), settings)) == expected
        assert until(lambda: not member.open)  # noqa: B023
        assert member.read < len(TOKENS)


def test_a_check_closes_the_stream_at_a_fault_and_the_text_goes_on_from_before_it():
    """The redraft is a bounded draft; when it has passed, the lead streams again."""
    member = Streaming(name="a")
    member.excludes = True
    checks = (Check(lambda text: "a number" if "34" in text else None, "no 34"),)
    settings = Settings(checks=checks, method=Method(segment_tokens=2), on_failure="end")
    checker = Checker(lambda job: None, None)
    rounds = list(Ensemble([member]).rounds(query(), settings, checker=checker))
    assert "34" not in text(rounds)
    assert text(rounds).startswith("The sky is blue,")
    assert until(lambda: not member.open)


# --- who waits, limits ----------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(limits, "SILENCE_S", 0.2)
    monkeypatch.setattr(limits, "FIRST_SILENCE_S", 0.4)


@pytest.mark.parametrize("way", ["sync", "async"])
@pytest.mark.parametrize(("at", "limit"), [(0, "0.4"), (4, "0.2")])
def test_a_lead_from_which_nothing_arrives_is_replaced_in_mid_sentence(short, at, limit, way):
    member, reserve = Streaming(hangs_at=at, name="a"), Streaming(name="b")
    ensemble, settings = lead(member, reserve)
    with late.only_where(lambda name: name == "a"):
        if way == "sync":
            rounds = list(ensemble.rounds(query(), settings))
        else:
            rounds = asyncio.run(collected(ensemble, query(), settings))
    assert text(rounds) == TEXT
    (gone,) = [departure for round in rounds for departure in round.left]
    assert (gone.member, gone.kind, gone.reason) == ("a", "timeout", f"no token for {limit} s")
    member.gate.set()
    assert until(lambda: not member.open)


@pytest.mark.parametrize(("at", "limit"), [(0, "0.2"), (4, "0.1")])
def test_a_member_says_how_long_nothing_may_arrive_from_it(at, limit):
    member = Streaming(hangs_at=at, name="a")
    member.silence_s = (0.2, 0.1)
    ensemble, settings = lead(member, Streaming(name="b"))
    with late.only_where(lambda name: name == "a"):
        rounds = list(ensemble.rounds(query(), settings))
    assert text(rounds) == TEXT
    (gone,) = [departure for round in rounds for departure in round.left]
    assert (gone.member, gone.reason) == ("a", f"no token for {limit} s")
    member.gate.set()


@three_tries
def test_keep_alives_count_as_arrivals(short):
    """As the comments that OpenRouter sends while a model reasons."""
    member = Streaming(name="a")
    whole = member.stream

    def slow(job):
        for _ in range(8):
            time.sleep(0.1)
            note_arrival()
        yield from whole(job)

    member.stream = slow
    ensemble, settings = lead(member, Streaming(name="b"))
    rounds = list(ensemble.rounds(query(), settings))
    assert text(rounds) == TEXT
    assert not any(round.left for round in rounds)


@pytest.mark.parametrize("own", ["is_owned", "alone", "in process"])
def test_nobody_else_has_a_limit_of_silence(short, own):
    member = Streaming(hangs_at=2, name="a")
    members = [member, Streaming(name="b")]
    if own == "alone":
        members.pop()
    elif own == "in process":
        lacking = ScriptedMember(BLUE, name="a")
        drafted, pauses = lacking.draft, iter([0.5, 0.3])
        lacking.draft = lambda jobs: (time.sleep(next(pauses, 0)), drafted(jobs))[1]
        members[0] = lacking
    else:
        setattr(member, own, True)
    threading.Timer(0.9, member.gate.set).start()
    ensemble, settings = lead(*members)
    rounds = list(ensemble.rounds(query(), settings))
    assert text(rounds) == (BLUE if own == "in process" else TEXT)
    assert not any(round.left for round in rounds)


def test_member_timeout_limits_each_wait_for_a_chunk():
    member = Streaming(hangs_at=3, name="a")
    ensemble, settings = lead(member, Streaming(name="b"), member_timeout=0.2)
    since = time.monotonic()
    with late.only_where(lambda name: name == "a"):
        rounds = list(ensemble.rounds(query(), settings))
    assert text(rounds) == TEXT and time.monotonic() - since >= 0.2
    (gone,) = [departure for round in rounds for departure in round.left]
    assert gone.reason == "did not answer within member_timeout=0.2 s"
    member.gate.set()


@pytest.mark.parametrize("options", [{}, {"member_timeout": 0.2}], ids=["silence", "timeout"])
@three_tries
def test_a_stream_is_read_no_faster_than_its_caller_reads(short, options):
    """What arrives meanwhile waits in the connection, and a caller that pauses loses no member."""
    words = tuple(f" word{number}" for number in range(20))
    member = Streaming(words, name="a")
    ensemble, settings = lead(member, Streaming(words, name="b"), **options)
    rounds = []
    for round in ensemble.rounds(query(), settings):
        rounds.append(round)
        if len(rounds) < 4:
            time.sleep(0.5)
            assert member.read <= len(rounds) + 4, "a word is held, and two rounds are ahead"
    assert text(rounds) == "".join(words)
    assert not any(round.left for round in rounds)


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_cancelled_answer_closes_its_stream(way):
    member = Streaming(name="a")
    if way == "sync":
        rounds = Ensemble([member]).rounds(query(), Settings())
        next(rounds)
        rounds.close()
    else:

        async def cancelled():
            rounds = Ensemble([member]).arounds(query(), Settings())
            await anext(rounds)
            await rounds.aclose()

        asyncio.run(cancelled())
    assert until(lambda: not member.open)
    assert member.read <= len(TOKENS)


def test_answers_share_a_member_that_allows_only_two_at_a_time():
    member = Streaming(name="a")
    member.max_concurrency = 2
    ensemble = Ensemble([member])

    async def crowd():
        return await asyncio.gather(*(collected(ensemble, query(), Settings()) for _ in range(12)))

    assert [text(rounds) for rounds in asyncio.run(crowd())] == [TEXT] * 12
    assert until(lambda: not member.open)


# --- parts of drafts ------------------------------------------------------------------------------


def test_drafts_are_joined_split_and_cut_with_their_tokens():
    first = Draft("The sky", tokens=(1, 2), ends=(3, 7), logprobs=(-1.0, -2.0), thought="Hm")
    second = Draft(" is", ended=True, tokens=(3,), ends=(3,), logprobs=(-3.0, -4.0), least=-4.0)
    whole = joined(first, second)
    assert whole == Draft(
        "The sky is",
        True,
        (1, 2, 3),
        (-1.0, -2.0, -3.0, -4.0),
        ends=(3, 7, 10),
        thought="Hm",
        least=-4.0,
    )
    begin, rest = in_complete_words(replace(whole, ended=False, logprobs=None))
    assert (begin.text, begin.tokens, begin.ends) == ("The sky", (1, 2), (3, 7))
    assert (rest.text, rest.tokens, rest.ends, rest.thought) == (" is", (3,), (3,), "")
    counted = Draft("The sky is bl", tokens=(1, 2, 3, 4))
    begin, rest = in_complete_words(counted)
    assert (begin.text, begin.tokens, rest.text, rest.tokens) == (
        "The sky is",
        (1, 2, 3),
        " bl",
        (4,),
    )
    assert in_complete_words(Draft("The", tokens=(1,), ends=(3,))) is None
    assert without_beginning(whole, 4).text == "sky is"
    assert without_beginning(whole, 3).tokens == (2, 3)


# --- found by reading it again --------------------------------------------------------------------


def test_a_paused_stream_takes_no_room_and_an_unload_waits_for_its_end():
    """A question asked inside ``for chunk in llm.stream(...)`` of the same member went on for
    ever."""
    words = tuple(f" word{number}" for number in range(20))
    member = Streaming(words, name="a")
    member.max_concurrency = 1
    ensemble = Ensemble([member])
    paused = ensemble.rounds(query(), Settings())
    next(paused)
    unloaded = threading.Event()
    call(member, unloaded.set)
    assert text(ensemble.rounds(query(), Settings())) == "".join(words)
    assert not unloaded.is_set()
    list(paused)
    assert unloaded.wait(10)


@pytest.mark.parametrize("way", ["sync", "async"])
@three_tries
def test_the_time_in_which_a_caller_takes_nothing_is_not_that_of_the_answer(way):
    words = tuple(f" word{number}" for number in range(20))
    ensemble, settings = Ensemble([Streaming(words, name="a")]), Settings(timeout=0.5)
    if way == "sync":
        rounds = []
        for round in ensemble.rounds(query(), settings):
            rounds.append(round)
            if len(rounds) == 2:
                time.sleep(0.8)
    else:

        async def slow():
            rounds = []
            async for round in ensemble.arounds(query(), settings):
                rounds.append(round)
                if len(rounds) == 2:
                    await asyncio.sleep(0.8)
            return rounds

        rounds = asyncio.run(slow())
    assert text(rounds) == "".join(words)


def test_what_a_stream_has_cost_is_not_lost_where_another_goes_on():
    """A chat model that reaches its own ``max_tokens`` sends its usage with the last, empty
    part."""
    member = Streaming(name="a")
    whole = member.stream

    def limited(job):
        for number, draft in enumerate(whole(job)):
            if number == 4:
                yield Draft("", ends=(), effort=Effort(requests=1, input_tokens=7))
                return
            yield draft

    member.stream = limited
    rounds = list(Ensemble([member]).rounds(query(), Settings()))
    assert text(rounds) == TEXT
    efforts = [round.efforts["draft"]["a"] for round in rounds]
    assert sum(effort.input_tokens for effort in efforts) == 7 * sum(
        effort.requests for effort in efforts
    )
    assert sum(effort.requests for effort in efforts) == len(member.opened) - 1


def test_the_cost_of_a_held_word_is_counted_once():
    member = Streaming(name="a")
    whole = member.stream

    def limited(job):
        for number, draft in enumerate(whole(job)):
            if number == 4:
                yield Draft("", ends=(), effort=Effort(requests=1))
                return
            yield draft

    member.stream = limited
    ensemble, settings = lead(member, Streaming(name="b"))
    rounds = list(ensemble.rounds(query(), settings))
    assert text(rounds) == TEXT
    requests = sum(round.efforts["draft"]["a"].requests for round in rounds)
    assert requests == len(member.opened) - 1, "the last stream ends its turn"


def test_where_the_system_cannot_start_a_thread_a_stream_fails(monkeypatch):
    """As CPython says in a container with a limit of processes."""
    ensemble = Ensemble([Streaming(name="a")])
    ensemble.loaded().result()

    def refuse(function, name=""):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(calls, "start", refuse)
    with pytest.raises(EnsembleError, match="can't start new thread"):
        list(ensemble.rounds(query(), Settings(timeout=10)))


def test_tokens_that_do_not_spell_the_text_are_not_kept():
    """Otherwise the next prompt of a member on a server is another text."""
    known = Draft(" sky", tokens=(5,), ends=(4,))
    unknown = Draft('"name": ')
    assert (joined(known, unknown).tokens, joined(unknown, known).ends) == ((), None)
    counted = joined(Draft(" s", tokens=(1,)), Draft("ky", ends=()))
    assert counted.tokens == (1,), "of a writer that only counts"
    divided = without_beginning(Draft('{"a', tokens=(1, 2), ends=(2, 3)), 1)
    assert (divided.text, divided.tokens, divided.ends) == ('"a', (), None)
