"""The 16 scenarios of Failover Bench, what each asks for, and the verdict on what was seen.

Scenarios, limits, checks and rules are those of https://github.com/failoverbench/failoverbench
(MIT, methodology 0.1, September 2026); the code is our own. Two views are joined: what the caller
got, and which requests the provider saw. The verdicts:

- ``pass``: the caller got the whole answer (in S13: an error), and every check holds;
- ``partial``: the whole answer, but an advisory check fails (in S13: an answer, not an error);
- ``safe``: an error in time, and every required check holds;
- ``fail``: no end in time, a part of the answer as if it were the whole, or a required check fails.

This file needs only the standard library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from faults import ANSWER, PROFILES

VERDICTS = ("pass", "partial", "safe", "fail")


@dataclass
class Seen:
    """What the caller and the provider saw of one scenario, as the checks need it."""

    calls: list[dict[str, Any]]
    """What the caller got: ``outcome`` (``answer``, ``error`` or ``hang``), ``text``, ``error``,
    ``s`` (seconds to the end), ``first_s`` (to the first text), ``model``, ``usage``, and ``at``,
    when it asked (``time.monotonic()``)."""
    alive: bool
    """Whether the system answered a healthy request afterwards."""
    primary: list[dict[str, Any]]
    """The attempts on the model that fails (:class:`faults.Attempt`)."""
    fallback: list[dict[str, Any]]
    outage_s: float = 0.0

    @property
    def last(self) -> dict[str, Any]:
        return self.calls[-1]

    @property
    def outcome(self) -> str:
        outcomes = [call["outcome"] for call in self.calls]
        for worst in ("hang", "error"):
            if worst in outcomes:
                return worst
        return "answer"

    @property
    def is_whole(self) -> bool:
        return all(call["text"].split() == ANSWER.split() for call in self.calls)

    @property
    def recovered_s(self) -> float | None:
        """From the end of the outage to the first request that the model answered again."""
        answered = (one for one in self.primary if one["did"] == "answered")
        return next((one["at"] - self.up_at for one in answered), None)

    @property
    def up_at(self) -> float:
        """When the outage ended."""
        return float(self.primary[0]["at"]) + self.outage_s

    def within(self, seconds: float) -> int:
        """The attempts in the first seconds."""
        return sum(one["at"] - self.primary[0]["at"] < seconds for one in self.primary)


class Check(NamedTuple):
    name: str
    holds: Callable[[Seen], bool]
    is_advisory: bool = False


class Series(NamedTuple):
    """Many requests, one after another."""

    count: int
    every_s: float
    limit_s: float


@dataclass(frozen=True)
class Scenario:
    id: str
    title: str
    model: str
    limit_s: float
    """How long the caller waits."""
    checks: tuple[Check, ...] = ()
    fallback: str = "fb-ok"
    ends_in_error: bool = False
    sequences: Mapping[str, Series] = field(default_factory=dict)
    """By profile."""


def _attempts(most: int) -> Check:
    return Check(f"at most {most} attempts", lambda seen: len(seen.primary) <= most)


def _retried(name: str) -> Check:
    return Check(name, lambda seen: len(seen.primary) >= 2, True)


def _in_window(seconds: float, most: int) -> Check:
    name = f"at most {most} attempts in {seconds:g} s"
    return Check(name, lambda seen: seen.within(seconds) <= most)


def _ends_in(seconds: float, *, is_advisory: bool = False) -> Check:
    return Check(f"ends in {seconds:g} s", lambda seen: seen.last["s"] <= seconds, is_advisory)


def _waited(seen: Seen) -> bool:
    return len(seen.primary) > 1 and seen.primary[1]["at"] - seen.primary[0]["at"] >= 1.8


def _shrank(seen: Seen) -> bool:
    """A request that is too long may be asked again only if it is shorter."""
    sizes = [one["words"] for one in seen.primary]
    return len(sizes) <= 2 and all(b < a for a, b in zip(sizes, sizes[1:], strict=False))


def _names_the_fallback(seen: Seen) -> bool:
    return not seen.fallback or "fb-ok" in (seen.last["model"] or "")


def _hides_no_prefill(seen: Seen) -> bool:
    refused = any("prefill" in one["did"] for one in seen.fallback)
    return not (refused and seen.outcome == "error")


def _served_all(seen: Seen) -> bool:
    return all(call["outcome"] == "answer" for call in seen.calls if call["at"] < seen.up_at)


def _recovered(seen: Seen) -> bool:
    return seen.recovered_s is not None and seen.recovered_s <= 30


ALIVE = Check("answers afterwards", lambda seen: seen.alive)
USAGE = Check("usage", lambda seen: bool(seen.last["usage"]), True)
ONCE = Check("one attempt", lambda seen: len(seen.primary) == 1)
SCENARIOS = (
    Scenario(
        "S01",
        "429 with Retry-After",
        "fb-s01-429-retry-after",
        20,
        (
            _retried("asks again"),
            Check("waits for Retry-After", _waited, True),
            _in_window(1.5, 2),
        ),
    ),
    Scenario(
        "S02",
        "429, always",
        "fb-s02-429-persistent",
        40,
        (_in_window(3, 4), _attempts(6)),
    ),
    Scenario(
        "S03",
        "500 once",
        "fb-s03-500-then-200",
        20,
        (_retried("asks the same again"),),
    ),
    Scenario("S04", "503, always", "fb-s04-503-persistent", 40, (_attempts(6),)),
    Scenario("S05", "connection reset once", "fb-s05-reset", 20),
    Scenario(
        "S06",
        "no response",
        "fb-s06-no-response",
        130,
        (
            _ends_in(100),
            Check("silence is not asked again", lambda seen: len(seen.primary) <= 1, True),
        ),
    ),
    Scenario("S07", "slow first token", "fb-s07-slow-ttft", 60, (_ends_in(15, is_advisory=True),)),
    Scenario("S08", "stream cut", "fb-s08-stream-cut", 40),
    Scenario("S09", "stream stalls", "fb-s09-stream-stall", 70, (_ends_in(45), ALIVE)),
    Scenario(
        "S10",
        "malformed chunk",
        "fb-s10-malformed-chunk",
        30,
        (ALIVE, Check("whole answer", lambda seen: seen.is_whole, True)),
    ),
    Scenario("S11", "no [DONE]", "fb-s11-no-done", 30, (_ends_in(8), USAGE)),
    Scenario(
        "S12",
        "context length exceeded",
        "fb-s12-context-length",
        20,
        (Check("no second attempt as long", _shrank),),
    ),
    Scenario("S13", "content filter", "fb-s13-content-filter", 20, (ONCE,), ends_in_error=True),
    Scenario(
        "S14",
        "stream cut, fallback refuses prefill",
        "fb-s14-stream-cut",
        40,
        (Check("does not end in the fallback's 400", _hides_no_prefill),),
        fallback="fb-ok-noprefill",
    ),
    Scenario(
        "S15",
        "down, then healthy",
        "fb-s15-flap",
        200,
        (
            Check("serves during the outage", _served_all),
            Check("is back in 30 s", _recovered),
        ),
        sequences={"full": Series(20, 4, 30), "fast": Series(15, 1.2, 10)},
    ),
    Scenario(
        "S16",
        "503, always: accounting",
        "fb-s16-503-persistent",
        40,
        (Check("names the fallback", _names_the_fallback), USAGE, _attempts(6)),
    ),
)


def verdict(one: Scenario, seen: Seen) -> tuple[str, str]:
    """The verdict, and its reason."""
    if seen.outcome == "hang":
        return "fail", "no end in time"
    wants_answer = not one.ends_in_error
    if wants_answer and seen.outcome == "answer" and not seen.is_whole:
        return "fail", "a part of the answer, as if it were whole"
    failed = [check for check in one.checks if not check.holds(seen)]
    required = [check.name for check in failed if not check.is_advisory]
    if required:
        return "fail", f"not: {', '.join(required)}"
    if one.ends_in_error:
        if seen.outcome == "error":
            return "pass", ""
        return "partial", "an answer in place of the error"
    if seen.outcome == "error":
        return "safe", next(call["error"] for call in seen.calls if call["error"])
    if failed:
        return "partial", f"not: {', '.join(check.name for check in failed)}"
    return "pass", ""


def seen_in(
    one: Scenario, found: Mapping[str, Any], log: Sequence[Mapping[str, Any]], profile: str
) -> Seen:
    """What a caller found in this scenario, with the provider's log."""
    mine = [
        dict(attempt)
        for attempt in log
        if attempt["client"] == one.id and attempt["at"] <= found["ended"]
    ]
    return Seen(
        calls=list(found["calls"]),
        alive=found["alive"],
        primary=[attempt for attempt in mine if attempt["model"] == one.model],
        fallback=[attempt for attempt in mine if attempt["model"] == one.fallback],
        outage_s=PROFILES[profile].outage_s,
    )
