"""Members check their arguments when they are created, and errors name what was expected."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from langchain_specfuse import UsageError
from langchain_specfuse.members.arguments import checked

Rate = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Price = Annotated[Sequence[Rate], Field(min_length=2, max_length=2, description="in dollars")]


class Example:
    @checked(elsewhere={"threads": "set OMP_NUM_THREADS"})
    def __init__(
        self,
        model: str,
        *,
        count: Annotated[int, Field(ge=1)] = 8,
        layers: int | Literal["auto"] = "auto",
        timeout: Annotated[float, Field(gt=0, lt=100)] = 60.0,
        price: Price | None = None,
        options: Mapping[str, Any] | None = None,
        api_key: str | None = None,
    ) -> None:
        self.given = (model, count, layers, timeout, price, options, api_key)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"count": 0}, ["count", "whole number", "at least 1", "got 0"]),
        ({"count": True}, ["count", "got True"]),
        ({"count": "8"}, ["count", "got '8'"]),
        ({"layers": "all"}, ["layers", "whole number or 'auto'", "got 'all'"]),
        ({"timeout": float("nan")}, ["timeout", "number above 0", "got nan"]),
        ({"timeout": True}, ["timeout", "got True"]),
        ({"price": (1, -1)}, ["price", "two numbers of at least 0", "got -1", "in dollars"]),
        ({"price": (1, 2, 3)}, ["price", "two numbers", "got (1, 2, 3)"]),
        ({"price": (1, float("inf"))}, ["price", "got inf"]),
        ({"options": 3}, ["options", "a dict or None", "got 3"]),
        ({"model": 3}, ["model", "a string", "got 3"]),
        ({"threads": 2}, ["Example", "'threads'", "set OMP_NUM_THREADS"]),
        ({"cuont": 2}, ["Example", "'cuont'", "did you mean 'count'?"]),
        ({"colour": 2}, ["Example", "'colour'", "arguments are model, count, layers"]),
    ],
    ids=str,
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(UsageError) as error:
        Example(**{"model": "m", **arguments})
    text = str(error.value)
    assert [word for word in words if word not in text] == []
    assert not any("pydantic" in line for line in traceback.format_exception(error.value))


def test_arguments_that_are_missing_or_too_many_are_refused() -> None:
    with pytest.raises(UsageError, match=r"Example.*missing.*'model'"):
        Example()  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"Example.*too many"):
        Example("m", 3)  # type: ignore[call-arg]
    with pytest.raises(UsageError, match=r"multiple values.*'model'"):
        Example("m", model="m")  # type: ignore[misc]


def test_valid_arguments_are_passed_on_and_the_signature_stays() -> None:
    options = {"a": [1]}
    example = Example("m", count=2, timeout=1, price=[0.5, 1], options=options)
    assert example.given == ("m", 2, "auto", 1.0, [0.5, 1.0], options, None)
    parameters = inspect.signature(Example).parameters
    assert list(parameters)[:3] == ["model", "count", "layers"]
    assert str(parameters["count"]) == "count: int = 8", "without pydantic's field"


def test_an_error_in_the_body_is_not_reported_as_a_wrong_argument() -> None:
    class Inner(BaseModel):
        number: int

    class Outer:
        @checked()
        def __init__(self, number: Any) -> None:
            Inner(number=number)

    with pytest.raises(ValueError, match="number") as error:
        Outer("x")
    assert not isinstance(error.value, UsageError)
