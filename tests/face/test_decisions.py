"""Decisions by vote: ``decide`` on every version, ``SpecFuseDecision`` where LangChain has decision models."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.prompts import ChatPromptTemplate

from langchain_specfuse import (
    AnswerTimeoutError,
    EnsembleError,
    MemberError,
    ScriptedMember,
    SpecFuseChatModel,
    UsageError,
    adecide,
    decide,
)
from langchain_specfuse.core.values import Failure, Query, Scored, ScoreJob

from .conftest import asked

HERE = bool(find_spec("langchain_core.decisions"))
newer = pytest.mark.skipif(not HERE, reason="langchain-core before 1.8 has no decision models")


class Judge(ScriptedMember):
    """Gives every label the probability that a function of the query says; keeps the queries that it got."""

    def __init__(self, opinion: Any, name: str, **options: Any) -> None:
        super().__init__("", name=name, **options)
        self.opinion = opinion
        self.queries: list[Query] = []
        self.sizes: list[int] = []

    def score(self, jobs: Any) -> Any:
        self.sizes.append(len(jobs))
        return [self._scored(job) for job in jobs]

    def _scored(self, job: ScoreJob) -> Scored | Failure:
        self.queries.append(job.query)
        shares = self.opinion(job.query.turns[-1].text) if callable(self.opinion) else self.opinion
        return Scored(tuple((math.log(shares.get(c.text, 0.001)), 0.0) for c in job.candidates))

    def draft(self, jobs: Any) -> Any:
        raise AssertionError("nobody drafts in a decision")


def judges(**opinions: Any) -> list[Any]:
    return [Judge(opinion, name) for name, opinion in opinions.items()]


# --- decide -----------------------------------------------------------------------------------------------------


def test_a_chat_model_in_place_of_its_members_is_told_where_they_are() -> None:
    with pytest.raises(UsageError, match=r"members must be a list .* got a chat model") as error:
        decide("Is it so?", ["yes", "no"], members=SpecFuseChatModel(members=judges(ann={})))  # type: ignore[arg-type]
    assert error.value.__notes__[0] == "-> pass what it holds: members=llm.members"


def test_a_decision_is_the_weighted_mean_of_what_the_members_think() -> None:
    members = judges(ann={"yes": 0.6, "no": 0.2}, bob={"yes": 0.1, "no": 0.3})
    verdict = decide("Is it so?", ["yes", "no"], members=members, prior={"bob": 3.0})
    assert verdict.probabilities == pytest.approx({"yes": 0.25 * 0.75 + 0.75 * 0.25, "no": 0.25 * 0.25 + 0.75 * 0.75})
    assert verdict.label == "no"
    assert verdict.weights == {"ann": 0.25, "bob": 0.75}


async def test_async_is_the_same() -> None:
    members = judges(ann={"yes": 0.6, "no": 0.2}, bob={"yes": 0.1, "no": 0.3})
    one, other = decide("?", ["yes", "no"], members=members), await adecide("?", ["yes", "no"], members=members)
    assert one.probabilities == other.probabilities and one.by_member == other.by_member


def test_verify_only_members_vote_and_draft_only_ones_do_not() -> None:
    mute = Judge({"yes": 0.01}, "mute", draft_only=True)
    members = [*judges(ann={"yes": 0.6, "no": 0.2}), mute]
    verdict = decide("?", ["yes", "no"], members=members, verifiers=judges(cyd={"yes": 0.2, "no": 0.6}))
    assert set(verdict.by_member) == {"ann", "cyd"}
    assert verdict.probabilities == pytest.approx({"yes": 0.5, "no": 0.5})
    assert mute.queries == []
    with pytest.raises(UsageError, match="none of these members can score"):
        decide("?", ["yes", "no"], members=[mute])


def test_the_labels_are_told_unless_they_shall_not_be() -> None:
    (member,) = members = judges(ann={})
    decide("Is it so?", ["yes", "no"], members=members)
    decide("Is it so?", ["yes", "no"], members=members, told=False)
    decide([AIMessage("Hello.")], ["yes, so", "no"], members=members)
    texts = [query.turns[-1].text for query in member.queries]
    assert texts == [
        "Is it so?\n\nAnswer with one of these and nothing else: yes, no",
        "Is it so?",
        "Answer with one of these and nothing else:\n- yes, so\n- no",
    ]


def test_a_question_may_be_what_a_chat_model_takes() -> None:
    (member,) = members = judges(ann={})
    prompt = ChatPromptTemplate([("system", "Be strict."), ("human", "Is {thing} so?")])
    messages = [SystemMessage("Be strict."), HumanMessage("Is it so?")]
    for question in (prompt.invoke({"thing": "it"}), messages, [("system", "Be strict."), ("human", "Is it so?")]):
        decide(question, ["yes", "no"], members=members, told=False)
    assert len({query.turns for query in member.queries}) == 1
    assert [turn.text for turn in member.queries[0].turns] == ["Be strict.", "Is it so?"]


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([], "got \\[\\]"),
        ("yes", "got 'yes'"),
        (["yes", ""], "got '' at place 1"),
        (["yes", "  "], "at place 1"),
        (["yes", 1], "got 1 at place 1"),
        (["yes", "no", "yes"], "labels must differ, got 'yes' twice"),
        (["yes", "\ud800"], "not valid UTF-8"),
        (None, "got None"),
        ({"yes": 1}, "got {'yes': 1}"),
    ],
)
def test_bad_labels_are_refused_before_any_model_runs(labels: Any, said: str) -> None:
    members = judges(ann={})
    with pytest.raises(UsageError, match=said) as error:
        decide("?", labels, members=members)
    assert error.value.__notes__
    assert members[0].queries == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"members": []}, "at least one"),
        ({"members": "a"}, "must be a list"),
        ({"prior": {"zoe": 1.0}}, "prior names 'zoe'"),
        ({"timeout": 0}, "timeout must be"),
        ({"member_timeout": "fast"}, "member_timeout must be"),
    ],
)
def test_bad_options_are_refused(options: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        decide("?", ["yes", "no"], **{"members": judges(ann={}), **options})
    with pytest.raises(UsageError, match="got no messages"):
        decide([], ["yes"], members=judges(ann={}))


class Broken(Judge):
    def score(self, jobs: Any) -> Any:
        raise RuntimeError("out of order")


def test_who_fails_is_told_and_the_others_decide() -> None:
    verdict = decide("?", ["yes", "no"], members=[Broken({}, "bob"), *judges(ann={"yes": 0.9, "no": 0.1})])
    assert verdict.probabilities["yes"] == pytest.approx(0.9)
    assert [(gone.member, gone.reason) for gone in verdict.left] == [("bob", "RuntimeError: out of order")]
    with pytest.raises(EnsembleError, match="no member is left to decide") as error:
        decide("?", ["yes", "no"], members=[Broken({}, "bob")])
    assert isinstance(error.value.failures[0], MemberError)


class Slow(Judge):
    def score(self, jobs: Any) -> Any:
        time.sleep(1.0)
        return super().score(jobs)


async def test_time_limits_are_kept() -> None:
    with pytest.raises(AnswerTimeoutError):
        decide("?", ["yes", "no"], members=[Slow({}, "ann", device="slow-1")], timeout=0.05)
    with pytest.raises(AnswerTimeoutError):
        await adecide("?", ["yes", "no"], members=[Slow({}, "ann", device="slow-2")], timeout=0.05)
    members = [Slow({}, "ann", device="slow-3"), *judges(bob={"yes": 0.9, "no": 0.1})]
    verdict = decide("?", ["yes", "no"], members=members, member_timeout=0.4)
    assert set(verdict.by_member) == {"bob"} and verdict.left[0].kind == "timeout"


def test_an_older_langchain_is_told_what_is_missing() -> None:
    """Where decision models are here, they are hidden from the process that looks."""
    code = (
        "import sys; sys.modules['langchain_core.decisions'] = None\n"
        "import langchain_specfuse; langchain_specfuse.decide\n"
        "try: import langchain_specfuse.decisions\n"
        "except ImportError as error:\n"
        "  assert isinstance(error, langchain_specfuse.UsageError)\n"
        "  print(error, *error.__notes__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "needs langchain-core 1.8 or later" in done.stdout and "pip install" in done.stdout


# --- SpecFuseDecision -------------------------------------------------------------------------------------------


def questions() -> dict[str, Any]:
    from langchain_core.decisions import Choice, Noul, NoulCriteria, Score

    return {
        "urgent": Noul(instructions="Is it urgent?", criteria=NoulCriteria(true="Today.", false=None)),
        "team": Choice(instructions="Which team?", criteria={"billing": "Money.", "technical": None}),
        "anger": Score(instructions={"ask": "How angry?"}, criteria=["Calm.", "Cross.", "Very angry."]),
    }


OPINIONS: dict[str, dict[str, float]] = {
    "Is it urgent?": {"Yes": 0.6, "No": 0.2},
    "Which team?": {"billing": 0.1, "technical": 0.4},
    "How angry?": {"0": 0.1, "1": 0.1, "2": 0.2},
}


def opinion(text: str) -> dict[str, float]:
    return next(shares for asks, shares in OPINIONS.items() if asks in text)


@newer
@pytest.mark.parametrize("way", ["invoke", "ainvoke", "batch", "abatch"])
async def test_answers_are_the_vote_whichever_way_it_is_asked(way: str) -> None:
    from langchain_specfuse.decisions import SpecFuseDecision

    model = SpecFuseDecision(members=judges(ann=opinion, bob=lambda text: {}), prior={"ann": 3.0})
    result = await asked(model, way, {"state": "Production is down.", "questions": questions()})
    for response in result if isinstance(result, list) else [result]:
        assert list(response.answers) == ["urgent", "team", "anger"]
        assert response.nouls["urgent"].noul == pytest.approx(0.75 * 0.75 + 0.25 * 0.5)
        team = response.choices["team"]
        assert (team.choice, team.confidence) == ("technical", pytest.approx(0.75 * 0.8 + 0.25 * 0.5))
        assert team.probabilities == pytest.approx({"billing": 0.275, "technical": 0.725})
        anger = response.scores["anger"]
        shares = [0.75 * 0.25 + 0.25 / 3, 0.75 * 0.25 + 0.25 / 3, 0.75 * 0.5 + 0.25 / 3]
        mean = shares[1] + 2 * shares[2]
        assert anger.probabilities == pytest.approx(dict(enumerate(shares)))
        assert anger.score == pytest.approx(mean)
        spread = math.sqrt(sum(share * (level - mean) ** 2 for level, share in enumerate(shares)))
        assert anger.confidence == pytest.approx(1 - spread)
        assert anger.legend == {0: "Calm.", 1: "Cross.", 2: "Very angry."}
        assert response.model == "ann+bob"
        assert response.verdicts["team"]["by_member"]["ann"] == pytest.approx({"billing": 0.2, "technical": 0.8})
        assert 0 < response.verdicts["team"]["dissent"] < 1
        assert json.loads(response.model_dump_json())["verdicts"]["team"]["label"] == "technical"


@newer
def test_members_get_state_instructions_criteria_and_labels() -> None:
    from langchain_specfuse.decisions import SpecFuseDecision

    (member,) = members = judges(ann=opinion)
    SpecFuseDecision(members=members).invoke({"state": "Production is down.", "questions": questions()})
    texts = {query.turns[-1].text for query in member.queries}
    assert texts == {
        "Production is down.\n\nIs it urgent?\n\nYes: Today.\n\nAnswer with one of these and nothing else: Yes, No",
        "Production is down.\n\nWhich team?\n\nbilling: Money.\n\n"
        "Answer with one of these and nothing else: billing, technical",
        'Production is down.\n\n{"ask": "How angry?"}\n\n0: Calm.\n1: Cross.\n2: Very angry.\n\n'
        "Answer with one of these and nothing else: 0, 1, 2",
    }


@newer
def test_states_of_every_form_become_text() -> None:
    from langchain_specfuse.decisions import as_text

    human, ai = HumanMessage("Hi."), AIMessage("Hello.")
    assert as_text("x") == "x" and as_text(human) == "user: Hi."
    assert as_text([human, ai]) == "user: Hi.\nassistant: Hello."
    assert as_text({"chat": [human], "n": (1, None, True, "é")}) == '{"chat": ["user: Hi."], "n": [1, null, true, "é"]}'
    picture = {"type": "image", "base64": "AAAA", "mime_type": "image/png"}
    for state in ({"a": [picture]}, HumanMessage(content=[picture])):
        with pytest.raises(UsageError, match="members read text only"):
            as_text(state)
    assert as_text({"type": "image"}) == '{"type": "image"}'
    with pytest.raises(UsageError, match="cannot be written as JSON"):
        as_text({"a": object()})


@newer
def test_a_sure_scale_is_sure_and_a_torn_one_is_not() -> None:
    from langchain_core.decisions import Score

    from langchain_specfuse.decisions import SpecFuseDecision

    scale = {"state": "x", "questions": {"q": Score(instructions="?", criteria=["a", "b", "c", "d"])}}
    for shares, sure in (({"2": 1.0}, 1.0), ({"0": 0.5, "3": 0.5}, 0.0)):
        odds = {str(level): shares.get(str(level), 1e-12) for level in range(4)}
        answer = SpecFuseDecision(members=judges(ann=odds)).invoke(scale).scores["q"]
        assert answer.confidence == pytest.approx(sure, abs=1e-5)


@newer
@pytest.mark.parametrize(
    ("made", "request_", "said"),
    [
        ({"members": []}, None, "at least one"),
        ({}, None, "must be a list"),
        ({"members": ["a"], "temperature": 1}, None, "no option 'temperature'"),
        ({"members": ["a"], "model": 3}, None, "model cannot be 3"),
        (None, {"state": "x", "questions": {}}, "got no questions"),
        (None, {"state": "x", "questions": {"q": {"type": "guess"}}}, "question 'q'"),
        (None, {"state": "x", "questions": {"q": {"type": "box", "instructions": "Where?"}}}, "members read text only"),
        (None, {"state": "\ud800", "questions": {"q": {"type": "noul", "instructions": "?"}}}, "not valid UTF-8"),
        (
            None,
            {"state": "x", "questions": {"q": {"type": "choice", "instructions": "?", "criteria": {"": None}}}},
            "got '' at place 0",
        ),
    ],
)
async def test_bad_input_is_refused_before_any_model_runs(made: Any, request_: Any, said: str) -> None:
    from langchain_specfuse.decisions import SpecFuseDecision

    members = judges(ann={})
    if made is not None:
        with pytest.raises(UsageError, match=said):
            SpecFuseDecision(**made)
        return
    model = SpecFuseDecision(members=members)
    for way in ("invoke", "ainvoke"):
        with pytest.raises(UsageError, match=said):
            await asked(model, way, request_)
    assert members[0].queries == []


@newer
async def test_errors_are_those_of_the_house_also_from_many_questions() -> None:
    from langchain_specfuse.decisions import SpecFuseDecision

    model = SpecFuseDecision(members=[Broken({}, "bob")])
    for way in ("invoke", "ainvoke"):
        with pytest.raises(EnsembleError, match="no member is left to decide"):
            await asked(model, way, {"state": "x", "questions": questions()})
    late = SpecFuseDecision(members=[Slow(opinion, "ann", device="slow-4")], timeout=0.05)
    for way in ("invoke", "ainvoke"):
        with pytest.raises(AnswerTimeoutError):
            await asked(late, way, {"state": "x", "questions": questions()})


@newer
async def test_a_cancelled_decision_asks_nobody_any_more(soon: Callable[[Callable[[], bool]], bool]) -> None:
    from langchain_core.decisions import Noul

    from langchain_specfuse.decisions import SpecFuseDecision

    member = Slow(lambda text: {}, "ann", device="slow-5")
    model = SpecFuseDecision(members=[member])
    many = {f"q{k}": Noul(instructions=f"{k}?") for k in range(8)}
    task = asyncio.create_task(model.ainvoke({"state": "x", "questions": many}))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0.8)
    assert len(member.sizes) <= 2 and len(member.queries) <= 8
    assert soon(lambda: not member.open_queries)


@newer
def test_questions_that_wait_for_a_member_are_one_batch() -> None:
    from langchain_core.decisions import Noul

    from langchain_specfuse.decisions import SpecFuseDecision

    member = Slow({}, "ann", device="slow-6")
    many = {f"q{k}": Noul(instructions=f"{k}?") for k in range(12)}
    SpecFuseDecision(members=[member]).invoke({"state": "x", "questions": many})
    assert sum(member.sizes) == 12 and len(member.sizes) <= 4


@newer
def test_it_is_traced_as_any_decision_model_and_can_be_copied() -> None:
    import pickle

    from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

    from langchain_specfuse.decisions import SpecFuseDecision

    model = SpecFuseDecision(members=judges(ann=opinion))
    seen = RunCollectorCallbackHandler()
    model.with_config(callbacks=[seen]).invoke({"state": "x", "questions": questions()})
    assert seen.traced_runs[0].extra["metadata"]["ls_provider"] == "specfuse"
    assert seen.traced_runs[0].extra["metadata"]["ls_model_name"] == "ann"
    named = SpecFuseDecision(members=["some/model"], prior={"model": 2.0})
    assert pickle.loads(pickle.dumps(named)) == named and named.model_copy().members == ["some/model"]
