"""Hooks for Sphinx, which ``docs/conf.py`` registers.

They choose what the reference shows of a class, render formulas as MathML, resolve links to files,
and mark figures whose code has changed.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from pydantic import BaseModel
from sphinx.addnodes import download_reference
from sphinx.util.osutil import relative_uri

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PACKAGE = "langchain_specfuse"


# --- what the reference shows of a class ----------------------------------------------------------


def skip_member(
    app: Any, what: str, name: str, member: Any, skip: bool, options: Any
) -> bool | None:
    """Skip members that are inherited from other packages, and methods without a docstring."""
    here = app.env.current_document
    if what not in ("class", "exception") or not here.autodoc_class:
        return None
    cls = getattr(importlib.import_module(here.autodoc_module), here.autodoc_class)
    owner = _owner_of(cls, name)
    if owner is None or not owner.__module__.startswith(PACKAGE) or hasattr(BaseModel, name):
        return True
    if (
        dataclasses.is_dataclass(cls)
        and not name.startswith("_")
        and name in cls.__dataclass_fields__
    ):
        return False
    return True if inspect.isroutine(member) and not member.__doc__ else None


def _owner_of(cls: type, name: str) -> type | None:
    """The class that defines or annotates a member; pydantic removes the defaults of fields."""
    for owner in cls.__mro__:
        if name in vars(owner) or name in inspect.get_annotations(owner):
            return owner
    return None


def replace_signature(
    app: Any, what: str, name: str, member: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """Shorten the signature of a pydantic class, because its fields are listed below it."""
    if what == "class" and issubclass(member, BaseModel):
        return "(**fields)", result
    return None


def add_default(
    app: Any, what: str, name: str, member: Any, options: Any, lines: list[str]
) -> None:
    """Show a pydantic field with its description, type and default."""
    path, _, field = name.rpartition(".")
    module, _, cls_name = path.rpartition(".")
    if what != "attribute" or not module.startswith(PACKAGE):
        return
    cls = getattr(importlib.import_module(module), cls_name, None)
    if not (inspect.isclass(cls) and issubclass(cls, BaseModel)) or field not in cls.model_fields:
        return
    info = cls.model_fields[field]
    owner = _owner_of(cls, field)
    assert owner is not None
    default = "required"
    if not info.is_required():
        default = f"default ``{info.get_default(call_default_factory=True)!r}``"
    lines[:] = [info.description or "", "", f"``{owner.__annotations__[field]}``, {default}"]


# --- formulas -------------------------------------------------------------------------------------


def inline_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block_math(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


# --- links to files -------------------------------------------------------------------------------


def resolve_links(app: Any, tree: nodes.document, page: str) -> None:
    """Turn links to pictures and to documented modules into links within the site. Links to other
    files stay downloads."""
    if app.builder.format != "html":
        return
    for link in list(tree.findall(download_reference)):
        target = (Path(app.env.doc2path(page)).parent / link["reftarget"]).resolve()
        if address := _address_of(target, getattr(app.env, "_viewcode_modules", {})):
            uri = relative_uri(app.builder.get_target_uri(page), address)
            link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=uri))


def _address_of(target: Path, modules: Any) -> str | None:
    """The address of a file within the site, if it has one."""
    if target.is_relative_to(DOCS / "pictures"):
        return target.relative_to(DOCS).as_posix()
    if not target.is_relative_to(ROOT):
        return None
    module = target.relative_to(ROOT).with_suffix("").as_posix()
    if not modules.get(module.replace("/", ".")):
        return None
    return f"_modules/{module}.html"


def copy_pictures(app: Any, failed: Exception | None) -> None:
    """Copy all pictures under their own names, including those that pages only link to."""
    if not failed and app.builder.format == "html":
        shutil.copytree(DOCS / "pictures", Path(app.outdir) / "pictures", dirs_exist_ok=True)


# --- figures whose code has changed ---------------------------------------------------------------

_MADE = re.compile(r"^(\*Made by `(benchmarks/\w+)\.py` at commit `(\w+)`.*)\*$", re.M)


def mark_old_figures(app: Any, page: str, contents: list[str]) -> None:
    """Add to each measured table how many commits have changed the measured code since.

    Only the site has this line, because a page in the repository would be out of date after every
    commit.
    """
    contents[0] = _MADE.sub(lambda found: f"{found[1]}{_changes(found[2], found[3])}*", contents[0])


def _changes(script: str, commit: str) -> str:
    about = json.loads((ROOT / f"{script}.json").read_text(encoding="utf-8"))["about"]
    count = commits_since(ROOT, commit, [f"{PACKAGE}/{path}" for path in about["measures"]])
    if not count:
        return ""
    changed = "1 commit has" if count == 1 else f"{count} commits have"
    return f" Since then {changed} changed the code that it measures."


def commits_since(root: Path, commit: str, paths: Sequence[str]) -> int:
    """How many commits have changed these paths; 0 if git does not know the commit."""
    command = ["git", "-C", str(root), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    try:
        counted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:  # no git: a source archive
        return 0
    return int(counted.stdout) if counted.returncode == 0 else 0
