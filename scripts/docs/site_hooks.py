"""Hooks that ``conf.py`` gives to Sphinx: what the reference shows of a class, formulas as MathML,
links to files, and figures whose code has changed."""

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
    """Skip what is inherited from other packages, and methods without a docstring."""
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
    return next(
        (one for one in cls.__mro__ if name in vars(one) or name in inspect.get_annotations(one)),
        None,
    )


def replace_signature(
    app: Any, what: str, name: str, member: Any, options: Any, signature: str, result: str
) -> tuple[str, str] | None:
    """A pydantic class is called with its fields, which are listed below it."""
    return ("(**fields)", result) if what == "class" and issubclass(member, BaseModel) else None


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
    found, owner = cls.model_fields[field], _owner_of(cls, field)
    assert owner is not None
    required = found.is_required()
    default = (
        "required" if required else f"default ``{found.get_default(call_default_factory=True)!r}``"
    )
    lines[:] = [found.description or "", "", f"``{owner.__annotations__[field]}``, {default}"]


# --- formulas -------------------------------------------------------------------------------------


def inline_math(writer: Any, node: nodes.math) -> None:
    writer.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def block_math(writer: Any, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


# --- links to files -------------------------------------------------------------------------------


def resolve_links(app: Any, tree: nodes.document, page: str) -> None:
    """Make links to pictures and to documented modules links within the site; other files stay
    downloads."""
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
    module = (
        target.relative_to(ROOT).with_suffix("").as_posix() if target.is_relative_to(ROOT) else ""
    )
    return f"_modules/{module}.html" if modules.get(module.replace("/", ".")) else None


def copy_pictures(app: Any, failed: Exception | None) -> None:
    """Copy the pictures under their own names, also those that pages only link to."""
    if not failed and app.builder.format == "html":
        shutil.copytree(DOCS / "pictures", Path(app.outdir) / "pictures", dirs_exist_ok=True)


# --- figures whose code has changed ---------------------------------------------------------------

_MADE = re.compile(r"^(\*Made by `(benchmarks/\w+)\.py` at commit `(\w+)`.*)\*$", re.M)


def mark_old_figures(app: Any, page: str, contents: list[str]) -> None:
    """Below each measured table, say how many commits have changed the measured code since.

    Only the site says so: a page in the repository would be out of date after every commit.
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
    """How many commits have changed these paths; 0 where git does not know the commit."""
    command = ["git", "-C", str(root), "rev-list", "--count", f"{commit}..HEAD", "--", *paths]
    try:
        counted = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:  # no git: a source archive
        return 0
    return int(counted.stdout) if counted.returncode == 0 else 0
