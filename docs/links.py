"""Where links that leave the pages lead to on the site: pictures to themselves, code to its page.

Everything else that a page links to in the repository is offered as a file. Knows the built tree; no page by name.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import download_reference
from sphinx.util.osutil import relative_uri

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent


def led_on(app: Any, tree: nodes.document, page: str) -> None:
    """Links to pictures and to documented modules become links within the site."""
    if app.builder.format != "html":
        return
    for link in list(tree.findall(download_reference)):
        target = (Path(app.env.doc2path(page)).parent / link["reftarget"]).resolve()
        if place := place_of(target, getattr(app.env, "_viewcode_modules", {})):
            uri = relative_uri(app.builder.get_target_uri(page), place)
            link.replace_self(nodes.reference("", "", *link.children, internal=True, refuri=uri))


def place_of(target: Path, modules: Any) -> str | None:
    """The address of a file within the site, if it has a page there."""
    if target.is_relative_to(DOCS / "pictures"):
        return target.relative_to(DOCS).as_posix()
    module = target.relative_to(ROOT).with_suffix("").as_posix() if target.is_relative_to(ROOT) else ""
    return f"_modules/{module}.html" if modules.get(module.replace("/", ".")) else None


def pictures_copied(app: Any, failed: Exception | None) -> None:
    """The pictures under their own names, also those that no page shows but links to."""
    if not failed and app.builder.format == "html":
        shutil.copytree(DOCS / "pictures", Path(app.outdir) / "pictures", dirs_exist_ok=True)
