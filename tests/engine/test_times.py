"""When each member worked, and for how long, is known whatever a member says about it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Draft, DraftJob, Failure, Query, Settings, Turn
from langchain_specfuse.engine import Ensemble

NAP_S = 0.05


class Slow(ScriptedMember):
    """Needs a moment for every draft and says nothing about it."""

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        time.sleep(NAP_S)
        return super().draft(jobs)


class Exact(ScriptedMember):
    """Says itself when it worked."""

    def draft(self, jobs: Sequence[DraftJob]) -> Sequence[Draft | Failure]:
        drafts = [draft for draft in super().draft(jobs) if isinstance(draft, Draft)]
        return [replace(draft, effort=replace(draft.effort, began=1000.0, seconds=2.0)) for draft in drafts]


def test_a_silent_member_is_timed_by_its_desk_and_a_telling_one_is_believed() -> None:
    members = [Slow("one two three", name="slow"), Exact("one too three", name="exact")]
    query = Query("q", (Turn("user", "Count."),))
    before = time.time()
    rounds = list(Ensemble(members).rounds(query, Settings(segment_tokens=1)))
    for round in rounds:
        slow, exact = round.efforts["draft"]["slow"], round.efforts["draft"]["exact"]
        assert before <= slow.began <= time.time()
        assert NAP_S <= slow.seconds < 100 * NAP_S
        assert (exact.began, exact.seconds) == (1000.0, 2.0)
        assert round.began["draft"] <= slow.began + 0.01
        assert slow.began + slow.seconds <= round.began["draft"] + round.seconds["draft"] + 0.01
    assert rounds[1].efforts["draft"]["slow"].began > rounds[0].efforts["draft"]["slow"].began
