"""JSON schemas, rewritten so that llguidance's own JSON compiler enforces them.

Parts that no grammar can express are left out of the rewritten schema and listed, so that the
caller can refuse the schema, or check finished values against the whole schema (``validation``).
Leaving out a part only allows more values: every value that the schema and its closed objects allow
can be written.

llguidance alone enforces 238 of the 240 schemas of ``tests/constraints/schemas.py`` (table in
``docs/log.md``). This module rewrites, weakens or refuses the schemas that it gets wrong, refuses,
or cannot finish:

- unknown keywords are left out: llguidance ignores a misspelt ``minimun``;
- objects are closed unless the schema says otherwise: small models keep inventing keys;
- references that never end are refused: the answer would be ``{"n": {"n": {"n": `` and so on;
- ``nullable``, ``propertyNames``, ``unevaluatedProperties``: OpenAPI, and pydantic's ``dict[Color,
  int]``;
- ``oneOf`` of references, and tagged unions that are recursive or whose tag has a default
  (pydantic);
- formats that only describe the content (``path``), and formats whose values pydantic refuses (leap
  seconds);
- bounds beyond 64 bits, and constants that llguidance would write as other values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..errors import UsageError, advised


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


OF_TYPE = {
    "object": _set(
        "properties required additionalProperties patternProperties propertyNames minProperties "
        "maxProperties "
        "unevaluatedProperties"
    ),
    "array": _set("items prefixItems additionalItems minItems maxItems uniqueItems"),
    "string": _set("minLength maxLength pattern format"),
    "number": _set("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
}
"""The keywords that say something about one type of value."""
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
KEYWORDS = frozenset(("type", "enum", "const", "nullable", *COMBINING)).union(*OF_TYPE.values())
ANNOTATIONS = _set(
    "title description default examples example deprecated readOnly writeOnly $comment $schema $id "
    "$anchor $defs "
    "definitions discriminator strict xml externalDocs contentMediaType contentEncoding "
    "contentSchema"
)
"""They do not change which values are valid; nor does anything that begins with ``x-``."""
LARGEST = 9 * 10**18
"""llguidance counts in 64 bits."""
EXACT = 2**53
"""llguidance reads numbers as floats: beyond this it would write another number."""
_UNWRITABLE = re.compile("[\x00-\x07\x0b\x0e-\x1f\x7f]")
"""Characters that JSON writes as ``\\u00XX`` only; llguidance drops them from constants."""

_HOUR = r"(?:[01][0-9]|2[0-3])"
_TIME = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]{{1,6}})?(?:Z|[+-]{_HOUR}:[0-5][0-9])"
_LEAP_YEAR = "(?:[1-9][0-9](?:0[48]|[2468][048]|[13579][26])|(?:[2468][048]|[13579][26])00)"
_DATE = (
    "(?:[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_CLOCK = "(?:[0-9]{1,3}H(?:[0-9]{1,2}M)?(?:[0-9]{1,2}S)?|[0-9]{1,3}M(?:[0-9]{1,2}S)?|[0-9]{1,3}S)"
_LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
_EMAIL = (
    rf"[A-Za-z0-9]+(?:[._+-][A-Za-z0-9]+){{0,4}}@{_LABEL}(?:\.{_LABEL}){{0,3}}\.[A-Za-z]{{2,12}}"
)
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": f"P(?:[0-9]{{1,3}}W|[0-9]{{1,4}}D(?:T{_CLOCK})?|T{_CLOCK})",
    "email": _EMAIL,
    "idn-email": _EMAIL,
    "uri": r"https?://[A-Za-z0-9](?:[A-Za-z0-9.-]{0,60}[A-Za-z0-9])?(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~/-]*)?"
    r"(?:\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?",
}
"""Of 600 random values of llguidance's own formats pydantic refuses 2 dates, 83 times, 103
date-times and 177 durations (leap days, leap seconds, 20 digits); its URIs are no ``HttpUrl`` and
its e-mail addresses no ``EmailStr``."""
_SAME_FORMAT = {
    **dict.fromkeys(
        ("ipv4network", "ipv4interface", "ipvanyaddress", "ipvanynetwork", "ipvanyinterface"),
        "ipv4",
    ),
    **dict.fromkeys(("ipv6network", "ipv6interface"), "ipv6"),
}
"""pydantic's names; a single address is a network, and has an interface."""
_KNOWN_FORMATS = _set("hostname ipv4 ipv6 uuid")
_SUBJECTS = _set(
    "password binary byte base64 base64url path file-path directory-path json-string regex color "
    "text string "
    "multi-line html markdown int32 int64 uint32 uint64 float double decimal"
)
"""Formats that describe the content of a string or the storage of a number, not how a string is
written."""


