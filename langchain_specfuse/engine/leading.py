"""The stream of a member that leads: one request for the whole answer.

A thread of its own reads the stream, but only as far as the loop asks. That thread advances the
loop; what arrives meanwhile waits in the connection, and the next chunk contains all of it.

While a model judges a chunk, the thread reads on, and the next chunk contains all that has come.

If text may still be refused, or another member may have to go on with it, a chunk ends with a
complete word: the rest is held until the next one arrives.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any

from ..core.answer import kept_tokens, word_start
from ..core.call import failure_of, note_arrival, refuse_closed
from ..core.drafts import NOTHING, divided, joined
from ..core.replies import checked_reply
from ..core.values import REFUSAL, Draft, DraftJob, Effort, Failure, Reply, Segment
from .calls import Task, calls_of

LONGEST_WORD = 200
"""A word with more characters is not held: it may be a text without spaces."""
Deliver = Callable[[Reply], None]


class LeadStream:
    """The open stream of one member in one answer."""

    def __init__(
        self,
        member: Any,
        job: DraftJob,
        deliver: Deliver,
        reopen: Callable[[DraftJob, Deliver, Effort], None],
        is_ahead: Callable[[], bool],
        *,
        in_words: bool,
        in_thoughts: bool = False,
        is_first: bool = False,
        spent: Effort | None = None,
    ) -> None:
        """``deliver`` gets what comes next; after that, :meth:`ask` again. ``reopen`` opens another
        stream when this one cannot go on with a job. While ``is_ahead``, nothing is read.
        ``in_words``: chunks end with complete words. ``in_thoughts``: reasoning comes with the word
        after it, because checks judge it as a whole. ``is_first``: the member has had no stream in
        this answer."""
        self.member = member
        self.is_over = False
        """Whether it has ended; what it has not delivered is lost."""
        self._job = job
        self._deliver: Deliver | None = deliver
        self._reopen = reopen
        self._is_ahead = is_ahead
        self._in_words = in_words
        self._in_thoughts = in_thoughts
        self._segments: tuple[Segment, ...] = job.answer
        """The answer of the last job."""
        self._last = ""
        """The text that was delivered since."""
        self._has_written = False
        self._skip = ""
        """Text of the answer that the stream is still going to repeat, because the constraint
        forces it."""
        self._opening = job
        guides = is_first and getattr(member, "guides", False)
        if guides and not any(segment.tokens for segment in job.answer):
            # Nobody wrote this text; the constraint forces it. A server's guided decoding writes it
            # itself, and only from the beginning.
            self._opening = replace(job, answer=())
            self._skip = text_of(job.answer)
        self._held = NOTHING if not spent else replace(NOTHING, effort=spent)
        """What has arrived and was not delivered."""
        self._reads_on = False
        """Whether it reads although nobody has asked for more yet."""
        self._is_word = False
        """Whether its last word is complete, because something other than text has followed."""
        self._since = time.perf_counter()
        self._news = threading.Condition()
        self.task = Task(self._read, self._note_end, job.query.id)

    def open(self) -> None:
        calls_of(self.member).begin(self.task)

    def close(self) -> None:
        """End the request, because nobody needs more of it."""
        self.is_over = True
        calls_of(self.member).close(self.task)
        with self._news:
            self._news.notify()

    def go_on(self) -> None:
        """Note that it may not be ahead any more."""
        with self._news:
            if self.task.last is not None:
                self.task.last = time.monotonic()  # until now, nobody has waited for it
            self._news.notify()

    def read_on(self) -> None:
        """Read what comes before it is asked for, which will be soon."""
        with self._news:
            self._reads_on = True
            self._news.notify()

    def agrees_with(self, job: DraftJob) -> bool:
        """Whether the stream goes on where this job does."""
        known = len(self._segments)
        asked = (self._job.sampling, self._job.remarks)
        if self.is_over or (job.sampling, job.remarks) != asked:
            return False
        if known and (len(job.answer) < known or job.answer[known - 1] is not self._segments[-1]):
            return False
        return text_of(job.answer[known:]).startswith(self._last)

    def ask(self, job: DraftJob, deliver: Deliver) -> None:
        """Deliver what comes next. The stream agrees with the job."""
        new = text_of(job.answer[len(self._segments) :])
        with self._news:
            self._skip += new[len(self._last) :]
            self._last = ""
            self._segments = job.answer
            self._job = job
            self._since = time.perf_counter()
            self._deliver = deliver
            self._reads_on = False
            self._news.notify()

    def _note_end(self, failure: Failure | None) -> None:
        """Its thread has ended, or could not be started."""
        if failure is not None:
            self._end(failure)

    # --- the thread that reads --------------------------------------------------------------------

    def _read(self) -> None:
        try:
            with closing(self.member.stream(self._opening)) as chunks:
                self._hand_out(chunks)
        except BaseException as error:  # somebody waits for the next chunk
            self._end(failure_of(error))

    def _hand_out(self, chunks: Iterator[Any]) -> None:
        """Deliver the chunks. None is read before it is asked for, or will be soon, because the
        member may be asked for something else instead."""
        for replies in self._asked(chunks):
            for reply in replies:
                valid = checked_reply(self._job, reply)
                if not isinstance(valid, Draft):
                    if isinstance(valid, Failure) and valid.kind == REFUSAL:
                        self._give_held()  # a filter may end a reply after its last word
                    return self._end(valid)  # type: ignore[arg-type]
                self._held = joined(self._held, valid)
                self._is_word = valid.is_silent
                if not self._agree_with_forced():
                    return self._begin_anew()
            self._give(self._ready())
            if self.is_over:
                return None
        self._give_held()
        if self._has_written:
            return self._begin_anew()
        return self._end(self._held)

    def _give_held(self) -> None:
        """Deliver the text that is held, and wait for the next job."""
        held = self._held
        if held.text:
            self._held = NOTHING  # its cost is reported now
            self._give(held)
        self._wait_until_asked()

    def _asked(self, chunks: Iterator[Any]) -> Iterator[list[Any]]:
        """What has come when more is asked for."""
        replies: list[Any] = []
        while True:
            self._wait(reads_on=True)
            if replies and self._deliver is not None:
                yield replies
                replies = []
                continue
            error: BaseException | None = None
            try:
                reply = next(chunks, None)
            except BaseException as raised:  # somebody will ask
                reply, error = None, raised
            if reply is not None:
                note_arrival()
                self.task.has_arrived = True
                replies.append(reply)
                continue
            if replies:
                self._wait_until_asked()
                yield replies
            self._wait_until_asked()
            if error is not None:
                raise error
            return

    def _wait_until_asked(self) -> None:
        self._wait(reads_on=False)

    def _wait(self, *, reads_on: bool) -> None:
        """Wait until more is asked for, or with ``reads_on`` until more may be read."""
        if self._must_wait(reads_on):
            calls_of(self.member).pause(self.task)
            with self._news:
                while self._must_wait(reads_on):
                    self._news.wait()
            self.task.is_paused = False
        refuse_closed()

    def _must_wait(self, reads_on: bool) -> bool:
        is_asked = self._deliver is not None or (reads_on and self._reads_on)
        return (not is_asked or self._is_ahead()) and not self.is_over

    def _agree_with_forced(self) -> bool:
        """Drop what repeats the text that the constraint forces. False if the stream differs."""
        size = min(len(self._skip), len(self._held.text))
        if not size:
            return True
        if self._held.text[:size] != self._skip[:size]:
            return False
        self._skip = self._skip[size:]
        self._held = without_beginning(self._held, size)
        return True

    def _ready(self) -> Draft | None:
        """What can be delivered now; the rest stays held."""
        held = self._held
        is_open = self._in_thoughts and bool(held.thought)
        is_whole = held.ended or (self._is_word and not is_open)
        if is_whole or (held.text and not self._in_words):
            self._held = NOTHING
            return held
        parts = in_complete_words(held)
        if parts is None:
            return None
        ready, self._held = parts
        return ready

    def _give(self, draft: Draft | None) -> None:
        """Deliver a chunk. The receiver may ask for the next one before it returns."""
        if draft is None:
            return
        self.is_over = self.is_over or draft.ended
        self._has_written = True
        self._last += draft.text
        if not draft.effort.seconds:
            seconds = time.perf_counter() - self._since
            draft = replace(draft, effort=replace(draft.effort, seconds=seconds))
        self._send(draft)

    def _send(self, reply: Reply) -> None:
        with self._news:
            deliver, self._deliver = self._deliver, None
        if deliver is not None and not self.task.is_closed:
            deliver(reply)

    def _end(self, reply: Reply) -> None:
        self.is_over = True
        if isinstance(reply, Failure):
            reply = replace(reply, effort=reply.effort + self._held.effort)
        self._send(reply)

    def _begin_anew(self) -> None:
        """Let another stream go on: this one has reached its own limit, or differs from the text
        that is forced."""
        self.is_over = True
        with self._news:
            deliver, self._deliver = self._deliver, None
        if deliver is not None and not self.task.is_closed:
            self._reopen(self._job, deliver, self._held.effort)


# --- parts of drafts ------------------------------------------------------------------------------


def text_of(segments: Sequence[Segment]) -> str:
    if len(segments) == 1:  # the usual case
        return segments[0].text
    return "".join(segment.text for segment in segments)


def in_complete_words(draft: Draft) -> tuple[Draft, Draft] | None:
    """The draft up to the end of its last complete word, with all of its cost, and the rest. None
    if no word is complete. If the writer does not say where its tokens end, they only count words,
    and the last one belongs to the rest, if there is a rest."""
    text = draft.text
    if draft.ends is None:
        size = word_start(text, len(text))
        count = len(draft.tokens) - (size < len(text))
    else:
        count = kept_tokens(text, draft.ends, len(draft.ends))
        size = draft.ends[count - 1] if count else 0
    if not size and len(text) > LONGEST_WORD:
        count, size = len(draft.tokens), len(text)
    if not size:
        return None
    return divided(draft, size, count)


def without_beginning(draft: Draft, size: int) -> Draft:
    """The draft without its first characters, and without the tokens that lie in them."""
    ends = draft.ends or ()
    count = sum(end <= size for end in ends)
    if draft.ends is not None and size not in (0, *ends):  # it divides a token
        return replace(draft, text=draft.text[size:], tokens=(), logprobs=None, ends=None)
    return replace(
        draft,
        text=draft.text[size:],
        tokens=draft.tokens[count:],
        logprobs=draft.logprobs and draft.logprobs[count:],
        ends=None if draft.ends is None else tuple(end - size for end in ends[count:]),
    )
