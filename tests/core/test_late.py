"""Late replies: the round goes on without them, and no member is judged by what it did not say."""

from __future__ import annotations

import dataclasses

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import LATE, DraftJob, Failure, ScoreJob

from .play import play, speakers

TOO_LATE = Failure(LATE, "did not answer in time")
SHORT = Settings(segment_tokens=2)
LED = dataclasses.replace(SHORT, lead="a", method=Method(sure=0.0))
BLUE = "The sky is blue because of the air."
GREY = "The sky is grey and full of clouds."


def late_in(answerer, *rounds, work=(DraftJob, ScoreJob)):
    """The same member, but late in these rounds."""
    return lambda job, number: (
        TOO_LATE if number in rounds and isinstance(job, work) else answerer(job, number)
    )


def test_a_late_drafter_misses_this_round_only():
    members = speakers(a=BLUE, b=GREY, c=BLUE)
    played = play({**members, "b": late_in(members["b"], 2, work=DraftJob)}, SHORT)
    first, second, third, *_ = played.rounds
    assert (second.late, second.late_members) == ({"draft": ("b",)}, ("b",))
    assert set(second.drafts) == {"a", "c"} and set(third.drafts) == set(first.drafts) == {
        "a",
        "b",
        "c",
    }
    assert (first.late, third.late, played.left) == ({}, {}, [])
    assert second.as_dict()["late"] == {"draft": ["b"]}


def test_when_the_lead_is_late_all_are_asked_and_it_may_still_join():
    members = speakers(a=BLUE, b=GREY, c=BLUE)
    played = play({**members, "a": late_in(members["a"], 3, work=DraftJob)}, LED)
    asks = [
        ask
        for ask in played.asks
        if ask.round == 3 and isinstance(next(iter(ask.jobs.values())), DraftJob)
    ]
    assert [(set(ask.jobs), ask.spare) for ask in asks] == [({"a"}, True), ({"a", "b", "c"}, False)]
    assert set(played.rounds[2].drafts) == {"b", "c"} and played.rounds[2].late == {"draft": ("a",)}

    asked = []

    def back(job, number):
        asked.append((number, type(job)))
        return (
            TOO_LATE
            if asked.count((3, DraftJob)) == 1 and asked[-1] == (3, DraftJob)
            else members["a"](job, number)
        )

    played = play({**members, "a": back}, LED)
    assert asked.count((3, DraftJob)) == 2
    assert set(played.rounds[2].drafts) == {"a", "b", "c"} and played.rounds[2].late == {}
