"""The decision model, with scripted members."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import math
import pickle
import re
import tracemalloc

import pytest
from langchain_core import decisions
from langchain_core.language_models import SimpleChatModel
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from langchain_specfuse import EnsembleError, ScriptedMember, SpecFuseDecisionModel, UsageError
from langchain_specfuse.chat.labelling import LabelQuestion
from langchain_specfuse.core.values import Scored

Choice, Noul, Score = decisions.Choice, decisions.Noul, decisions.Score
TEAMS = {"billing": "payments", "tech_support": "bugs", "sales": None}


def says(*rules, name=None, otherwise="nothing", **options):
    """A member that answers with the label of the first word that the text contains."""

    def script(query):
        text = query.turns[-1].text.rpartition("Text: ")[2]
        return next((label for word, label in rules if word in text), otherwise)

    return ScriptedMember(script, name=name, **options)


def knows(name="knows", **options):
    return says(("paid", "billing"), ("crash", "tech support"), name=name, **options)


class Failing(ScriptedMember):
    def score(self, jobs):
        raise RuntimeError("out of order")


class Missing(ScriptedMember):
    def probe(self):
        raise RuntimeError("no such file")


def team(model, text="I paid twice", criteria=None):
    question = Choice(instructions="Which team?", criteria=criteria or TEAMS)
    return model.invoke({"state": text, "questions": {"team": question}}).choices["team"]


def test_a_choice_has_a_probability_for_each_label():
    model = SpecFuseDecisionModel(members=[knows()])
    answer = team(model)
    assert answer.choice == "billing"
    assert list(answer.probabilities) == list(TEAMS)
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)
    assert answer.confidence == answer.probabilities["billing"] > 0.8
    assert team(model, "it crashes").choice == "tech_support"


def test_the_order_of_the_labels_changes_no_probability():
    model = SpecFuseDecisionModel(members=[knows(), says(("paid", "sales"), name="other")])
    answers = [
        team(model, criteria=dict(order)).probabilities
        for order in itertools.permutations(TEAMS.items())
    ]
    for answer in answers:
        assert {k: answer[k] for k in sorted(answer)} == pytest.approx(
            {k: answers[0][k] for k in sorted(answer)}, abs=1e-9
        )


def test_the_label_that_a_member_prefers_without_a_text_can_win():
    member = says(("paid", "billing"), ("down", "Yes"), name="ann", otherwise="sales")
    assert team(SpecFuseDecisionModel(members=[member]), "What a lovely day").choice == "sales"
    calm = says(("down", "Yes"), otherwise="No")
    question = {"urgent": Noul(instructions="Is it urgent?")}
    asked = {"state": "What a lovely day", "questions": question}
    assert SpecFuseDecisionModel(members=[calm]).invoke(asked).nouls["urgent"].noul < 0.2


def test_yes_or_no_gives_the_probability_of_yes():
    member = says(("down", "Yes"), ("thanks", "No"))
    model = SpecFuseDecisionModel(members=[member])
    question = {"urgent": Noul(instructions="Is it urgent?")}
    assert model.invoke({"state": "it is down", "questions": question}).nouls["urgent"].noul > 0.8
    assert model.invoke({"state": "thanks!", "questions": question}).nouls["urgent"].noul < 0.2


def test_a_score_is_the_expected_level_of_its_rubric():
    rubric = ["calm", "concerned", "very angry"]
    member = says(("!!", "very angry"), ("hm", "concerned"), otherwise="calm")
    model = SpecFuseDecisionModel(members=[member])
    question = {"mood": Score(instructions="How angry?", criteria=rubric)}
    angry = model.invoke({"state": "now!!", "questions": question}).scores["mood"]
    concerned = model.invoke({"state": "hm", "questions": question}).scores["mood"]
    assert angry.legend == dict(enumerate(rubric))
    assert angry.score > concerned.score
    expected = sum(level * chance for level, chance in angry.probabilities.items())
    assert angry.score == pytest.approx(expected)


async def test_several_questions_at_once_have_the_same_answers_async_and_in_a_batch():
    model = SpecFuseDecisionModel(members=[knows()])
    questions = {
        "team": Choice(instructions="Which team?", criteria=TEAMS),
        "paid": Noul(instructions="Was something paid?"),
    }
    request = {"state": "I paid twice", "questions": questions}
    sync = model.invoke(request).answers
    assert list(sync) == ["team", "paid"]
    assert (await model.ainvoke(request)).answers == sync
    assert [response.answers for response in model.batch([request] * 3)] == [sync] * 3


@pytest.mark.parametrize("kind", [Failing, Missing])
def test_a_member_that_fails_is_left_out_with_a_warning(kind):
    model = SpecFuseDecisionModel(members=[kind("billing", name="broken"), knows()])
    with pytest.warns(UserWarning, match="broken takes no part in a decision.*(order|no such)"):
        together = team(model)
    alone = team(SpecFuseDecisionModel(members=[knows("alone")]))
    assert together.probabilities == pytest.approx(alone.probabilities)


@pytest.mark.parametrize("kind", [Failing, Missing])
def test_without_a_working_member_the_error_names_each_failure(kind):
    model = SpecFuseDecisionModel(members=[kind("x", name="a"), Failing("x", name="b")])
    with pytest.raises(EnsembleError, match=r"a \(error\).*b \(error\)") as caught:
        team(model)
    assert len(caught.value.failures) == 2


def test_if_no_member_can_be_loaded_the_error_says_why():
    model = SpecFuseDecisionModel(members=[Missing("x", name="a")])
    with pytest.raises(EnsembleError, match=r"a \(error\): RuntimeError: no such file"):
        team(model)


class Ballots(SimpleChatModel):
    """A provider's chat model, which has no scores. It knows who handles payments."""

    @property
    def _llm_type(self):
        return "ballots"

    def _call(self, messages, stop=None, run_manager=None, **kwargs):
        text = messages[-1].text
        letter = re.search(r"^([A-Z]): 'billing'", text, re.MULTILINE)
        return letter[1] if letter and "I paid" in text else "I cannot tell."


