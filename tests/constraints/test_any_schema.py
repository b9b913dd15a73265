"""Any schema, pattern or choice that is accepted is enforced, and any other is refused with a reason.

*Exactly*: whatever the referee accepts is valid, and whatever is valid, in the required spelling,
is accepted. Another library decides each time: ``jsonschema``, ``re``, or Python's ``in``.
"""

from __future__ import annotations

import copy
import json
import random
import re
from typing import Any

import jsonschema
from hypothesis import example, given
from hypothesis import strategies as st

from langchain_specfuse.constraints import check, fault, referee_for
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError
from tests.torture.texts import broken, cut, places_in

from .schemas import BY_HAND, random_object
from .walks import BYTES, json_schema, walk

SET = [
    "type",
    "enum",
    "const",
    "$ref",
    "allOf",
    "anyOf",
    "oneOf",
    "properties",
    "required",
    "additionalProperties",
    "patternProperties",
    "propertyNames",
    "minProperties",
    "maxProperties",
    "items",
    "prefixItems",
    "minItems",
    "maxItems",
    "uniqueItems",
    "minLength",
    "maxLength",
    "pattern",
    "format",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
    "title",
    "default",
    "discriminator",
    "$defs",
    "not",
    "if",
    "unheardOf",
]
words = st.text(
    st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t\r\b\f"), max_size=8
)
"""Control characters without a short escape have several spellings in JSON."""
scraps = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(width=16)
    | broken
    | st.sampled_from(["string", "object", "^a", "#"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(SET) | broken, inner, max_size=3)
    ),
    max_leaves=6,
)


def refused(constraint: Constraint) -> str:
    """Return the reason why the constraint cannot be enforced, or ""."""
    try:
        check(constraint)
    except UsageError as raised:
        error = raised
    else:
        return ""
    assert str(error)
    return str(error)


def through(constraint: Constraint, text: str) -> bool:
    """Return whether the referee accepts this text as a whole answer."""
    referee = referee_for(constraint)
    return referee.legal("", text) == len(text) and referee.may_end(text)


# --- valid schemas --------------------------------------------------------------------------------


