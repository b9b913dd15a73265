"""A budget of memory is chosen with the chat model, checked at once, and shared by who is given the same."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError, _registry, unload
from langchain_specfuse._command_choices import ensemble_of

from .conftest import BLUE


class Hosted(ScriptedMember):
    """Stands in for a member that holds weights in this process."""

    budget: Any = None

    def within(self, budget: Any) -> None:
        if self.budget not in (None, budget):
            raise UsageError("has another")
        self.budget = budget


@pytest.mark.parametrize("wrong", [0, -1, True, "", "much", "6 apples", "GB", 1.5, {}, {"cpu": "x"}, "1e400GB", [1]])
def test_what_is_no_number_of_bytes_is_told_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError, match="memory_budget must be a number of bytes such as"):
        SpecFuseChatModel(members=[ScriptedMember(BLUE)], memory_budget=wrong)


@pytest.mark.parametrize("right", [10**9, "6GB", "1.5 GiB", "500mb", {"cpu": "6GB", "cuda:0": 10**10}])
def test_bytes_may_be_written_in_many_ways(right: Any) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE)], memory_budget=right)
    assert llm.invoke("How is the sky?").text == BLUE  # a member without weights here takes no notice


def test_it_is_chosen_with_the_chat_model_and_changes_no_answer_so_no_cache_key() -> None:
    member = Hosted(BLUE)
    llm = SpecFuseChatModel(members=[member], memory_budget="1GB")
    with pytest.raises(UsageError, match="memory_budget is chosen when the chat model is made"):
        llm.invoke("How is the sky?", memory_budget="2GB")
    assert llm._get_llm_string() == SpecFuseChatModel(members=[member])._get_llm_string()


def test_equal_budgets_are_one_and_a_member_has_one_only() -> None:
    one, two, three = Hosted(BLUE, name="one"), Hosted(BLUE, name="two"), Hosted(BLUE, name="three")
    first = SpecFuseChatModel(members=[one, two], memory_budget="1GB")
    second = SpecFuseChatModel(members=[two, three], memory_budget=10**9)
    assert one.budget is two.budget is three.budget is not None
    with pytest.raises(UsageError, match="has another"):
        SpecFuseChatModel(members=[three], memory_budget="2GB")
    SpecFuseChatModel(members=[three]).invoke("How is the sky?")  # no demand: as it is
    assert first.invoke("How?").text == second.invoke("How?").text == BLUE


def test_members_named_are_given_it_again_after_unloading(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Hosted] = []

    def make(arguments: dict[str, Any]) -> Hosted:
        made.append(Hosted(BLUE, name=arguments["name"]))
        return made[-1]

    monkeypatch.setattr(_registry, "_made", make)
    unload()
    llm = SpecFuseChatModel(members=["org/one"], memory_budget="1GB")
    assert made == []
    llm.invoke("How?")
    llm.unload()
    llm.invoke("How?")
    assert len(made) == 2 and all(one.budget is not None for one in made)
    unload()


def test_the_command_takes_it_too() -> None:
    member = Hosted(BLUE)
    given = argparse.Namespace(members=None, verifiers=None, memory_budget="1GB")
    ensemble_of(given, [member])
    assert member.budget.told == "1GB"
    with pytest.raises(UsageError, match="memory_budget must be"):
        ensemble_of(argparse.Namespace(members=None, verifiers=None, memory_budget="lots"), [member])


@pytest.mark.parametrize(
    "told", [{"gpu": "1KB"}, {"CPU": "1KB"}, {"cpu:0": "1KB"}, {"": 1}, {"cuda": "1KB", "cuda:0": "2KB"}]
)
def test_a_device_that_no_member_can_be_on_is_refused(told):
    with pytest.raises(ValueError, match="memory_budget"):
        SpecFuseChatModel(members=[ScriptedMember("x")], memory_budget=told)


class Bounded(ScriptedMember):
    budget = None

    def within(self, budget):
        if self.budget not in (None, budget):
            raise UsageError(f"{self.name} shares {self.budget!r} already")
        self.budget = budget


def test_a_budget_that_one_member_refuses_binds_no_other():
    ann, bob = Bounded("x", name="ann"), Bounded("x", name="bob")
    SpecFuseChatModel(members=[bob], memory_budget="10MB").invoke("hello")
    with pytest.raises(UsageError, match="bob shares"):
        SpecFuseChatModel(members=[ann, bob], memory_budget="20MB").invoke("hello")
    assert ann.budget is None
    assert SpecFuseChatModel(members=[ann, bob], memory_budget="10MB").invoke("hello").text == "x"
