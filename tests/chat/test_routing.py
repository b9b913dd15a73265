"""A calibration decides for each question who leads; the user's own choice comes first, and the
metadata says who leads and why."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tracers.run_collector import RunCollectorCallbackHandler

from langchain_specfuse import ScriptedMember, SpecFuseCallbackHandler, SpecFuseChatModel
from langchain_specfuse.chat.calibration import Calibration
from langchain_specfuse.chat.label_calibrations import read_labels, write_labels
from langchain_specfuse.chat.labelling import LabelCalibration
from langchain_specfuse.core.labels import Scale
from langchain_specfuse.core.routing import Router, n_grams
from langchain_specfuse.errors import UsageError

ADD, SPANISH = "Add 2 and 3.", "Say 'cat' in Spanish."
SHARES = {"adder": 0.6, "poet": 0.5}


def router() -> Router:
    """A router that lets the poet lead questions about Spanish."""
    weights: dict[int, list[float]] = {}
    plus, minus = n_grams("in Spanish"), n_grams("Add and")
    for bucket, value in plus.items():
        weights[bucket] = [-value, value]
    for bucket, value in minus.items():
        weights[bucket] = [value, -value]
    return Router(SHARES, weights)


def calibration(folder: Path, **changes: Any) -> str:
    file = folder / "calibration.json"
    values = {"use": "router", "router": router()}
    Calibration("adder", SHARES, 40, **{**values, **changes}).save(file)
    return str(file)


def members() -> list[ScriptedMember]:
    return [ScriptedMember("It is 5.", name="adder"), ScriptedMember("Un gato.", name="poet")]


def model(folder: Path, **options: Any) -> SpecFuseChatModel:
    return SpecFuseChatModel(
        **{"members": members(), "calibration": calibration(folder), **options}
    )


def routing(message: AIMessage) -> dict[str, Any]:
    return message.response_metadata["specfuse"]["routing"]


def test_each_question_is_led_by_the_member_that_the_router_expects_to_be_right(tmp_path):
    llm = model(tmp_path)
    seen: list[Any] = []
    watch = {"callbacks": [SpecFuseCallbackHandler(on_round=seen.append)]}
    assert llm.invoke(ADD, watch).text == "It is 5."
    assert llm.invoke(SPANISH, watch).text == "Un gato."
    assert [list(round.drafts) for round in seen] == [["adder"], ["poet"]]


def test_the_same_member_leads_alone_in_batches_streams_and_asyncio(tmp_path):
    llm = model(tmp_path)
    questions = [ADD, SPANISH] * 8
    answers = [llm.invoke(question).text for question in questions]
    assert [message.text for message in llm.batch(questions)] == answers
    assert [message.text for message in asyncio.run(llm.abatch(questions))] == answers
    assert "".join(chunk.text for chunk in llm.stream(SPANISH)) == "Un gato."


def test_metadata_and_traces_say_who_leads_and_why_without_words_of_the_question(tmp_path):
    collector = RunCollectorCallbackHandler()
    message = model(tmp_path).invoke(SPANISH, {"callbacks": [collector]})
    reported = routing(message)
    assert (reported["lead"], reported["by"]) == ("poet", "router")
    assert reported["expected"]["poet"] > reported["expected"]["adder"]
    assert collector.traced_runs[0].extra["metadata"]["specfuse_routing"] == reported
    assert "Spanish" not in json.dumps(reported) and "cat" not in json.dumps(reported)


def test_the_last_message_of_the_user_decides(tmp_path):
    llm = model(tmp_path)
    history = [HumanMessage(SPANISH), AIMessage("Un gato."), HumanMessage("Add 2 and 3, please.")]
    assert routing(llm.invoke(history))["lead"] == "adder"
    # "What about 'dog'?" says nothing alone
    history[-1] = HumanMessage("What about 'dog'?")
    assert routing(llm.invoke(history))["lead"] == "poet"


def test_what_the_user_chooses_comes_first(tmp_path):
    llm = model(tmp_path)
    assert routing(llm.invoke(SPANISH, lead="adder")) == {"lead": "adder", "by": "named"}
    assert routing(llm.invoke(SPANISH, method="specem")) == {"lead": None, "by": "vote"}
    assert "routing" not in (llm.invoke(SPANISH, model=members()[0]).response_metadata["specfuse"])
    named = model(tmp_path, lead="adder")
    assert routing(named.invoke(SPANISH)) == {"lead": "adder", "by": "named"}


def test_a_calibration_without_a_router_says_so(tmp_path):
    file = calibration(tmp_path, use="alone", router=None)
    llm = SpecFuseChatModel(members=members(), calibration=file)
    assert routing(llm.invoke(SPANISH)) == {
        "lead": "adder",
        "by": "calibration",
        "expected": SHARES,
    }


def test_the_lead_is_reported_without_a_calibration_too():
    assert routing(SpecFuseChatModel(members=members(), lead=None).invoke(ADD)) == {
        "lead": None,
        "by": "vote",
    }
    assert routing(SpecFuseChatModel(members=members(), lead="poet").invoke(ADD)) == {
        "lead": "poet",
        "by": "named",
    }


def test_a_cached_answer_is_not_reused_with_another_router(tmp_path):
    cache = InMemoryCache()
    first = model(tmp_path, cache=cache)
    assert first.invoke(SPANISH).text == "Un gato."
    (tmp_path / "other").mkdir()
    file = calibration(tmp_path / "other", router=Router(SHARES, {}))
    second = SpecFuseChatModel(members=first.members, calibration=file, cache=cache)
    assert second.invoke(SPANISH).text == "It is 5."
    assert model(tmp_path, members=first.members, cache=cache).invoke(SPANISH).text == "Un gato."


def test_a_reserve_takes_over_from_the_lead_that_the_router_chose(tmp_path):
    failing = ScriptedMember("Un gato.", name="poet", fails_in=1)
    llm = model(tmp_path, members=[members()[0], failing])
    message = llm.invoke(SPANISH)
    assert message.text == "It is 5." and routing(message)["lead"] == "poet"
    reported = routing(llm.invoke(SPANISH))
    assert (reported["lead"], reported["by"]) == ("adder", "reserve") and reported["expected"]
    assert routing(llm.invoke(SPANISH, lead="poet")) == {"lead": "adder", "by": "reserve"}


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"specfuse_calibration": 1}, "it is not a calibration file of this version"),
        ({"specfuse_calibration": 3}, "it is not a calibration file of this version"),
        ({"router": {"shares": SHARES, "weights": {"1": 0.5}}}, "instance of Sequence"),
        ({"members": ["adder", "poet"]}, "valid dictionary"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_way_to_make_a_new_one(
    tmp_path, change, said
):
    file = Path(calibration(tmp_path))
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UsageError, match=said) as error:
        SpecFuseChatModel(members=members(), calibration=file)
    assert "doctor --prompts FILE --calibration FILE" in error.value.notes[0]


def test_a_file_of_version_1_0_is_read_unless_its_router_needs_embeddings(tmp_path):
    file = Path(calibration(tmp_path))
    data = json.loads(file.read_text())
    data["router"]["embeddings"] = None
    file.write_text(json.dumps(data))
    assert SpecFuseChatModel(members=members(), calibration=file).invoke(SPANISH).text == "Un gato."
    made_with = {"name": "ByWord", "dimension": 3}
    data["router"] |= {"features": "embeddings", "embeddings": made_with}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(data))
    with pytest.raises(
        UsageError, match="its router reads embeddings, which this version"
    ) as error:
        SpecFuseChatModel(members=members(), calibration=other)
    assert "doctor" in error.value.notes[0]


def test_one_file_holds_who_leads_and_how_members_decide(tmp_path):
    """Whichever the doctor writes first."""
    labels = LabelCalibration(
        ("yes", "no"), {name: Scale(1.0, (0.5, -0.5)) for name in SHARES}, "adder"
    )
    file = Path(calibration(tmp_path))
    write_labels(file, labels)
    calibration(tmp_path)
    assert read_labels(file, list(SHARES)) == [labels]
    llm = SpecFuseChatModel(members=members(), calibration=file)
    assert routing(llm.invoke(SPANISH))["lead"] == "poet"
    write_labels(file, labels)
    assert Calibration.load(file).router.as_dict() == router().as_dict()