numbers = st.integers(-2000, 2000)
decimals = st.integers(-(10**5), 10**5).filter(lambda n: n % 100).map(lambda n: n / 100)
"""Numbers without an exponent that no library reads as integers."""
values = st.recursive(
    words | numbers | decimals | st.booleans() | st.none(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=6,
)
TYPES = {
    bool: "boolean",
    type(None): "null",
    str: "string",
    int: "integer",
    float: "number",
    list: "array",
}


@st.composite
def describing(draw: Any, value: Any) -> Any:
    """Draw a schema that this value satisfies, with its keys in the schema's order."""
    schema: dict[str, Any] = {"type": TYPES.get(type(value), "object")}
    slack = draw(st.integers(0, 3))
    if isinstance(value, dict):
        schema |= {
            "properties": {key: draw(describing(inner)) for key, inner in value.items()},
            "additionalProperties": False,
        }
        schema["properties"] |= {
            key: {} for key in draw(st.lists(words, max_size=1)) if key not in value
        }
        schema["required"] = [key for key in value if draw(st.booleans())]
    elif isinstance(value, list):
        items = [draw(describing(inner)) for inner in value]
        schema |= {"items": {"anyOf": items}} if items else {}
        if draw(st.booleans()):
            schema |= {"minItems": max(len(value) - slack, 0), "maxItems": len(value) + slack}
    elif isinstance(value, str):
        schema |= {"minLength": max(len(value) - slack, 0), "maxLength": len(value) + slack}
    elif type(value) is int:
        schema |= {"minimum": value - slack, "maximum": value + 100 * slack}
    how = draw(st.sampled_from(["as it is", "as it is", "constant", "union"]))
    if how == "constant" and not isinstance(value, dict | list):
        return draw(st.sampled_from([{"const": value}, {"enum": ["x", 7, value]}]))
    return {"anyOf": draw(st.permutations([schema, {"const": 0}]))} if how == "union" else schema


@st.composite
def pairs(draw: Any) -> tuple[Any, Any]:
    """Draw a schema, possibly behind a reference, and a value that satisfies it."""
    value = draw(values)
    schema = draw(describing(value))
    if draw(st.booleans()):
        return schema, value
    return {"type": "array", "items": {"$ref": "#/$defs/It"}, "$defs": {"It": schema}}, [value]


@st.composite
def neighbours(draw: Any, value: Any) -> Any:
    """Draw a value that differs from this one in a part that is replaced, added or removed."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(list(value)))
        if draw(st.booleans()):
            return {key: inner for key, inner in value.items() if key != name}
        return {
            key: draw(neighbours(inner)) if key == name else inner for key, inner in value.items()
        }
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [
            *value[:at],
            draw(neighbours(value[at])),
            *value[at + 1 :],
            *value[at : draw(st.integers(at, at + 2))],
        ]
    return draw(
        st.sampled_from([{}, [], [value], {"a": value}])
        | words
        | numbers
        | decimals
        | st.none()
        | st.booleans()
    )


def valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(pairs(), st.lists(st.integers(0, 10**6), max_size=3))
def test_a_value_that_satisfies_a_schema_is_accepted_in_any_pieces(
    pair: tuple[Any, Any], places: list[int]
) -> None:
    assert valid(*pair)
    constraint, text = json_schema(pair[0]), written(pair[1])
    assert not refused(constraint)
    referee, answer = referee_for(constraint), ""
    for piece in cut(text, places):
        assert referee.legal(answer, piece) == len(piece)
        answer += piece
    assert referee.may_end(text)


@given(st.data(), pairs())
def test_a_value_is_accepted_exactly_if_it_satisfies_the_schema(
    data: Any, pair: tuple[Any, Any]
) -> None:
    value = data.draw(neighbours(pair[1]))
    assert through(json_schema(pair[0]), written(value)) == valid(pair[0], value)


# --- arbitrary schemas ----------------------------------------------------------------------------


@st.composite
def spoiled(draw: Any) -> Any:
    """Draw a schema in which something is changed, perhaps into something invalid."""
    if draw(st.integers(0, 9)) == 0:
        return draw(scraps)
    seed = draw(st.integers(0, 10**6))
    schema = copy.deepcopy(
        BY_HAND[seed % len(BY_HAND)] if draw(st.booleans()) else random_object(random.Random(seed))
    )
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.sampled_from(list(places_in(schema)) or [(schema, "type")]))
        if isinstance(holder, dict) and draw(st.booleans()):
            key = draw(st.sampled_from(SET) | broken)
        holder[key] = draw(scraps)
    return schema


@example({"type": "object", "propertyNames": False, "additionalProperties": {"type": "boolean"}}, 0)
@example(
    {
        "type": "object",
        "propertyNames": {"type": "integer"},
        "additionalProperties": {"type": "boolean"},
    },
    0,
)
@example(
    {
        "type": "object",
        "propertyNames": {"enum": [[], "y"]},
        "additionalProperties": {"type": "boolean"},
    },
    0,
)
@example(
    {
        "type": "object",
        "propertyNames": {"enum": ["a", "b"], "const": "a"},
        "additionalProperties": {},
    },
    0,
)
@example({"anyOf": [{"$ref": "0"}, {"type": "null"}]}, 0)
@given(spoiled(), st.integers(0, 10**6))
def test_any_schema_is_refused_with_a_reason_or_its_answers_are_json_that_is_checked(
    schema: Any, seed: int
) -> None:
    constraint = json_schema(schema)
    if refused(constraint):
        return
    data, whole = walk(BYTES.grammar(constraint).start(), random.Random(seed), most=40)
    if whole:
        assert isinstance(fault(json.dumps(schema), json.loads(data)), str)


# --- patterns and choices -------------------------------------------------------------------------

letters = st.sampled_from([*"abcxyz019 -_.,:/\"'\\+*?()[]{}|^$#&~@", "é", "ß", "天", "😀", "ש"])
atoms = letters.map(re.escape) | st.sampled_from(
    ["[a-c]", "[^a-c]", "[0-9]", "[é天-]", ".", "[\\]a]", "(?:)"]
)


def built(inner: Any) -> Any:
    groups = st.sampled_from(["({})", "(?:{})"])
    often = st.sampled_from(["?", "*", "+", "{2}", "{0,2}", "{1,}"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, often).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.lists(inner, min_size=1, max_size=3).map(lambda many: f"(?:{'|'.join(many)})"),
        st.tuples(groups, inner).map(lambda pair: pair[0].format(pair[1])),
    )


patterns = st.recursive(atoms, built, max_leaves=6)
lines = st.lists(letters, max_size=5).map("".join)


@given(st.data(), patterns)
def test_a_pattern_accepts_exactly_what_it_matches(data: Any, pattern: str) -> None:
    constraint = Constraint("regex", pattern)
    if refused(constraint):
        assert re.fullmatch(pattern, "") and not any(
            re.fullmatch(pattern, character) for character in "abcx09.é天😀"
        )
        return
    like = data.draw(
        st.from_regex(
            pattern, fullmatch=True, alphabet=st.characters(exclude_categories=["Cc", "Cs"])
        )
    )
    string = json_schema({"type": "string", "pattern": f"^(?:{pattern})$"})
    for text in (like, data.draw(lines), like + data.draw(lines), like[1:]):
        assert through(constraint, text) == bool(re.fullmatch(pattern, text)), text
        assert through(string, written(text)) == bool(re.fullmatch(pattern, text)), text


choices = st.lists(words | lines, min_size=1, max_size=5).filter(any)


@example(["\\"], "0", 0)
@example(["\\n", "b"], "0", 0)
@given(choices, words | lines, st.integers(0, 9))
def test_a_choice_accepts_exactly_its_texts(texts: list[str], other: str, count: int) -> None:
    constraint = Constraint("choice", written(texts))
    assert not refused(constraint)
    referee = referee_for(constraint)
    for text in (*texts, other, texts[0] + other, texts[0][:count]):
        assert through(constraint, text) == (text in texts)
        legal = text[: referee.legal("", text)]
        assert any(choice.startswith(legal) for choice in texts)
        assert legal == text or not any(
            choice.startswith(text[: len(legal) + 1]) for choice in texts
        )
        assert referee.must_end(legal) == (
            legal in texts
            and not any(choice != legal and choice.startswith(legal) for choice in texts)
        )
