"""Fused answers: the lead reads what every member answers alone, and writes the final answer."""

from __future__ import annotations

from dataclasses import replace

import pytest

from langchain_specfuse.core.fusion import fused
from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.rounds import rounds
from langchain_specfuse.core.values import (
    BUDGET,
    Attachment,
    Draft,
    DraftJob,
    Effort,
    Failure,
    Query,
    ScoreJob,
    ToolCall,
    Turn,
)
from langchain_specfuse.errors import CheckError, EnsembleError
from langchain_specfuse.members.scripted import ScriptedMember

from .play import QUERY, answering, play

FUSED = Settings(segment="answer", result="fuse", max_tokens=20, segment_tokens=3)
FINAL = "It is four, as both say, and nothing else."


def is_final(query):
    """Whether this query asks for the final answer."""
    return "Answer 1:" in query.turns[-1].text


def writes(own, final=FINAL, **options):
    """Return a member that answers alone, and writes the final answer when it is asked to."""
    script = lambda query: final if is_final(query) else own
    return answering(ScriptedMember(script, **options))


def fuse(members, settings=FUSED, **options):
    return play(members, settings, begun=fused, **options)


def finals(played):
    """Return the queries of the final answer."""
    return [job.query for _, job in played.asked(DraftJob) if is_final(job.query)]


TWO = {"a": writes("Four."), "b": writes("It is 4.")}


def test_the_lead_reads_all_answers_and_writes_the_final_one_in_segments():
    played = fuse(TWO)
    assert played.text == FINAL and played.rounds[-1].finish == "stop"
    assert [round.number for round in played.rounds] == [0, 1, 2, 3]
    (question,) = {query.turns[-1].text for query in finals(played)}
    assert question.startswith("What is it?\n")
    assert "Answer 1:\nFour.\n" in question and "Answer 2:\nIt is 4.\n" in question
    assert {round.winner for round in played.rounds[1:]} == {"a"}


def test_round_0_holds_the_answers_and_agrees_nothing():
    first = fuse(TWO).rounds[0]
    assert {name: draft.text for name, draft in first.drafts.items()} == {
        "a": "Four.",
        "b": "It is 4.",
    }
    assert (first.text, first.segment.text, first.winner, first.finish) == ("", "", "", None)
    assert (first.margin, first.dissent, first.runner_up, first.lead) == (0.0, 0.0, None, "a")
    assert first.data().as_dict()["drafts"]["b"] == {"text": "It is 4.", "ended": True, "tokens": 3}


def test_all_members_answer_side_by_side_and_only_the_lead_writes():
    played = fuse(TWO)
    assert [sorted(ask.jobs) for ask in played.asks] == [["a", "b"], ["a"], ["a"], ["a"]]
    assert not played.asked(ScoreJob)


def test_a_silent_member_is_waited_for_only_if_no_other_answers_or_could_take_over():
    assert [ask.replaceable for ask in fuse(TWO).asks] == [True] * 4
    assert [ask.replaceable for ask in fuse({"a": TWO["a"]}).asks] == [False] * 4


@pytest.mark.parametrize("method", [Method(margin=1.0), Method(margin=None), Method()])
def test_members_never_vote_on_the_final_answer_whatever_the_method(method):
    played = fuse(TWO, FUSED.model_copy(update={"method": method}))
    assert played.text == FINAL and not played.asked(ScoreJob)


@pytest.mark.parametrize(
    ("lead", "prior", "writer"),
    [("b", None, "b"), ("b", {"c": 2.0}, "b"), (None, None, "a"), (None, {"c": 2.0}, "c")],
)
def test_the_writer_is_the_lead_or_the_first_of_those_with_the_most_weight(lead, prior, writer):
    members = {name: writes(f"{name} says so.", f"by {name}") for name in "abc"}
    settings = FUSED.model_copy(update={"lead": lead})
    assert fuse(members, settings, prior=prior).text == f"by {writer}"


def test_samples_of_one_member_are_drawn_with_other_seeds_and_read_together():
    texts = iter(["one", "two", "three"])

    def alone(job, number):
        text = "fused" if is_final(job.query) else next(texts)
        return Draft(text, True, (1,))

    played = fuse({"a": alone}, FUSED.model_copy(update={"samples": 3}))
    assert played.text == "fused"
    assert list(played.rounds[0].drafts) == ["a", "a#2", "a#3"]
    assert played.rounds[0].samples == {"a#2": "a", "a#3": "a"}
    how = [job.sampling for _, job in played.asked(DraftJob)]
    assert [(sampling.temperature, sampling.seed) for sampling in how] == [
        (0.0, 0),
        (0.7, 1),
        (0.7, 2),
        (0.0, 0),
    ]
    assert "Answer 3:\nthree\n" in finals(played)[0].turns[-1].text


