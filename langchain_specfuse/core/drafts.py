"""Join drafts that continue each other, and divide a draft together with its tokens."""

from __future__ import annotations

from dataclasses import replace

from .values import Draft

NOTHING = Draft("", ends=())


def joined(first: Draft, second: Draft) -> Draft:
    """Both drafts as one."""
    if first is NOTHING:
        return second
    size = len(first.text)
    ends = None
    if first.ends is not None and second.ends is not None:
        ends = (*first.ends, *(size + end for end in second.ends))
    tokens: tuple[int, ...] = (*first.tokens, *second.tokens)
    if _is_unknown(first) or _is_unknown(second):
        tokens = ()  # those of a part do not spell the text
    logprobs = None
    if second.logprobs is not None and (first.logprobs is not None or not first.tokens):
        logprobs = (*(first.logprobs or ()), *second.logprobs)
    leasts = [draft.least for draft in (first, second) if draft.least is not None]
    return replace(
        second,
        text=first.text + second.text,
        tokens=tokens,
        logprobs=logprobs if tokens else None,
        effort=first.effort + second.effort,
        ends=ends,
        thought=first.thought + second.thought,
        least=min(leasts, default=None),
        parts=first.parts + second.parts,
    )


def _is_unknown(draft: Draft) -> bool:
    """Whether the tokens of its text are not known, not even how many they are."""
    return bool(draft.text) and not draft.tokens and draft.ends is None


def divided(draft: Draft, at: int, count: int) -> tuple[Draft, Draft]:
    """The draft up to this place, with so many of its tokens and all of its cost, and the rest."""
    logprobs, ends = draft.logprobs, draft.ends
    first = replace(
        draft,
        text=draft.text[:at],
        tokens=draft.tokens[:count],
        logprobs=logprobs and logprobs[:count],
        ends=ends and ends[:count],
        is_silent=False,
    )
    rest = Draft(
        draft.text[at:],
        tokens=draft.tokens[count:],
        logprobs=logprobs and logprobs[count:],
        ends=ends and tuple(end - at for end in ends[count:]),
    )
    return first, rest
