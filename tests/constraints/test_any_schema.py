"""Whatever a schema, a pattern or a choice is made of: it is kept on both sides, or refused in words.

*On both sides*: what the referee lets through is right, and what is right, written as members must write it, is let
through. Who judges is another library each time: ``jsonschema``, ``re``, Python's own ``in``.
"""

from __future__ import annotations

import copy
import json
import random
import re
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from langchain_specfuse.constraints import check, referee_for
from langchain_specfuse.constraints._keywords import ANYWHERE, OF_TYPE, SILENT
from langchain_specfuse.constraints._kinds import KINDS
from langchain_specfuse.constraints._referee import bytewise
from langchain_specfuse.constraints._schema import plain
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError
from tests.torture.texts import broken, cut, places_in

from .schemas import BY_HAND, made
from .walks import assert_satisfies, json_schema, walk

KNOWN = sorted(ANYWHERE | SILENT | frozenset().union(*OF_TYPE.values()))
SET = [word for word in KNOWN if word not in ("$id", "$schema", "$anchor", "$dynamicAnchor")]
"""Names of schemas are read by the judge, and only by it."""
words = st.text(st.characters(exclude_categories=["Cc", "Cs"], include_characters="\n\t\r\b\f"), max_size=8)
"""Control characters without a letter of their own have several spellings in JSON."""
scraps = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(width=16)
    | broken
    | st.sampled_from(["string", "object", "^a", "#"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(SET) | broken, inner, max_size=3),
    max_leaves=6,
)


def refused(constraint: Constraint) -> str:
    """Why it cannot work; empty if it can."""
    try:
        check(constraint)
    except UsageError as raised:
        error = raised
    else:
        return ""
    assert str(error)
    return str(error)


def through(constraint: Constraint, text: str) -> bool:
    """Whether this may be a whole answer."""
    referee = referee_for(constraint)
    return referee.legal("", text) == len(text) and referee.may_end(text)


# --- schemas that are right -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """A schema, and a value that satisfies it, its keys in the schema's order."""

    schema: Any
    value: Any


numbers = st.integers(-2000, 2000)
decimals = st.integers(-(10**5), 10**5).filter(lambda n: n % 100).map(lambda n: n / 100)
"""Written without an exponent, and no integer to anybody."""


@st.composite
def simple(draw: Any) -> Pair:
    kind = draw(
        st.sampled_from(["string", "short", "integer", "bounded", "number", "boolean", "null", "enum", "const"])
    )
    if kind in ("string", "short"):
        value = draw(words)
        bounds = {"minLength": draw(st.integers(0, len(value))), "maxLength": len(value) + draw(st.integers(0, 3))}
        return Pair({"type": "string", **(bounds if kind == "short" else {})}, value)
    if kind == "bounded":
        low, middle, high = sorted(draw(st.tuples(numbers, numbers, numbers)))
        return Pair({"type": "integer", "minimum": low, "maximum": high}, middle)
    if kind in ("enum", "const"):
        value = draw(words | numbers | st.booleans() | st.none())
        others = draw(st.lists(words | numbers, max_size=3))
        return Pair({"const": value} if kind == "const" else {"enum": [*others, value]}, value)
    values = {"integer": numbers, "number": numbers | decimals, "boolean": st.booleans(), "null": st.none()}
    return Pair({"type": kind}, draw(values[kind]))


@st.composite
def arrays(draw: Any, inner: Any) -> Pair:
    one = draw(inner)
    values = [one.value] * draw(st.integers(0, 3))
    more = {"minItems": draw(st.integers(0, len(values))), "maxItems": len(values) + draw(st.integers(0, 2))}
    return Pair({"type": "array", "items": one.schema, **(more if draw(st.booleans()) else {})}, values)


@st.composite
def objects(draw: Any, inner: Any) -> Pair:
    pairs = draw(st.dictionaries(words, inner, max_size=3))
    required = [name for name in pairs if draw(st.booleans())]
    there = [name for name in pairs if name in required or draw(st.booleans())]
    schema = {"type": "object", "properties": {name: one.schema for name, one in pairs.items()}}
    schema |= {"required": required, "additionalProperties": False}
    return Pair(schema, {name: pairs[name].value for name in there})


@st.composite
def unions(draw: Any, inner: Any) -> Pair:
    one, other = draw(inner), draw(inner)
    return Pair({"anyOf": draw(st.permutations([one.schema, other.schema]))}, one.value)


@st.composite
def referred(draw: Any, inner: Any) -> Pair:
    one = draw(inner)
    schema = {"type": "array", "items": {"$ref": "#/$defs/It"}, "$defs": {"It": one.schema}}
    return Pair(schema, [one.value]) if "$ref" not in json.dumps(one.schema) else one


pairs = st.recursive(
    simple(), lambda inner: st.one_of(arrays(inner), objects(inner), unions(inner)), max_leaves=6
).flatmap(lambda pair: referred(st.just(pair)) | st.just(pair))