def test_a_chat_model_decides_by_ballot():
    answer = team(SpecFuseDecisionModel(members=[Ballots()]))
    assert answer.choice == "billing" and answer.confidence > 0.8


def test_a_chat_model_refuses_more_labels_than_a_ballot_lists():
    many = {"billing": None, **{f"team_{number}": None for number in range(26)}}
    with pytest.raises(EnsembleError, match="at most 26 texts, got 27") as caught:
        team(SpecFuseDecisionModel(members=[Ballots()]), criteria=many)
    assert "fewer labels" in caught.value.notes[0]
    with pytest.warns(UserWarning, match="takes no part in a decision"):
        answer = team(SpecFuseDecisionModel(members=[Ballots(), knows()]), criteria=many)
    assert answer.choice == "billing"


def test_a_member_that_cannot_score_is_refused():
    model = SpecFuseDecisionModel(members=[ScriptedMember("x", name="mute", draft_only=True)])
    with pytest.raises(UsageError, match="mute cannot decide") as caught:
        team(model)
    assert "vLLM or llama.cpp" in caught.value.notes[0]


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (HumanMessage("I paid twice"), "I paid twice"),
        ([HumanMessage("I paid"), AIMessage("When?")], "human: I paid\nai: When?"),
        ({"note": "I paid", "at": 7}, '{"note": "I paid", "at": 7}'),
        (
            {"last": HumanMessage("I paid")},
            '{"last": {"role": "human", "content": "I paid"}}',
        ),
    ],
)
def test_members_read_messages_and_structured_state_as_text(state, expected):
    seen = []

    def script(query):
        seen.append(query.turns[-1].text.rpartition("Text: ")[2])
        return "billing"

    team(SpecFuseDecisionModel(members=[ScriptedMember(script)]), state)
    assert expected in seen


@pytest.mark.parametrize(
    "state",
    [
        HumanMessage([{"type": "image", "url": "https://example.org/a.png"}]),
        {"scan": {"type": "image", "url": "https://example.org/a.png"}},
    ],
)
def test_images_are_refused(state):
    with pytest.raises(UsageError, match="image"):
        team(SpecFuseDecisionModel(members=[knows()]), state)


def test_questions_about_places_in_images_are_refused():
    model = SpecFuseDecisionModel(members=[knows()])
    with pytest.raises(UsageError, match="must be a Choice, a Noul or a Score, got Box"):
        model.invoke({"state": "a", "questions": {"b": decisions.Box(instructions="the cat")}})


def test_a_copy_and_a_pickle_decide_alike():
    model = SpecFuseDecisionModel(members=[ScriptedMember("billing", name="ann")])
    before = team(model)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert team(other) == before


def test_the_response_names_the_members_and_counts_what_they_read():
    model = SpecFuseDecisionModel(members=[knows("ann"), knows("bob")])
    questions = {"team": Choice(instructions="Which team?", criteria=TEAMS)}
    response = model.invoke({"state": "I paid", "questions": questions})
    assert response.model == "ann+bob"
    assert response.usage["input_tokens"] > 0 == response.usage["output_tokens"]
    named = SpecFuseDecisionModel(members=[knows()], model="teams")
    assert named.invoke({"state": "I paid", "questions": questions}).model == "teams"


