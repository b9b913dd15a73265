"""Apply the user's checks to the drafts of one answer. Decide what may be shown, what is refused,
and what is tried instead.

:class:`Checking` remembers how far each check has passed the answer, and the agreed drafts whose
text is still held back, so that text which fails later can be withdrawn before anybody has seen it.
A draft that fails cannot win. If no draft passes, the best one is cut before its fault. The part
before the cut is agreed, and its author may not begin the next draft with the token after the cut.

Paper: it has no checks. Refused drafts are never scored, and earn nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from ..errors import CheckError, advised, amount
from .answer import Answer, is_safe, word_start
from .checks import (
    Check,
    CheckAsk,
    CheckJob,
    Verdict,
    Verdicts,
    beginnings,
    is_coroutine_function,
    places_in,
)
from .normal import Spelling, is_apart, normal
from .options import Settings
from .panel import Panel
from .round import Rejection
from .sentences import MARKS
from .values import Draft, DraftJob, Remark, Sampling, ToolCall

Steps: TypeAlias = Generator[CheckAsk, Verdicts, Any]
Marks: TypeAlias = Mapping[str, int]
"""check -> the length of the text that it has passed."""

SAMPLED = 0.7
"""The lowest temperature of a draft that is sampled again."""
SHORT = 2
"""After a fault, drafts have this many tokens, and one more each time, up to half the usual length.
Tokens after a fault are wasted, and a fault is often followed by another."""
REDRAFTS, TOLD_REDRAFTS = 4, 2
"""How many attempts a member has that is not told why its text was refused, and one that is told.
Each attempt of the latter is a request to a chat model, usually for all of the rest."""
REMARKS = 4
"""A member is told at most this many refused texts, the latest ones."""
MANY = 8
"""If a check refuses at least this many words and passes none, the answer ends."""
WORDS = ("and", "the", "Also", "It", "THE", "и", "和")
"""A check that refuses all of these is taken to refuse every word."""
TEXT = ".text has what was streamed"
TAIL = 200
"""A rejection has at most this many characters of the text before the draft."""
SEARCHED = ("segment", "sentence", "line")
"""Checks at these places run on the beginnings of a draft, to find its fault."""
SEED_STEP = 7919
"""The distance between the seeds of two attempts. Samples of whole answers use consecutive
seeds."""


@dataclass(frozen=True, slots=True)
class Continuation:
    """A draft that continues an answer: the answer before and after it, and the marks before it."""

    before: Answer
    marks: Marks
    draft: Draft
    author: str
    after: Answer
    """The answer with the draft."""

    @classmethod
    def of(cls, before: Answer, marks: Marks, draft: Draft, author: str) -> Continuation:
        tokens = {author: draft.tokens} if draft.tokens or not draft.size else {}
        after = before.plus(draft.segment(tokens))
        return cls(before, marks, draft, author, after)


@dataclass(frozen=True, slots=True)
class Fault:
    """A check, and the place in a text up to which it refuses that text."""

    check: Check
    place: int
    reason: str
    span: tuple[int, int] | None = None
    """The characters at fault, if they are known."""

    @property
    def start(self) -> int:
        """The place before which all is well, as far as it is known."""
        return self.place if self.span is None else self.span[0]

    @property
    def end(self) -> int:
        """The place after what is at fault, as far as it is known."""
        return self.place if self.span is None else self.span[1]


@dataclass(slots=True)
class Refused:
    """A text that a check refuses in every spelling."""

    check: str
    reason: str
    text: str
    spelling: Spelling
    place: int = -1
    """Where the answer was last cut before it."""
    times: int = 0
    """How often it was cut there."""


@dataclass(slots=True)
class Redraft:
    """What is tried after a fault, until text beyond it is verified."""

    at: int
    """The length of the answer from which the redraft continues."""
    author: str
    fault: Fault
    excluded: dict[str, set[int]] = field(default_factory=dict)
    """member -> tokens that its draft may not begin with there."""
    is_sampled: bool = False
    """Whether the author draws samples, because it cannot exclude tokens, or because excluding them
    has not helped."""


@dataclass(slots=True)
class Outcome:
    """What the checks say about the drafts of a round."""

    answer: Answer
    """The answer so far, perhaps shorter than before."""
    eligible: dict[str, Draft] = field(default_factory=dict)
    """The drafts that may win; empty if members must draft again."""
    is_over: bool = False
    """The answer ends here (``on_failure="end"``)."""
    is_repaired: bool = False
    """The only eligible draft was cut. It earns nothing."""


class Checking:
    """The checks of one answer, and their verdicts so far."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._checks: tuple[Check, ...] = tuple(settings.judges)
        self._marks: Marks = {check.name: 0 for check in self._checks}
        self._held_back: list[Continuation] = []
        """The agreed drafts of which some text is held back."""
        self._passed: dict[str, Marks] = {}
        """member -> the marks after its draft, for drafts that passed."""
        self._redraft: Redraft | None = None
        self._attempts = 0
        """Attempts in a row that have added no verified text."""
        self._tries = 0
        """The number of all attempts of this answer. Each has another seed."""
        self._spelled = list(_literals(self._checks))
        """What was refused, so that it is not written in another spelling."""
        self._furthest = 0
        """How far the answer has been verified, or kept at a cut."""
        self._others_asked = False
        """Whether the members that had not been asked have been asked at this place."""
        self.is_handed_over = False
        """Whether these members write the rest of the answer, because the refused draft added no
        word."""
        self._only: tuple[str, ...] | None = None
        """The members that draft next; None for the usual ones."""
        self._length: int | None = None
        """The length of drafts after a fault."""
        self._sampling: dict[str, Sampling] = {}
        """member -> how its open stream, which began after a fault, is sampled."""
        self._remarks: tuple[Remark, ...] = ()
        """What checks have refused."""
        self._told: dict[str, tuple[Remark, ...]] = {}
        """member -> what it was told when its open stream began."""
        # what the current round reports
        self.rejected: list[Rejection] = []
        self.refused: set[str] = set()
        """The members whose drafts were refused in this round."""
        self.counts: dict[str, Counter[str]] = {}

    def begun(self, answer: Answer) -> Answer:
        """The empty answer with no verified text yet; unchanged if there are no checks."""
        return answer if self.is_idle else replace(answer, verified=0)

    def begin_round(self) -> None:
        """Begin the report of another round."""
        self.rejected = []
        self.refused = set()
        self.counts = {check.name: Counter() for check in self._checks}

    @property
    def is_idle(self) -> bool:
        """Whether there are no checks."""
        return not self._checks

    # --- who drafts next, and how -----------------------------------------------------------------

    def writers(self, panel: Panel) -> list[str]:
        """The only members that draft next, because a draft has failed; empty if the usual ones
        draft."""
        return [name for name in self._only or () if name in panel.drafters]

    def job(self, job: DraftJob, name: str, panel: Panel, answer: Answer) -> DraftJob:
        """The job of this member: the usual one, unless a check has refused its last draft. A
        provider writes a redraft as a stream, too, which is read up to its next fault. Later drafts
        come from the same stream, so they are sampled like the redraft."""
        if not self._tries:
            return job
        streams = job.leads and panel.is_native(name)
        is_led = panel.lead is not None or len(panel.drafters) == 1
        if self._length is not None and is_led and not streams:
            length = min(job.segment_tokens, self._length)
            job = replace(job, segment_tokens=length, leads=False)
        redraft = self._redraft
        if redraft is None:
            sampling = self._sampling.get(name, job.sampling)
            return replace(job, sampling=sampling, remarks=self._told.get(name, ()))
        job = self.told(replace(job, leads=streams), name, panel)
        excluded = redraft.excluded.get(name)
        if excluded and len(answer.text) == redraft.at:
            job = replace(job, excluded=tuple(sorted(excluded)))
        if redraft.is_sampled and name == redraft.author:
            sampling = replace(
                job.sampling,
                temperature=max(job.sampling.temperature, SAMPLED),
                seed=job.sampling.seed + SEED_STEP * self._tries,
            )
            job = replace(job, sampling=sampling)
        if streams:
            self._sampling[name] = job.sampling
        return job

    def told(self, job: DraftJob, name: str, panel: Panel) -> DraftJob:
        """The job with what checks have refused, if this member is told."""
        if not self._is_told(name, panel):
            return job
        self._told[name] = self._remarks
        return replace(job, remarks=self._remarks)

    def _is_told(self, name: str, panel: Panel) -> bool:
        """Whether this member reads messages, and cannot exclude tokens instead."""
        return self._settings.feedback and _only_continues(name, panel)

    def _remark(self, fault: Fault, text: str, calls: Sequence[ToolCall]) -> None:
        """Remember what a check has refused. With a private check among the checks, neither the
        text, which that check may not have seen, nor the reason, which may quote it."""
        is_call = fault.check.at == "call"
        if is_call and calls:
            text = ", ".join(f"{call.name}({call.arguments})" for call in calls)
        remark = Remark(fault.reason, text, is_call=is_call)
        if any(check.private for check in self._checks):
            remark = Remark(f"it broke the rule {fault.check.name!r}", is_call=is_call)
        others = [other for other in self._remarks if other != remark]
        self._remarks = (*others, remark)[-REMARKS:]

    # --- judging the drafts of a round ------------------------------------------------------------

    def judged(self, answer: Answer, drafts: Mapping[str, Draft], panel: Panel) -> Steps:
        """Ask the checks about these drafts. Returns an :class:`Outcome`."""
        if self.is_idle:
            return Outcome(answer, dict(drafts))
        written = {
            name: Continuation.of(answer, self._marks, draft, name)
            for name, draft in drafts.items()
        }
        faults = yield from self._faults(written)
        self.refused |= faults.keys()
        eligible = {name: drafts[name] for name in drafts if name not in faults}
        if eligible:
            return Outcome(answer, eligible)
        return (yield from self._repaired(answer, written, faults, panel))

    def passing(self, answers: Mapping[str, tuple[Answer, Draft]]) -> Steps:
        """Ask the checks about these whole answers: for each author, the answer that its draft
        begins, and the draft. Returns the names of those that pass."""
        if self.is_idle or not answers:
            return list(answers)
        written = {
            name: Continuation.of(answer, self._marks, draft, name)
            for name, (answer, draft) in answers.items()
        }
        faults = yield from self._faults(written)
        for name, fault in faults.items():
            after = written[name].after
            self._remark(fault, after.text, after.calls)
        return [name for name in answers if name not in faults]

    def continued(
        self, answer: Answer, continued: Answer, job: DraftJob
    ) -> tuple[Answer, DraftJob]:
        """The answer as another member goes on with it, and the job for that member. What is
        remembered of the text that was dropped is forgotten."""
        if continued is answer:
            return answer, job
        size = len(continued.text)
        self._held_back = [item for item in self._held_back if len(item.after.text) <= size]
        self._marks = {check: min(mark, size) for check, mark in self._marks.items()}
        return continued, replace(job, answer=continued.segments, max_tokens=continued.tokens_left)

    def keep(self, name: str) -> None:
        """Mark that this member's answer is shown although a check refuses it."""
        self.rejected = [
            replace(rejection, is_shown=rejection.is_shown or rejection.member == name)
            for rejection in self.rejected
        ]

    def none_passed(self, answer: Answer, samples: int) -> CheckError:
        """The error if no whole answer has passed."""
        last = self.rejected[-1]
        error = no_text_passed(
            last.check, last.reason, answer, f"{amount(samples, 'answer')} asked for"
        )
        advised(
            error,
            "raise samples= of the method, add a member, or choose on_failure='end' or 'keep'; "
            f"{TEXT}",
        )
        return self._reported(error)

    def _reported(self, error: CheckError) -> CheckError:
        """Add the drafts that were refused in this round, which is never finished, to the error."""
        error.rejected = tuple(rejection.as_dict() for rejection in self.rejected)
        return error

    def _faults(self, written: Mapping[str, Continuation]) -> Steps:
        """Ask about these drafts, all at once. Returns the first fault of each that fails, and
        reports it."""
        jobs: list[CheckJob] = []
        parts: dict[str, range] = {}
        same: dict[tuple[str, bool], str] = {}
        for name, item in written.items():
            twin = same.setdefault((item.draft.text, item.draft.ended), name)
            if twin in parts:
                parts[name] = parts[twin]
                continue
            start = len(jobs)
            jobs += self._jobs(item)
            parts[name] = range(start, len(jobs))
        verdicts = yield from self._asked(jobs, next(iter(written.values())).before)
        faults: dict[str, Fault] = {}
        for name, item in written.items():
            fault = _first_fault([(jobs[i], verdicts[i]) for i in parts[name]])
            if fault is not None:
                faults[name] = fault
                self._note(item, fault)
                self._remember(item, fault)
            else:
                self._passed[name] = self._marks_after(item)
        self._count(jobs, verdicts)
        return faults

    def _jobs(self, item: Continuation) -> Iterator[CheckJob]:
        """What to ask about this draft."""
        after = item.after
        for check in self._checks:
            mark = item.marks[check.name]
            places, _ = _places(check, after, mark)
            for place in places:
                # All of the text may have passed before it turned out to be the end.
                is_end = after.finish is not None and place == len(after.text)
                if place > mark or is_end:
                    yield self._job(check, after, place, mark, item.author)

    def _job(self, check: Check, answer: Answer, place: int, mark: int, author: str) -> CheckJob:
        text = answer.text[:place]
        spoken = text if check.at == "call" else text[: answer.referee.before_calls(text)]
        is_end = place == len(answer.text) or check.at == "answer"
        until = answer.text if check.at == "answer" else text
        calls = tuple(call for call, _ in answer.referee.calls(until))
        if is_end:
            calls += answer.calls
        done = is_end and answer.finish is not None
        return CheckJob(check, spoken, spoken[mark:], author, done, calls)

    def _marks_after(self, item: Continuation) -> Marks:
        """How far each check has been asked once this draft has passed."""
        after = item.after
        marks = dict(item.marks)
        for check in self._checks:
            places, _ = _places(check, after, marks[check.name])
            marks[check.name] = max([marks[check.name], *places])
        return marks

    def _asked(self, jobs: Sequence[CheckJob], answer: Answer) -> Steps:
        """Ask for the verdicts on these jobs. Raises if a check itself fails. What passes is
        refused if it is another spelling of what was refused before."""
        if not jobs:
            return ()
        verdicts = yield CheckAsk(tuple(jobs))
        for job, verdict in zip(jobs, verdicts, strict=True):
            if verdict.is_broken:
                raise self._reported(broken_check(job.check, verdict, answer))
        pairs = zip(jobs, verdicts, strict=True)
        return [self._respelled(job) if it.reason is None else it for job, it in pairs]

    def _respelled(self, job: CheckJob) -> Verdict:
        """The verdict on a text that this check has passed."""
        for refused in self._spelled:
            if refused.check == job.check.name and refused.spelling.is_distinct:
                span = refused.spelling.found(job.text, len(job.text) - len(job.draft))
                if span is not None:
                    return Verdict(f"{refused.reason}, in another spelling", span=span)
        return Verdict()

    def _count(self, jobs: Sequence[CheckJob], verdicts: Verdicts) -> None:
        for job, verdict in zip(jobs, verdicts, strict=True):
            kind = "passed" if verdict.reason is None else "rejected"
            self.counts[job.check.name][kind] += 1

    def _note(self, item: Continuation, fault: Fault) -> None:
        self.rejected.append(
            Rejection(
                item.author,
                item.draft.text,
                fault.check.name,
                fault.reason,
                tokens=len(item.draft.tokens),
                held_back=item.before.text[item.marks[fault.check.name] :][-TAIL:],
            )
        )

    def _remember(self, item: Continuation, fault: Fault) -> None:
        """Refuse other spellings of this text from now on."""
        if fault.span is None:
            return
        check, known = fault.check, self._refused_by(item, fault)
        text = item.after.text[slice(*fault.span)] if known is None else known.text
        is_fixed = check.private or bool(check.literal)
        spelling = Spelling.of(text, is_fixed=is_fixed, is_data=check.private)
        if spelling is None:
            return
        if known is None:
            self._spelled.append(Refused(check.name, fault.reason, text, spelling))
        else:
            known.spelling = spelling

    def _refused_by(self, item: Continuation, fault: Fault) -> Refused | None:
        """What was refused before, if this fault is a spelling of it."""
        if fault.span is None:
            return None
        text = item.after.text[slice(*fault.span)]
        for refused in self._spelled:
            if refused.check == fault.check.name and refused.spelling.found(text):
                return refused
        return None

    def thoughts(self, drafts: Mapping[str, Draft], answer: Answer) -> Steps:
        """The reasoning of each draft that may be shown. Reasoning that a check refuses is not
        shown; the answer goes on without it."""
        thoughts = {name: draft.thought for name, draft in drafts.items() if draft.thought}
        shows = self._settings.reasoning
        hidden = {
            name: thought
            for name, thought in thoughts.items()
            if not (shows or (shows is None and drafts[name].parts))
        }
        judged = {name: thought for name, thought in thoughts.items() if name not in hidden}
        # the round that releases this answer's last text is not over
        streamed = replace(answer, shown=answer.shown - len(answer.released))
        passing = yield from self._passing_texts(judged, streamed)
        return {**hidden, **passing}

    def refusals(self, refusals: Mapping[str, str], answer: Answer) -> Steps:
        """Empty the texts of refusals that a check does not pass. The answer still ends as
        refused."""
        passing = yield from self._passing_texts(refusals, answer)
        return {name: passing.get(name, "") for name in refusals}

    def _passing_texts(self, texts: Mapping[str, str], answer: Answer) -> Steps:
        """Ask the checks about texts outside the answer, by author. Returns those that pass."""
        judging = [
            check for check in self._checks if check.judges_reasoning and check.at in SEARCHED
        ]
        jobs = [
            CheckJob(check, text, text, name, ended=True)
            for name, text in texts.items()
            for check in judging
            if text
        ]
        verdicts = yield from self._asked(jobs, answer)
        self._count(jobs, verdicts)
        passing = dict(texts)
        for job, verdict in zip(jobs, verdicts, strict=True):
            if verdict.reason is not None and passing.pop(job.author, None) is not None:
                self.rejected.append(
                    Rejection(job.author, job.text, job.check.name, verdict.reason)
                )
        return passing

    # --- when no draft passes ---------------------------------------------------------------------

    def _repaired(
        self,
        answer: Answer,
        written: Mapping[str, Continuation],
        faults: Mapping[str, Fault],
        panel: Panel,
    ) -> Steps:
        """Cut the best draft before its fault, or let members draft again."""
        cuts: dict[str, int] = {}
        for name, item in written.items():
            cuts[name] = yield from self._cut_of(item, faults[name])
            if cuts[name] < len(item.before.text):  # an earlier draft is at fault
                self.refused.discard(name)
                self.refused.add(self._writer_at(item, cuts[name]).author)

        def rank(name: str) -> tuple[int, bool, float]:
            return cuts[name], name == panel.lead, round(panel.weights.get(name, 0.0), 12)

        author = max(written, key=rank)
        item, fault, cut = written[author], faults[author], cuts[author]
        writer = self._writer_at(item, cut).author
        is_told = self._is_told(writer, panel)
        rest = self._shown_at(item, cut) if _only_continues(writer, panel) else cut
        is_new = self._makes_progress(fault, rest, item.marks, is_told)
        refused = self._refused_by(item, fault)
        if refused is not None:
            refused.times = refused.times + 1 if self._is_there(refused, item, fault) else 1
            refused.place = cut
        self._exclude(item, cut, fault, panel, is_told=is_told)
        redrafts = self._redrafts(fault, is_told)
        if not is_new and (self._others_asked or self._attempts > redrafts):
            self.is_handed_over = not item.after.text[cut:].strip()
            if not self._ask_others(panel, written):
                if self._settings.on_failure == "end":
                    answer, _ = self._kept(item, cut)
                attempts, advice = f"redrafts={redrafts} in a row", "raise redrafts=, add a member"
                if is_told and fault.check.at == "call":
                    attempts, advice = amount(redrafts, "further request"), "add a member"
                return (yield from self._give_up(answer, fault, attempts, advice))
            if all(_only_continues(name, panel) for name in self._only or ()):
                rest = self._shown_at(item, cut)
        else:
            if is_told:
                is_limit = yield from self._refuses_all(item, cut, fault)
            else:
                is_limit = not is_new and (yield from self._exclude_more(item, cut, fault))
            ended = (yield from self._ended(item, cut, fault)) if is_limit else None
            if ended is not None:
                return ended
        if rest < cut and self._redraft is not None:
            self._redraft = replace(self._redraft, at=rest, excluded={})
        # a whole new answer is asked for with all that is dropped
        start, end = (cut, fault.end) if rest else (0, fault.place)
        self._remark(fault, item.after.text[start:end], item.after.calls)
        return (yield from self._restart(item, rest))

    def _shown_at(self, item: Continuation, cut: int) -> int:
        """How much of the text before the cut is shown, or will be if the draft is cut there. A
        chat model continues only that: the request says that the reader has seen the text, and the
        words before a fault may allow no other end of the sentence."""
        writer, part = self._up_to(item, cut)
        kept = writer.before.plus(part.segment({})) if part.text else writer.before
        return max(self._hold(kept, writer.marks), self._least(item))

    def _least(self, item: Continuation) -> int:
        """The place before which nothing can be cut: what is shown, or what a constraint forces
        before the first draft."""
        first = [*self._held_back, item][0]
        return max(item.before.shown, len(first.before.text))

    def _hold(self, answer: Answer, marks: Marks) -> int:
        """The place from which on text is held back, if what precedes it has passed."""
        holds = [_places(check, answer, marks[check.name])[1] for check in self._checks]
        hold = min(holds, default=len(answer.text))
        if answer.finish is None:
            spellings = [it.spelling for it in self._spelled if it.spelling.is_distinct]
            ends = [spelling.pending(answer.text[:hold]) for spelling in spellings]
            if min(ends, default=hold) < hold:
                hold = word_start(answer.text, min(ends))
        return hold

    def _cut_of(self, item: Continuation, fault: Fault) -> Steps:
        """Where to cut this draft, or the held back text before it, so that the rest passes."""
        mark = item.marks[fault.check.name]
        text = item.after.text[: fault.place]
        least = self._least(item)
        if fault.check.at not in SEARCHED:
            return max(_unit_start(fault, text, item.after), least)
        places = self._cuts(item, fault.place)
        if fault.span is not None:
            start = self._start_of(item, fault)
            apart = [at for at in places if is_apart(text, at) or is_safe(text, at)]
            return max((at for at in apart if at <= start), default=least)
        tried = [place for place in places if place > mark]
        low, high = -1, len(tried)  # tried[low] passes, tried[high] fails
        while high - low > 1:
            middle = (low + high) // 2
            job = self._job(fault.check, item.after, tried[middle], mark, item.author)
            verdicts = yield from self._asked([job], item.before)
            if verdicts[0].reason is None:
                low = middle
            else:
                high = middle
        if low >= 0:
            return tried[low]
        return max((place for place in places if place <= mark), default=mark)

    def _start_of(self, item: Continuation, fault: Fault) -> int:
        """The place before which to cut: the beginning of what is at fault. If it was refused at
        the same place before, that place, and after the second time, the beginning of the sentence.
        """
        refused = self._refused_by(item, fault)
        if refused is None or not self._is_there(refused, item, fault):
            return fault.start
        if refused.times < 2:
            return refused.place
        ends, _ = places_in("sentence", item.after.text[: refused.place], False)
        return ends[-1] if ends else 0

    def _is_there(self, refused: Refused, item: Continuation, fault: Fault) -> bool:
        """Whether this fault is where the answer was last cut before the same text: no letter or
        digit lies between."""
        between = item.after.text[max(refused.place, 0) : fault.start]
        return 0 <= refused.place <= fault.start and not normal(between)[0]

    def _cuts(self, item: Continuation, end: int) -> list[int]:
        """The places before ``end`` where held back text and this draft can be cut."""
        places: list[int] = []
        for written in [*self._held_back, item]:
            start = len(written.before.text)
            places.append(start)
            places += [start + at for at in beginnings(written.draft.text, written.draft.ends)]
        return sorted({place for place in places if item.before.shown <= place < end})

    def _redrafts(self, fault: Fault, is_told: bool) -> int:
        """How many attempts in a row may add no verified text."""
        chosen = self._settings.redrafts
        if not is_told:
            return REDRAFTS if chosen is None else chosen
        most = TOLD_REDRAFTS if chosen is None else chosen
        return min(most, 1) if fault.check.at == "call" else most

    def _makes_progress(self, fault: Fault, cut: int, marks: Marks, is_told: bool) -> bool:
        """Whether the cut leaves more text than any before. Otherwise it counts as an attempt; if
        the writer is told, so that each redraft is a request, the draft before the first redraft
        always counts as one."""
        verified = min(marks[fault.check.name], max(cut, fault.start))
        is_new = cut > max(self._furthest, verified)
        if is_new or verified > self._furthest:
            self._attempts = int(is_new and is_told)
            self._others_asked = False
        if not is_new:
            self._attempts += 1
        self._furthest = max(self._furthest, verified, cut)
        return is_new

    def _exclude(
        self, item: Continuation, cut: int, fault: Fault, panel: Panel, *, is_told: bool
    ) -> None:
        """Exclude the token after the cut from what its author writes next."""
        writer = self._writer_at(item, cut)
        able = {member.name for member in panel.members if member.excludes}
        if self._redraft is None or self._redraft.at != cut:
            self._redraft = Redraft(cut, writer.author, fault)
        self._redraft.author = writer.author
        self._tries += 1
        tokens = writer.draft.tokens
        first = _tokens_before(writer.draft, cut - len(writer.before.text))
        can_exclude = writer.author in able and fault.check.at in SEARCHED
        if can_exclude and first is not None and first < len(tokens):
            self._redraft.excluded.setdefault(writer.author, set()).add(tokens[first])
            self._redraft.is_sampled = self._attempts > 2
        else:
            # The reason changes the request, so the first redraft is sampled as the draft was: a
            # chat model writes all of the rest in it.
            self._redraft.is_sampled = not is_told or self._attempts > 1
        self._length = SHORT if fault.check.at in SEARCHED else None

    def _exclude_more(self, item: Continuation, cut: int, fault: Fault) -> Steps:
        """Exclude all other first tokens that the check refuses too. They are known from the reply
        to a job that excluded some, so no model computes anything. Returns whether the check
        refuses every word."""
        # the fault may show only once another draft has completed a word that was held back
        redraft, writer = self._redraft, self._writer_at(item, cut)
        others = writer.draft.others
        is_here = len(writer.before.text) == cut
        if redraft is None or not others or not is_here or not _is_plain(fault.check.function):
            return False
        before = writer.before.text
        jobs = [
            CheckJob(fault.check, before + text, text, writer.author, ended=False)
            for _, text in others
        ]
        verdicts = yield from self._asked(jobs, item.before)
        pairs = list(zip(others, verdicts, strict=True))
        all_others = {token for token, _ in others}
        refused = {token for (token, _), verdict in pairs if verdict.reason is not None}
        spelled = self._refused_by(item, fault)
        if spelled is not None:
            refused |= {token for token, text in others if spelled.spelling.begins(text)}
        words = {token: text for token, text in others if _begins_word(text, before)}
        ends = {token for token, text in others if text.strip() in MARKS} - refused
        excluded = redraft.excluded.setdefault(writer.author, set())
        refused_text = item.after.text[cut : fault.place]
        same_word = [
            token
            for token, text in words.items()
            if token not in refused and refused_text.lower().startswith(text) and not fault.span
        ]
        if same_word:
            excluded |= all_others - set(same_word)  # the same word in small letters
            return False
        if len(words) < MANY or not words.keys() <= refused:
            excluded |= refused
            if refused_text.strip()[:1].isalnum():
                excluded |= all_others - words.keys()  # a word replaces a word or a number
            return False
        spelled_otherwise = [
            CheckJob(fault.check, before + text.lower(), text, writer.author, ended=False)
            for text in words.values()
        ]
        verdicts = yield from self._asked(spelled_otherwise, item.before)
        if any(verdict.reason is None for verdict in verdicts):
            excluded |= all_others  # words may follow, but less probable ones
            return False
        if ends and before[-1:].isalnum():
            excluded |= all_others - ends  # the sentence may still get its full stop
            return False
        excluded |= refused
        return True

    def _refuses_all(self, item: Continuation, cut: int, fault: Fault) -> Steps:
        """Whether the check refuses every word after the cut, as ``max_words`` does at its limit. A
        model that reads the reason could only write nothing, which few can."""
        if fault.check.at not in SEARCHED or not _is_plain(fault.check.function):
            return False
        before = item.after.text[:cut]
        space = " " if before and not before[-1].isspace() else ""
        jobs = [
            CheckJob(fault.check, before + space + word, space + word, item.author, ended=False)
            for word in WORDS
        ]
        verdicts = yield from self._asked(jobs, item.before)
        return all(verdict.reason is not None for verdict in verdicts)

    def _ended(self, item: Continuation, cut: int, fault: Fault) -> Steps:
        """End the answer, for a check that refuses every further word, such as ``max_words``: after
        the last sentence or line if the check runs there, otherwise at the cut. Returns None if the
        answer may not end there."""
        places = [cut]
        if fault.check.at in ("sentence", "line"):
            places.insert(0, item.marks[fault.check.name])
        for place in places:
            writer, part = self._up_to(item, place)
            base = replace(writer.before, shown=item.before.shown, released="")
            end = replace(part, ended=True, logprobs=None, others=())
            ending = Continuation.of(base, writer.marks, end, writer.author)
            text = ending.after.text
            if not text.strip() or not base.referee.may_end(text):
                continue
            faults = yield from self._faults({writer.author: ending})
            if faults:
                continue
            if writer is not item:
                base = self._withdrawn_to(item, writer, Draft(""))
            return Outcome(base, {writer.author: end}, is_repaired=True)
        return None

    def _ask_others(self, panel: Panel, written: Mapping[str, Continuation]) -> bool:
        """Let the members that have not been asked at this place draft. Returns False if there are
        none."""
        others = [name for name in panel.drafters if name not in written]
        if self._others_asked or not others:
            others = list(panel.reserve[:1])
        if not others:
            return False
        self._others_asked = True
        self._only = tuple(others)
        return True

    def wants_reserve(self, panel: Panel) -> bool:
        """Whether the next member in reserve has to draft, because no redraft of any other member
        passed."""
        return bool(self._only) and self._only == panel.reserve[:1]

    def _restart(self, item: Continuation, cut: int) -> Steps:
        """Continue from the cut: with the beginning of the draft if anything is left of it,
        otherwise with another draft."""
        redraft = self._redraft
        assert redraft is not None
        if not self._others_asked and (self._only is None or item.author not in self._only):
            self._only = (redraft.author,)
        answer, part = self._kept(item, cut)
        if not part.text:
            return Outcome(answer)
        kept = Continuation.of(answer, item.marks, part, item.author)
        faults = yield from self._faults({item.author: kept})
        if faults:
            # another check refuses the beginning, for example because its last word is now known
            return Outcome(answer)
        self.rejected = [
            replace(rejection, kept=len(part.text))
            if (rejection.member, rejection.text) == (item.author, item.draft.text)
            else rejection
            for rejection in self.rejected
        ]
        self._only = None
        return Outcome(answer, {item.author: part}, is_repaired=True)

    def _kept(self, item: Continuation, cut: int) -> tuple[Answer, Draft]:
        """The answer without the text from the cut on, and what is left of this draft."""
        writer, part = self._up_to(item, cut)
        if writer is item:
            return item.before, part
        return self._withdrawn_to(item, writer, part), Draft("")

    def _withdrawn_to(self, item: Continuation, writer: Continuation, part: Draft) -> Answer:
        """The answer without the text from the cut on. The cut lies in an earlier draft."""
        index = next(i for i, other in enumerate(self._held_back) if other is writer)
        shown = item.before.shown
        # Shown text has passed. A check that judges it differently the next time cannot take it
        # back.
        marks = {name: max(mark, shown) for name, mark in writer.marks.items()}
        if part.text:
            kept = Continuation.of(writer.before, marks, part, writer.author)
            answer = kept.after
            self._held_back = [*self._held_back[:index], kept]
        else:
            answer = writer.before
            self._held_back = self._held_back[:index]
        self._marks = marks
        return replace(answer, shown=shown, verified=shown, released="")

    def _up_to(self, item: Continuation, cut: int) -> tuple[Continuation, Draft]:
        """The draft that continues the answer at this place, and its beginning up to there."""
        writer = self._writer_at(item, cut)
        return writer, _part_of(writer.draft, cut - len(writer.before.text))

    def _writer_at(self, item: Continuation, cut: int) -> Continuation:
        """The draft that continues the answer at this place."""
        before = [other for other in [*self._held_back, item] if len(other.before.text) <= cut]
        return before[-1] if before else item

    # --- when no attempt passes -------------------------------------------------------------------

    @property
    def is_redrafting(self) -> bool:
        """Whether a draft has failed, and no text beyond its fault has been verified yet."""
        return self._redraft is not None

    def without_writers(self, answer: Answer, error: Exception) -> Steps:
        """Do what ``on_failure`` says, because no member can replace a draft that failed: for
        example, a member that cannot continue a text that was cut. ``error`` says why."""
        redraft = self._redraft
        assert redraft is not None
        advice = "add a member that can take over, such as a .gguf file"
        return (yield from self._give_up(answer, redraft.fault, str(error), advice))

    def _give_up(self, answer: Answer, fault: Fault, attempts: str, advice: str) -> Steps:
        """Do what ``on_failure`` says, because no attempt has passed, and no other can be made."""
        if self._settings.on_failure == "raise":
            error = no_text_passed(fault.check.name, fault.reason, answer, attempts)
            advised(error, f"{advice}, or choose on_failure='end'; {TEXT}")
            raise self._reported(error)
        ended = replace(answer, finish="check", released="")
        jobs = []
        for check in self._checks:
            mark = self._marks.get(check.name, 0)
            places, _ = _places(check, ended, mark)
            jobs += [self._job(check, ended, place, mark, "") for place in places if place > mark]
        verdicts = yield from self._asked(jobs, answer)
        shown = answer.shown
        if all(verdict.reason is None for verdict in verdicts):
            # show no part of a call that was not judged
            holds = [_places(check, answer, 0)[1] for check in self._checks if check.at == "call"]
            shown = max(shown, min([len(answer.text), *holds]))
        text = answer.text[:shown]
        released = answer.text[answer.shown : shown]
        return Outcome(replace(ended, text=text, shown=shown, released=released), is_over=True)

    # --- after the vote ---------------------------------------------------------------------------

    def agreed(self, before: Answer, after: Answer, draft: Draft, author: str) -> Answer:
        """The answer after the vote, of which only the verified part is shown."""
        if self.is_idle:
            return after
        item = Continuation(before, self._marks, draft, author, after)
        self._marks = self._passed.get(author, self._marks)
        self._passed = {}
        hold = max(self._hold(after, self._marks), before.shown)
        shown = min(after.shown, hold)
        released = after.text[before.shown : shown]
        answer = replace(after, shown=shown, verified=shown, released=released)
        self._held_back.append(item)
        while self._held_back and len(self._held_back[0].after.text) <= shown:
            del self._held_back[0]
        if self._length is not None:
            longest = max(SHORT, self._settings.method.segment_tokens // 2)
            self._length = min(self._length + 1, longest)
        if self._redraft is not None and shown > self._redraft.at:
            self._redraft = None
            self._others_asked = False
        if self._redraft is None:
            self._only = None
        return answer


def _literals(checks: Sequence[Check]) -> Iterator[Refused]:
    """The texts of which other spellings are refused from the beginning."""
    for check in checks:
        spelling = Spelling.of_literal(check.literal)
        if spelling is not None:
            yield Refused(check.name, f"contains {check.literal!r:.200}", check.literal, spelling)


# --- places ---------------------------------------------------------------------------------------


def _places(check: Check, answer: Answer, mark: int) -> tuple[list[int], int]:
    """The places in this answer where a check runs, and how much of the answer may be shown once it
    passes. Places before ``mark``, up to which it has passed, may be left out."""
    text = answer.text
    spoken = answer.referee.before_calls(text)
    in_calls = spoken < len(text) or bool(answer.calls)
    is_over = answer.finish is not None
    if check.at == "call":
        ends = [end for _, end in answer.referee.calls(text)]
        if answer.calls:
            ends.append(len(text))
        if is_over or not in_calls:
            return ends, len(text)
        return ends, ends[-1] if ends else spoken
    if check.at == "answer":
        if not is_over:
            return [], 0
        if in_calls and not (check.judges_calls and text[:spoken].strip()):
            return [], len(text)
        return [spoken], len(text)
    places, hold = places_in(check.at, text[:spoken], is_over or in_calls, min(mark, spoken))
    if in_calls and hold == spoken:
        return places, len(text)
    if check.pending is not None and not (is_over or in_calls):
        end = check.pending(text[:hold])
        hold = hold if end >= hold else word_start(text, end)
    return places, hold


def _unit_start(fault: Fault, text: str, answer: Answer) -> int:
    """Where the block, call or answer that this check refuses begins."""
    if fault.check.at == "block":
        return places_in("block", text[:-1], False)[1]
    if fault.check.at == "call":
        ends = [end for _, end in answer.referee.calls(text)]
        return ends[-2] if len(ends) > 1 else answer.referee.before_calls(text)
    return 0


def _first_fault(pairs: Sequence[tuple[CheckJob, Verdict]]) -> Fault | None:
    faults = [
        Fault(job.check, len(job.text), verdict.reason, verdict.span)
        for job, verdict in pairs
        if verdict.reason is not None
    ]
    return min(faults, key=lambda fault: (fault.place, fault.start), default=None)


# --- parts of drafts ------------------------------------------------------------------------------


def _tokens_before(draft: Draft, at: int) -> int | None:
    """How many tokens lie before this place; None if that is not known."""
    if at == 0:
        return 0
    if draft.ends is None or len(draft.ends) != len(draft.tokens) or at not in draft.ends:
        return None
    return draft.ends.index(at) + 1


def _part_of(draft: Draft, at: int) -> Draft:
    """The beginning of a draft, with its tokens where they are known."""
    if at >= len(draft.text):
        if not draft.ended:
            return draft
        return replace(draft, ended=False, logprobs=None, calls=(), is_cut=False, parts=())
    part = Draft(draft.text[:at], effort=draft.effort, thought=draft.thought, least=draft.least)
    count = _tokens_before(draft, at)
    if count is None:
        return part
    return replace(
        part,
        tokens=draft.tokens[:count],
        logprobs=draft.logprobs and draft.logprobs[:count],
        ends=draft.ends and draft.ends[:count],
    )


def _only_continues(name: str, panel: Panel) -> bool:
    """Whether this member is a chat model, which reads messages and cannot exclude tokens."""
    able = [member.name for member in panel.members if member.native and not member.excludes]
    return name in able


def _begins_word(text: str, before: str) -> bool:
    """Whether this text begins a new word, instead of continuing the last one before it."""
    is_apart = text[:1].isspace() or not before[-1:].isalnum()
    return is_apart and text.strip()[:1].isalpha()


def _is_plain(function: Any) -> bool:
    """Whether many calls are cheap: the function is neither a coroutine function nor a
    ``Runnable``."""
    return not is_coroutine_function(function) and not hasattr(function, "invoke")


# --- errors ---------------------------------------------------------------------------------------


def broken_check(check: Check, verdict: Verdict, answer: Answer) -> CheckError:
    """The error of a check that failed itself."""
    error = CheckError(
        f"the check {check.name!r} failed: it {verdict.reason}",
        text=answer.text[: answer.shown],
        check=check.name,
        reason=verdict.reason or "",
    )
    error.__cause__ = verdict.cause
    advice = "fix the check, or leave it out; text that could not be verified is not shown"
    if error.reason.startswith("took longer"):
        advice = f"allow it more time: checks.at({check.at!r}, my_check, timeout=30)"
    elif error.reason.startswith("returned"):
        advice = "return None if the text passes, and a text with the reason if it does not"
    return advised(error, advice)


def no_text_passed(check: str, reason: str, answer: Answer, attempts: str) -> CheckError:
    """The error of an answer that no draft could continue."""
    return CheckError(
        f"no text passed the check {check!r}: {reason} ({attempts})",
        text=answer.text[: answer.shown],
        check=check,
        reason=reason,
    )
