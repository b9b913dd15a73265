"""What the API reference shows: our own members of each class, and the default of each field. Formulas as MathML.

Hooks that ``conf.py`` gives to Sphinx. Knows autodoc's events and pydantic's fields; nothing of the pages.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import inspect
import sys
from types import ModuleType
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pydantic import BaseModel

OURS = "langchain_specfuse"


# --- members ----------------------------------------------------------------------------------------------------


def skipped(app: Any, what: str, name: str, member: Any, skip: bool, options: Any) -> bool | None:
    """Whether a member is left out: what LangChain or pydantic brought along, and what has no words of its own."""
    here = app.env.current_document
    if what not in ("class", "exception") or not here.autodoc_class:
        return None
    cls = getattr(importlib.import_module(here.autodoc_module), here.autodoc_class)
    owner = owner_of(cls, name)
    if owner is None or not owner.__module__.startswith(OURS) or hasattr(BaseModel, name):
        return True
    if dataclasses.is_dataclass(cls) and not name.startswith("_") and name in cls.__dataclass_fields__:
        return False  # a record shows all that it holds
    return True if inspect.isroutine(member) and not member.__doc__ else None


def owner_of(of: type, name: str) -> type | None:
    """The class that a member comes from: it defines it, or annotates it (pydantic takes defaults away)."""
    for one in of.__mro__:
        if name in vars(one) or name in inspect.get_annotations(one):
            return one
    return None


def with_fields(
    app: Any, what: str, name: str, member: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """A pydantic class takes its fields: they are listed below it, LangChain's own are not."""
    return ("(**fields)", result) if what == "class" and issubclass(member, BaseModel) else None


def with_default(app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """A field of a pydantic class with its type and default behind its docstring."""
    if what == "attribute" and (told := kind_of(name)):
        lines += ["", told]


def kind_of(name: str) -> str:
    """Type and default of ``package.Class.field`` as they are written; nothing where there is no such field."""
    path, _, field = name.rpartition(".")
    module, _, of = path.rpartition(".")
    cls = getattr(importlib.import_module(module), of, None) if module.startswith(OURS) else None
    if not (inspect.isclass(cls) and issubclass(cls, BaseModel)) or field not in cls.model_fields:
        return ""
    found, owner = cls.model_fields[field], owner_of(cls, field)
    assert owner is not None
    default = "needed" if found.is_required() else f"default ``{found.get_default(call_default_factory=True)!r}``"
    return f"``{owner.__annotations__[field]}``, {default}"


# --- what is not installed --------------------------------------------------------------------------------------


def stand_in_for_decisions() -> None:
    """Decision models need langchain-core 1.8. With an older one the reference is made on empty classes in their place.

    Only what we say ourselves is shown, so the pages are the same.
    """
    if importlib.util.find_spec("langchain_core.decisions") is not None:
        return
    names = ("BaseDecisionModel", "Choice", "ChoiceAnswer", "ClassifierResponse", "Noul", "NoulAnswer", "Score")
    empty = ModuleType("langchain_core.decisions")
    for name in (*names, "Question", "ScoreAnswer"):
        setattr(empty, name, type(name, (BaseModel,), {"__module__": empty.__name__}))
    sys.modules[empty.__name__] = empty


# --- formulas ---------------------------------------------------------------------------------------------------


def inline_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block_math(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode
