"""A scripted member that has a method ``stream``."""

from __future__ import annotations

import dataclasses
import itertools
import random
import re
from collections.abc import Iterator
from typing import Any

from langchain_specfuse import ScriptedMember
from langchain_specfuse.core.values import Draft, DraftJob, Effort, Failure

ALL = 10**6
"""More tokens than any script has."""


class StreamingMember(ScriptedMember):
    """Streams its script in tokens of up to four characters, of which several may arrive at once,
    or none. ``breaks_after``: it fails after this many tokens of a stream; None: never."""

    def __init__(
        self, answer: Any, *, seed: int = 0, breaks_after: int | None = None, **options: Any
    ) -> None:
        super().__init__(answer, **options)
        self.rng = random.Random(seed)
        self.breaks_after = breaks_after
        self.streams = 0
        """How many streams have begun."""

    def stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        self.streams += 1
        whole = self.draft([dataclasses.replace(job, segment_tokens=ALL, max_tokens=ALL)])[0]
        if isinstance(whole, Failure):
            yield whole
            return
        pieces = re.findall(r"\s*\S{1,4}|\s+$", whole.text)
        kept = pieces[: job.max_tokens]
        at = 0
        while at < len(kept):
            some = kept[at : at + self.rng.randrange(4)]
            if self.breaks_after is not None and at + len(some) > self.breaks_after:
                raise ConnectionError("the connection has broken off")
            at += len(some)
            text = "".join(some)
            yield Draft(
                text,
                ended=at == len(pieces),
                tokens=tuple(self.token_ids(" ".join(piece.strip() or "_" for piece in some))),
                effort=Effort(read=len(some)),
                ends=tuple(itertools.accumulate(map(len, some))),
            )
        if not pieces:
            yield Draft("", ended=True)
