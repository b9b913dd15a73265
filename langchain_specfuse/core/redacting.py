"""Replace what the user wants redacted, before anything else reads it.

:class:`Redacting` stands between the loop and its members. A draft is redacted when it arrives, so
votes, checks, records, other members and the reader know only the redacted text. Its end is held
back while it may be the beginning of a match. Only the member that wrote a text continues it as it
was, because its open stream and its cache contain that text. Once another member has written, it
continues the redacted text, too.

Paper: it redacts nothing.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from .answer import first_stop, word_start
from .checks import Check, Redaction
from .drafts import NOTHING, divided, joined
from .values import BUDGET, REFUSAL, Ask, Draft, DraftJob, Failure, Reply, Segment

Edits: TypeAlias = "list[tuple[int, int, str, str]]"
"""Which characters of a text are replaced, in order, by what, and for which check."""

REACH = 200
"""So many characters of the answer before a draft are looked at: a match may depend on them."""


@dataclass(slots=True)
class _Own:
    """What a member has written itself."""

    answer: tuple[Segment, ...]
    """The answer that its last draft continued."""
    view: tuple[Segment, ...]
    """The same answer, with all that it has written since as it wrote it."""
    text: str = ""
    """What its last draft has become."""
    rest: Draft = NOTHING
    """The end of what it has written, which no draft has had."""


class Redacting:
    """The redactions of one answer."""

    def __init__(self, checks: Sequence[Check], rewrite: Any = None) -> None:
        self._rules: dict[str, Redaction] = {
            check.name: check.redacts for check in checks if check.redacts
        }
        self._counts: dict[str, Counter[str]] = {}
        self._rewrite = rewrite
        self._own: dict[str, _Own] = {}

    def asked(self, ask: Ask, stop: Sequence[str]) -> Generator[Ask, Any, dict[str, Reply]]:
        """The replies of members that draft, redacted. A member all of whose text may be the
        beginning of a match is asked for more."""
        if not self._rules:
            return dict((yield ask))
        replies: dict[str, Reply] = {}
        jobs: dict[str, Any] = dict(ask.jobs)
        while jobs:
            asking = {name: self._job(name, job) for name, job in jobs.items()}
            written = yield replace(ask, jobs=asking)
            for name, reply in written.items():
                done = self._redacted(name, asking[name], reply, stop)
                if done is not None:
                    replies[name] = done
                    del jobs[name]
        return {name: replies[name] for name in ask.jobs}

    def whole(self, reply: Reply) -> Reply:
        """The reply of a member that has written its whole answer, or the part of it before text
        that a constraint forces."""
        if not self._rules or not isinstance(reply, Draft):
            return reply
        return self._released(_Own((), ()), reply, "", is_last=True)

    def counts(self) -> dict[str, Counter[str]]:
        """check -> how many places in drafts it has ``redacted`` since the last call."""
        counts, self._counts = self._counts, {}
        return counts

    def text(self, text: str) -> str:
        """A text outside the answer, redacted; in an object, its values."""
        if text[:1] in ("{", "["):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                pass
            else:
                redacted = self._value(value)
                return text if redacted == value else json.dumps(redacted, ensure_ascii=False)
        edits, _ = self._edits("", text)
        return _edited(text, edits)

    def value(self, value: Any) -> Any:
        """A value, such as a part of a provider's reply, with all of its texts redacted."""
        if isinstance(value, str):
            return self.text(value)
        return self._value(value)

    # --- jobs -------------------------------------------------------------------------------------

    def _job(self, name: str, job: DraftJob) -> DraftJob:
        own = self._own.get(name)
        if own is None or not _goes_on(own, job):
            own = self._own[name] = _Own(job.answer, job.answer)
        left = max(job.max_tokens - len(own.rest.tokens), 1)
        size = min(job.segment_tokens, left)
        return replace(job, answer=own.view, max_tokens=left, segment_tokens=size)

    # --- replies ----------------------------------------------------------------------------------

    def _redacted(
        self, name: str, job: DraftJob, reply: Reply, stop: Sequence[str]
    ) -> Reply | None:
        """The reply without what is redacted; None if nothing of it can be decided yet."""
        own = self._own[name]
        if isinstance(reply, Failure):
            if reply.kind in ("overflow", BUDGET) and own.rest.text:
                # The answer may end here, with all that was written.
                rest = replace(own.rest, effort=own.rest.effort + reply.effort)
                return self._released(own, rest, _end_of(own.answer), is_last=True)
            message = self.text(reply.message) if reply.kind == REFUSAL else reply.message
            parts = reply.parts if message == reply.message else ()
            effort = own.rest.effort + reply.effort
            return replace(reply, message=message, parts=parts, effort=effort)
        if not isinstance(reply, Draft):
            return reply
        adds = bool(reply.text or reply.tokens or reply.thought or reply.is_silent)
        if reply.text:
            tokens = {name: reply.tokens} if reply.tokens or not reply.size else {}
            own.view = (*own.view, Segment(reply.text, tokens=tokens))
        before = _end_of(own.answer)
        draft = joined(own.rest, reply)
        is_last = reply.ended or not adds or len(reply.tokens) >= job.max_tokens
        is_last = is_last or first_stop(before + draft.text, stop) is not None
        released = self._released(own, draft, before, is_last=is_last)
        if released.text or released.thought or released.is_silent or is_last:
            return released
        own.rest = draft
        return None

    def _released(self, own: _Own, draft: Draft, before: str, *, is_last: bool) -> Draft:
        """The part of a draft that is decided, redacted. The rest waits."""
        text = draft.text
        edits, begun = self._edits(before, text)
        cut = len(text)
        if begun < cut and not is_last:
            cut = word_start(text, begun)
            cut = min([cut, *(start for start, end, *_ in edits if start < cut < end)])
        elif begun < cut and not (draft.ended and not draft.is_cut) and _is_most(text[begun:]):
            name, rule = next(iter(self._rules.items()))
            edits = [*(edit for edit in edits if edit[1] <= begun), (begun, cut, rule.with_, name)]
        edits = [edit for edit in edits if edit[1] <= cut]
        for *_, name in edits:
            self._counts.setdefault(name, Counter())["redacted"] += 1
        first, own.rest = _split(draft, cut)
        thought = self.text(draft.thought)
        new = _edited(text[:cut], edits)
        if edits:
            size = len(first.tokens)
            first = replace(first, text=new, tokens=(), logprobs=None, ends=None, written=size)
        if thought and not (new or first.ended):
            first = replace(first, is_silent=True)
        calls = tuple(replace(call, arguments=self.text(call.arguments)) for call in draft.calls)
        if draft.parts and self._rewrite is not None:
            of_thought = None if thought == draft.thought else thought
            changes = [edit[:3] for edit in edits]
            parts, waiting = self._rewrite(
                draft.parts, cut, changes, new, self.value, of_thought, is_last
            )
            first = replace(first, parts=tuple(parts))
            own.rest = replace(own.rest, parts=tuple(waiting))
        own.text = new
        return replace(first, thought=thought, calls=calls)

    def _edits(self, before: str, text: str) -> tuple[Edits, int]:
        """What is replaced in a text after another one, and where something may begin that later
        text decides."""
        start = len(before)
        begun = start + len(text)
        found: Edits = []
        for name, rule in self._rules.items():
            spans, pending = rule.found(before + text, start)
            begun = min(begun, max(pending, start))
            for first, end in spans:
                if first < start:  # its first words were shown, and the space after them stays
                    first = min(start + len(text) - len(text.lstrip()), end - 1)
                found.append((first - start, end - start, rule.with_, name))
        edits: Edits = []
        for edit in sorted(found, key=lambda edit: (edit[0], -edit[1])):
            if edits and edit[0] < edits[-1][1]:
                begins, ends, with_, name = edits[-1]
                edits[-1] = (begins, max(ends, edit[1]), with_, name)
            else:
                edits.append(edit)
        return edits, begun - start

    def _value(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {self._key(key): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            text = str(value)
            redacted = self.text(text)
            return value if redacted == text else redacted
        return value

    def _key(self, key: Any) -> Any:
        return self.text(key) if isinstance(key, str) else key


# --- parts of drafts ------------------------------------------------------------------------------


def _edited(text: str, edits: Edits) -> str:
    pieces, here = [], 0
    for start, end, with_, _ in edits:
        pieces += [text[here:start], with_]
        here = end
    return "".join([*pieces, text[here:]])


def _is_most(text: str) -> bool:
    """Whether the beginning of a match, after which the answer was cut off, reveals too much."""
    return "@" in text or sum(map(str.isdigit, text)) > 5


def _end_of(answer: Sequence[Segment]) -> str:
    """The end of the answer's text."""
    text = ""
    for segment in reversed(answer):
        text = segment.text + text
        if len(text) >= REACH:
            break
    return text[-REACH:]


def _goes_on(own: _Own, job: DraftJob) -> bool:
    """Whether this job continues what the member has written last."""
    known = len(own.answer)
    if known and (len(job.answer) < known or job.answer[known - 1] is not own.answer[-1]):
        return False
    new = "".join(segment.text for segment in job.answer[known:])
    forced, rest = new[len(own.text) :], own.rest.text
    if not new.startswith(own.text) or not (forced.startswith(rest) or rest.startswith(forced)):
        return False
    if forced:
        own.rest = _split(own.rest, len(forced))[1]
    if len(forced) > len(rest):
        own.view = (*own.view, Segment(forced[len(rest) :]))
    own.answer, own.text = job.answer, ""
    return True


def _split(draft: Draft, at: int) -> tuple[Draft, Draft]:
    """The beginning of a draft, with all of its cost, and the rest. Tokens that are only counted
    are words."""
    text = draft.text
    if at >= len(text):
        return draft, NOTHING
    count, ends = 0, draft.ends
    if ends is None:
        count = max(len(draft.tokens) - len(text[at:].split()), 0)
    elif at in (0, *ends):
        count = sum(end <= at for end in ends)
    else:  # it divides a token
        draft = replace(draft, tokens=(), logprobs=None, ends=None)
    return divided(draft, at, count)
