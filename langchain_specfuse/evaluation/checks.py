"""Is a member what it says it is? Template, stop tokens, scores and seams, tried out on the loaded member.

All but the template is asked through the member's protocol alone, so it holds for every backend; members that have a
``template`` and ``words`` (those in this process) are looked at more closely. Knows members; nothing of grades.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from ..core.member import Member, Probe
from ..core.values import Candidate, Draft, DraftJob, Failure, Query, Sampling, Scored, ScoreJob, Segment, Turn
from ..engine.desk import desk_for
from ..engine.ensemble import Ensemble
from ..engine.task import Task

GOOD, WATCH, BAD = "good", "watch", "bad"
CLOSE = 0.01
"""Drafts' and scores' log-probabilities may differ by this much on average: rounding of float32."""
COARSE = 0.25
"""And by this much in low precision. More is another model, or a shifted reading."""
QUESTIONS = ("Why is the sky blue?", "Name two fruits.", "Say hello in one sentence.")
FOREIGN = (" and then", "\n\n- one, two", " “naïve” 日本語 🎉", "tion")
"""What another member may have written in between: words, lists, other scripts, half a word."""
_MARK = "specfuse-system-mark"


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check of one member showed."""

    member: str
    check: str
    verdict: str
    """``good``, ``watch`` (works, but know it) or ``bad`` (mend it, or leave the member out)."""
    text: str


def loaded(member: Member) -> tuple[Probe | None, Finding]:
    """Load it; what it can do, or why it cannot be loaded."""
    since = time.perf_counter()
    try:
        probe = Ensemble([member]).loaded().result()[member.name]
    except Exception as error:
        return None, Finding(member.name, "loading", BAD, f"does not load: {type(error).__name__}: {error}")
    context = f", context of {probe.max_context} tokens" if probe.max_context else ""
    detail = f"loaded in {time.perf_counter() - since:.1f} s ({probe.detail or 'no detail told'}{context})"
    return probe, Finding(member.name, "loading", GOOD, detail)


def examined(member: Member, probe: Probe) -> list[Finding]:
    """All checks of one loaded member."""
    found: list[Finding] = []
    for check, look in (("template", _template), ("stop tokens", _stops), ("scores", _scores), ("seams", _seams)):
        try:
            told = [Finding(member.name, check, verdict, text) for verdict, text in look(member, probe)]
        except Exception as error:
            told = [Finding(member.name, check, BAD, f"the check failed: {type(error).__name__}: {error}")]
        found += told
    return found


def _at_desk(member: Member, call: Callable[[], Any]) -> Any:
    """Members work in their desk's thread and in no other."""
    done: Future[Any] = Future()

    def work() -> None:
        try:
            done.set_result(call())
        except BaseException as error:
            done.set_exception(error)

    desk_for(member.device).put(Task(member, "call", work, lambda _: None))
    return done.result()


Verdicts = Iterator[tuple[str, str]]


# --- template and stop tokens ---------------------------------------------------------------------------------------


def _template(member: Any, _: Probe) -> Verdicts:
    template = getattr(member, "template", None)
    if template is None:
        return
    if template.plain:
        chosen = getattr(member, "chat_template", None) == "plain"
        yield (
            (GOOD if chosen else WATCH),
            "no chat template: it is asked in a plain form"
            + (", as chosen" if chosen else "; right for a base model, else give chat_template=..."),
        )
    told = template.prompt([Turn("system", _MARK), Turn("user", "x")])
    if _MARK not in told:
        yield BAD, "a system message does not reach it"
    elif not template.plain:
        folded = told == template.prompt([Turn("user", f"{_MARK}\n\nx")])
        yield GOOD, "chat template, " + ("system text goes into the first question" if folded else "with a system role")


def _stops(member: Any, _: Probe) -> Verdicts:
    stops, template = getattr(member, "stops", None), getattr(member, "template", None)
    if stops is None or template is None:
        return
    if template.end_text:
        yield GOOD, f"its turn ends with {template.end_text!r}"
        return
    names = [str(name) for name in member.words.tokenizer.convert_ids_to_tokens(stops)]
    if not names:
        yield BAD, "nothing says where its turn ends: no stop token in generation config, tokenizer or template"
        return
    from ..members._template import end_of_turn

    own = end_of_turn(template)
    known = f"its turn ends with {', '.join(names)}"
    yield (GOOD, known) if own else (WATCH, known + "; its template does not show how an answer ends")


# --- scores ---------------------------------------------------------------------------------------------------------


