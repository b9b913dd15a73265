"""A member that returns or raises nonsense harms no other member and no later question."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import EnsembleError, MemberError, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.core.values import Draft, Effort, Failure, PrefillPending, Scored

from .conftest import BLUE, LIMIT_S, free, until

_NUMBERS = itertools.count()


class Hostile:
    """Raises the given error whatever is done with it."""

    def __init__(self, error: type[BaseException] = RuntimeError) -> None:
        object.__setattr__(self, "error", error)

    def _raise(self, *_: Any, **__: Any) -> Any:
        raise object.__getattribute__(self, "error")("hostile")

    __len__ = __iter__ = __bool__ = __eq__ = __hash__ = __repr__ = __str__ = __format__ = _raise
    __getattribute__ = __getattr__ = __lt__ = __le__ = __gt__ = __ge__ = __add__ = __radd__ = _raise
    __float__ = __int__ = __index__ = __call__ = __getitem__ = __contains__ = _raise


class Unspeakable(Exception):
    """An error that raises when it is formatted."""

    kind = property(lambda self: Hostile())

    def __str__(self) -> str:
        raise SystemExit("no text")

    __repr__ = __str__


RAISED = (
    RuntimeError("x"),
    SystemExit(1),
    KeyboardInterrupt(),
    GeneratorExit(),
    StopIteration(1),
    StopAsyncIteration(),
    MemoryError(),
    Unspeakable(),
    BaseExceptionGroup("several", [SystemExit(2), ValueError("x")]),
)
NASTY: list[Any] = [
    None, True, -1, 1.5, 10**400, math.nan, -math.inf, "", "text", "\ud800", b"x", [], {}, (), object(), ("x",), (None,),
    ((),), ((None,),), (math.nan,), (-1.0,) * 3, [[-1.0]], Effort, Draft,
]  # fmt: skip


class Maker:
    """Creates random nonsense. Hypothesis draws only the seed, because it hashes and prints what it
    draws."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def any(self) -> Any:
        return self.rng.choice([*(lambda value=value: value for value in NASTY), Hostile])()

    def effort(self) -> Any:
        if self.rng.random() < 0.2:
            return self.any()
        good = {field.name: 1 for field in fields(Effort)}
        return Effort(**{**good, **self._some(good)})

    def part(self, reply: type, **good: Any) -> Any:
        """Return a reply of this kind with nonsense in some fields."""
        names = [field.name for field in fields(reply) if field.name != "effort"]
        return reply(**{**good, **self._some(names), "effort": self.effort()})

    def reply(self) -> Any:
        return self.rng.choice(
            [
                self.any,
                lambda: Draft(" and", tokens=(1,), effort=self.effort()),
                lambda: Scored(((-1.0,),), effort=self.effort()),
                lambda: self.part(Draft, text=" and"),
                lambda: self.part(Scored, logprobs=((-1.0,),)),
                lambda: self.part(Failure, kind="error", message="broken"),
                lambda: self.part(PrefillPending, left=3),
                lambda: Failure(self.rng.choice(["late", "exit", "?"]), "by itself"),
            ]
        )()

    def batch(self) -> Any:
        return self.rng.choice(
            [
                lambda: [self.reply()],
                lambda: [self.reply() for _ in range(self.rng.randrange(4))],
                lambda: (reply for reply in [self.reply()]),
                lambda: {"reply": self.reply()},
                self.any,
                lambda: itertools.repeat(self.reply()),
                lambda: range(10**9),
            ]
        )()

    def _some(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: self.any() for name in names if self.rng.random() < 0.2}


class Nonsense(ScriptedMember):
    """Returns nonsense from its second draft of the first question on, or when it scores."""

    def __init__(self, work: str, nonsense: Any, **options: Any) -> None:
        super().__init__(BLUE, **options)
        self.work, self.nonsense = work, nonsense

    def draft(self, jobs: Sequence[Any]) -> Any:
        begun = any(job.answer for job in jobs)
        return self._said(super().draft(jobs)) if begun else super().draft(jobs)

    def score(self, jobs: Sequence[Any]) -> Any:
        replies = super().score(jobs)
        return self._said(replies) if self.work == "score" else replies

    def _said(self, replies: Any) -> Any:
        nonsense = self.nonsense
        if type(nonsense) is Maker:
            nonsense = nonsense.batch()
        for error in RAISED:
            if nonsense is error:
                raise error
        return replies if nonsense is None else nonsense


def beside(device: str, *members: Any, **options: Any) -> SpecFuseChatModel:
    other = ScriptedMember("The sky is wide " + BLUE[16:], name="other", device=device)
    return SpecFuseChatModel(
        members=[*members, other], segment_tokens=4, timeout=LIMIT_S, lead=None, **options
    )


def asked(llm: SpecFuseChatModel) -> str | EnsembleError:
    try:
        return llm.invoke("Why?").text
    except EnsembleError as error:
        return error


@given(work=st.sampled_from(["draft", "score"]), seed=st.integers(0, 2**32))
def test_random_nonsense_never_ends_a_worker(work: str, seed: int) -> None:
    hurts_nobody_else(work, Maker(seed))


