"""Which plain schemas can be finished at all. What cannot is taken out, so that no answer walks into it."""

from __future__ import annotations

from typing import Any


def without_dead_ends(root: Any, defs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The schema without alternatives and properties that have no end; False where nothing is left."""
    while True:
        done: set[str] = set()
        while more := {name for name, one in defs.items() if name not in done and _ends(one, done)}:
            done |= more
        cut = {name: _cut(one, done) for name, one in defs.items() if name in done}
        new = _cut(root, done) if _ends(root, done) else False
        if new == root and cut == defs:
            break
        root, defs = new, cut
        if root is False:
            return False, {}
    used: set[str] = set()
    _use(root, defs, used)
    return root, {name: one for name, one in defs.items() if name in used}


def _ends(schema: Any, done: set[str]) -> bool:
    """Whether a value can be finished, if those in ``done`` can."""
    if schema is False:
        return False
    if "$ref" in schema:
        return schema["$ref"].removeprefix("#/$defs/") in done
    if "anyOf" in schema:
        return any(_ends(one, done) for one in schema["anyOf"])
    kind = schema.get("type")
    if kind == "object":
        return all(_ends(schema["properties"].get(name, {}), done) for name in schema["required"])
    if kind == "array":
        first, low = schema.get("prefixItems", []), schema.get("minItems", 0)
        return all(_ends(one, done) for one in first[:low]) and (low <= len(first) or _ends(schema["items"], done))
    return True


def _cut(schema: Any, done: set[str]) -> Any:
    """The same without what cannot be finished."""
    if "anyOf" in schema:
        parts = [_cut(one, done) for one in schema["anyOf"] if _ends(one, done)]
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    kind = schema.get("type")
    if kind == "object":
        found = dict(schema)
        found["properties"] = _cut_all(schema["properties"], done, keep=schema["additionalProperties"] is not False)
        if "patternProperties" in schema:
            found["patternProperties"] = _cut_all(schema["patternProperties"], done, keep=True)
        found["additionalProperties"] = _cut_or_false(schema["additionalProperties"], done)
        return found
    if kind == "array" and "items" in schema:
        return _cut_array(schema, done)
    return schema


def _cut_all(schemas: dict[str, Any], done: set[str], keep: bool) -> dict[str, Any]:
    cut = {name: _cut_or_false(one, done) for name, one in schemas.items()}
    return {name: one for name, one in cut.items() if keep or one is not False}


def _cut_array(schema: Any, done: set[str]) -> Any:
    found = dict(schema)
    heads = [_cut_or_false(one, done) for one in schema.get("prefixItems", [])]
    found["items"] = _cut_or_false(schema["items"], done)
    if False in heads:
        heads, found["items"] = heads[: heads.index(False)], False
    if found["items"] is False:
        found["maxItems"] = min(schema.get("maxItems", len(heads)), len(heads))
    found.pop("prefixItems", None)
    return found | ({"prefixItems": heads} if heads else {})


def _cut_or_false(schema: Any, done: set[str]) -> Any:
    return _cut(schema, done) if _ends(schema, done) else False


def _use(schema: Any, defs: dict[str, Any], used: set[str]) -> None:
    """Notes which definitions a schema needs."""
    todo = [schema]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if isinstance(name := one.get("$ref"), str) and name.startswith("#/$defs/"):
                name = name.removeprefix("#/$defs/")
                if name not in used and name in defs:
                    used.add(name)
                    todo.append(defs[name])
            todo += [value for key, value in one.items() if key != "enum" or isinstance(value, dict)]
        elif isinstance(one, list):
            todo += one