def _draft(member: Member, query: Query, answer: tuple[Segment, ...] = (), tokens: int = 8) -> Draft | Failure:
    return member.draft([DraftJob(query, answer, tokens, 64, Sampling())])[0]


def _scores(member: Member, probe: Probe) -> Verdicts:
    if not probe.scores:
        yield WATCH, "cannot score: it drafts, but has no vote"
        return
    apart, others = _at_desk(member, lambda: _distances(member))
    if others:
        yield BAD, others[0]
    elif not apart:
        yield WATCH, "its drafts come without numbers, or read otherwise: nothing to compare its scores with"
    else:
        worst = max(apart)
        text = f"its scores differ from its drafts' own numbers by {worst:.2g} per token"
        yield (GOOD if worst <= CLOSE else WATCH if worst <= COARSE else BAD), text


def _distances(member: Member) -> tuple[list[float], list[str]]:
    """How far drafts' numbers are from the scores of the same tokens; and what went wrong."""
    apart: list[float] = []
    wrong: list[str] = []
    for text in QUESTIONS:
        query = Query(f"doctor-{uuid.uuid4().hex}", (Turn("user", text),))
        try:
            draft = _draft(member, query)
            if isinstance(draft, Failure):
                wrong.append(f"drafting failed: {draft.message}")
                continue
            candidate = Candidate(draft.text, draft.ended, ("somebody else",))
            scored = member.score([ScoreJob(query, (), (candidate,))])[0]
            if not isinstance(scored, Scored):
                wrong.append(f"scoring failed: {scored.message}")
            elif draft.logprobs and len(draft.logprobs) == len(scored.logprobs[0]):
                apart.append(_apart(draft.logprobs, scored.logprobs[0]))
        finally:
            member.forget(query.id)
    return apart, wrong


def _apart(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(abs(a - b) for a, b in zip(one, other, strict=True)) / len(one)


# --- seams ----------------------------------------------------------------------------------------------------------


def _seams(member: Member, _: Probe) -> Verdicts:
    """Own segment, somebody else's text, and on: remembered or read anew, it must come out the same."""
    wrong = _at_desk(member, lambda: [text for foreign in FOREIGN if (text := _seam(member, foreign))])
    if wrong:
        yield BAD, wrong[0]
    else:
        yield GOOD, f"goes on after others' text as if it had read it anew ({len(FOREIGN)} kinds of text)"


def _seam(member: Any, foreign: str) -> str:
    query = Query(f"doctor-{uuid.uuid4().hex}", (Turn("user", QUESTIONS[0]),))
    try:
        first = _draft(member, query, tokens=4)
        if isinstance(first, Failure):
            return f"drafting failed: {first.message}"
        answer = (Segment(first.text, tokens={member.name: first.tokens}), Segment(foreign))
        warm = _draft(member, query, answer)
        member.forget(query.id)
        getattr(member, "drop_prefixes", lambda: None)()  # else it would go on from what it read for this very query
        cold = _draft(member, query, answer)
        if isinstance(warm, Failure) or isinstance(cold, Failure):
            return f"cannot go on after {foreign!r}"
        if _unlike(warm, cold):
            return f"after {foreign!r} it says {warm.text!r}, but {cold.text!r} when it reads everything anew"
        return _lost(member, query, answer)
    finally:
        member.forget(query.id)


def _unlike(one: Draft, other: Draft) -> bool:
    """Whether two drafts of one job come from different readings. In low precision a near-tie may fall either way: so
    the numbers are compared up to the first token that differs."""
    if not one.logprobs or not other.logprobs:
        return one.text != other.text
    pairs = zip(one.tokens, other.tokens, strict=False)
    same = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.tokens), len(other.tokens)))
    count = min(same + 1, len(one.logprobs), len(other.logprobs))
    return _apart(one.logprobs[:count], other.logprobs[:count]) > COARSE


def _lost(member: Any, query: Query, answer: tuple[Segment, ...]) -> str:
    """Whether its own tokens of the whole answer, own and foreign, say the same text again."""
    words, template = getattr(member, "words", None), getattr(member, "template", None)
    if words is None or template is None:
        return ""
    prompt = words.encode(template.prompt(query.turns))
    ids = words.answer_ids(member.name, prompt, answer)
    said, wanted = words.added(prompt, ids[len(prompt) :]), "".join(segment.text for segment in answer)
    return "" if said == wanted else f"its tokenizer makes {said!r} of {wanted!r}"
