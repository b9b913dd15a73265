"""Rewrite JSON schemas so that llguidance's JSON compiler enforces them.

Parts that no grammar can express are left out of the rewritten schema and listed. The caller can
refuse the schema, or check finished values against the whole schema (``validation``). Leaving out a
part only allows more values: every value that the schema and its closed objects allow can still be
written.

llguidance alone enforces 238 of the 240 schemas of ``tests/constraints/schemas.py``
(``docs/log.md``). This module handles the schemas that llguidance gets wrong, refuses or
cannot finish:

- unknown keywords are left out and listed, because llguidance ignores a misspelt ``minimun``;
- objects are closed unless the schema says otherwise, because small models keep inventing keys;
- references that never end are refused, because the answer would be ``{"n": {"n": {"n": `` and so
  on;
- ``nullable`` (OpenAPI), ``propertyNames`` (pydantic's ``dict[Color, int]``) and
  ``unevaluatedProperties`` are rewritten;
- ``oneOf`` of references is rewritten, and so are tagged unions that are recursive or whose tag has
  a default (pydantic);
- formats that only describe the content (``path``) are left out, and formats whose values pydantic
  refuses (leap seconds) are replaced by patterns;
- bounds beyond 64 bits, and constants that llguidance would write as other values, are weakened.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any, NamedTuple
from urllib.parse import unquote

from ..errors import UsageError, advised


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


OF_TYPE = {
    "object": _set(
        "properties required additionalProperties patternProperties propertyNames minProperties "
        "maxProperties unevaluatedProperties"
    ),
    "array": _set("items prefixItems additionalItems minItems maxItems uniqueItems"),
    "string": _set("minLength maxLength pattern format"),
    "number": _set("minimum maximum exclusiveMinimum exclusiveMaximum multipleOf"),
}
"""The keywords that apply to one type of value."""
COMBINING = ("$ref", "allOf", "anyOf", "oneOf")
KEYWORDS = frozenset(("type", "enum", "const", "nullable", *COMBINING)).union(*OF_TYPE.values())
WITH_SCHEMAS = _set(
    "properties patternProperties additionalProperties items prefixItems additionalItems"
).union(COMBINING)
"""The keywords whose values are schemas."""
ANNOTATIONS = _set(
    "title description default examples example deprecated readOnly writeOnly $comment $schema $id "
    "$anchor $defs definitions discriminator strict xml externalDocs contentMediaType "
    "contentEncoding contentSchema"
)
"""Keywords that do not affect which values are valid, as those that begin with ``x-``."""
LARGEST = 9 * 10**18
"""llguidance counts in 64 bits."""
EXACT = 2**53
"""llguidance reads numbers as floats. Beyond this, it would write another number."""
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
"""Patterns that replace llguidance's own formats. Of 600 random values of those, pydantic refuses
2 dates, 83 times, 103 date-times and 177 durations (leap days, leap seconds, 20 digits); the URIs
are not valid as ``HttpUrl``, nor the e-mail addresses as ``EmailStr``."""
_SAME_FORMAT = {
    **dict.fromkeys(
        ("ipv4network", "ipv4interface", "ipvanyaddress", "ipvanynetwork", "ipvanyinterface"),
        "ipv4",
    ),
    **dict.fromkeys(("ipv6network", "ipv6interface"), "ipv6"),
}
"""pydantic's names -> JSON schema's. A single address is also a network and an interface."""
_KNOWN_FORMATS = _set("hostname ipv4 ipv6 uuid")
_SUBJECTS = _set(
    "password binary byte base64 base64url path file-path directory-path json-string regex color "
    "text string multi-line html markdown int32 int64 uint32 uint64 float double decimal"
)
"""Formats that describe the content of a string or the storage of a number, not how a string is
written."""


MOST_ALTERNATIVES = 10_000
"""The most combinations of alternatives for one value that llguidance is given, because it writes
out every one."""


MOST_PATTERNS = 100
"""The most patterns for the keys of one object that llguidance is given. It excludes each from all
others, which takes 0.1 s for 100 patterns, 3 s for 200 and 18 s for 300."""
WIDE = 400
"""From this number of optional properties or alternatives of one value on, it is tried whether
llguidance can tell them apart. It gives up at about 500 optional properties."""


class LeftOut(NamedTuple):
    """A part of a schema that the grammar does not enforce."""

    where: str
    """The name of the whole schema."""
    path: str
    message: str
    advice: str

    def error(self) -> UsageError:
        return advised(UsageError(self.message), self.advice)


class RewrittenSchema(NamedTuple):
    """A schema for llguidance."""

    schema: Any
    left_out: tuple[LeftOut, ...]
    """The parts in the order of the original schema; empty if nothing was left out."""


def rewrite(
    schema: Any,
    where: str,
    error_of: Callable[[Any], str],
    gives_up: Callable[[Any, str], bool],
) -> RewrittenSchema:
    """The schema for llguidance. Raises ``UsageError`` if no value can satisfy it, or if it is not
    a schema.

    ``error_of`` returns llguidance's error for a schema, or "". ``gives_up`` says whether it gives
    up after this beginning of a value, because too much may follow.
    """

    def error_within_limits(schema: Any) -> str:
        if _alternatives(schema) > MOST_ALTERNATIVES:
            return f"it combines too many alternatives: more than {MOST_ALTERNATIVES}"
        if _patterns(schema) > MOST_PATTERNS:
            return f"an object has more than {MOST_PATTERNS} patternProperties"
        return error_of(schema)

    rewriter = _Rewriter(schema, where, error_within_limits)
    root = rewriter.schema(schema, where)
    definitions = rewriter.definitions
    if isinstance(root, bool):
        root = {"anyOf": [root]}
    if error_within_limits({**root, "$defs": definitions}):
        rewriter.weaken()
    error = error_within_limits({**root, "$defs": definitions})
    if error:
        raise rewriter.refused(error, where)
    finite = _finite_definitions(definitions)
    endless = [] if _ends(root, finite) else [where]
    endless += [name for name in definitions if name not in finite]
    if endless:
        raise _impossible(
            f"{endless[0]} is impossible: it refers to itself without end, so no value is ever "
            "complete"
        )
    rewriter.refuse_too_wide(gives_up)
    left_out = {part.path: part for part in reversed(rewriter.left_out)}
    return RewrittenSchema({**root, "$defs": definitions}, tuple(reversed(left_out.values())))


def _impossible(message: str) -> UsageError:
    return advised(UsageError(message), "fix the schema: no answer can satisfy it")


def _unsupported(
    message: str, advice: str = "leave it out of the schema, and check the value yourself"
) -> UsageError:
    return advised(UsageError(message), advice)


class _Rewriter:
    """Rewrites one schema and collects the definitions that it refers to.

    ``is_part`` means that the schema is one of several that apply to the same value, so that its
    objects must stay open.
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

    def schema(self, source: Any, path: str, is_part: bool = False) -> Any:
        """Rewrite a schema."""
        if isinstance(source, bool):
            return source
        if not isinstance(source, dict):
            message = f"{path} is not a JSON schema: {str(source)[:200]}"
            raise _unsupported(message, 'for example {"type": "string"}')
        words = self._known_words(source, path)
        nullable = words.pop("nullable", False) is True and bool(words)
        if words.keys() & set(COMBINING):
            rewritten = self._combined(words, path, is_part)
        else:
            rewritten = self._typed(words, path, is_part)
        self._rewritten.append((path, rewritten))
        return {"anyOf": [rewritten, {"type": "null"}]} if nullable else rewritten

    def _known_words(self, source: dict[str, Any], path: str) -> dict[str, Any]:
        """The keywords that decide which values are valid. Unknown ones are left out."""
        words = {
            word: value
            for word, value in source.items()
            if word not in ANNOTATIONS and not word.startswith("x-")
        }
        unknown = {word: words.pop(word) for word in sorted(words.keys() - KEYWORDS)}
        for word in unknown:
            place = f"{path}.{word:.80}"
            self._leave_out(place, f"{place} is not supported: a grammar cannot express it")
        if unknown and isinstance(words.get("properties"), dict):
            # The object will be closed, so allow the properties that only a condition names.
            names = self._conditional_properties(unknown, path)
            words["properties"] = {**words["properties"], **names, **words["properties"]}
        return words

    def _conditional_properties(self, words: dict[str, Any], path: str) -> dict[str, bool]:
        """The names of the properties in conditional schemas."""
        names: dict[str, bool] = {}
        for condition in _conditions(words):
            self._name_all(condition, path, names, names, set())
        return names

    def refused(self, error: str, where: str) -> UsageError:
        """The exception for llguidance's error. It names the innermost schema that causes it."""
        for path, schema in self._rewritten:
            inner_error = self._error_of({**schema, "$defs": self.definitions})
            if not inner_error:
                continue
            # "required property 'a' is unsatisfiable"
            explains = "is unsatisfiable" in error and "Unsatisfiable" in inner_error
            if explains or inner_error in error:
                where, error = path, inner_error
                break
        _, unsatisfiable, reason = error.partition("Unsatisfiable schema: ")
        if unsatisfiable:
            reason = reason.replace("anyOf is", "enum or anyOf is")
            return _impossible(f"{where} is impossible: {reason:.300}")
        return _unsupported(
            f"{where} is not supported: {error:.300}", "fix the schema, or leave this part out"
        )

    def refuse_too_wide(self, gives_up: Callable[[Any, str], bool]) -> None:
        """Refuse a value that may go on in so many ways that llguidance would give up in the middle
        of an answer."""
        for path, schema in self._rewritten:
            if not isinstance(schema, dict) or _width(schema) < WIDE:
                continue
            whole = {**schema, "$defs": self.definitions}
            # Together, the parts of a combination may have longer runs than each alone.
            run = _width(schema) if "allOf" in schema else _optional_run(schema)
            later = _after_required(run, schema.get("additionalProperties", True) is not False)
            if gives_up(whole, "{") or gives_up(later, '{"a": 0'):
                raise _unsupported(
                    f"{path} has too many optional properties or alternatives for a grammar: "
                    f"{_width(schema):,}; about 500 optional properties are possible, or 2,000 "
                    "alternatives",
                    "require properties that are always there, or split the schema into several",
                )

    # --- what llguidance refuses ------------------------------------------------------------------

    def weaken(self) -> None:
        """Leave out what llguidance refuses, the innermost schemas first.

        Schemas without inner schemas come first: through a reference, one of them can make an
        earlier schema fail.
        """
        leaves = [item for item in self._rewritten if not _holds_others(item[1])]
        for path, schema in (*leaves, *self._rewritten):
            error = self._refusal(schema)
            if not error:
                continue
            accepted = (weaker for weaker in self._weaker(schema) if not self._refusal(weaker))
            kept = next(accepted, None)
            if kept is None:
                continue
            if "patternProperties" in schema.keys() - kept.keys():
                # Without the patterns, the keys that match them would be forbidden.
                kept["additionalProperties"] = True
            dropped = [word for word in schema if word not in kept]
            for place in [f"{path}.{word}" for word in dropped] or [path]:
                advice = "fix the schema, or leave this part out"
                self._leave_out(place, f"{path} is not supported: {error:.300}", advice)
            schema.clear()
            schema.update(kept)

    def _refusal(self, schema: Any) -> str:
        """llguidance's error for this schema; "" if it accepts the schema or finds that no value
        satisfies it."""
        if not isinstance(schema, dict):
            return ""
        error = self._error_of({**schema, "$defs": self.definitions})
        return "" if "nsatisfiable" in error else error

    def _weaker(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Schemas that allow more, the closest first; the last one allows everything."""
        kind = {"type": schema["type"]} if "type" in schema else {}
        if self._refusal(kind):
            kind = {}
        others = {word: value for word, value in schema.items() if word != "type"}
        inner = {word: value for word, value in others.items() if _holds_others({word: value})}
        accepted = {
            word: value
            for word, value in others.items()
            if not self._refusal({**kind, word: value})
        }
        yield kind | accepted
        for dropped in sorted(others, key=lambda word: word in inner):
            yield kind | {word: value for word, value in others.items() if word != dropped}
        yield kind | inner
        parts = _list(schema.get("allOf"))
        for size in range(len(parts) - 1, 0, -1):
            yield {**schema, "allOf": parts[:size]}
        yield kind
        yield {}

    # --- references and combinations --------------------------------------------------------------

    def _combined(self, words: dict[str, Any], path: str, is_part: bool) -> Any:
        """References and combinations.

        Their parts apply together with the keywords beside them, so no part may be closed alone.
        The first part names all properties, in their order, and closes the whole object.
        """
        parts: list[Any] = []
        if len(words) > 1 or len(_list(words.get("allOf"))) > 1:
            names: dict[str, bool] = {}
            required: dict[str, bool] = {}
            closed = not is_part and not self._name_all(words, path, names, required, set())
            if closed and (names or required):
                parts.append({"properties": {**names, **required}, "additionalProperties": False})
            is_part = True
        beside = {word: value for word, value in words.items() if word not in COMBINING}
        if beside:
            parts.append(self._typed(beside, path, is_part))
        if "$ref" in words:
            parts.append({"$ref": self._reference(words["$ref"], path, is_part)})
        if "allOf" in words:
            parts += self._listed(words["allOf"], f"{path}.allOf", is_part)
        if "anyOf" in words:
            # pydantic's Decimal is a number, or a string whose pattern has a look-ahead, which
            # llguidance refuses.
            schemas = _list(words["anyOf"])
            readable = [schema for schema in schemas if not self._is_unreadable(schema)]
            alternatives = self._listed(readable or words["anyOf"], f"{path}.anyOf", is_part)
            parts.append({"anyOf": alternatives})
        if "oneOf" in words:
            parts.append({"anyOf": self._one_of(words["oneOf"], path, is_part)})
        return parts[0] if len(parts) == 1 else {"allOf": parts}

    def _listed(self, schemas: Any, path: str, is_part: bool) -> list[Any]:
        """Rewrite a list of schemas."""
        if not isinstance(schemas, list) or not schemas:
            message = f"{path} must be a list of schemas, got {str(schemas)[:200]}"
            raise _unsupported(message, "fix the schema")
        return [self.schema(schema, f"{path}[{at}]", is_part) for at, schema in enumerate(schemas)]

    def _one_of(self, alternatives: Any, path: str, is_part: bool) -> list[Any]:
        """Rewrite the alternatives of a ``oneOf``."""
        tag = self._tag(_list(alternatives), path)
        if tag:
            return [self._tagged(schema, tag, path, is_part) for schema in alternatives]
        return self._exclusive(alternatives, f"{path}.oneOf", is_part)

    def _tag(self, alternatives: list[Any], path: str) -> str:
        """The property whose constants distinguish the alternatives ("" if there is none)."""
        properties: list[dict[str, Any]] = []
        for schema in alternatives:
            if _is_reference(schema):
                schema = self._target(schema["$ref"], path)
            inner = schema.get("properties") if isinstance(schema, dict) else None
            if not isinstance(inner, dict):
                return ""
            properties.append(inner)
        for name in properties[0] if properties else ():
            values = [_constants(inner.get(name)) for inner in properties]
            if all(values) and len(frozenset().union(*values)) == sum(map(len, values)):
                return str(name)
        return ""

    def _tagged(self, schema: Any, tag: str, path: str, is_part: bool) -> Any:
        """An alternative with a required tag, because pydantic reads the tag even if it has a
        default."""
        if _is_reference(schema):
            return {"$ref": self._reference(schema["$ref"], path, is_part, tag)}
        required = [*_list(schema.get("required")), tag]
        return self.schema({**schema, "required": required}, path, is_part)

    def _exclusive(self, alternatives: Any, path: str, is_part: bool) -> list[Any]:
        """The alternatives of a ``oneOf``, which is left out if a value could satisfy two of them.

        Each one is compared with the open form of the others: closed objects may exclude each other
        although the original ones do not.
        """
        rewritten = self._listed(alternatives, path, is_part)
        opened = self._listed(alternatives, path, True)
        for first, second in permutations(range(len(rewritten)), 2):
            # With another keyword beside them, llguidance follows references to see whether
            # alternatives exclude each other.
            pair = {
                "oneOf": [rewritten[first], opened[second]],
                "required": [],
                "$defs": self.definitions,
            }
            if "oneOf constraints are not supported" in self._error_of(pair):
                self._leave_out(
                    path,
                    f"{path} is not supported here: a value could satisfy two of its alternatives",
                    "use anyOf, or give each alternative its own constant",
                )
                break
        return rewritten

    def _is_unreadable(self, schema: Any) -> bool:
        pattern = schema.get("pattern") if isinstance(schema, dict) else None
        if not isinstance(pattern, str):
            return False
        return self._error_of({"type": "string", "pattern": pattern}) != ""

    def _name_all(
        self,
        words: Any,
        path: str,
        names: dict[str, bool],
        required: dict[str, bool],
        seen: set[str],
    ) -> bool:
        """Add the properties of all parts to ``names`` and ``required``. Returns whether a part
        itself says which other properties are allowed."""
        if not isinstance(words, dict):
            return False
        names |= dict.fromkeys(_strings(words.get("properties")), True)
        required |= dict.fromkeys(_strings(words.get("required")), True)
        parts: list[Any] = []
        if "$ref" in words and str(words["$ref"]) not in seen:
            seen.add(str(words["$ref"]))
            parts.append(self._target(words["$ref"], path))
        for word in ("allOf", "anyOf", "oneOf"):
            parts += _list(words.get(word))
        parts += _conditions(words)
        if words.keys() & {"additionalProperties", "patternProperties", "propertyNames"}:
            return True
        if words.get("unevaluatedProperties", False) is not False:
            return True
        return any(self._name_all(part, path, names, required, seen) for part in parts)

    # --- schemas of one value ---------------------------------------------------------------------

    def _typed(self, words: dict[str, Any], path: str, is_part: bool) -> Any:
        """A schema without references and combinations. A missing type is inferred from the
        keywords."""
        if words.keys() & {"enum", "const"}:
            return self._constant(words, path)
        kinds = words.get("type")
        if not kinds:
            kinds = [kind for kind, keywords in OF_TYPE.items() if keywords & words.keys()]
        if isinstance(kinds, list) and len(kinds) == 1:
            kinds = kinds[0]
        if isinstance(kinds, list) and kinds and all(isinstance(kind, str) for kind in kinds):
            return {"anyOf": [self._typed(_of_kind(words, kind), path, is_part) for kind in kinds]}
        rewritten = {**words, "type": kinds} if kinds else dict(words)
        kind = kinds if isinstance(kinds, str) else ""
        if kind == "object":
            self._object(rewritten, path, is_part)
        elif kind == "array":
            self._array(rewritten, path)
        elif kind == "string" and "format" in rewritten:
            self._format(rewritten, path)
        elif kind in ("number", "integer"):
            self._bound(rewritten, path)
        return rewritten

    def _constant(self, words: dict[str, Any], path: str) -> dict[str, Any]:
        """Rewrite an ``enum`` or a ``const``."""
        words = {word: value for word, value in words.items() if word != "format"}
        for word in sorted(words.keys() & (OF_TYPE["object"] | OF_TYPE["array"])):
            self._leave_out(
                f"{path}.{word}",
                f"{path}.{word} beside an enum is not supported",
                f"remove the values that {word} forbids from the enum",
            )
            del words[word]
        values = list(_list(words.get("enum")))
        if "const" in words:
            values.append(words["const"])
        inexact = [value for value in values if not _exact(value)]
        if not inexact:
            return words
        self._leave_out(
            path,
            f"{path} allows {inexact[0]!r:.80}, which is not supported: a different value would be "
            "written",
            "write numbers beyond 2**53 as strings, and leave control characters out",
        )
        rest = {word: value for word, value in words.items() if word not in ("enum", "const")}
        exact = [value for value in values if _exact(value)]
        allowed: list[dict[str, Any]] = [{"enum": exact}] if exact else []
        allowed += [{"type": kind} for kind in dict.fromkeys(map(_type_of, inexact))]
        return {**rest, "anyOf": allowed}

    def _object(self, words: dict[str, Any], path: str, is_part: bool) -> None:
        """Rewrite the keywords of an object, in place."""
        unevaluated = words.pop("unevaluatedProperties", True)
        if unevaluated is not True and not (is_part and unevaluated is False):
            words.setdefault("additionalProperties", unevaluated)
        for word in ("properties", "patternProperties"):
            inner = words.get(word)
            if isinstance(inner, dict):
                words[word] = {
                    name: self.schema(schema, f"{path}.{word}.{name}")
                    for name, schema in inner.items()
                }
        if "additionalProperties" in words:
            others = words["additionalProperties"]
            words["additionalProperties"] = self.schema(others, f"{path}.additionalProperties")
        if "propertyNames" in words:
            self._property_names(words, path)
        decided = words.keys() & {"additionalProperties", "patternProperties"}
        if not is_part and not decided and isinstance(words.get("properties"), dict):
            for name in _strings(words.get("required")):
                words["properties"].setdefault(name, True)
            words["additionalProperties"] = False
        low = words.get("minProperties", 0)
        required = len(_list(words.get("required")))
        is_open = words.get("additionalProperties") is not False or "patternProperties" in words
        if is_open and isinstance(low, int) and low - required > 1:
            self._leave_out(
                f"{path}.minProperties",
                f"{path}.minProperties {low} is not supported: the same key could be written twice",
            )
            del words["minProperties"]

    def _property_names(self, words: dict[str, Any], path: str) -> None:
        """``propertyNames`` as ``properties`` (of an enum) or ``patternProperties``."""
        names = words.pop("propertyNames")
        if isinstance(names, dict) and "$ref" in names:  # an enum class
            names = self._target(names["$ref"], path)
        if names is True:
            names = {}
        elif isinstance(names, dict):
            names = self._known_words(names, path)
        else:
            names = {"enum": []}
        values = words.get("additionalProperties", True)
        if str(names.get("format")) in FORMATS:
            names["pattern"] = f"^(?:{FORMATS[names.pop('format')]})$"
        if names.keys() <= {"type"}:
            return
        listed = names.keys() <= {"type", "enum", "const"}
        matched = names.keys() <= {"type", "pattern"}
        if listed and "patternProperties" not in words:
            properties = words.get("properties", {})
            allowed = _strings(names.get("enum", [names.get("const")]))
            words["properties"] = {name: properties.get(name, values) for name in allowed}
        elif matched and not words.keys() & {"patternProperties", "properties"}:
            words["patternProperties"] = {names["pattern"]: values}
        else:
            self._leave_out(
                f"{path}.propertyNames",
                f"{path}.propertyNames is not supported beside these keywords",
            )
            words.setdefault("additionalProperties", True)
            return
        words["additionalProperties"] = False

    def _array(self, words: dict[str, Any], path: str) -> None:
        """Rewrite the keywords of an array, in place."""
        if words.pop("uniqueItems", False) is True and words.get("maxItems") not in (0, 1):
            self._leave_out(
                f"{path}.uniqueItems",
                f"{path}.uniqueItems is not supported: a grammar does not remember earlier items",
                "use a list instead of a set, and remove duplicates yourself",
            )
        for word in ("items", "additionalItems", "prefixItems"):
            inner = words.get(word)
            if isinstance(inner, list) and inner:  # items may be a list in drafts up to 2019
                words[word] = self._listed(inner, f"{path}.{word}", False)
            elif isinstance(inner, dict):
                words[word] = self.schema(inner, f"{path}.{word}")

    def _format(self, words: dict[str, Any], path: str) -> None:
        format = str(words.pop("format"))
        format = _SAME_FORMAT.get(format, format)
        if format in FORMATS:
            words["allOf"] = [{"type": "string", "pattern": f"^(?:{FORMATS[format]})$"}]
        elif format in _KNOWN_FORMATS:
            words["format"] = format
        elif format not in _SUBJECTS:
            self._leave_out(
                f"{path}.format",
                f"{path}.format {format!r:.80} is not supported",
                f"one of {', '.join(FORMATS)}; or none",
            )

    def _bound(self, words: dict[str, Any], path: str) -> None:
        """Narrow the bounds of numbers to the range that llguidance supports."""
        for word in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"):
            bound = words.get(word)
            inwards = 1 if "inimum" in word else -1
            if isinstance(bound, bool) or not isinstance(bound, int | float):
                continue
            if bound * inwards > LARGEST:
                self._leave_out(
                    f"{path}.{word}",
                    f"{path}.{word} {str(bound)[:30]} is not supported: it is beyond {LARGEST}",
                )
                del words[word]
                continue
            words[word] = bound = max(bound * inwards, -LARGEST) * inwards
            if isinstance(bound, int) and (int(float(bound)) - bound) * inwards < 0:
                words[word] = int(math.nextafter(float(bound), inwards * math.inf))

    # --- references -------------------------------------------------------------------------------

    def _reference(self, reference: Any, path: str, is_part: bool, tag: str = "") -> str:
        """Rewrite the definition that a reference refers to. Returns the new reference."""
        target = self._target(reference, path)
        if tag:
            target = {**target, "required": [*_list(target.get("required")), tag]}
        if (reference, is_part, tag) not in self._names:
            name = re.sub(r"\W", "_", reference.rpartition("/")[2]) or "root"
            while name in self.definitions:
                name += "_"
            # The name is reserved first, because the definition may refer to itself.
            self._names[reference, is_part, tag] = name
            self.definitions[name] = True
            self.definitions[name] = self.schema(target, reference, is_part)
        return f"#/$defs/{self._names[reference, is_part, tag]}"

    def _target(self, reference: Any, path: str) -> Any:
        if not isinstance(reference, str) or not re.match(r"#(/|\Z)", reference):
            raise _unsupported(
                f"{path}.$ref {reference!r:.200} is not in this schema", "put it into $defs"
            )
        schema = self._root
        for step in reference.split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                schema = schema[int(step)] if isinstance(schema, list) else schema[step]
            except (KeyError, IndexError, ValueError, TypeError):
                message = f"{path}.$ref {reference!r:.200} is nowhere in this schema"
                raise _unsupported(message, "fix the reference") from None
        return schema


def _alternatives(root: dict[str, Any]) -> int:
    """The most alternatives of a single value in a schema with its ``$defs``.

    >>> some = {"anyOf": [{"type": "string"}, {"type": "null"}, {"type": "number"}]}
    >>> _alternatives({"allOf": [some, {"$ref": "#/$defs/some"}], "$defs": {"some": some}})
    9
    """
    definitions = root.get("$defs", {})
    counts: dict[str, int] = {}
    most = 1

    def count(schema: Any) -> int:
        nonlocal most
        if not isinstance(schema, dict):
            return 1
        product = 1
        for word, value in schema.items():
            if word in ("anyOf", "oneOf"):
                product *= max(1, sum(map(count, _list(value))))
            elif word == "allOf":
                product *= math.prod(map(count, _list(value)))
            elif word == "$ref" and isinstance(value, str):
                product *= count_of(value.removeprefix("#/$defs/"))
            elif word in ("properties", "patternProperties"):
                for inner in value.values() if isinstance(value, dict) else ():
                    count(inner)
            elif word not in ("$defs", "const", "enum"):
                for inner in value if isinstance(value, list) else [value]:
                    count(inner)
            product = min(product, MOST_ALTERNATIVES + 1)
        most = max(most, product)
        return product

    def count_of(name: str) -> int:
        if name not in counts:
            counts[name] = 1  # a reference to itself adds no alternatives
            counts[name] = count(definitions.get(name))
        return counts[name]

    count(root)
    return most


def _width(schema: Any) -> int:
    """The number of optional properties and alternatives of one value, without its definitions.

    >>> _width({"properties": {"a": {}, "b": {}, "c": {}}, "allOf": [{"required": ["b"]}]})
    2
    """
    names: set[str] = set()
    required: set[str] = set()
    alternatives: list[Any] = []
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            names |= set(_strings(part.get("properties")))
            required |= set(_strings(part.get("required")))
            alternatives += _list(part.get("anyOf"))
            waiting += _list(part.get("allOf"))
    return len(names - required) + len(alternatives) + sum(map(_width, alternatives))


def _optional_run(schema: dict[str, Any]) -> int:
    """The most optional properties that follow one another after a required one.

    >>> properties = dict.fromkeys("abcdef", {})
    >>> _optional_run({"properties": properties, "required": ["b", "e"]})
    2
    """
    required = set(_strings(schema.get("required")))
    longest = 0
    run: int | None = None
    for name in _strings(schema.get("properties")):
        if name in required:
            run = 0
        elif run is not None:
            run += 1
            longest = max(longest, run)
    return longest


def _after_required(count: int, is_open: bool) -> dict[str, Any]:
    """An object with a required property that is followed by so many optional ones."""
    optional = {f"b{number}": True for number in range(count)}
    return {
        "type": "object",
        "properties": {"a": {"const": 0}, **optional},
        "required": ["a"],
        "additionalProperties": is_open,
    }


def _patterns(root: Any) -> int:
    """The most patterns for the keys of one object in a schema.

    >>> _patterns({"anyOf": [{"patternProperties": {"^a$": {}, "^b$": {}}}]})
    2
    """
    most = 0
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            waiting += value.values()
            most = max(most, len(_strings(value.get("patternProperties"))))
    return most


def _is_reference(schema: Any) -> bool:
    """Whether a schema consists of a reference, apart from annotations."""
    return isinstance(schema, dict) and schema.keys() & KEYWORDS == {"$ref"}


def _constants(schema: Any) -> frozenset[str]:
    """The only values that a schema allows."""
    if not isinstance(schema, dict):
        return frozenset()
    if "enum" in schema:
        return frozenset(map(json.dumps, _list(schema["enum"])))
    if "const" in schema:
        return frozenset({json.dumps(schema["const"])})
    return frozenset()


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _strings(value: Any) -> list[str]:
    if not isinstance(value, list | dict):
        return []
    return [item for item in value if isinstance(item, str)]


def _conditions(words: dict[str, Any]) -> list[Any]:
    """The conditional schemas among these keywords. No grammar can express them."""
    conditions = [words[word] for word in ("if", "then", "else") if word in words]
    for word in ("dependentSchemas", "dependencies"):
        by_name = words.get(word)
        if isinstance(by_name, dict):
            conditions += by_name.values()
    return conditions


def _holds_others(schema: Any) -> bool:
    """Whether a schema contains or refers to other schemas."""
    return isinstance(schema, dict) and not schema.keys().isdisjoint(WITH_SCHEMAS)


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
    """The keywords that apply to values of this type."""
    applying = "number" if kind == "integer" else kind
    others: set[str] = set()
    for name, keywords in OF_TYPE.items():
        if name != applying:
            others |= keywords
    return {word: value for word, value in words.items() if word not in others} | {"type": kind}


def _exact(value: Any) -> bool:
    """Whether llguidance writes this constant unchanged."""
    if isinstance(value, dict):
        return all(map(_exact, value)) and all(map(_exact, value.values()))
    if isinstance(value, list):
        return all(map(_exact, value))
    if isinstance(value, str):
        return not _UNWRITABLE.search(value)
    return not isinstance(value, int | float) or abs(value) <= EXACT


# --- schemas without end --------------------------------------------------------------------------


def _finite_definitions(definitions: dict[str, Any]) -> set[str]:
    """The names of the definitions of which some value can be completed."""
    finite: set[str] = set()
    while True:
        more = {
            name
            for name, schema in definitions.items()
            if name not in finite and _ends(schema, finite)
        }
        if not more:
            return finite
        finite |= more


def _ends(schema: Any, finite: set[str]) -> bool:
    """Whether some value of the schema can be completed, if values of the definitions in ``finite``
    can."""
    if not isinstance(schema, dict):
        return schema is True
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2] in finite
    needed = list(schema.get("allOf", ()))
    if schema.get("type") == "object":
        properties = schema.get("properties", {})
        others = schema.get("additionalProperties", True)
        needed += [properties.get(name, others) for name in _strings(schema.get("required"))]
    if schema.get("type") == "array":
        first = _list(schema.get("prefixItems", schema.get("items")))
        low = schema.get("minItems", 0)
        needed += first[:low]
        items = schema.get("items", True)
        if low > len(first) and not isinstance(items, list):
            needed.append(items)
    if not all(_ends(part, finite) for part in needed):
        return False
    for word in ("anyOf", "oneOf"):
        if word in schema and not any(_ends(part, finite) for part in schema[word]):
            return False
    return True
