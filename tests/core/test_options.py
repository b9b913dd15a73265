"""The options of the method: one definition, from which checks and the command line follow."""

import dataclasses

import pytest

from langchain_specfuse.core.options import METHODS, Method, options
from langchain_specfuse.errors import UsageError

each = pytest.mark.parametrize(("name", "option"), options().items(), ids=options())


def test_every_field_is_an_option_with_its_default():
    assert list(options()) == [field.name for field in dataclasses.fields(Method)]
    assert {name: option.default for name, option in options().items()} == dataclasses.asdict(
        Method()
    )


@each
def test_defaults_and_choices_pass_their_own_check_and_are_read_from_text(name, option):
    for value in (option.default, *option.choices):
        option.check(name, value)
        read = option.read(name, str(value).lower())
        assert (read == value and type(read) is type(value)) or (
            option.type is float and float(read) == value
        )
        assert getattr(Method(**{name: read}), name) == value


def error_of(name, value):
    try:
        Method(**{name: value})
    except UsageError as error:
        return error


@each
def test_a_wrong_value_or_text_is_an_error_that_names_the_option(name, option):
    for value in (None, "", "nonsense", -1, 0.5, 3, True, float("nan"), float("inf"), [], {"a": 1}):
        number = (
            isinstance(value, int | float) and option.least is not None and value >= option.least
        )
        if error := error_of(name, value):
            assert str(error) == f"{name} must be {option.wanted}, got {value!r}"
            assert error.__notes__[0].startswith("-> ")
        else:
            assert number or value in option.choices or (value is None and option.optional)
    for text in ("", "nonsense", "-1", "nan", "[]", *([] if option.endless else ["1e999"])):
        with pytest.raises(UsageError, match=f"^{name} must be "):
            option.read(name, text)


def test_typos_get_advice_only_where_something_is_close():
    def notes(**wrong):
        with pytest.raises(UsageError) as raised:
            Method.named("robust", **wrong)
        return raised.value.__notes__

    assert notes(learnin_rate=1.0) == ["-> did you mean 'learning_rate'?"]
    assert notes(score="mean_logprobs") == ["-> did you mean 'mean_logprob'?"]
    assert notes(num_predict=5) == [f"-> the options are {', '.join(options())}"]
    with pytest.raises(
        UsageError, match="method must be one of 'robust', 'specfuse', 'specem' or a Method"
    ) as raised:
        Method.named("specfuze")
    assert raised.value.__notes__ == ["-> did you mean 'specfuse'?"]


def test_named_methods_take_changes_and_list_their_differences():
    published = {
        "score": "mean_prob",
        "weighting": "equal",
        "reward": "wins",
        "learning_rate": 1.0,
        "margin": None,
        "min_members": 1,
        "loop_guard": False,
    }
    assert METHODS["robust"].changes == {}
    assert METHODS["specfuse"].changes == {**published, "feedback": "off"}
    assert METHODS["specem"].changes == {**published, "exit": "never"}
    changed = Method.named("specem", learning_rate=2.0)
    assert changed.changes == {**METHODS["specem"].changes, "learning_rate": 2.0}
    assert Method(**changed.changes) == changed
