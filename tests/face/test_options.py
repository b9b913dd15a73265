"""Wrong choices are told at once and in full; right ones count wherever they are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.runnables import ConfigurableField

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, SpecFuseError, UsageError
from langchain_specfuse._fields import HELD

from .conftest import BLUE, asked

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature must be a number of at least 0, got -0.1"),
    ({"temperature": "hot"}, "temperature must be a number of at least 0, got 'hot'"),
    ({"temperature": float("nan")}, "temperature must be"),
    ({"drafters": 0}, "drafters must be a whole number of at least 1, got 0"),
    ({"speculate": "always"}, "speculate must be True, False or 'auto', got 'always'"),
    ({"speculate": 1}, "speculate must be True, False or 'auto', got 1"),
    ({"drafters": "auto"}, "drafters must be a whole number of at least 1, got 'auto'"),
    ({"segment_tokens": 0}, "segment_tokens must be a whole number of at least 1, got 0"),
    ({"segment_tokens": 2.5}, "segment_tokens must be"),
    ({"segment_tokens": True}, "segment_tokens must be"),
    ({"max_tokens": 0}, "max_tokens must be"),
    ({"max_rounds": -1}, "max_rounds must be"),
    ({"top_p": 0}, "top_p must be"),
    ({"top_p": 1.5}, "top_p must be"),
    ({"top_k": 0}, "top_k must be"),
    ({"min_p": 2}, "min_p must be"),
    ({"repetition_penalty": 0}, "repetition_penalty must be"),
    ({"seed": "x"}, "seed must be"),
    ({"preset": "fast"}, "preset must be one of 'specfuse', 'specem', 'robust', got 'fast'"),
    ({"score": "logits"}, "score must be one of 'mean_prob', 'mean_logprob', 'logprob_per_byte'"),
    ({"feedback": True}, "feedback must be one of"),
    ({"exit": "always"}, "exit must be one of"),
    ({"exit": ["never"]}, "exit must be one of"),
    ({"learning_rate": -1}, "learning_rate must be"),
    ({"min_members": 0}, "min_members must be"),
    ({"loop_guard": "yes"}, "loop_guard must be"),
    ({"timeout": 0}, "timeout must be"),
    ({"member_timeout": -3}, "member_timeout must be"),
    ({"straggler": "shoot"}, "straggler must be one of 'wait', 'leave_out', 'exit', got 'shoot'"),
    ({"stop": ""}, "a stop string must not be empty"),
    ({"stop": ["END", ""]}, "a stop string must not be empty"),
    ({"stop": 7}, "stop must be a text or a list of texts"),
    ({"members": []}, "members must be a list"),
    ({"members": "Qwen/Qwen3-0.6B"}, "members must be a list"),
    ({"members": [7]}, "a member is a hub id"),
    ({"members": ["  "]}, "a member's name is empty"),
    ({"members": ["http:///v1#m"]}, "names no server"),
    ({"members": [{"dtype": "bfloat16"}]}, "a member given as a dict needs a 'model'"),
    ({"verifiers": [None]}, "a member is a hub id"),
    ({"prior": {"nobody": 1.0}}, "prior names 'nobody', which is no member"),
    ({"prior": {"a": 0}}, "prior of 'a' must be a number above 0"),
    ({"prior": [1, 2]}, "prior must be a dict"),
    ({"temprature": 0.5}, "there is no option 'temprature'"),
]


@pytest.mark.parametrize(("options", "message"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_choice_is_told_with_what_it_got_what_was_wanted_and_what_to_do(
    ensemble: Callable[..., SpecFuseChatModel], options: dict[str, Any], message: str
) -> None:
    for attempt in (lambda: ensemble(**options), lambda: ensemble().invoke("Why?", **options)):
        with pytest.raises(UsageError) as error:
            attempt()
        assert message in str(error.value)
        assert error.value.__notes__[0].startswith("-> ")


ASSIGNED = [
    *(one for one in WRONG if "temprature" not in one[0]),
    ({"members": None}, "members must be a list"),
    ({"verifiers": "Qwen/Qwen3-0.6B"}, "verifiers must be a list"),
    ({"at_once": 0}, "at_once must be a whole number of at least 1, got 0"),  # it would wait for ever
    ({"max_waiting": -1}, "max_waiting must be a whole number of at least 0, got -1"),
    ({"priority": 0.5}, "priority must be a whole number, got 0.5"),
    ({"memory_budget": "lots"}, "memory_budget must be a number of bytes"),
    ({"trace": "all"}, "trace must be one of 'off', 'summary', 'rounds', 'members', got 'all'"),
]


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream", "batch", "abatch"])
@pytest.mark.parametrize(("options", "message"), ASSIGNED, ids=lambda value: str(value)[:40])
async def test_a_wrong_choice_put_into_a_made_chat_model_is_told_at_the_question_in_the_same_words(
    ensemble: Any, options: dict[str, Any], message: str, way: str
) -> None:
    assigned, copied = ensemble(), ensemble().model_copy(update=options)
    for name, value in options.items():
        setattr(assigned, name, value)
    for llm in (assigned, copied):
        with pytest.raises(UsageError) as error:
            await asked(llm, way)
        assert message in str(error.value)
        assert error.value.__notes__[0].startswith("-> ")


def test_what_is_put_right_again_answers_again(ensemble: Any) -> None:
    llm = ensemble()
    llm.at_once = 0
    with pytest.raises(UsageError):
        llm.bind_tools([])
    llm.at_once = 1
    assert llm.invoke("Why?").text == BLUE


@pytest.mark.parametrize("name", sorted(HELD - {"members"}))
def test_none_put_into_a_made_chat_model_means_not_chosen(ensemble: Any, name: str) -> None:
    llm = ensemble()
    setattr(llm, name, None)
    assert llm.invoke("Why?").text == BLUE
    assert llm._now()[name] == type(llm).model_fields[name].get_default(call_default_factory=True)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("temprature", "temperature"),
        ("max_new_tokens", "max_tokens"),
        ("models", "members"),
        ("segment_len", "segment_tokens"),
        ("functions", "tools"),
    ],
)
def test_an_unknown_option_names_the_nearest(ensemble: Any, wrong: str, right: str) -> None:
    for attempt in (lambda: ensemble(**{wrong: 1}), lambda: ensemble().bind(**{wrong: 1}).invoke("Why?")):
        with pytest.raises(UsageError) as error:
            attempt()
        assert repr(right) in error.value.__notes__[0]


def test_a_chat_model_without_members_says_what_is_missing() -> None:
    with pytest.raises(UsageError, match="members must be a list"):
        SpecFuseChatModel()


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream", "batch", "abatch"])
async def test_every_way_of_asking_refuses_alike(ensemble: Any, way: str) -> None:
    with pytest.raises(UsageError, match="temperature"):
        await asked(ensemble(), way, temperature=-1)


def test_none_means_not_chosen(ensemble: Any) -> None:
    llm = ensemble(temperature=None, stop=None)
    assert (llm.temperature, llm.stop) == (0.0, None)
    assert llm.invoke("Why?", max_tokens=None, tools=None, tool_choice=None, stop=None).text == BLUE


@pytest.mark.parametrize("name", sorted(HELD - {"memory_budget"}))
def test_none_for_a_call_is_as_the_chat_model_has_it(ensemble: Any, name: str) -> None:
    made = {"max_waiting": 0, "at_once": 3, "priority": 2, "temperature": 0.5, "seed": 7, "top_p": 0.5, "timeout": 9.0}
    made |= {"preset": "specem", "stop": ["END"], "umpire": True, "prior": {"a": 2.0}, "trace": "off", "drafters": 1}
    llm = ensemble(**made)
    assert llm._chosen(None, {name: None} if name != "stop" else {})[name] == getattr(llm, name)


# --- right choices count wherever they are made -------------------------------------------------------------------


def test_a_choice_counts_in_the_constructor_in_bind_in_the_call_and_in_the_config(ensemble: Any) -> None:
    three = " ".join(BLUE.split()[:3])
    configurable = ensemble().configurable_fields(max_tokens=ConfigurableField(id="length"))
    assert ensemble(max_tokens=3).invoke("Why?").text == three
    assert ensemble().bind(max_tokens=3).invoke("Why?").text == three
    assert ensemble().invoke("Why?", max_tokens=3).text == three
    assert configurable.invoke("Why?", {"configurable": {"length": 3}}).text == three
    assert configurable.invoke("Why?").text == BLUE


def test_members_may_be_chosen_per_call(ensemble: Any) -> None:
    other = ScriptedMember("Something else.", name="other")
    answer = ensemble().invoke("Why?", members=[other])
    assert answer.text == "Something else."
    assert answer.response_metadata["model_name"] == "other"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ("mean_logprob", "published", "studentized", True)),
        ({"preset": "specfuse"}, ("mean_prob", "off", "studentized", False)),
        ({"preset": "specem"}, ("mean_prob", "published", "never", False)),
        ({"preset": "specem", "exit": "fixed", "loop_guard": True}, ("mean_prob", "published", "fixed", True)),
    ],
)
def test_what_is_chosen_goes_over_what_the_preset_says(options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    llm = SpecFuseChatModel(members=["example/a"], **options)
    from langchain_specfuse._options import settings

    method = settings(llm._chosen(None, {}))
    assert (method.score, method.feedback, method.exit, method.loop_guard) == expected


def test_a_prior_decides_who_is_heard_first() -> None:
    members = [ScriptedMember("left is right", name="a"), ScriptedMember("right is left", name="b")]
    llm = SpecFuseChatModel(members=members, feedback="off")
    assert llm.invoke("?").text == "left is right"
    assert llm.invoke("?", prior={"b": 3.0}).text == "right is left"


def test_standard_parameters_for_traces_follow_the_call(ensemble: Any) -> None:
    llm = ensemble(temperature=0.3, stop=["x"])
    params = llm._get_ls_params(stop=["y"], max_tokens=9)
    assert params == {
        "ls_provider": "specfuse",
        "ls_model_name": "a+b",
        "ls_model_type": "chat",
        "ls_temperature": 0.3,
        "ls_max_tokens": 9,
        "ls_stop": ["x", "y"],
    }
    assert ensemble(model="fused").invoke("Why?").response_metadata["model_name"] == "fused"
    assert llm.metadata["lc_versions"]["langchain-specfuse"]


def test_every_public_error_is_a_specfuse_error() -> None:
    import langchain_specfuse

    errors = [getattr(langchain_specfuse, name) for name in langchain_specfuse.__all__ if name.endswith("Error")]
    assert len(errors) >= 7
    assert all(issubclass(error, SpecFuseError) for error in errors)
