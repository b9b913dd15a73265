"""An answer under a constraint is legal at every moment and complete at its end; forced text counts
for no member."""

from __future__ import annotations

import json
from itertools import takewhile

import pytest

from langchain_specfuse.core.answer import Answer, legal_part
from langchain_specfuse.core.ballot import Ballot, unforced
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.referee import Referee
from langchain_specfuse.core.values import Draft, Scored, ScoreJob

from .play import play, speakers


def common(*texts):
    """Return the longest common prefix."""
    return "".join(
        chars[0]
        for chars in takewhile(lambda chars: len(set(chars)) == 1, zip(*texts, strict=False))
    )


class Only(Referee):
    """A referee that allows only these texts, simple enough to be obviously correct."""

    def __init__(self, *texts):
        self.texts = texts

    def legal(self, answer, draft):
        return max(
            (len(common(text[len(answer) :], draft)) for text in self.starting(answer)), default=0
        )

    def may_end(self, answer):
        return answer in self.texts

    def must_end(self, answer):
        return self.starting(answer) == [answer]

    def forced(self, answer):
        return self._inevitable(answer).rstrip(" ")

    def spans(self, answer, draft):
        forced = [bool(self._inevitable(answer + draft[:at])) for at in range(len(draft))]
        begins = [at for at in range(len(draft)) if forced[at] and not (at and forced[at - 1])]
        return tuple((at, [*forced, False].index(False, at)) for at in begins)

    def same(self, answer, draft):
        try:
            return json.dumps(json.loads(answer + draft), sort_keys=True)
        except ValueError:
            return draft

    def prose(self, answer):
        return 0

    def starting(self, answer):
        return [text for text in self.texts if text.startswith(answer)]

    def _inevitable(self, answer):
        return common(*(text[len(answer) :] for text in self.starting(answer)))


CITIES = Only(
    '{"city": "Paris", "big": true}',
    '{"city": "Rome", "big": true}',
    '{"city": "Rome", "big": false}',
)
ROME = '{"city": "Rome", "big": false}'


def reciting(text, size=1):
    """Return a member that cannot mask and drafts the next ``size`` characters of this text."""

    def reply(job, _):
        if isinstance(job, ScoreJob):
            return Scored(tuple((-1.0,) * 2 for _ in job.candidates))
        at = len("".join(segment.text for segment in job.answer))
        return Draft(text[at : at + size], False, (1,) * size, (-1.0,) * size)

    return reply


def test_forced_text_is_appended_before_and_after_a_segment_without_a_vote():
    played = play({"a": reciting(ROME, 3)}, referee=CITIES)
    assert played.text == ROME
    first = played.rounds[0]
    assert first.text.startswith('{"city": "Rome", "big":')
    assert first.segment.text == "Rom"
    assert first.forced == '{"city": "' + 'e", "big":'
    assert played.rounds[-1].finish == "stop"


@pytest.mark.parametrize(("budget", "finish"), [(1, "length"), (2, "length"), (3, "stop")])
def test_forced_text_costs_no_budget_and_a_cut_answer_finishes_with_length(budget, finish):
    played = play({"a": reciting(ROME)}, Settings(max_tokens=budget), referee=CITIES)
    assert ROME.startswith(played.text) and (played.text == ROME) == (finish == "stop")
    assert played.rounds[-1].finish == finish
    assert len(played.rounds) == budget  # "R", then the space, which members write, then "f"


def test_at_every_moment_the_streamed_text_is_a_legal_beginning():
    played = play({"a": reciting(ROME, 4), **speakers(b="Sure! Here it is: Rome")}, referee=CITIES)
    shown = ""
    for round in played.rounds:
        shown += round.text
        assert CITIES.starting(shown)
    assert shown in CITIES.texts


def test_a_member_that_cannot_keep_to_the_constraint_is_cut_and_cannot_end_the_answer():
    played = play(
        {"a": lambda job, _: Draft("Rom and more", True, (1, 2), (-1.0, -1.0, -1.0))},
        referee=CITIES,
    )
    first, last = played.rounds
    # its tokens now end elsewhere
    assert (first.segment.text, dict(first.segment.tokens)) == ("Rom", {})
    assert CITIES.starting(played.text)
    assert (last.finish, last.drafts["a"].ended) == ("length", False)


def test_equal_values_spelled_differently_are_one_draft():
    texts = ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', '{"a": 3, "b": 1}')
    drafts = {
        "x": Draft(texts[0][1:], True, (1,), (-1.0, -1.0)),
        "y": Draft(texts[1][1:], False, (2,), (-1.0,)),
        "z": Draft(texts[2][1:], True, (3,), (-1.0, -1.0)),
    }
    ballot = Ballot(Method(), drafts, "{", Only(*texts))
    assert [c.authors for c in ballot.candidates] == [("x", "y"), ("z",)]
    # y wrote other words: it must score the text that stands for both, and its tokens are not this
    # text's.
    assert [c.text for c in ballot.to_score("y")] == [texts[0][1:], texts[2][1:]]
    vote = ballot.count({"x": [[-1.0], [-2.0]]}, {"x": 0.4, "y": 0.3, "z": 0.3})
    assert vote.authors == ("x", "y") and dict(vote.segment.tokens) == {"x": (1,)}
    assert vote.totals["x"] == vote.totals["y"]


def test_tokens_wholly_inside_forced_text_do_not_count():
    assert unforced([-1.0, -2.0, -3.0], [2, 4, 6], [(0, 2), (4, 6)], False) == [-2.0]
    # a token without text lies inside no span
    assert unforced([-1.0, -2.0], [2, 2], [(0, 2)], False) == [-2.0]
    # the end has no position in the text
    assert unforced([-1.0, -2.0, -3.0], [2, 4], [(0, 2)], False) == [-2.0, -3.0]
    assert unforced([-1.0, -2.0], [2], [(0, 2)], True) == [-1.0, -2.0]


@pytest.mark.parametrize(("texts", "finish"), [(("1", "12"), "stop"), (("123", "124"), "length")])
def test_an_answer_to_which_no_member_adds_anything_ends_complete_or_cut(texts, finish):
    assert play(speakers(a="1 and more words"), referee=Only(*texts)).rounds[-1].finish == finish


def draft(**changes):
    usual = {
        "text": '"x" and more',
        "tokens": (1, 2, 3),
        "logprobs": (-1.0, -2.0, -3.0),
        "ends": (3, 7, 12),
    }
    return Draft(**{**usual, **changes})


def test_an_illegal_end_is_removed_and_an_inevitable_one_is_added():
    ended = draft(ended=True, logprobs=(-1.0, -2.0, -3.0, -4.0))
    longer, exact = Answer((), 9, Only('"x" and more to come')), Answer((), 9, Only('"x" and more'))
    assert legal_part(ended, longer) == draft(ended=False)
    assert legal_part(draft(ended=True, logprobs=None), longer).logprobs is None
    assert legal_part(draft(), exact) == draft(ended=True, logprobs=(-1.0, -2.0, -3.0, 0.0))
    assert legal_part(draft(logprobs=None), exact) == draft(ended=True, logprobs=None)
    assert legal_part(ended, exact) == ended
    assert legal_part(Draft(""), Answer((), 9, Only("x"), text="x")) == Draft("")
