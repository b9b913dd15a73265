"""An answer under a constraint: legal at every moment, whole at its end, and nobody is paid for what was forced."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pytest

from langchain_specfuse.core.answer import Answer, lawful
from langchain_specfuse.core.ballot import Ballot, unforced
from langchain_specfuse.core.referee import FREE
from langchain_specfuse.core.values import Draft, DraftJob, Scored, ScoreJob, Settings

from .play import play, speakers


def common(texts):
    """The longest beginning that all of them share."""
    first, last = min(texts), max(texts)
    return first[
        : next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    ]


@dataclass(frozen=True)
class Only:
    """The referee of a finite language: the answer must be one of these texts. Small enough to be seen to be right."""

    texts: tuple[str, ...]

    def legal(self, answer, draft):
        lengths = [len(common([text[len(answer) :], draft])) for text in self._from(answer)]
        return max(lengths, default=0)

    def may_end(self, answer):
        return answer in self.texts

    def must_end(self, answer):
        return self._from(answer) == [answer]

    def forced(self, answer):
        return self._inevitable(answer).rstrip(" ")

    def spans(self, answer, draft):
        forced = [bool(self._inevitable(answer + draft[:at])) for at in range(len(draft))]
        begins = [at for at in range(len(draft)) if forced[at] and not (at and forced[at - 1])]
        return tuple((at, [*forced, False].index(False, at)) for at in begins)

    def closing(self, answer):
        return min((text[len(answer) :] for text in self._from(answer)), key=len)

    def same(self, answer, draft):
        try:
            return json.dumps(json.loads(answer + draft), sort_keys=True)
        except ValueError:
            return draft

    def prose(self, answer):
        return 0

    def _inevitable(self, answer):
        return common([text[len(answer) :] for text in self._from(answer)])

    def _from(self, answer):
        return [text for text in self.texts if text.startswith(answer)]


CITIES = Only(('{"city": "Paris", "big": true}', '{"city": "Rome", "big": true}', '{"city": "Rome", "big": false}'))


def test_what_is_forced_is_agreed_without_a_vote_before_and_behind_a_segment():
    # A member that cannot mask: it says the whole JSON and is held to what is legal from where the answer stands.
    def says(job, _):
        if isinstance(job, ScoreJob):
            return Scored(tuple((-1.0,) * 2 for _ in job.candidates))
        at = len("".join(segment.text for segment in job.answer))
        return Draft('{"city": "Rome", "big": false}'[at : at + 3], False, (1, 2, 3), (-1.0,) * 3)

    played = play({"a": says}, referee=CITIES)
    assert played.text == '{"city": "Rome", "big": false}'
    first = played.rounds[0]
    assert first.text.startswith('{"city": "Rome", "big":')
    assert first.segment.text == "Rom"
    assert first.forced == '{"city": "' + 'e", "big":'
    assert played.rounds[-1].finish == "stop"


def test_forced_text_costs_no_budget():
    def says(job, _):
        at = len("".join(segment.text for segment in job.answer))
        return Draft('{"city": "Rome", "big": false}'[at : at + 1], False, (1,), (-1.0,))

    played = play({"a": says}, Settings(max_tokens=3), referee=CITIES)
    assert json.loads(played.text) == {"city": "Rome", "big": False}
    assert played.rounds[-1].finish == "stop"
    assert len(played.rounds) == 3  # "R", then the space that is left to the members, then "f"


@pytest.mark.parametrize("budget", [1, 2])
def test_an_answer_that_its_budget_cuts_off_is_closed_legally_and_says_so(budget):
    def says(job, _):
        at = len("".join(segment.text for segment in job.answer))
        return Draft('{"city": "Rome", "big": false}'[at : at + 1], False, (1,), (-1.0,))

    played = play({"a": says}, Settings(max_tokens=budget), referee=CITIES)
    last = played.rounds[-1]
    assert json.loads(played.text)["city"] == "Rome"
    assert (last.finish, bool(last.closed)) == ("length", True)
    assert played.text.endswith(last.closed)


def test_at_every_moment_the_streamed_text_is_a_legal_beginning():
    played = play(speakers(a='{"city": "Rome", "big": false}', b="Sure! Here it is: Rome"), referee=CITIES)
    shown = ""
    for round in played.rounds:
        shown += round.text
        assert CITIES._from(shown)
    assert shown in CITIES.texts


def test_a_member_that_cannot_keep_to_it_is_cut_and_never_ends_too_soon():
    played = play(speakers(a="I do not know JSON."), referee=CITIES)
    assert played.text in CITIES.texts
    assert (played.rounds[-1].finish, played.error) == ("length", None)
    assert played.rounds[-1].drafts["a"].tokens == () and not played.rounds[-1].drafts["a"].ended


def test_a_cut_draft_is_read_like_others_text():
    seen = []

    def says(job, _):
        if isinstance(job, ScoreJob):
            return Scored(tuple((-1.0,) for _ in job.candidates))
        seen.append(job.answer)
        return Draft("Rom and more" if len(seen) == 1 else " fals", False, (1, 2), (-1.0, -1.0))

    play({"a": says}, referee=CITIES)
    written = [segment for segment in seen[-1] if segment.text == "Rom"]
    assert written and written[0].tokens == {}


def test_an_illegal_end_is_no_end():
    def says(job, _):
        return Draft("R" if len(job.answer) == 1 else "", True, (1,) * (len(job.answer) == 1), (-1.0, -0.5))

    played = play({"a": says}, referee=CITIES)
    assert played.text in CITIES.texts
    assert not any(round.drafts["a"].ended for round in played.rounds)
    assert played.rounds[0].drafts["a"].logprobs == (-1.0,)


def test_equal_answers_in_other_words_are_one_draft():
    texts = ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"a": 3, "b": 1}')
    drafts = {
        "x": Draft(texts[0][1:], True, (1,), (-1.0, -1.0)),
        "y": Draft(texts[1][1:], False, (2,), (-1.0,)),
        "z": Draft(texts[2][1:], True, (3,), (-1.0, -1.0)),
    }
    ballot = Ballot(Settings(), drafts, "{", Only(texts))
    assert [c.authors for c in ballot.candidates] == [("x", "y"), ("z",)]
    # y wrote other words: it must score the text that stands for both, and its tokens are not this text's.
    assert [c.text for c in ballot.unknown_to("y")] == [texts[0][1:], texts[2][1:]]
    vote = ballot.counted({"x": [-1.0, -2.0]}, {"x": 0.4, "y": 0.3, "z": 0.3})
    assert vote.authors == ("x", "y") and dict(vote.segment.tokens) == {"x": (1,)}
    assert vote.totals["x"] == vote.totals["y"]


def test_a_draft_and_what_it_makes_inevitable_are_one():
    drafts = {"x": Draft("Par", False, (1,), (-1.0,)), "y": Draft('Paris", "big": true}', True, (2,), (-1.0, -1.0))}
    ballot = Ballot(Settings(), drafts, '{"city": "', CITIES)
    assert len(ballot.candidates) == 1


def test_forced_tokens_and_a_forced_end_do_not_count():
    drafts = {
        "x": Draft('Paris", "big": true}', True, (1, 2, 3), (-2.0, -0.001, -0.001, -0.002), ends=(1, 8, 20)),
        "y": Draft('Rome", "big": false}', True, (1, 2, 3), (-2.0, -0.001, -3.0, -0.002), ends=(2, 14, 20)),
    }
    ballot = Ballot(Settings(), drafts, '{"city": "', CITIES)
    scored = Scored(((-4.0, -0.001, -0.5, -0.002),), ends=((2, 14, 20),))
    # Of x's draft only its first token was a choice; of y's the first and the one that says false.
    assert ballot.scores_of("x", scored) == [-2.0, -2.25]
    plain = Ballot(Settings(), drafts, '{"city": "', FREE)
    assert plain.scores_of("x", scored)[0] == pytest.approx(-2.004 / 4)


@pytest.mark.parametrize("ends", [(), (1,), (5, 4, 3)])
def test_ends_that_do_not_fit_hurt_nobody(ends):
    assert len(unforced([-1.0, -2.0, -3.0], ends, [(0, 2)], False)) >= 1


def test_thoughts_are_told_once_and_are_no_part_of_the_answer():
    def says(job, _):
        first = not job.answer
        return Draft("Yes", not first, (1,), (-1.0,) * (2 - first), thought="Hm." if first else "")

    played = play({"a": says}, Settings(max_tokens=2))
    assert played.text == "YesYes"
    assert [dict(round.thoughts) for round in played.rounds] == [{"a": "Hm."}, {}]


def test_a_query_without_a_constraint_is_as_before():
    free, bound = [play(speakers(a="The sky is blue.", b="It is wide."), referee=r) for r in (FREE, FREE)]
    assert free.text == bound.text == "The sky is blue."
    assert {round.forced + round.closed for round in free.rounds} == {""}
    assert isinstance(free.asks[0].jobs["a"], DraftJob)


def test_an_answer_to_which_nobody_adds_anything_ends_as_it_should():
    """Whole under its constraint: it has come to its end. Not whole: it was cut off."""
    numbers = Only(("1", "12"))
    assert play(speakers(a="1 and more words"), referee=numbers).rounds[-1].finish == "stop"
    cut = play(speakers(a="1 and more words"), referee=Only(("123", "124"))).rounds[-1]
    assert (cut.finish, cut.closed) == ("length", "3")


def made(**told):
    return Draft(
        **{"text": '"x" and more', "tokens": (1, 2, 3), "logprobs": (-1.0, -2.0, -3.0), "ends": (3, 7, 12), **told}
    )


def test_a_draft_that_is_cut_is_known_by_its_text_alone():
    answer = Answer((), 9, Only(('"x" or', '"x" on')))
    found = lawful(made(ended=True, logprobs=(-1.0, -2.0, -3.0, -4.0)), answer)
    assert found == Draft('"x" ', False, (), None, ends=None)


def test_a_draft_that_ends_too_early_goes_on_without_the_number_of_its_end():
    answer = Answer((), 9, Only(('"x" and more to come',)))
    found = lawful(made(ended=True, logprobs=(-1.0, -2.0, -3.0, -4.0)), answer)
    assert found == made(ended=False)
    assert lawful(made(ended=True, logprobs=None), answer).logprobs is None


def test_a_draft_after_which_nothing_may_follow_has_ended():
    answer = Answer((), 9, Only(('"x" and more',)))
    assert lawful(made(), answer) == made(ended=True, logprobs=(-1.0, -2.0, -3.0, 0.0))
    assert lawful(made(logprobs=None), answer) == made(ended=True, logprobs=None)
    whole = made(ended=True, logprobs=(-1.0, -2.0, -3.0, -4.0))
    assert lawful(whole, answer) == whole
    assert lawful(Draft(""), Answer((), 9, Only(("x",)), text="x")) == Draft("")


def test_tokens_wholly_inside_what_was_forced_do_not_count():
    assert unforced([-1.0, -2.0, -3.0], [2, 4, 6], [(0, 2), (4, 6)], False) == [-2.0]
    assert unforced([-1.0, -2.0], [2, 2], [(0, 2)], False) == [-2.0]  # a token without text is inside nothing
    assert unforced([-1.0, -2.0, -3.0], [2, 4], [(0, 2)], False) == [-2.0, -3.0]  # the end has no place in the text
    assert unforced([-1.0, -2.0], [2], [(0, 2)], True) == [-1.0, -2.0]