class Counted(Ballots):
    """Reports what each request cost."""

    def _generate(self, messages, stop=None, run_manager=None, **kwargs):
        usage = {"input_tokens": 40, "output_tokens": 2, "total_tokens": 42}
        message = AIMessage(self._call(messages), usage_metadata=usage)
        return ChatResult(generations=[ChatGeneration(message=message)])


def test_the_usage_of_a_providers_model_is_the_providers():
    questions = {"team": Choice(instructions="Which team?", criteria=TEAMS)}
    usages = [
        SpecFuseDecisionModel(members=members)
        .invoke({"state": "I paid", "questions": questions})
        .usage
        for members in ([Counted()], [knows()], [Counted(), knows()])
    ]
    assert usages[0] == {"input_tokens": 80, "output_tokens": 4, "total_tokens": 84}
    assert usages[2] == {name: usages[0][name] + usages[1][name] for name in usages[0]}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"members": []}, "members must be a list"),
        ({"members": [ScriptedMember("a")], "member_timeout": 0}, "member_timeout"),
        ({"members": [ScriptedMember("a")], "temperature": 1}, "there is no option 'temperature'"),
        ({"members": [ScriptedMember("a")], "calibration": "none.json"}, "none.json.*cannot be"),
    ],
)
def test_wrong_fields_are_refused(fields, message):
    with pytest.raises(UsageError, match=message):
        SpecFuseDecisionModel(**fields)


# --- calibration ----------------------------------------------------------------------------------


def written(path, members=("knows",), labels=("billing", "sales", "tech_support"), **bias):
    data = {
        "kind": "choice",
        "question": "",
        "labels": list(labels),
        "members": list(members),
        "temperature": dict.fromkeys(members, 1.0),
        "bias": {name: {label: bias.get(label, 0.0) for label in labels} for name in members},
        "best": members[0],
        "examples": 30,
    }
    path.write_text(json.dumps({"specfuse_calibration": 2, "decisions": [data]}))
    return path


def test_a_calibration_adds_its_bias(tmp_path):
    path = written(tmp_path / "c.json", sales=50.0)
    model = SpecFuseDecisionModel(members=[knows()], calibration=path)
    assert team(model).choice == "sales"
    assert model.calibration == str(path)


def test_a_removed_calibration_stops_no_model_that_was_made_with_it(tmp_path):
    path = written(tmp_path / "c.json", sales=50.0)
    member = ScriptedMember("billing", name="knows")
    model = SpecFuseDecisionModel(members=[member], calibration=path)
    path.unlink()
    for same in (model, pickle.loads(pickle.dumps(model))):
        assert team(same).choice == "sales"


@pytest.mark.parametrize(("best", "winner"), [("knows", "billing"), ("other", "sales")])
def test_the_best_member_of_the_calibration_decides(tmp_path, best, winner):
    path = written(tmp_path / "c.json", members=("knows", "other"))
    path.write_text(path.read_text().replace('"best": "knows"', f'"best": "{best}"'))
    members = [knows(), says(("paid", "sales"), name="other")]
    assert team(SpecFuseDecisionModel(members=members, calibration=path)).choice == winner


def test_if_the_best_member_fails_the_others_decide(tmp_path):
    path = written(tmp_path / "c.json", members=("broken", "knows"), billing=-50.0)
    members = [Failing("billing", name="broken"), knows()]
    model = SpecFuseDecisionModel(members=members, calibration=path)
    with pytest.warns(UserWarning, match="broken takes no part in a decision"):
        assert team(model).choice != "billing"


def test_other_labels_are_decided_without_the_calibration_and_with_a_warning(tmp_path):
    path = written(tmp_path / "c.json", sales=50.0)
    model = SpecFuseDecisionModel(members=[knows()], calibration=path)
    with pytest.warns(
        UserWarning, match="the calibration has no entry for the labels billing, sales"
    ):
        answer = team(model, criteria={"billing": None, "sales": None})
    assert answer.choice == "billing"


def test_a_yes_or_no_question_is_decided_only_with_its_own_calibration(tmp_path):
    path = written(tmp_path / "c.json", labels=("no", "yes"), yes=50.0)
    data = json.loads(path.read_text())
    digest = LabelQuestion.yes_or_no("Is it spam?").digest
    data["decisions"][0].update(kind="noul", question=digest)
    path.write_text(json.dumps(data))
    model = SpecFuseDecisionModel(members=[says(name="knows", otherwise="No")], calibration=path)

    def asked(instructions):
        question = Noul(instructions=instructions)
        return model.invoke({"state": "a", "questions": {"x": question}}).nouls["x"].noul

    assert asked("Is it spam?") > 0.9
    with pytest.warns(
        UserWarning, match="no entry for a yes-or-no question with these instructions"
    ):
        assert asked("Is it English?") < 0.9


