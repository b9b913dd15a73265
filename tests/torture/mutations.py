"""All small wrong versions of a source file: one comparison, number, condition or statement changed at a time.

Orderings move by their boundary alone (``<`` becomes ``<=``): turned round they would be found by anybody. Annotations,
docstrings, ``Literal`` and ``assert`` stay as they are, for they say what the code is and do nothing.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COUNTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
CALLED = {"min": "max", "any": "all", "find": "rfind", "startswith": "endswith", "lstrip": "rstrip"}
CALLED |= {other: name for name, other in CALLED.items()}


@dataclass(frozen=True)
class Mutant:
    """One wrong version of one file."""

    module: str
    name: str
    """Where and what, without line numbers: it stays the same when code around it moves."""
    line: int
    last: int
    node: int
    """Which node of the tree, as ``ast.walk`` counts them, and which of its changes."""
    change: int
    in_body: bool
    """In the statements of a function, not in what its ``def`` says."""

    @property
    def key(self) -> str:
        return f"{self.module}.{self.name}"


def mutants(module: str, source: str) -> list[Mutant]:
    """All mutants of a file, in its order."""
    tree = ast.parse(source)
    skipped = _skipped(tree)
    where, bodies = _places(tree), _bodies(tree)
    found, seen = [], Counter[str]()
    for at, node in enumerate(ast.walk(tree)):
        if id(node) in skipped:
            continue
        for change, new in enumerate(changes(node)):
            name = f"{where.get(id(node), '')}: {_short(node)} -> {_short(new)}"
            seen[name] += 1
            name += f" #{seen[name]}" if seen[name] > 1 else ""
            line = node.lineno if hasattr(node, "lineno") else node.iter.lineno  # type: ignore[attr-defined]
            last = node.test.end_lineno if isinstance(node, ast.If | ast.While) else getattr(node, "end_lineno", line)
            found.append(Mutant(module, name, line, last, at, change, id(node) in bodies))
    return sorted(found, key=lambda mutant: (mutant.line, mutant.node, mutant.change))


def mutated(source: str, mutant: Mutant, file: str) -> CodeType:
    """The file with this one change, compiled."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    old = nodes[mutant.node]
    new = list(changes(old))[mutant.change]
    for node in nodes:
        for name, value in ast.iter_fields(node):
            if value is old:
                setattr(node, name, new)
            elif isinstance(value, list):
                setattr(node, name, [new if one is old else one for one in value])
    if hasattr(old, "lineno"):
        ast.copy_location(new, old)
    return compile(ast.fix_missing_locations(tree), file, "exec")


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What could stand in this node's place and be wrong."""
    match node:
        case ast.Compare():
            for at, kind in enumerate(node.ops):
                yield _with(node, ops=[*node.ops[:at], COMPARED[type(kind)](), *node.ops[at + 1 :]])
        case ast.BinOp() | ast.AugAssign():
            yield _with(node, op=COUNTED[type(node.op)]())
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant():
            yield from (_with(node, value=value) for value in _other_values(node.value))
        case ast.IfExp():
            yield _with(node, body=node.orelse, orelse=node.body)
        case ast.If():
            yield from (_with(node, test=ast.Constant(value)) for value in (True, False))
        case ast.While() if not isinstance(node.test, ast.Constant):
            yield _with(node, test=ast.Constant(False))
        case ast.comprehension():
            yield from (_with(node, ifs=node.ifs[:at] + node.ifs[at + 1 :]) for at in range(len(node.ifs)))
        case ast.Return(value=ast.expr()) if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield _with(node, value=ast.Constant(None))
        case ast.Slice():
            if node.lower:
                yield _with(node, lower=None)
            if node.upper:
                yield _with(node, upper=None)
        case ast.Call():
            yield from _other_calls(node)
    if isinstance(node, ast.Expr | ast.Raise | ast.AugAssign | ast.Break | ast.Continue):
        yield ast.Pass()


def _other_values(value: object) -> list[object]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1]
        case float():
            return [value + 1.0]
        case str():
            return [f"XX{value}XX"]
    return []


def _other_calls(node: ast.Call) -> Iterator[ast.AST]:
    """The opposite function; and without each of the arguments that have a name."""
    match node.func:
        case ast.Name(id=name) if name in CALLED:
            yield _with(node, func=ast.Name(CALLED[name], ast.Load()))
        case ast.Attribute(attr=name) if name in CALLED:
            yield _with(node, func=_with(node.func, attr=CALLED[name]))
    for at, given in enumerate(node.keywords):
        if given.arg:
            yield _with(node, keywords=node.keywords[:at] + node.keywords[at + 1 :])


def _with(node: ast.AST, **fields: object) -> ast.AST:
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _skipped(tree: ast.Module) -> set[int]:
    """Nodes that do nothing: docstrings, annotations, names of types, assertions, what is imported."""
    skipped: list[ast.AST | None] = []
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.ImportFrom():
                skipped.append(node)
            case ast.AnnAssign():
                named = isinstance(node.annotation, ast.Name) and node.annotation.id == "TypeAlias"
                skipped += [node.annotation, node.value if named else None]
            case ast.arg():
                skipped.append(node.annotation)
            case ast.FunctionDef():
                skipped.append(node.returns)
            case ast.Subscript(value=ast.Name(id="Literal" | "Generator" | "Callable")):
                skipped.append(node)
            case ast.Assign(value=ast.BinOp(op=ast.BitOr(), left=ast.Name() | ast.BinOp(), right=ast.Name())):
                skipped.append(node)  # Reply = Draft | Scored | Failure
            case ast.Call(func=ast.Name(id="cast")):
                skipped.append(node.args[0])
            case ast.Call(func=ast.Name(id="dataclass")):  # leaving one of its arguments out says the same
                skipped += [given.value for given in node.keywords]
    return {id(inner) for node in skipped if node for inner in ast.walk(node)}


def _places(tree: ast.Module) -> dict[int, str]:
    """node -> the names of the classes and functions that it stands in."""
    places: dict[int, str] = {}

    def walk(node: ast.AST, at: str) -> None:
        for inner in ast.iter_child_nodes(node):
            places[id(inner)] = at
            named = isinstance(inner, ast.FunctionDef | ast.ClassDef)
            walk(inner, f"{at}.{inner.name}".lstrip(".") if named else at)

    walk(tree, "")
    return places


def _bodies(tree: ast.Module) -> set[int]:
    """Nodes in the bodies of functions."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {id(inner) for function in functions for statement in function.body for inner in ast.walk(statement)}


def _short(node: ast.AST) -> str:
    """The first line of what a node says."""
    if isinstance(node, ast.comprehension):
        return "for" + "".join(f" if {ast.unparse(one)}" for one in node.ifs)
    if isinstance(node, ast.If | ast.While):
        return f"if {ast.unparse(node.test)}"
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 90 else text[:87] + "..."
