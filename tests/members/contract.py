"""What every backend must keep: the promises of ``langchain_specfuse.core.member``, as tests to
inherit.

Subclass :class:`MemberContract` in a file of your own, give it a ``make_member`` fixture, and
pytest runs the rest::

    from .contract import MemberContract


    class TestMyMember(MemberContract):
        tolerance = 1e-4  # how much scores may differ from the draft's log-probabilities

        @pytest.fixture
        def make_member(self):
            return lambda: MyMember(...)  # a fresh one at each call; all of them the same model

What a backend cannot do it says here: ``settles = False`` for one that may not keep to
``segment_tokens`` exactly. Nothing here knows a backend: only jobs go in, only replies are looked
at.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from langchain_specfuse.core.member import Member, Probe
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import (
    Candidate,
    Draft,
    DraftJob,
    Failure,
    Query,
    Sampling,
    Scored,
    ScoreJob,
    Segment,
    Turn,
)
from langchain_specfuse.engine import Ensemble
from langchain_specfuse.members.scripted import ScriptedMember

QUESTIONS = (
    "Why is the sky blue?",
    "Write a list of three colours.",
    "日本語で空の色を教えてください。",
)
FOREIGN = (
    (),
    (Segment("The sky"),),
    (Segment("The sky"), Segment(" is blue,\n\n- because 3.14")),
    (Segment("天空是"), Segment(" 👨‍👩‍👧 naïve")),
)
"""Agreed answers that others wrote, so they come without tokens."""


class MemberContract:
    """One test for each promise."""

    tolerance = 1e-4
    settles = True
    """Whether it never drafts more tokens than ``segment_tokens`` unless it finds no place to
    cut."""

    @pytest.fixture
    def make_member(self) -> Callable[[], Member]:
        raise NotImplementedError(
            "give your class a make_member fixture that returns a function that makes a member"
        )

    @pytest.fixture
    def member(self, make_member: Callable[[], Member]) -> Member:
        return ready(make_member)

    # --- what it is -------------------------------------------------------------------------------

    def test_it_is_a_member_with_a_name_and_a_device(self, member: Member) -> None:
        assert isinstance(member, Member)
        assert member.name
        assert member.device

    def test_its_probe_reports_what_it_can_do(self, make_member: Callable[[], Member]) -> None:
        probe = make_member().probe()
        assert isinstance(probe, Probe)
        assert probe.model
        assert probe.max_context is None or probe.max_context > 0

    def test_its_name_is_known_before_it_is_probed(self, make_member: Callable[[], Member]) -> None:
        assert make_member().name

    # --- drafts -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("answer", FOREIGN, ids=range(len(FOREIGN)))
    def test_a_draft_is_text_with_the_numbers_of_its_tokens(
        self, member: Member, answer: Sequence[Segment]
    ) -> None:
        draft = drafted(member, draft_job(answer=answer))
        draft.text.encode()  # raises for a partial character
        assert draft.text or draft.ended
        if draft.logprobs is not None:
            assert len(draft.logprobs) == len(draft.tokens) + draft.ended
            assert all(math.isfinite(value) and value <= 1e-3 for value in draft.logprobs)

    @pytest.mark.parametrize("budget", [1, 2, 5])
    def test_the_budget_is_never_exceeded(self, member: Member, budget: int) -> None:
        for question in QUESTIONS:
            assert len(drafted(member, draft_job(question, max_tokens=budget)).tokens) <= budget

    @pytest.mark.parametrize("size", [1, 3, 8])
    def test_a_draft_is_about_as_long_as_asked_for(self, member: Member, size: int) -> None:
        draft = drafted(member, draft_job(segment_tokens=size))
        assert draft.tokens or draft.ended
        assert (
            len(draft.tokens) <= (size if self.settles else 4 * size + 16)
            or " " not in draft.text.strip()
        )

    def test_an_answer_written_alone_is_the_same_however_it_is_cut(self, member: Member) -> None:
        whole, _ = alone(member, size=24, budget=24)
        for size in (1, 3, 10):
            pieces, segments = alone(member, size=size, budget=24)
            assert pieces == whole
            assert sum(len(segment.tokens[member.name]) for segment in segments) <= 24

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_as_an_infallible_lead_it_writes_and_costs_what_it_does_alone(
        self, make_member: Callable[[], Member], temperature: float
    ) -> None:
        settings = Settings(
            max_tokens=24,
            temperature=temperature,
            method=Method(margin=math.inf, segment_tokens=4),
        )
        query, other = draft_job().query, ScriptedMember("Something else.", name="other")
        by_itself = list(Ensemble([make_member()]).rounds(query, settings))
        leading = make_member()
        led = list(
            Ensemble([leading, other]).rounds(
                query, settings.model_copy(update={"lead": leading.name})
            )
        )
        texts = ["".join(round.text for round in rounds) for rounds in (led, by_itself)]
        assert texts[0] == texts[1]
        assert {name for round in led for name in round.drafts} == {
            leading.name
        } and other.draft_calls == 0

        def cost(rounds: Sequence[Round]) -> int:
            """Tokens read and reused: what of the prompt is known from before may differ."""
            efforts = [round.efforts["draft"][leading.name] for round in rounds]
            return sum(effort.read + effort.reused for effort in efforts)

        assert not any("verify" in round.efforts for round in led)
        # A server reports the prompt with the end of its stream, which a turn that ends with a text
        # need not reach.
        assert hasattr(leading, "stream") or cost(led) == cost(by_itself)

    def test_one_seed_gives_one_draft(self, member: Member) -> None:
        job = draft_job(sampling=Sampling(temperature=1.0, seed=11))
        assert same(drafted(member, job), drafted(member, job), self.tolerance)

    # --- answers that are streamed ----------------------------------------------------------------

    @pytest.mark.parametrize("answer", FOREIGN, ids=range(len(FOREIGN)))
    def test_a_stream_writes_what_a_draft_without_a_bound_would(
        self, member: Member, answer: Sequence[Segment]
    ) -> None:
        job = draft_job(answer=answer, segment_tokens=40, max_tokens=40)
        pieces, whole = streamed(member, job), drafted(member, job)
        assert "".join(draft.text for draft in pieces) == whole.text
        assert [draft.ended for draft in pieces] == [False] * (len(pieces) - 1) + [whole.ended]
        if all(draft.tokens or not draft.text for draft in pieces):
            assert sum((draft.tokens for draft in pieces), ()) == whole.tokens

    @pytest.mark.parametrize("question", QUESTIONS)
    def test_each_part_of_a_stream_is_text_with_the_ends_of_its_tokens(
        self, member: Member, question: str
    ) -> None:
        for draft in streamed(member, draft_job(question, max_tokens=40)):
            draft.text.encode()  # raises for a partial character
            if draft.tokens and draft.ends is not None:
                assert len(draft.ends) == len(draft.tokens)
                assert list(draft.ends) == sorted(draft.ends)
                assert draft.ends[-1] == len(draft.text)

    @pytest.mark.parametrize("budget", [1, 2, 5])
    def test_a_stream_ends_with_the_turn_or_the_budget(self, member: Member, budget: int) -> None:
        for question in QUESTIONS:
            pieces = streamed(member, draft_job(question, max_tokens=budget))
            assert sum(len(draft.tokens) for draft in pieces) <= budget

    def test_a_stream_continues_what_it_was_stopped_in(self, member: Member) -> None:
        job = draft_job(max_tokens=24)
        whole = "".join(draft.text for draft in streamed(member, job))
        first = next(draft for draft in streamed(member, job) if draft.tokens)
        segment = Segment(first.text, False, {member.name: first.tokens})
        left = job.max_tokens - len(first.tokens)
        rest = replace(job, answer=(segment,), max_tokens=left)
        assert first.text + "".join(draft.text for draft in streamed(member, rest)) == whole

    # --- drafts that do not begin with certain tokens ---------------------------------------------

    @pytest.mark.parametrize("answer", FOREIGN, ids=range(len(FOREIGN)))
    def test_a_draft_begins_with_no_excluded_token(
        self, member: Member, answer: Sequence[Segment]
    ) -> None:
        if not probe_of(member).excludes:
            pytest.skip("ignores excluded tokens")
        job = draft_job(answer=answer)
        draft = drafted(member, job)
        assert draft.others == ()
        excluded: tuple[int, ...] = ()
        while draft.tokens and len(excluded) < 4:
            excluded += draft.tokens[:1]
            draft = drafted(member, replace(job, excluded=excluded))
            assert not {*draft.tokens[:1]} & {*excluded}
            assert draft.text or draft.ended
            if draft.logprobs is not None:
                assert len(draft.logprobs) == len(draft.tokens) + draft.ended
                assert all(math.isfinite(value) and value <= 1e-3 for value in draft.logprobs)
        assert excluded

    def test_other_first_tokens_are_those_that_come_next(self, member: Member) -> None:
        if not probe_of(member).excludes:
            pytest.skip("ignores excluded tokens")
        job = draft_job(answer=FOREIGN[1])
        excluded = drafted(member, job).tokens[:1]
        for _ in range(4):
            draft = drafted(member, replace(job, excluded=excluded))
            others = dict(draft.others)
            assert len(others) == len(draft.others) and all(others.values())
            assert not {*others} & {*excluded, *draft.tokens[:1]}
            excluded += draft.tokens[:1]
            following = drafted(member, replace(job, excluded=excluded))
            if following.tokens and following.tokens[0] in others:
                assert following.text.startswith(others[following.tokens[0]])

    def test_excluded_tokens_concern_one_job_of_a_batch(
        self, make_member: Callable[[], Member]
    ) -> None:
        member, other = ready(make_member), ready(make_member)
        if not probe_of(member).excludes:
            pytest.skip("ignores excluded tokens")
        plain = [draft_job(answer=answer, id=f"e{at}") for at, answer in enumerate(FOREIGN)]
        free = ready(make_member).draft(plain)
        jobs = [
            job if at % 2 else replace(job, excluded=draft.tokens[:1])
            for at, (job, draft) in enumerate(zip(plain, free, strict=True))
        ]
        together = member.draft(jobs)
        for job, reply in zip(jobs, together, strict=True):
            assert same(reply, drafted(other, job), self.tolerance)

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_a_draft_that_was_cut_continues_as_it_would_in_a_new_member(
        self, make_member: Callable[[], Member], temperature: float
    ) -> None:
        member = ready(make_member)
        if not probe_of(member).excludes:
            pytest.skip("ignores excluded tokens")
        how = Sampling(temperature, seed=5)
        jobs = [draft_job(answer=answer, sampling=how) for answer in FOREIGN]
        cut = next(cut for job in jobs for cut in redrafts(member, job))
        warm = drafted(member, cut)
        member.forget(cut.query.id)
        cold = drafted(member, cut)
        new = drafted(ready(make_member), cut)
        assert all(same(warm, other, self.tolerance) for other in (cold, new))

    # --- scores -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("answer", FOREIGN, ids=range(len(FOREIGN)))
    def test_its_scores_agree_with_its_own_drafts(
        self, member: Member, answer: Sequence[Segment]
    ) -> None:
        if not probe_of(member).scores:
            pytest.skip("draft-only")
        draft = drafted(member, draft_job(answer=answer, segment_tokens=4))
        if draft.logprobs is None:
            pytest.skip("its drafts come without numbers")
        (row,) = scored(
            member, score_job(Candidate(draft.text, draft.ended, (member.name,)), answer=answer)
        ).logprobs
        # otherwise its tokenizer may split the same text into other tokens
        if len(row) == len(draft.logprobs):
            assert row == pytest.approx(draft.logprobs, abs=self.tolerance)

    def test_an_ending_adds_one_event(self, member: Member) -> None:
        if not probe_of(member).scores:
            pytest.skip("draft-only")
        for text in (" is blue.", "天", "", "\n\n- one"):
            goes_on, ends = Candidate(text, False, ("x",)), Candidate(text, True, ("y",))
            rows = scored(member, score_job(goes_on, ends, answer=FOREIGN[1])).logprobs
            assert len(rows[1]) == len(rows[0]) + 1
            assert rows[1][:-1] == pytest.approx(rows[0], abs=self.tolerance)
            assert all(math.isfinite(value) and value <= 1e-3 for row in rows for value in row)

    def test_candidates_are_scored_in_order_whatever_the_others_are(self, member: Member) -> None:
        if not probe_of(member).scores:
            pytest.skip("draft-only")
        candidates = [
            Candidate(text, k == 2, (f"m{k}",))
            for k, text in enumerate((" is blue", " is", " tastes of tin"))
        ]
        together = scored(member, score_job(*candidates, answer=FOREIGN[1])).logprobs
        assert len(together) == 3
        turned = scored(member, score_job(*reversed(candidates), answer=FOREIGN[1])).logprobs
        for candidate, row, other in zip(candidates, together, reversed(turned), strict=True):
            (single,) = scored(member, score_job(candidate, answer=FOREIGN[1])).logprobs
            assert row == pytest.approx(single, abs=self.tolerance)
            assert row == pytest.approx(other, abs=self.tolerance)

    # --- batches ----------------------------------------------------------------------------------

    def test_as_many_replies_as_jobs_in_their_order_and_each_as_if_alone(
        self, make_member: Callable[[], Member]
    ) -> None:
        jobs = [
            draft_job(question, answer, id=f"q{i}{j}", segment_tokens=3 + i)
            for i, question in enumerate(QUESTIONS)
            for j, answer in enumerate(FOREIGN)
        ]
        together = ready(make_member).draft(jobs)
        other = ready(make_member)
        assert len(together) == len(jobs)
        for job, reply in zip(jobs, together, strict=True):
            assert same(reply, drafted(other, job), self.tolerance)

    def test_scores_of_a_batch_are_those_of_each_alone(
        self, make_member: Callable[[], Member]
    ) -> None:
        member, other = ready(make_member), ready(make_member)
        if not probe_of(member).scores:
            pytest.skip("draft-only")
        jobs = [
            score_job(Candidate(text, ended, ("x",)), answer=answer, id=f"s{i}{j}")
            for i, answer in enumerate(FOREIGN)
            for j, (text, ended) in enumerate(
                ((" is blue", False), ("", True), (" because of\n", False))
            )
        ]
        for job, reply in zip(jobs, member.score(jobs), strict=True):
            (row,), (single,) = reply.logprobs, scored(other, job).logprobs
            assert row == pytest.approx(single, abs=self.tolerance)

    def test_one_job_that_cannot_be_answered_does_not_disturb_the_others(
        self, member: Member
    ) -> None:
        """A question longer than the context fails alone. A member without a known limit has
        nothing to check."""
        limit = probe_of(member).max_context
        if limit is None:
            pytest.skip("no limit of its context is known")
        good, long = draft_job(id="good"), draft_job("word " * (limit + 10), id="long")
        before, failure, after = member.draft(
            [good, long, replace(good, query=replace(good.query, id="good2"))]
        )
        assert isinstance(failure, Failure)
        assert failure.kind == "overflow"
        assert same(before, after, self.tolerance)
        assert same(before, drafted(member, draft_job(id="good3")), self.tolerance)

    # --- caches are only an acceleration ----------------------------------------------------------

    def test_the_same_job_gets_the_same_reply_after_forgetting_and_from_a_new_member(
        self, make_member: Callable[[], Member]
    ) -> None:
        member = ready(make_member)
        _, segments = alone(member, size=3, budget=9)
        job = draft_job(answer=(*segments, Segment(" and, by the way,")), segment_tokens=5)
        warm = drafted(member, job)
        again = drafted(member, job)
        member.forget(job.query.id)
        cold = drafted(member, job)
        new = drafted(ready(make_member), job)
        assert all(same(warm, other, self.tolerance) for other in (again, cold, new))

    def test_scores_do_not_depend_on_what_was_asked_before(
        self, make_member: Callable[[], Member]
    ) -> None:
        member = ready(make_member)
        if not probe_of(member).scores:
            pytest.skip("draft-only")
        answer = FOREIGN[2]
        job = score_job(Candidate(" as we know", False, ("x",)), answer=answer)
        drafted(member, draft_job(answer=answer))
        scored(member, score_job(Candidate(" which nobody believes", True, ("y",)), answer=answer))
        (warm,) = scored(member, job).logprobs
        member.forget(job.query.id)
        (cold,) = scored(member, job).logprobs
        (new,) = scored(ready(make_member), job).logprobs
        assert warm == pytest.approx(cold, abs=self.tolerance)
        assert warm == pytest.approx(new, abs=self.tolerance)

    def test_an_answer_may_return_to_an_earlier_position(self, member: Member) -> None:
        """After a crash elsewhere, the same query may be asked again from its beginning."""
        first = drafted(member, draft_job())
        drafted(member, draft_job(answer=FOREIGN[2]))
        assert same(drafted(member, draft_job()), first, self.tolerance)

    def test_text_that_was_withdrawn_is_not_remembered(
        self, make_member: Callable[[], Member]
    ) -> None:
        member = ready(make_member)
        _, segments = alone(member, size=3, budget=12)
        shorter = draft_job(answer=segments[:1], segment_tokens=5)
        assert same(drafted(member, shorter), drafted(ready(make_member), shorter), self.tolerance)

    def test_forgetting_an_unknown_query_is_harmless(self, member: Member) -> None:
        member.forget("never heard of")
        drafted(member, draft_job())
        member.forget("q")
        member.forget("q")


# --- helpers --------------------------------------------------------------------------------------


_PROBED: deque[tuple[Member, Probe]] = deque(maxlen=3)
"""The last probed members and their probes; a member is probed once."""


def ready(make_member: Callable[[], Member]) -> Member:
    member = make_member()
    _PROBED.append((member, member.probe()))
    return member


def probe_of(member: Member) -> Probe:
    return next(probe for probed, probe in _PROBED if probed is member)


def draft_job(
    question: str = QUESTIONS[0],
    answer: Sequence[Segment] = (),
    *,
    id: str = "q",
    segment_tokens: int = 6,
    max_tokens: int = 64,
    sampling: Sampling = Sampling(),  # noqa: B008
) -> DraftJob:
    query = Query(id, (Turn("user", question),))
    return DraftJob(query, tuple(answer), segment_tokens, max_tokens, sampling)


def score_job(*candidates: Candidate, answer: Sequence[Segment] = (), id: str = "q") -> ScoreJob:
    return ScoreJob(Query(id, (Turn("user", QUESTIONS[0]),)), tuple(answer), candidates)


def drafted(member: Member, job: DraftJob) -> Draft:
    (reply,) = member.draft([job])
    assert isinstance(reply, Draft), reply
    return reply


def streamed(member: Member, job: DraftJob) -> list[Draft]:
    """All parts of the stream of a member that has one."""
    stream = getattr(member, "stream", None)
    if stream is None:
        pytest.skip("is asked for one draft after another")
    pieces = list(stream(replace(job, leads=True)))
    assert pieces and all(isinstance(piece, Draft) for piece in pieces), pieces
    return pieces


def scored(member: Member, job: ScoreJob) -> Scored:
    (reply,) = member.score([job])
    assert isinstance(reply, Scored), reply
    assert len(reply.logprobs) == len(job.candidates)
    return reply


def redrafts(member: Member, job: DraftJob) -> Iterator[DraftJob]:
    """The jobs that continue this job's draft after each of its tokens but the last, without the
    token that followed."""
    draft = drafted(member, job)
    assert draft.ends is not None
    for size in range(1, len(draft.tokens)):
        text = draft.text[: draft.ends[size - 1]]
        if draft.ends[size] == draft.ends[size - 1]:
            continue  # within a character
        begun = Segment(text, False, {member.name: draft.tokens[:size]})
        yield replace(job, answer=(*job.answer, begun), excluded=draft.tokens[size : size + 1])


def alone(member: Member, *, size: int, budget: int) -> tuple[str, tuple[Segment, ...]]:
    """Return (text, segments) of an answer that this member writes alone in drafts of this size."""
    segments: tuple[Segment, ...] = ()
    left = budget
    while left > 0:
        draft = drafted(member, draft_job(answer=segments, segment_tokens=size, max_tokens=left))
        segments += (Segment(draft.text, draft.ended, {member.name: draft.tokens}),)
        left -= len(draft.tokens) or 1
        if draft.ended:
            break
    return "".join(segment.text for segment in segments), segments


def same(reply: Draft | Failure, other: Draft | Failure, tolerance: float) -> bool:
    assert isinstance(reply, Draft), reply
    assert isinstance(other, Draft), other
    assert (reply.text, reply.ended, reply.tokens) == (other.text, other.ended, other.tokens)
    if reply.logprobs is None or other.logprobs is None:
        assert reply.logprobs is other.logprobs
    else:
        assert reply.logprobs == pytest.approx(other.logprobs, abs=tolerance)
    return True
