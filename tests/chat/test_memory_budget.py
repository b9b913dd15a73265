"""A memory budget is chosen with the chat model, checked at once, and shared by members that are given the same."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError

from .conftest import BLUE


class Hosted(ScriptedMember):
    """Stands in for a member that holds weights in this process."""

    memory_budget: Any = None


@pytest.mark.parametrize("wrong", [0, True, "", "much", 1.5, {}, {"cpu": "x"}, [1], {"gpu": "1KB"}, {"cuda:x": 1}])
def test_a_limit_that_is_not_a_number_of_bytes_is_refused_at_once(wrong: Any) -> None:
    with pytest.raises(UsageError, match="memory_budget must be a number of bytes such as"):
        SpecFuseChatModel(members=[ScriptedMember(BLUE)], memory_budget=wrong)


@pytest.mark.parametrize("right", [10**9, "6GB", "1.5 GiB", "500mb", {"cpu": "6GB", "cuda:0": 10**10}])
def test_members_without_weights_here_ignore_it(right: Any) -> None:
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE)], memory_budget=right)
    assert llm.invoke("How is the sky?").text == BLUE


def test_it_is_chosen_with_the_chat_model_and_is_not_part_of_a_cache_key() -> None:
    member = Hosted(BLUE)
    llm = SpecFuseChatModel(members=[member], memory_budget="1GB")
    with pytest.raises(UsageError, match="memory_budget is chosen when the chat model is made"):
        llm.invoke("How is the sky?", memory_budget="2GB")
    assert llm._get_llm_string() == SpecFuseChatModel(members=[member])._get_llm_string()


def test_equal_budgets_are_one_and_a_member_has_only_one() -> None:
    one, two, three = Hosted(BLUE, name="one"), Hosted(BLUE, name="two"), Hosted(BLUE, name="three")
    first = SpecFuseChatModel(members=[one, two], memory_budget="1GB")
    second = SpecFuseChatModel(members=[two, three], memory_budget=10**9)
    assert first.invoke("How?").text == second.invoke("How?").text == BLUE
    assert one.memory_budget is two.memory_budget is three.memory_budget is not None
    fourth = Hosted(BLUE, name="fourth")
    with pytest.raises(UsageError, match="three has memory_budget='1GB', and cannot have memory_budget='2GB' too"):
        SpecFuseChatModel(members=[fourth, three], memory_budget="2GB").invoke("How?")
    assert fourth.memory_budget is None  # for all of them or for none
    SpecFuseChatModel(members=[three]).invoke("How?")  # without a budget: as it is