@st.composite
def neighbours(draw: Any, value: Any) -> Any:
    """Another value beside this one: a part of it exchanged, added or left out."""
    if isinstance(value, dict) and value and draw(st.booleans()):
        name = draw(st.sampled_from(list(value)))
        if draw(st.booleans()):
            return {key: one for key, one in value.items() if key != name}
        return {key: draw(neighbours(one)) if key == name else one for key, one in value.items()}
    if isinstance(value, list) and value and draw(st.booleans()):
        at = draw(st.integers(0, len(value) - 1))
        return [*value[:at], draw(neighbours(value[at])), *value[at + 1 :], *value[at : draw(st.integers(at, at + 2))]]
    return draw(
        st.sampled_from([{}, [], [value], {"a": value}]) | words | numbers | decimals | st.none() | st.booleans()
    )


def valid(schema: Any, value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@given(pairs, st.lists(st.integers(0, 10**6), max_size=3))
def test_what_satisfies_a_schema_is_let_through_in_any_pieces(pair: Pair, places: list[int]) -> None:
    assert valid(pair.schema, pair.value)
    constraint, text = json_schema(pair.schema), written(pair.value)
    assert not refused(constraint)
    referee, answer = referee_for(constraint), ""
    for piece in cut(text, places):
        assert referee.legal(answer, piece) == len(piece)
        answer += piece
        assert_satisfies(answer + referee.closing(answer), pair.schema)
    assert referee.may_end(text)


@given(st.data(), pairs)
def test_a_value_is_let_through_just_if_it_satisfies_the_schema(data: Any, pair: Pair) -> None:
    value = data.draw(neighbours(pair.value))
    assert through(json_schema(pair.schema), written(value)) == valid(pair.schema, value)


@given(st.integers(0, 60), st.sampled_from([0.25, 0.5, 2.5, 5]), st.booleans(), st.booleans())
def test_every_multiple_within_open_or_closed_bounds_can_be_written(
    n: int, step: Any, above: bool, below: bool
) -> None:
    low, high = 0, 20 * step
    bounds = {"exclusiveMinimum" if above else "minimum": low, "exclusiveMaximum" if below else "maximum": high}
    schema = {"type": "number", "multipleOf": step, **bounds}
    value = n * step
    digits = len(str(step).partition(".")[2])
    assert through(json_schema(schema), f"{value:.{digits}f}") == valid(schema, value)


# --- schemas that may be anything -------------------------------------------------------------------------------


@st.composite
def spoiled(draw: Any) -> Any:
    """A schema with something wrong in it, or only something else."""
    if draw(st.integers(0, 9)) == 0:
        return draw(scraps)
    seed = draw(st.integers(0, 10**6))
    schema = copy.deepcopy(BY_HAND[seed % len(BY_HAND)] if draw(st.booleans()) else made(random.Random(seed)))
    for _ in range(draw(st.integers(1, 2))):
        holder, key = draw(st.sampled_from(list(places_in(schema)) or [(schema, "type")]))
        if isinstance(holder, dict) and draw(st.booleans()):
            key = draw(st.sampled_from(SET) | broken)
        holder[key] = draw(scraps)
    return schema


@example({"type": "object", "propertyNames": True, "additionalProperties": {"type": "boolean"}}, 0)
@example({"type": "object", "propertyNames": False, "additionalProperties": {"type": "boolean"}}, 0)
@example({"type": "object", "propertyNames": {}, "additionalProperties": {"type": "boolean"}}, 0)
@example({"type": "object", "propertyNames": {"type": "integer"}, "additionalProperties": {"type": "boolean"}}, 0)
@example({"type": "object", "propertyNames": {"enum": [[], "y"]}, "additionalProperties": {"type": "boolean"}}, 0)
@example(
    {
        "type": "object",
        "propertyNames": {"enum": ["a", "b"], "const": "a"},
        "additionalProperties": {"type": "boolean"},
    },
    0,
)
@example({"anyOf": [{"$ref": "0"}, {"type": "null"}]}, 0)
@example({"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}, 0)
@given(spoiled(), st.integers(0, 10**6))
def test_any_schema_is_kept_or_refused_in_words(schema: Any, seed: int) -> None:
    constraint = json_schema(schema)
    if refused(constraint):
        return
    text = walk(bytewise().grammar(constraint).start(), random.Random(seed), most=40).decode("utf-8", "ignore")
    whole = text + referee_for(constraint).closing(text)
    json.loads(whole)
    try:
        jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator).check_schema(schema)
    except (jsonschema.SchemaError, re.error):
        return  # there is no judge of a schema that is none
    assert_satisfies(whole, schema)


@given(st.integers(0, 10**6), st.text("abcdefgXYZ$-", min_size=1, max_size=12), scraps)
def test_a_word_that_nobody_knows_is_refused_by_its_place(seed: int, word: str, value: Any) -> None:
    assume(word not in KNOWN and not word.startswith("x-"))
    schema = made(random.Random(seed))
    name = sorted(schema["properties"])[seed % len(schema["properties"])]
    for holder, path in ((schema, "schema"), (schema["properties"][name], f"schema.properties.{name}")):
        holder[word] = value
        assert f"{path}.{word} cannot be kept" in refused(json_schema(schema))
        del holder[word]
        holder[f"x-{word}"] = value
        holder["description"] = "whatever"
        assert plain(schema, "schema") == plain(made(random.Random(seed)), "schema")


bodies = broken | scraps.map(json.dumps) | st.lists(broken, max_size=3).map(json.dumps)


@given(st.sampled_from(KINDS) | broken, bodies)
def test_any_constraint_is_kept_or_refused_in_words(kind: str, body: str) -> None:
    refused(Constraint(kind, body))


# --- patterns and choices ---------------------------------------------------------------------------------------

letters = st.sampled_from([*"abcxyz019 -_.,:/\"'\\+*?()[]{}|^$#&~@", "é", "ß", "天", "😀", "ש"])
atoms = letters.map(re.escape) | st.sampled_from(["[a-c]", "[^a-c]", "[0-9]", "[é天-]", ".", "[\\]a]", "(?:)"])


def built(inner: Any) -> Any:
    groups = st.sampled_from(["({})", "(?:{})"])
    often = st.sampled_from(["?", "*", "+", "{2}", "{0,2}", "{1,}"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.tuples(inner, often).map(lambda told: f"(?:{told[0]}){told[1]}"),
        st.lists(inner, min_size=1, max_size=3).map(lambda told: f"(?:{'|'.join(told)})"),
        st.tuples(groups, inner).map(lambda told: told[0].format(told[1])),
    )


patterns = st.recursive(atoms, built, max_leaves=6)
lines = st.lists(letters, max_size=5).map("".join)


BEHIND = (  # each with what it has to end with
    ("a.*x", "ax"), (r"(?s:.)*end", "end"), (r"https?://.*\.com/.*\.txt", ".txt"), (r"(?:.*foo.*bar){2}", "bar"),
    (r".*[xyz][0-4]!", "x0!"), (r".*\d{4}-\d\d.*", "0000-00"), (r"(a|b)*abb", "abb"), (r".{40,}end", "end"),
    (r"[A-Z].{30,}\.", "."), (r"a{3}.*b{3}.*c", "bbbc"),
)  # fmt: skip


@pytest.mark.parametrize(("pattern", "end"), BEHIND)
def test_a_way_out_is_found_though_its_words_lie_behind_anything_at_all(pattern: str, end: str) -> None:
    constraint = Constraint("regex", pattern)
    assert not refused(constraint)
    found = referee_for(constraint).closing("")
    assert found.endswith(end) and re.fullmatch(pattern, found)


@given(st.data(), patterns)
def test_a_pattern_lets_through_just_what_it_matches(data: Any, pattern: str) -> None:
    constraint = Constraint("regex", pattern)
    if refused(constraint):
        assert re.fullmatch(pattern, "") and not any(re.fullmatch(pattern, one) for one in "abcx09.é天😀")
        return
    like = data.draw(st.from_regex(pattern, fullmatch=True, alphabet=st.characters(exclude_categories=["Cc", "Cs"])))
    referee = referee_for(constraint)
    for text in (like, data.draw(lines), like + data.draw(lines), like[1:]):
        assert through(constraint, text) == bool(re.fullmatch(pattern, text)), text
        legal = text[: referee.legal("", text)]
        assert re.fullmatch(pattern, legal + referee.closing(legal))


@given(patterns, lines)
def test_a_pattern_of_a_string_lets_through_just_what_it_finds(pattern: str, text: str) -> None:
    schema = {"type": "string", "pattern": f"^(?:{pattern})$"}
    if not refused(json_schema(schema)):
        assert through(json_schema(schema), written(text)) == bool(re.fullmatch(pattern, text))


choices = st.lists(words | lines, min_size=1, max_size=5)


@example(["\\"], "0", 0)
@example(["\\n", "b"], "0", 0)
@given(choices, words | lines, st.integers(0, 9))
def test_a_choice_lets_through_just_its_texts(texts: list[str], other: str, count: int) -> None:
    constraint = Constraint("choice", written(texts))
    assert bool(refused(constraint)) == (not any(texts))
    if not any(texts):
        return
    referee = referee_for(constraint)
    for text in (*texts, other, texts[0] + other, texts[0][:count]):
        assert through(constraint, text) == (text in texts)
        legal = text[: referee.legal("", text)]
        assert any(one.startswith(legal) for one in texts)
        assert legal == text or not any(one.startswith(text[: len(legal) + 1]) for one in texts)
        assert legal + referee.closing(legal) in texts
        assert referee.must_end(legal) == (
            legal in texts and not any(one != legal and one.startswith(legal) for one in texts)
        )
