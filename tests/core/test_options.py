"""Options of the method and of an answer are defined once, and all checks derive from them."""

from typing import Literal, get_args, get_origin

import pytest

from langchain_specfuse.core.options import METHODS, Method, Settings, parsed
from langchain_specfuse.errors import UsageError

OPTIONS = [(model, name) for model in (Method, Settings) for name in model.model_fields]
each = pytest.mark.parametrize(("model", "name"), OPTIONS, ids=lambda value: str(value)[:40])


@each
def test_a_wrong_value_or_text_is_an_error_with_what_was_given_and_what_to_do(model, name):
    errors = []
    for value in (-1, 0.5, True, float("nan"), [7], {"a": "x"}, object()):
        try:
            model(**{name: value})
        except UsageError as error:
            errors.append(error)
    assert len(errors) >= 4
    for error in errors:
        assert name in str(error)
        assert "got " in str(error) or name == "method"  # its own options are refused by name
        assert error.notes[0].startswith("-> ")
        assert error.__suppress_context__  # pydantic's error would quote the value
    if name not in ("stop", "lead", "checks"):
        with pytest.raises(UsageError, match=f"{name} must"):
            parsed(model, name, "{nonsense}")


@each
def test_a_default_is_valid_and_can_be_read_from_text(model, name):
    value = getattr(model(), name)
    assert getattr(model(**{name: value}), name) == value
    if name not in ("method", "checks", "verifiers"):
        assert parsed(model, name, str(value).lower()) == value


@pytest.mark.parametrize("name", Method.model_fields)
def test_all_choices_of_the_method_can_be_read_from_text(name):
    annotation = Method.model_fields[name].annotation
    choices = get_args(annotation) if get_origin(annotation) is Literal else ()
    for choice in (True, False) if annotation is bool else choices:
        assert parsed(Method, name, str(choice).lower()) == choice


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [("margin", "inf", float("inf")), ("margin", "none", None), ("learning_rate", "1e-3", 0.001)],
)
def test_numbers_are_read_from_text(name, text, value):
    assert parsed(Method, name, text) == value


@pytest.mark.parametrize(("name", "text"), [("learning_rate", "1e999"), ("sure", "none")])
def test_text_that_is_not_a_value_is_refused(name, text):
    with pytest.raises(UsageError, match=f"{name} must be"):
        parsed(Method, name, text)


def advice_for(**wrong):
    with pytest.raises(UsageError) as raised:
        Method.named("robust", **wrong)
    return list(raised.value.notes)


def test_typos_get_advice_only_where_something_is_close():
    assert advice_for(learnin_rate=1.0) == ["-> did you mean 'learning_rate'?"]
    assert advice_for(score="mean_logprobs") == ["-> did you mean 'mean_logprob'?"]
    assert advice_for(num_predict=5) == [f"-> the options are {', '.join(Method.model_fields)}"]
    with pytest.raises(
        UsageError, match=r"method.*'robust', 'specfuse', 'specem' or a Method"
    ) as raised:
        Method.named("specfuze")
    assert raised.value.notes == ("-> did you mean 'specfuse'?",)


def test_named_methods_take_changes_and_list_their_differences():
    published = {
        "score": "mean_prob",
        "weighting": "equal",
        "reward": "wins",
        "margin": None,
        "min_members": 1,
        "loop_guard": False,
    }
    assert METHODS["robust"].changes == {}
    assert METHODS["specfuse"].changes == {**published, "learning_rate": 0.0}
    assert METHODS["specem"].changes == {**published, "learning_rate": 1.0, "exit": "never"}
    changed = Method.named("specem", learning_rate=2.0)
    assert changed.changes == {**METHODS["specem"].changes, "learning_rate": 2.0}
    assert Method(**changed.changes) == changed


def test_a_method_is_frozen_and_can_be_a_key():
    with pytest.raises(ValueError, match="frozen"):
        Method().score = "mean_prob"
    keys = {Method(): 1, Method(prior={"a": 2.0}, verifiers=["b"]): 2}
    assert keys[Method.named("robust")] == 1
    assert keys[Method(verifiers=["b"], prior={"a": 2.0})] == 2