class LeftOut(NamedTuple):
    """A part of a schema that the grammar does not enforce."""

    where: str
    """The name of the whole schema."""
    path: str
    message: str
    advice: str

    def error(self) -> UsageError:
        return advised(UsageError(self.message), self.advice)


class Prepared(NamedTuple):
    """A schema for llguidance."""

    schema: Any
    left_out: tuple[LeftOut, ...]
    """The parts in the order of the given schema; empty if nothing was left out."""


def prepared(schema: Any, where: str, error_of: Callable[[Any], str]) -> Prepared:
    """The schema for llguidance. ``UsageError`` if it is impossible, or not a schema.

    ``error_of`` returns llguidance's error for a schema, or "".
    """
    rewriter = _Rewriter(schema, where, error_of)
    root, definitions = rewriter.schema(schema, where), rewriter.definitions
    if isinstance(root, bool):
        root = {"anyOf": [root]}
    if error_of({**root, "$defs": definitions}):
        rewriter.weaken()
    if error := error_of({**root, "$defs": definitions}):
        raise rewriter.refused(error, where)
    finite: set[str] = set()
    while more := {
        name for name, one in definitions.items() if name not in finite and _ends(one, finite)
    }:
        finite |= more
    endless = [name for name in definitions if name not in finite]
    if endless := [*([] if _ends(root, finite) else [where]), *endless]:
        raise _impossible(
            f"{endless[0]} is impossible: it refers to itself without end, so no value is ever "
            "complete"
        )
    left_out = {one.path: one for one in reversed(rewriter.left_out)}
    return Prepared({**root, "$defs": definitions}, tuple(reversed(left_out.values())))


def _impossible(message: str) -> UsageError:
    return advised(UsageError(message), "fix the schema: no answer can satisfy it")


def _unsupported(
    message: str, advice: str = "leave it out of the schema, and check the value yourself"
) -> UsageError:
    return advised(UsageError(message), advice)