def test_a_calibration_of_other_members_is_refused(tmp_path):
    path = written(tmp_path / "c.json", members=("stranger",))
    with pytest.raises(UsageError, match=r"was made for stranger, but the members are knows"):
        SpecFuseDecisionModel(members=[knows()], calibration=path)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"decisions": [{"labels": ["a"]}]}'])
def test_a_file_without_decisions_is_refused_with_the_command_that_writes_one(tmp_path, content):
    path = tmp_path / "c.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="cannot be read") as caught:
        SpecFuseDecisionModel(members=[knows()], calibration=path)
    assert "doctor --decisions" in caught.value.notes[0]


# --- in an agent ----------------------------------------------------------------------------------


@pytest.fixture
def agent():
    from langchain.agents import create_agent, middleware

    from langchain_specfuse import SpecFuseChatModel

    def model(text):
        return SpecFuseChatModel(members=[ScriptedMember(text)])

    choice = middleware.ModelChoice
    classifier = SpecFuseDecisionModel(members=[says(("sum", "maths"), otherwise="chat")])
    router = middleware.ModelRouterMiddleware(
        choices={
            "maths": choice(model=model("It is 5."), criteria="Calculations."),
            "chat": choice(model=model("Hello!"), criteria="Anything else."),
        },
        instructions="Which model answers best?",
        classifier=classifier,
    )
    return create_agent(model("unused"), middleware=[router])


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
async def test_the_router_middleware_of_langchain_asks_the_chosen_model(agent):
    question = {"messages": [HumanMessage("What is the sum of 2 and 3?")]}
    result = agent.invoke(question)
    assert result["messages"][-1].text == "It is 5."
    assert result["model_route"].choice == "maths"
    assert (await agent.ainvoke(question))["messages"][-1].text == "It is 5."


def test_questions_that_differ_each_time_leave_little_behind():
    model = SpecFuseDecisionModel(members=[knows("a"), knows("b")])

    def ask(number):
        question = Choice(instructions=f"Which team for order {number}?", criteria=TEAMS)
        return model.invoke({"state": "I paid twice", "questions": {"q": question}}).choices["q"]

    answers = [ask(number) for number in range(3)]
    tracemalloc.start()
    answers += [ask(number) for number in range(100)]
    gc.collect()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(200):
        ask(number)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 100_000
    assert {answer.choice for answer in answers} == {"billing"}


@pytest.mark.parametrize("at", [0, 1])
def test_a_label_that_a_member_holds_for_impossible_is_never_chosen(at):
    class Sure(ScriptedMember):
        def score(self, jobs):
            return [Scored(tuple(map(self._row, job.candidates))) for job in jobs]

        def _row(self, candidate):
            row = [-1.0, -1.0]
            if candidate.text == "billing":
                row[at] = -math.inf
            return tuple(row)

    answer = team(SpecFuseDecisionModel(members=[Sure("")]))
    assert answer.probabilities["billing"] < 1e-6
    assert sum(answer.probabilities.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("state", [{1, 2}, object(), {"when": {3}}, "\ud800", ["\ud800"]])
def test_a_state_that_is_no_text_is_refused(state):
    with pytest.raises(UsageError):
        team(SpecFuseDecisionModel(members=[knows()]), state)


def test_a_label_that_is_no_text_is_refused():
    with pytest.raises(UsageError):
        team(SpecFuseDecisionModel(members=[knows()]), criteria={"\ud800": None, "a": None})


def fitted_with(temperature="1", bias="0", labels='["a", "b"]', version="2"):
    return (
        f'{{"specfuse_calibration": {version}, "decisions": [{{"kind": "choice", "question": "", '
        f'"labels": {labels}, "members": ["ann"], "temperature": {{"ann": {temperature}}}, '
        f'"bias": {{"ann": {{"a": {bias}, "b": 0}}}}, "best": "ann", "examples": 9}}]}}'
    )


@pytest.mark.parametrize(
    "content",
    [
        *("", "{", "[]", '{"decisions": [{}]}', '{"decisions": "abc"}'),
        *(fitted_with(temperature="null"), fitted_with(bias='"cold"'), fitted_with(labels="7")),
        *(fitted_with(version=value) for value in ("1", "3", "null", '"2"')),
    ],
)
def test_a_broken_calibration_file_is_named(tmp_path, content):
    ann = ScriptedMember("a", name="ann")
    path = tmp_path / "broken.json"
    path.write_text(fitted_with())
    SpecFuseDecisionModel(members=[ann], calibration=path)
    path.write_text(content)
    with pytest.raises(UsageError, match=r"broken\.json"):
        SpecFuseDecisionModel(members=[ann], calibration=path)