def test_system_message_and_history_are_kept_and_only_the_last_turn_is_extended():
    turns = (
        Turn("system", "Be brief."),
        Turn("user", "Hello."),
        Turn("assistant", "Hello!"),
        Turn("user", "What is it?", attachments=(Attachment("image", "{}"),)),
    )
    (query,) = {*finals(fuse(TWO, query=Query("q", turns)))}
    assert query.turns[:3] == turns[:3] and query.id != "q"
    last = query.turns[3]
    assert last.text.startswith("What is it?\n") and "Answer 2:\nIt is 4." in last.text
    assert replace(last, text="What is it?") == turns[3]


@pytest.mark.parametrize(
    "last",
    [
        Turn("tool", "found: 4", name="find", call_id="1"),
        Turn("assistant", "It is"),
        Turn("system", "Name a number."),
    ],
)
def test_the_answers_are_a_new_turn_of_the_user_after_any_other_turn(last):
    asked = (
        Turn("system", "Be brief."),
        Turn("user", "Find it."),
        Turn("assistant", "", (ToolCall("find", "{}", "1"),)),
    )
    turns = (last,) if last.role == "system" else (*asked, last)
    (query,) = {*finals(fuse(TWO, query=Query("q", turns)))}
    assert query.turns[:-1] == turns and query.turns[-1].role == "user"
    assert query.turns[-1].text.startswith("Several assistants have answered this")
    assert "Answer 2:\nIt is 4." in query.turns[-1].text


# --- members that fail, refuse or say nothing -----------------------------------------------------


def fails(kind="error", message="fell over"):
    return lambda job, number: Failure(kind, message)


def test_a_member_that_fails_is_left_out_and_leaves():
    played = fuse({**TWO, "c": fails()})
    assert played.text == FINAL
    assert [(gone.member, gone.round) for gone in played.rounds[0].left] == [("c", 0)]
    assert "Answer 3" not in finals(played)[0].turns[-1].text


def test_another_member_writes_if_the_lead_has_failed():
    assert fuse({"a": fails(), "b": writes("It is 4.", "by b")}).text == "by b"


def test_another_member_continues_where_the_lead_fails_while_it_writes():
    lead = writes("Four.", fails_in=3)

    def fails(job, number):
        try:
            return lead(job, number)
        except RuntimeError as error:
            return Failure.of(error)

    played = fuse({"a": fails, "b": writes("It is 4.")})
    assert played.text == FINAL and played.error is None
    assert [round.winner for round in played.rounds[1:]] == ["a", "b", "b"]


def test_an_answer_that_is_empty_or_refused_is_left_out():
    members = {
        "a": writes(" "),
        "b": writes(ScriptedMember.refusal("No.")),
        "c": writes("It is 4."),
    }
    played = fuse(members)
    question = finals(played)[0].turns[-1].text
    assert "Answer 1:\nIt is 4.\n" in question and "Answer 2" not in question
    assert played.rounds[0].refusals == {"b": "No."} and played.text == FINAL


def test_a_member_that_has_answered_writes_before_a_lead_that_refused():
    members = {"a": writes(ScriptedMember.refusal("No.")), "b": writes("It is 4.", "Four.")}
    played = fuse(members, FUSED.model_copy(update={"lead": "a"}))
    assert played.text == "Four." and played.rounds[-1].finish == "stop"


REFUSES_TO_MERGE = writes("Four.", ScriptedMember.refusal("I do not merge."))


@pytest.mark.parametrize("refusals", ["outvoted", "ignore"])
def test_another_member_writes_if_the_lead_refuses_the_final_answer(refusals):
    members = {"a": REFUSES_TO_MERGE, "b": writes("It is 4.", "by b")}
    played = fuse(members, FUSED.model_copy(update={"lead": "a", "refusals": refusals}))
    last = played.rounds[-1]
    assert (played.text, last.winner, last.finish) == ("by b", "b", "stop")
    assert played.rounds[1].refusals == {"a": "I do not merge."} and not played.left