KNOWN = {
    "no number read": Draft(" and", tokens=(1,), effort=Effort(read=None)),  # type: ignore[arg-type]
    "text for seconds": Scored(((-1.0,),), effort=Effort(seconds="1")),  # type: ignore[arg-type]
    "never ready": PrefillPending(5),
    "NaN left to read": PrefillPending(math.nan),  # type: ignore[arg-type]
    "text left to read": PrefillPending("x", effort=None),  # type: ignore[arg-type]
    "late by itself": Failure("late", "by itself"),
    "a failure without an effort": Failure("error", "x", effort=None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", KNOWN)
def test_known_nonsense_never_ends_a_worker(name: str) -> None:
    for work in ("draft", "score"):
        hurts_nobody_else(work, [KNOWN[name]])


@pytest.mark.parametrize("work", ["draft", "score"])
@pytest.mark.parametrize("number", range(len(RAISED)))
def test_no_exception_ends_a_worker(work: str, number: int) -> None:
    hurts_nobody_else(work, RAISED[number])


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_objects_that_raise_never_end_a_worker(error: type[BaseException]) -> None:
    for nonsense in (Hostile(error), [Hostile(error)], [Draft(" and", effort=Hostile(error))]):  # type: ignore[arg-type]
        hurts_nobody_else("draft", nonsense)


def hurts_nobody_else(work: str, nonsense: Any) -> None:
    device = f"nonsense {next(_NUMBERS)}"
    member = Nonsense(work, nonsense, name="odd", device=device)
    assert asked(beside(device, member)), "it went on, or failed in words"
    # The device still works, for other members and for this one.
    fine = ScriptedMember(BLUE, name="fine", device=device)
    assert asked(SpecFuseChatModel(members=[fine], timeout=LIMIT_S)) == BLUE


@pytest.mark.parametrize(
    "bad", [Effort(read=None), Effort(cost=math.nan), Effort(seconds="x"), None]
)  # type: ignore[arg-type]
def test_a_member_that_reports_an_invalid_effort_leaves_and_the_others_go_on(bad: Any) -> None:
    device = f"nonsense {next(_NUMBERS)}"
    member = Nonsense("draft", [Draft(" and", tokens=(1,), effort=bad)], name="odd", device=device)
    llm = beside(device, member)
    message = llm.invoke("Why?")
    assert message.text.endswith("than long ones.")
    (departure,) = message.response_metadata["specfuse"]["exits"]
    assert (departure["member"], departure["kind"], departure["round"]) == ("odd", "error", 2)
    assert "effort" in departure["reason"].lower()
    assert until(lambda: free(llm))


def test_a_lone_member_that_reports_itself_late_fails() -> None:
    """Only a time limit makes a member late; otherwise nothing would ever end the wait."""
    device = f"nonsense {next(_NUMBERS)}"
    member = Nonsense("draft", [Failure("late", "soon")], name="odd", device=device)
    llm = SpecFuseChatModel(members=[member], segment_tokens=4, timeout=LIMIT_S)
    with pytest.raises(EnsembleError, match="late"):
        llm.invoke("Why?")


@dataclass(frozen=True)
class Annotated(Draft):
    """A member's own subclass of a draft."""

    note: dict[str, Any] = field(default_factory=dict)


def test_a_draft_may_have_extra_fields() -> None:
    class Noting(ScriptedMember):
        def draft(self, jobs: Sequence[Any]) -> Any:
            return [
                Annotated(**{field.name: getattr(draft, field.name) for field in fields(draft)})
                for draft in super().draft(jobs)
            ]

    assert asked(SpecFuseChatModel(members=[Noting(BLUE)], timeout=LIMIT_S)) == BLUE


class Homeless(ScriptedMember):
    """Raises when its device is read a second time."""

    asked = 0

    @property
    def device(self) -> str:
        self.asked += 1
        if self.asked > 1:
            raise RuntimeError("no device")
        return "nonsense homeless"

    @device.setter
    def device(self, value: str) -> None:
        pass


def test_a_member_whose_device_raises_blocks_no_other_answer() -> None:
    other = ScriptedMember(BLUE, name="other", device=f"nonsense {next(_NUMBERS)}")
    llm = SpecFuseChatModel(
        members=[Homeless(BLUE, name="homeless"), other],
        max_concurrency=1,
        segment_tokens=4,
        timeout=LIMIT_S,
    )
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no device"):
            llm.invoke("Why?")
    assert until(lambda: not other.open_queries)


@pytest.mark.parametrize("probe", [None, "fine", Hostile], ids=["None", "text", "hostile"])
def test_a_member_with_an_invalid_probe_is_named(probe: Any) -> None:
    class Reporting(ScriptedMember):
        def preview(self) -> Any:
            return None

        def probe(self) -> Any:
            return Hostile() if probe is Hostile else probe

    llm = SpecFuseChatModel(members=[Reporting(BLUE, name="odd")], timeout=LIMIT_S)
    with pytest.raises(MemberError, match=r"odd.*Probe"):
        llm.invoke("Why?")
    assert asked(SpecFuseChatModel(members=[ScriptedMember(BLUE)])) == BLUE
