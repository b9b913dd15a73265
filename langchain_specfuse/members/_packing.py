"""Jobs and replies as bytes, in a third of the time that pickle alone takes: frozen records are asked for all their
fields at once, and made anew by their own constructors. What comes out is pickle: anybody unpacks it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Mapping
from dataclasses import fields
from operator import attrgetter
from typing import Any

from ..core.values import Candidate, Draft, DraftJob, Effort, Query, Sampling, Scored, ScoreJob, Segment, Turn

RECORDS = (Candidate, Draft, DraftJob, Effort, Query, Sampling, Scored, ScoreJob, Segment, Turn)
"""What a batch is full of."""


def packed(thing: Any) -> bytes:
    """The thing, pickled.

    >>> pickle.loads(packed([Segment(" blue", True)]))
    [Segment(text=' blue', ended=True, tokens={})]
    """
    out = io.BytesIO()
    _Packer(out, pickle.HIGHEST_PROTOCOL).dump(thing)
    return out.getvalue()


def _remade(record: type) -> Callable[[Any], tuple[type, tuple[Any, ...]]]:
    values = attrgetter(*(field.name for field in fields(record)))
    return lambda one: (record, values(one))


class _Packer(pickle.Pickler):
    dispatch_table: Mapping[type, Callable[[Any], Any]] = {record: _remade(record) for record in RECORDS}