@pytest.mark.parametrize(("other", "refusals"), [(TWO["b"], "any"), (REFUSES_TO_MERGE, "outvoted")])
def test_the_final_answer_is_a_refusal_if_all_refuse_it_or_one_is_enough(other, refusals):
    members = {"a": REFUSES_TO_MERGE, "b": other}
    played = fuse(members, FUSED.model_copy(update={"lead": "a", "refusals": refusals}))
    last = played.rounds[-1]
    assert (last.finish, last.winner, played.text) == ("refusal", "a", "")
    assert last.refusals["a"] == "I do not merge."


def test_a_refusal_stands_if_no_request_is_left_for_another_writer():
    members = {"a": billed(REFUSES_TO_MERGE), "b": billed(TWO["b"])}
    played = fuse(members, FUSED.model_copy(update={"max_calls": 3}))
    assert (played.rounds[-1].finish, played.text) == ("refusal", "") and played.error is None


def test_a_single_answer_is_fused_too():
    played = fuse({"a": writes("Four.")})
    assert played.text == FINAL and len(played.rounds) == 4


def test_without_any_answer_the_lead_answers_the_question_itself():
    empty = answering(ScriptedMember(lambda query: "" if query.id == "q" else "Four."))
    played = fuse({"a": empty})
    assert played.text == "Four." and played.asks[1].jobs["a"].query.turns == QUERY.turns


def test_if_all_members_fail_the_error_says_how_and_round_0_reports_it():
    played = fuse({"a": fails(), "b": fails("timeout", "too slow")})
    assert isinstance(played.error, EnsembleError)
    assert "a (error): fell over; b (timeout): too slow" in str(played.error)
    assert [failure.kind for failure in played.error.failures] == ["error", "timeout"]
    assert played.left == ["a", "b"] and not played.text


@pytest.mark.parametrize(
    ("others", "refusals"), [("It is 4.", "any"), (ScriptedMember.refusal("Nor I."), "outvoted")]
)
def test_the_answer_is_a_refusal_if_all_refuse_or_one_is_enough(others, refusals):
    members = {"a": writes(ScriptedMember.refusal("No.")), "b": writes(others)}
    played = fuse(members, FUSED.model_copy(update={"refusals": refusals}))
    last = played.rounds[-1]
    assert (last.finish, last.refusals[last.winner], played.text) == ("refusal", "No.", "")
    assert not finals(played)


# --- limits, checks and constraints ---------------------------------------------------------------


def billed(member, cost=1.0):
    """Return the member with one billed request per query."""
    paid = set()

    def reply(job, number):
        if job.query.id in paid:
            return member(job, number)
        if not job.new_requests:
            return Failure(BUDGET, "the budget is spent")
        paid.add(job.query.id)
        return replace(member(job, number), effort=Effort(requests=1, cost=cost))

    return reply


def billed_by_sample(member):
    """Return the member with one billed request for each of its own answers, and one for the final
    one."""
    begun = set()

    def reply(job, number):
        key = job.query.id if is_final(job.query) else (job.query.id, job.sampling)
        if key in begun:
            return member(job, number)
        if not job.new_requests:
            return Failure(BUDGET, "the budget is spent")
        begun.add(key)
        return replace(member(job, number), effort=Effort(requests=1))

    return reply


def test_calls_and_costs_are_those_of_all_answers_and_the_final_one():
    members = {name: billed(member) for name, member in TWO.items()}
    enough = fuse(members, FUSED.model_copy(update={"max_calls": 3}))
    assert enough.text == FINAL
    members = {name: billed(member) for name, member in TWO.items()}
    played = fuse(members, FUSED.model_copy(update={"max_cost": 2.0}))
    assert isinstance(played.error, EnsembleError) and played.rounds[0].drafts
    assert {failure.kind for failure in played.error.failures} == {BUDGET}


def limited(members, calls, **more):
    return fuse(members, FUSED.model_copy(update={"max_calls": calls, **more}))


def requests(played):
    """Return how many requests were sent for the answer."""
    return sum(
        effort.requests
        for round in played.rounds
        for efforts in round.efforts.values()
        for effort in efforts.values()
    )


@pytest.mark.parametrize("calls", [2, 3, 4])
def test_one_call_is_kept_for_the_writer(calls):
    names = ("a", "b", "c")
    played = limited({name: billed(writes(f"Four, says {name}.")) for name in names}, calls)
    assert played.text == FINAL and requests(played) == calls
    assert list(played.rounds[0].drafts) == list(names[: calls - 1])
    assert played.left == list(names[calls - 1 :])