class _Rewriter:
    """Rewrites one schema and collects the definitions that it refers to.

    ``is_part``: the schema is one of several that hold for the same value, so that its objects may
    not be closed.
    """

    def __init__(self, root: Any, where: str, error_of: Callable[[Any], str]) -> None:
        self._root = root
        self._where = where
        self._error_of = error_of
        self._names: dict[tuple[str, bool, str], str] = {}
        self._rewritten: list[tuple[str, Any]] = []
        """Every schema with its path, the innermost first."""
        self.definitions: dict[str, Any] = {}
        self.left_out: list[LeftOut] = []

    def _leave_out(
        self,
        path: str,
        message: str,
        advice: str = "leave it out of the schema, and check the value yourself",
    ) -> None:
        self.left_out.append(LeftOut(self._where, path, message, advice))

    def schema(self, given: Any, path: str, is_part: bool = False) -> Any:
        if isinstance(given, bool):
            return given
        if not isinstance(given, dict):
            raise _unsupported(
                f"{path} is not a JSON schema: {str(given)[:200]}", 'for example {"type": "string"}'
            )
        words = self._known(given, path)
        nullable = words.pop("nullable", False) is True and bool(words)
        if words.keys() & set(COMBINING):
            found = self._combined(words, path, is_part)
        else:
            found = self._typed(words, path, is_part)
        self._rewritten.append((path, found))
        return {"anyOf": [found, {"type": "null"}]} if nullable else found

    def _known(self, given: dict[str, Any], path: str) -> dict[str, Any]:
        """The keywords that say which values are valid."""
        words = {
            word: one
            for word, one in given.items()
            if word not in ANNOTATIONS and not word.startswith("x-")
        }
        unknown = {word: words.pop(word) for word in sorted(words.keys() - KEYWORDS)}
        for word in unknown:
            place = f"{path}.{word:.80}"
            self._leave_out(place, f"{place} is not supported: a grammar cannot express it")
        if unknown and isinstance(words.get("properties"), dict):
            # The object is closed, so properties that only a condition names must be allowed here.
            names = self._conditional(unknown, path)
            words["properties"] = {**words["properties"], **names, **words["properties"]}
        return words

    def _conditional(self, words: dict[str, Any], path: str) -> dict[str, bool]:
        """The names of the properties in conditional schemas."""
        names: dict[str, bool] = {}
        for one in _conditions(words):
            self._name_all(one, path, names, names, set())
        return names

    def refused(self, error: str, where: str) -> UsageError:
        """What to raise for llguidance's error, with the path of the innermost schema that causes
        it."""
        for path, one in self._rewritten:
            found = self._error_of({**one, "$defs": self.definitions})
            # "required property 'a' is ..."
            inner = "is unsatisfiable" in error and "Unsatisfiable" in found
            if found and (inner or found in error):
                where, error = path, found
                break
        _, unsatisfiable, why = error.partition("Unsatisfiable schema: ")
        if unsatisfiable:
            return _impossible(
                f"{where} is impossible: {why.replace('anyOf is', 'enum or anyOf is'):.300}"
            )
        return _unsupported(
            f"{where} is not supported: {error:.300}", "fix the schema, or leave this part out"
        )

    # --- what llguidance refuses ------------------------------------------------------------------

    def weaken(self) -> None:
        """Leave out what llguidance refuses, the innermost schemas first.

        Schemas without inner schemas come first: through a reference, one of them can make an
        earlier schema fail.
        """
        leaves = [one for one in self._rewritten if not _holds_others(one[1])]
        for path, found in (*leaves, *self._rewritten):
            error = self._refusal(found)
            if not error:
                continue
            kept = next((one for one in self._weaker(found) if not self._refusal(one)), None)
            if kept is None:
                continue
            if "patternProperties" in found.keys() - kept.keys():
                kept["additionalProperties"] = True  # else what matches could not be written
            dropped = [word for word in found if word not in kept]
            for place in [f"{path}.{word}" for word in dropped] or [path]:
                advice = "fix the schema, or leave this part out"
                self._leave_out(place, f"{path} is not supported: {error:.300}", advice)
            found.clear()
            found.update(kept)

    def _refusal(self, schema: Any) -> str:
        """llguidance's error for this schema; "" if it accepts the schema or finds that no value
        satisfies it."""
        if not isinstance(schema, dict):
            return ""
        error = self._error_of({**schema, "$defs": self.definitions})
        return "" if "nsatisfiable" in error else error

    def _weaker(self, found: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Schemas that allow more, the closest first; the last one allows everything."""
        kind = {"type": found["type"]} if "type" in found else {}
        if self._refusal(kind):
            kind = {}
        others = {word: one for word, one in found.items() if word != "type"}
        inner = {word: one for word, one in others.items() if _holds_others({word: one})}
        yield kind | {
            word: one for word, one in others.items() if not self._refusal({**kind, word: one})
        }
        for word in sorted(others, key=lambda word: word in inner):
            yield kind | {key: one for key, one in others.items() if key != word}
        yield kind | inner
        parts = _list(found.get("allOf"))
        for size in range(len(parts) - 1, 0, -1):
            yield {**found, "allOf": parts[:size]}
        yield kind
        yield {}

    # --- schemas that hold together ---------------------------------------------------------------

    def _combined(self, words: dict[str, Any], path: str, is_part: bool) -> Any:
        """References and combinations. Their parts hold together with the keywords beside them, so
        that no part may be closed alone: first come the names of all properties, in their order,
        which close the whole."""
        parts: list[Any] = []
        if len(words) > 1 or len(_list(words.get("allOf"))) > 1:
            names: dict[str, bool] = {}
            required: dict[str, bool] = {}
            if (
                not is_part
                and not self._name_all(words, path, names, required, set())
                and (names or required)
            ):
                parts.append({"properties": {**names, **required}, "additionalProperties": False})
            is_part = True
        if own := {word: value for word, value in words.items() if word not in COMBINING}:
            parts.append(self._typed(own, path, is_part))
        if "$ref" in words:
            parts.append({"$ref": self._reference(words["$ref"], path, is_part)})
        if "allOf" in words:
            parts += self._listed(words["allOf"], f"{path}.allOf", is_part)
        if "anyOf" in words:
            # pydantic's Decimal is a number, or a string whose pattern has a look-ahead, which
            # llguidance refuses
            readable = [one for one in _list(words["anyOf"]) if not self._is_unreadable(one)]
            parts.append(
                {"anyOf": self._listed(readable or words["anyOf"], f"{path}.anyOf", is_part)}
            )
        if "oneOf" in words and (tag := self._tag(_list(words["oneOf"]), path)):
            parts.append(
                {"anyOf": [self._tagged(one, tag, path, is_part) for one in words["oneOf"]]}
            )
        elif "oneOf" in words:
            parts.append({"anyOf": self._exclusive(words["oneOf"], f"{path}.oneOf", is_part)})
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def _listed(self, given: Any, path: str, is_part: bool) -> list[Any]:
        if not isinstance(given, list) or not given:
            raise _unsupported(
                f"{path} must be a list of schemas, got {str(given)[:200]}", "fix the schema"
            )
        return [self.schema(one, f"{path}[{at}]", is_part) for at, one in enumerate(given)]

    def _tag(self, alternatives: list[Any], path: str) -> str:
        """The property whose constants distinguish the alternatives ("" if there is none)."""
        schemas = [
            self._target(one["$ref"], path) if _is_reference(one) else one for one in alternatives
        ]
        described = [one.get("properties") if isinstance(one, dict) else None for one in schemas]
        properties = [one for one in described if isinstance(one, dict)]
        for name in properties[0] if properties and len(properties) == len(schemas) else ():
            values = [_constants(one.get(name)) for one in properties]
            if all(values) and len(frozenset().union(*values)) == sum(map(len, values)):
                return str(name)
        return ""

    def _tagged(self, one: Any, tag: str, path: str, is_part: bool) -> Any:
        """An alternative that must have its tag: pydantic wants to read it, even if it has a
        default."""
        if _is_reference(one):
            return {"$ref": self._reference(one["$ref"], path, is_part, tag)}
        return self.schema({**one, "required": [*_list(one.get("required")), tag]}, path, is_part)

    def _exclusive(self, given: Any, path: str, is_part: bool) -> list[Any]:
        """Alternatives of which no value satisfies two. Checked against the open ones: closed ones
        may exclude each other where the given ones do not."""
        found, opened = self._listed(given, path, is_part), self._listed(given, path, True)
        for one, other in (
            (found[i], opened[j]) for i in range(len(found)) for j in range(len(found)) if i != j
        ):
            # Beside another keyword llguidance looks behind references to see whether alternatives
            # exclude each other.
            pair = {"oneOf": [one, other], "required": [], "$defs": self.definitions}
            if "oneOf constraints are not supported" in self._error_of(pair):
                self._leave_out(
                    path,
                    f"{path} is not supported here: a value could satisfy two of its alternatives",
                    "use anyOf, or give each alternative its own constant",
                )
                break
        return found

    def _is_unreadable(self, schema: Any) -> bool:
        pattern = schema.get("pattern") if isinstance(schema, dict) else None
        return (
            isinstance(pattern, str)
            and self._error_of({"type": "string", "pattern": pattern}) != ""
        )

    def _name_all(
        self,
        words: Any,
        path: str,
        names: dict[str, bool],
        required: dict[str, bool],
        seen: set[str],
    ) -> bool:
        """Add the properties of all parts; True if one part says itself what other properties may
        be."""
        if not isinstance(words, dict):
            return False
        names |= dict.fromkeys(_strings(words.get("properties")), True)
        required |= dict.fromkeys(_strings(words.get("required")), True)
        inner = [one for word in ("allOf", "anyOf", "oneOf") for one in _list(words.get(word))]
        inner += _conditions(words)
        if "$ref" in words and str(words["$ref"]) not in seen:
            seen.add(str(words["$ref"]))
            inner.insert(0, self._target(words["$ref"], path))
        says = bool(words.keys() & {"additionalProperties", "patternProperties", "propertyNames"})
        says |= words.get("unevaluatedProperties", False) is not False
        return says or any(self._name_all(one, path, names, required, seen) for one in inner)

    # --- schemas of one value ---------------------------------------------------------------------

    def _typed(self, words: dict[str, Any], path: str, is_part: bool) -> Any:
        """A schema without references and combinations. A missing type is inferred from the
        keywords."""
        if words.keys() & {"enum", "const"}:
            return self._constant(words, path)
        kinds = words.get("type") or [kind for kind, its in OF_TYPE.items() if its & words.keys()]
        kinds = kinds[0] if isinstance(kinds, list) and len(kinds) == 1 else kinds
        if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
            return {"anyOf": [self._typed(_of_kind(words, kind), path, is_part) for kind in kinds]}
        found = {**words, "type": kinds} if kinds else dict(words)
        kind = kinds if isinstance(kinds, str) else ""
        if kind == "object":
            self._object(found, path, is_part)
        elif kind == "array":
            self._array(found, path)
        elif kind == "string" and "format" in found:
            self._format(found, path)
        elif kind in ("number", "integer"):
            self._bound(found, path)
        return found

    def _constant(self, words: dict[str, Any], path: str) -> dict[str, Any]:
        words = {word: one for word, one in words.items() if word != "format"}
        for word in sorted(words.keys() & (OF_TYPE["object"] | OF_TYPE["array"])):
            self._leave_out(
                f"{path}.{word}",
                f"{path}.{word} beside an enum is not supported",
                f"remove the values that {word} forbids from the enum",
            )
            del words[word]
        values = [*_list(words.get("enum")), *([words["const"]] if "const" in words else [])]
        inexact = [value for value in values if not _exact(value)]
        if not inexact:
            return words
        self._leave_out(
            path,
            f"{path} allows {inexact[0]!r:.80}, which is not supported: a different value would be "
            "written",
            "write numbers beyond 2**53 as strings, and leave control characters out",
        )
        rest = {word: one for word, one in words.items() if word not in ("enum", "const")}
        exact = [value for value in values if _exact(value)]
        kinds = dict.fromkeys(_type_of(value) for value in inexact)
        allowed: list[dict[str, Any]] = [{"enum": exact}] if exact else []
        return {**rest, "anyOf": [*allowed, *({"type": kind} for kind in kinds)]}

    def _object(self, found: dict[str, Any], path: str, is_part: bool) -> None:
        unevaluated = found.pop("unevaluatedProperties", True)
        if unevaluated is not True and not (is_part and unevaluated is False):
            found.setdefault("additionalProperties", unevaluated)
        for word in ("properties", "patternProperties"):
            if isinstance(inner := found.get(word), dict):
                found[word] = {
                    name: self.schema(one, f"{path}.{word}.{name}") for name, one in inner.items()
                }
        if "additionalProperties" in found:
            others = found["additionalProperties"]
            found["additionalProperties"] = self.schema(others, f"{path}.additionalProperties")
        if "propertyNames" in found:
            self._property_names(found, path)
        says = found.keys() & {"additionalProperties", "patternProperties"}
        if not is_part and not says and isinstance(found.get("properties"), dict):
            required = [
                name for name in _strings(found.get("required")) if name not in found["properties"]
            ]
            found["properties"] |= dict.fromkeys(required, True)
            found["additionalProperties"] = False
        low, needed = found.get("minProperties", 0), len(_list(found.get("required")))
        is_open = found.get("additionalProperties") is not False or "patternProperties" in found
        if is_open and isinstance(low, int) and low - needed > 1:
            self._leave_out(
                f"{path}.minProperties",
                f"{path}.minProperties {low} is not supported: the same key could be written twice",
            )
            del found["minProperties"]

    def _property_names(self, found: dict[str, Any], path: str) -> None:
        """``propertyNames`` as ``properties`` (of an enum) or ``patternProperties``."""
        names = found.pop("propertyNames")
        if isinstance(names, dict) and "$ref" in names:  # an enum class
            names = self._target(names["$ref"], path)
        names = (
            {}
            if names is True
            else self._known(names, path)
            if isinstance(names, dict)
            else {"enum": []}
        )
        values = found.get("additionalProperties", True)
        if str(names.get("format")) in FORMATS:
            names["pattern"] = f"^(?:{FORMATS[names.pop('format')]})$"
        if names.keys() <= {"type"}:
            return
        if not found.keys() & {"patternProperties"} and names.keys() <= {"type", "enum", "const"}:
            allowed = _strings(names.get("enum", [names.get("const")]))
            given = found.get("properties", {})
            found["properties"] = {name: given.get(name, values) for name in allowed}
        elif not found.keys() & {"patternProperties", "properties"} and names.keys() <= {
            "type",
            "pattern",
        }:
            found["patternProperties"] = {names["pattern"]: values}
        else:
            self._leave_out(
                f"{path}.propertyNames",
                f"{path}.propertyNames is not supported beside these keywords",
            )
            found.setdefault("additionalProperties", True)
            return
        found["additionalProperties"] = False

    def _array(self, found: dict[str, Any], path: str) -> None:
        if found.pop("uniqueItems", False) is True and found.get("maxItems") not in (0, 1):
            self._leave_out(
                f"{path}.uniqueItems",
                f"{path}.uniqueItems is not supported: a grammar does not remember earlier items",
                "use a list instead of a set, and remove duplicates yourself",
            )
        for word in ("items", "additionalItems", "prefixItems"):
            if inner := _list(found.get(word)):  # items may be a list in drafts up to 2019
                found[word] = self._listed(inner, f"{path}.{word}", False)
            elif isinstance(found.get(word), dict):
                found[word] = self.schema(found[word], f"{path}.{word}")

    def _format(self, found: dict[str, Any], path: str) -> None:
        format = str(found.pop("format"))
        format = _SAME_FORMAT.get(format, format)
        if format in FORMATS:
            found["allOf"] = [{"type": "string", "pattern": f"^(?:{FORMATS[format]})$"}]
        elif format in _KNOWN_FORMATS:
            found["format"] = format
        elif format not in _SUBJECTS:
            self._leave_out(
                f"{path}.format",
                f"{path}.format {format!r:.80} is not supported",
                f"one of {', '.join(FORMATS)}; or none",
            )

    def _bound(self, found: dict[str, Any], path: str) -> None:
        """Narrow the bounds of numbers to the range that llguidance supports."""
        for word in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            bound, inwards = found.get(word), 1 if "inimum" in word else -1
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                continue
            if bound * inwards > LARGEST:
                self._leave_out(
                    f"{path}.{word}",
                    f"{path}.{word} {str(bound)[:30]} is not supported: it is beyond {LARGEST}",
                )
                del found[word]
                continue
            found[word] = bound = max(bound * inwards, -LARGEST) * inwards
            if isinstance(bound, int) and (int(float(bound)) - bound) * inwards < 0:
                found[word] = int(math.nextafter(float(bound), inwards * math.inf))

    # --- references -------------------------------------------------------------------------------

    def _reference(self, reference: Any, path: str, is_part: bool, tag: str = "") -> str:
        """The reference to the rewritten definition."""
        target = self._target(reference, path)
        if tag:
            target = {**target, "required": [*_list(target.get("required")), tag]}
        if (reference, is_part, tag) not in self._names:
            name = re.sub(r"\W", "_", reference.rpartition("/")[2]) or "root"
            while name in self.definitions:
                name += "_"
            self._names[reference, is_part, tag], self.definitions[name] = name, True
            self.definitions[name] = self.schema(target, reference, is_part)
        return f"#/$defs/{self._names[reference, is_part, tag]}"

    def _target(self, reference: Any, path: str) -> Any:
        if not isinstance(reference, str) or not re.match(r"#(/|\Z)", reference):
            raise _unsupported(
                f"{path}.$ref {reference!r:.200} is not in this schema", "put it into $defs"
            )
        found = self._root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, ValueError, TypeError):
                message = f"{path}.$ref {reference!r:.200} is nowhere in this schema"
                raise _unsupported(message, "fix the reference") from None
        return found


def _is_reference(schema: Any) -> bool:
    """Whether a schema is just a reference, with annotations at most."""
    return isinstance(schema, dict) and schema.keys() & KEYWORDS == {"$ref"}


def _constants(schema: Any) -> frozenset[str]:
    """The only values that a schema allows."""
    values = (
        schema.get("enum", [schema["const"]] if "const" in schema else [])
        if isinstance(schema, dict)
        else []
    )
    return frozenset(map(json.dumps, _list(values)))


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list | dict) else []


def _conditions(words: dict[str, Any]) -> list[Any]:
    """The conditional schemas among these keywords. No grammar can express them."""
    found = [words[word] for word in ("if", "then", "else") if word in words]
    for word in ("dependentSchemas", "dependencies"):
        if isinstance(by_name := words.get(word), dict):
            found += by_name.values()
    return found


def _holds_others(schema: Any) -> bool:
    """Whether a schema contains or refers to other schemas."""
    inner = (*COMBINING, "properties", "patternProperties", "additionalProperties")
    return isinstance(schema, dict) and not schema.keys().isdisjoint(
        (*inner, "items", "prefixItems", "additionalItems")
    )


def _type_of(value: Any) -> str:
    """The type of a JSON value that is not null."""
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        return "array"
    if isinstance(value, str):
        return "string"
    return "integer" if isinstance(value, int) else "number"


def _of_kind(words: dict[str, Any], kind: Any) -> dict[str, Any]:
    """The keywords that say something about values of this type."""
    others = [its for name, its in OF_TYPE.items() if name != kind.replace("integer", "number")]
    return {word: one for word, one in words.items() if not any(word in its for its in others)} | {
        "type": kind
    }


def _exact(value: Any) -> bool:
    if isinstance(value, dict | list):
        return all(map(_exact, [*value, *value.values()] if isinstance(value, dict) else value))
    if isinstance(value, str):
        return not _UNWRITABLE.search(value)
    return not isinstance(value, int | float) or abs(value) <= EXACT


# --- what can be finished -------------------------------------------------------------------------


def _ends(schema: Any, finite: set[str]) -> bool:
    """Whether some value is ever complete, if those of the definitions in ``finite`` are."""
    if not isinstance(schema, dict):
        return schema is True
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2] in finite
    parts = [all(_ends(one, finite) for one in schema.get("allOf", ()))]
    parts += [
        any(_ends(one, finite) for one in schema[word])
        for word in ("anyOf", "oneOf")
        if word in schema
    ]
    if schema.get("type") == "object":
        named, others = schema.get("properties", {}), schema.get("additionalProperties", True)
        parts += [
            _ends(named.get(name, others), finite) for name in _strings(schema.get("required"))
        ]
    if schema.get("type") == "array":
        first = _list(schema.get("prefixItems", schema.get("items")))
        others = schema.get("items", True) if not isinstance(schema.get("items"), list) else True
        low = schema.get("minItems", 0)
        parts += [_ends(one, finite) for one in first[:low]] + [
            low <= len(first) or _ends(others, finite)
        ]
    return all(parts)
