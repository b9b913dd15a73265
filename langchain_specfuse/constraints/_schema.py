"""JSON schemas made plain: one meaning per word, nothing that a library might drop, nothing that cannot be finished.

A plain schema is ``{}`` (any JSON), ``{"enum": [...]}``, ``{"anyOf": [...]}``, ``{"$ref": "#/$defs/..."}`` or one type
with the words of that type. Objects name every property that they may have, unless the schema itself says otherwise.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from ..errors import UsageError, advised
from ._apart import apart
from ._enum import Impossible
from ._forms import refuse_malformed
from ._keywords import ANYWHERE, OF_TYPE, SILENT, TYPES
from ._merge import Contradiction, Unsayable, merged
from ._reach import without_dead_ends
from ._typed import typed

DEEP = 60
"""Schemas nested deeper than this are taken for endless."""
MANY = 256
"""Alternatives after multiplying out."""


class Dangling(UsageError):
    """A reference to what is not there: a slip, wherever it stands."""


def plain(schema: Any, where: str) -> dict[str, Any]:
    """The plain schema, with its ``$defs``. ``UsageError`` if it is impossible or says what cannot be kept."""
    refuse_malformed(schema, where)
    reading = Reading(schema, where)
    try:
        root = reading.node(schema, where)
    except Impossible as error:
        raise _impossible(str(error)) from None
    reading.alternatives_apart()
    root, defs = without_dead_ends(root, reading.defs)
    if root is False:
        raise _impossible(reading.doubt or f"nothing satisfies {where}, or it can never be finished")
    return {**root, "$defs": defs} if defs else root


def _impossible(told: str) -> UsageError:
    return advised(UsageError(f"impossible schema: {told}"), "mend the schema: no answer could satisfy it")


class Reading:
    """One schema while it is read."""

    def __init__(self, root: Any, where: str) -> None:
        self._root = root
        self._where = where
        self._names: dict[str, str] = {}
        self.defs: dict[str, Any] = {}
        self.doubt = ""
        """Why the first alternative that was left out could not be kept."""
        self._deep = 0
        self._once: list[tuple[list[Any], str]] = []
        self._looked_at: dict[int, Any] = {}
        """What references have led to, by its identity."""

    def alternatives_apart(self) -> None:
        """Of ``oneOf`` exactly one may hold: told at the end, when every reference has its shape."""
        for parts, path in self._once:
            if not all(apart(one, other, self.defs) for at, one in enumerate(parts) for other in parts[:at]):
                told = f"{path}.oneOf: a value could satisfy two of its alternatives"
                raise advised(UsageError(told), "use anyOf, or give each alternative a constant of its own")

    def node(self, schema: Any, path: str) -> Any:
        """The plain form of a schema; False where nothing satisfies it. ``Impossible`` says why in words."""
        if schema is True or schema == {}:
            return {}
        if schema is False:
            return False
        if not isinstance(schema, dict):
            raise UsageError(f"{path} is no JSON schema: {str(schema)[:200]}")
        self._deep += 1
        try:
            if self._deep > DEEP:
                raise UsageError(f"{path} is nested too deeply, or refers to itself without an end")
            return self._node(self._known(schema, path), path)
        except Contradiction:
            raise Impossible(f"{path} contradicts itself") from None
        except Unsayable as error:
            told = f"{path}: two different {error.args[0]!r} for one value cannot be kept together"
            raise advised(UsageError(told), "say it in one schema") from None
        finally:
            self._deep -= 1

    def _node(self, schema: dict[str, Any], path: str) -> Any:
        if schema.pop("nullable", False) and schema:
            return self._any_of([schema, {"type": "null"}], path, "nullable")
        if set(schema) == {"$ref"}:
            return self._reference(schema["$ref"], path)
        if "$ref" in schema:
            reference = schema.pop("$ref")
            return self.node(merged(self._target(reference, path), schema, lambda ref: self._target(ref, path)), path)
        if not schema:  # a title alone, as pydantic's Any has it
            return {}
        if "allOf" in schema:
            for part in self._listed(schema.pop("allOf"), f"{path}.allOf"):
                schema = merged(schema, part, lambda ref: self._target(ref, path))
            return self.node(schema, path)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                parts = self._listed(schema.pop(word), f"{path}.{word}")
                if schema:
                    parts = [self._joined(schema, part, path) for part in parts]
                return self._any_of(parts, path, word)
        return typed(schema, path, self)

    def _known(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """Without what says nothing; ``UsageError`` on what is not known."""
        found = {}
        for word, value in schema.items():
            if word in SILENT or word.startswith("x-"):
                continue
            if word not in ANYWHERE and not any(word in words for words in OF_TYPE.values()):
                told = f"{path}.{word:.80} cannot be kept: no grammar says it"
                raise advised(UsageError(told), "leave it out of the schema, and check the value yourself")
            found[word] = value
        kinds = found.get("type")
        for kind in [kinds] if isinstance(kinds, str) else kinds or ():
            if kind not in TYPES:
                raise advised(UsageError(f"{path}.type is {kind!r}, which is no type"), f"one of {', '.join(TYPES)}")
        return found

    def _listed(self, parts: Any, path: str) -> list[Any]:
        if not isinstance(parts, list) or not parts:
            raise UsageError(f"{path} wants a list of schemas, got {str(parts)[:200]}")
        return parts

    def _joined(self, schema: dict[str, Any], part: Any, path: str) -> Any:
        try:
            return merged(schema, part, lambda ref: self._target(ref, path))
        except Contradiction:
            return False

    def _any_of(self, parts: list[Any], path: str, word: str) -> Any:
        """The alternatives that can be. One that cannot be written is left out, if another one can; not so a slip."""
        found: list[Any] = []
        refused: Exception | None = None
        for at, part in enumerate(parts):
            try:
                node = self.node(part, f"{path}.{word}[{at}]")
            except (UsageError, Impossible) as error:
                if isinstance(error, Dangling) or (word == "oneOf" and isinstance(error, UsageError)):
                    raise
                refused = refused or error
                continue
            if node is not False:
                found += [node] if set(node) != {"anyOf"} else node["anyOf"]
        if not found:
            raise refused or Impossible(f"{path}.{word} has no alternative that could be")
        if word == "oneOf":
            self._once.append((found, path))
        found = [one for at, one in enumerate(found) if one not in found[:at]]
        if len(found) > MANY:
            raise UsageError(f"{path} has {len(found)} alternatives (at most {MANY})")
        return {} if {} in found else found[0] if len(found) == 1 else {"anyOf": found}

    # --- references ---------------------------------------------------------------------------------------------

    def _reference(self, reference: Any, path: str) -> Any:
        target = self._target(reference, path)
        if reference not in self._names:
            name = self._names[reference] = f"d{len(self._names)}"
            self.defs[name] = {"$ref": f"#/$defs/{name}"}  # while it is read: endless, unless it gets its own shape
            deep, self._deep = self._deep, 0
            try:
                self.defs[name] = self.node(target, reference)
            except Impossible as error:
                self.doubt = self.doubt or str(error)
                self.defs[name] = False
            finally:
                self._deep = deep
        return {"$ref": f"#/$defs/{self._names[reference]}"}

    def _target(self, reference: Any, path: str) -> Any:
        if not isinstance(reference, str) or not reference.startswith("#"):
            told = f"{path}.$ref {reference!r} is not in this schema"
            raise advised(Dangling(told), "put what it refers to into $defs")
        found = self._root
        for step in reference[1:].split("/")[1:]:
            step = unquote(step).replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(step)] if isinstance(found, list) else found[step]
            except (KeyError, IndexError, ValueError, TypeError):
                raise Dangling(f"{path}.$ref {reference!r} is nowhere in this schema") from None
        if id(found) not in self._looked_at:  # it may stand where no schema was looked for
            refuse_malformed(found, reference)
            self._looked_at[id(found)] = found
        return found