def test_with_one_call_the_lead_answers_the_question():
    played = limited({"a": billed(writes("Four.")), "b": billed(writes("It is 4."))}, 1)
    assert played.text == "Four." and requests(played) == 1 and not finals(played)


def test_no_call_is_kept_if_a_member_that_sends_none_can_write():
    free, paid = writes("Four."), billed(writes("It is 4."))
    for members in ({"a": free, "b": paid}, {"b": paid, "a": free}):
        played = limited(members, 1)
        assert set(played.rounds[0].drafts) == {"a", "b"} and played.text == FINAL
        assert requests(played) == 1


def test_members_that_send_no_requests_take_none_from_the_others():
    free = {name: writes(f"Four, says {name}.") for name in "abc"}
    played = limited({**free, "d": billed(writes("4, says d.")), "e": billed(writes("4."))}, 2)
    assert set(played.rounds[0].drafts) == {*"abcde"} and requests(played) == 2


def test_a_call_is_kept_for_the_writer_of_several_samples():
    members = {name: billed_by_sample(member) for name, member in TWO.items()}
    played = limited(members, 4, samples=3)
    assert played.text == FINAL and requests(played) == 4
    assert list(played.rounds[0].drafts) == ["a", "b", "a#2"]


def has_short_context(job, number):
    """Answer alone, but have no room to read the answers of others."""
    if is_final(job.query):
        return Failure("overflow", "the prompt has 9 tokens, the context 8")
    return Draft("Four.", True, (1,))


def test_answers_that_exceed_the_context_of_every_writer_say_how_to_make_them_shorter():
    played = fuse({"a": has_short_context, "b": has_short_context})
    assert [failure.kind for failure in played.error.failures] == ["overflow", "overflow"]
    assert any("fewer members" in note for note in played.error.__notes__)


def test_a_question_that_exceeds_every_context_does_not_blame_the_answers():
    played = fuse({"a": fails("overflow", "too long"), "b": fails("overflow", "too long")})
    assert not any("fewer members" in note for note in played.error.__notes__)


def test_max_tokens_applies_to_each_answer_and_to_the_final_one():
    members = {"a": writes("1 2 3 4 5 6", "7 8 9 10 11 12"), "b": writes("1 2 3")}
    played = fuse(members, FUSED.model_copy(update={"max_tokens": 4}))
    first = played.rounds[0].drafts
    assert (first["a"].text, first["a"].ended, first["b"].ended) == ("1 2 3 4", False, True)
    assert (played.text, played.rounds[-1].finish) == ("7 8 9 10", "length")


def test_a_stop_string_ends_each_answer_and_the_final_one():
    members = {"a": writes("Four. END No", "It is four. END No")}
    played = fuse(members, FUSED.model_copy(update={"stop": [" END"]}))
    draft = played.rounds[0].drafts["a"]
    assert (draft.text, draft.ended) == ("Four.", True)
    assert (played.text, played.rounds[-1].finish) == ("It is four.", "stop_string")


def no_nothing(text):
    return "says nothing" if "nothing" in text else None


def test_checks_judge_the_final_answer_only():
    members = {"a": writes("nothing", FINAL), "b": writes("It is 4.", FINAL)}
    settings = FUSED.model_copy(update={"checks": Settings(checks=[no_nothing]).checks})
    kept = fuse(members, settings.model_copy(update={"on_failure": "end"}))
    assert kept.text.strip() == "It is four, as both say, and" and kept.rounds[-1].finish == "check"
    assert isinstance(fuse(members, settings).error, CheckError)
    passing = {"a": writes("nothing", "It is four."), "b": writes("It is 4.")}
    assert fuse(passing, settings).text == "It is four."


def test_the_final_answer_equals_the_leads_own_answer_to_the_longer_question():
    played = fuse(TWO)
    alone = play({"a": TWO["a"]}, FUSED, query=finals(played)[0], begun=rounds)
    assert [round.text for round in played.rounds[1:]] == [round.text for round in alone.rounds]


def test_reasoning_is_not_shown_to_the_lead():
    def thinks(job, number):
        return Draft("Four.", True, (1,), thought="" if is_final(job.query) else "a secret")

    played = fuse({"a": thinks, "b": TWO["b"]})
    assert "secret" not in finals(played)[0].turns[-1].text
    assert played.rounds[0].thoughts == {"a": "a secret"}
