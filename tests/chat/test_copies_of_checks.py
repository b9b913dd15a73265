"""A chat model with checks is copied, pickled and configured like any other, and says what of it
cannot be written."""

from __future__ import annotations

import copy
import pickle

import pytest
from langchain_core.load import dumpd
from langchain_core.runnables import ConfigurableField

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError, checks

NAMED = "langchain-specfuse/none.gguf"


def polite(text: str) -> str | None:
    return None


def test_a_copy_has_the_same_checks() -> None:
    llm = SpecFuseChatModel(members=[NAMED], checks=[polite, checks.forbids("x")])
    for other in (pickle.loads(pickle.dumps(llm)), copy.deepcopy(llm), llm.model_copy()):
        assert other.checks == llm.checks
        assert other._get_llm_string() == llm._get_llm_string()


def test_a_chat_model_is_pickled_as_far_as_its_functions_are() -> None:
    llm = SpecFuseChatModel(members=[NAMED], checks=[lambda text: None])
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(llm)


def test_checks_are_not_written_as_json() -> None:
    with_checks = SpecFuseChatModel(members=[NAMED], checks=[polite])
    written = dumpd(with_checks)
    assert written["type"] == "not_implemented"
    assert "<check polite at every segment>" in written["repr"] and " at 0x" not in written["repr"]
    assert dumpd(SpecFuseChatModel(members=[NAMED]))["type"] == "constructor"


def test_traces_name_checks_and_contain_no_function() -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember("Yes.", name="a")], checks=[lambda text: None])
    for options in ({}, {"checks": [polite, checks.at("sentence", lambda text: None)]}):
        params = llm._get_invocation_params(**options)
        assert all(isinstance(check["function"], str) for check in params["checks"])
        assert " at 0x" not in str(params)
    assert [check["name"] for check in params["checks"]] == ["polite", "lambda"]


def test_checks_are_configurable() -> None:
    field = ConfigurableField(id="rules")
    llm = SpecFuseChatModel(members=[ScriptedMember("Yes.", name="a")], checks=[polite])
    configured = llm.configurable_fields(checks=field)
    for rules, names in (([], []), ([checks.lowercase()], ["lowercase"])):
        chosen, _ = configured._prepare({"configurable": {"rules": rules}})
        assert [check.name for check in chosen.checks] == names


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (polite, "checks must be a list of functions, got function"),
        ([polite, 7], "checks must be functions, got int"),
        ("forbids:x", "checks must be a list of functions, got str"),
    ],
)
def test_wrong_checks_are_refused_where_they_are_given(given: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SpecFuseChatModel(members=[NAMED], checks=given)
    llm = SpecFuseChatModel(members=[ScriptedMember("Yes.", name="a")])
    with pytest.raises(UsageError, match=message):
        llm.invoke("?", checks=given)


@pytest.mark.parametrize("name", ["guardrails", "guardrail_config"])
def test_what_other_chat_models_call_guardrails_is_explained(name: str) -> None:
    with pytest.raises(UsageError) as error:
        SpecFuseChatModel(members=[NAMED], **{name: {"guardrailIdentifier": "x"}})
    assert "checks=[...]" in error.value.notes[0]
