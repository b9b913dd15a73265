"""How Sphinx makes the site from these pages. ``make docs`` builds it; neither the build nor a
reader fetches anything.

The pages are plain Markdown that reads well without the site. In ``reference/`` directives show
docstrings, so that nothing is written twice; ``site_hooks`` chooses which.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "docs")]

# The endpoint needs fastapi, which cannot define its models any more once autodoc has shown classes
# of pydantic (Sphinx 9.0, pydantic 2.14).
import fastapi  # noqa: E402, F401
import site_hooks  # noqa: E402

from langchain_specfuse import __version__  # noqa: E402

project = "langchain-specfuse"
author = "The langchain-specfuse authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_site"]

# --- pages ----------------------------------------------------------------------------------------

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
"""Headings get the anchors that code hosts give them."""

html_theme = "furo"
html_title = project
html_math_renderer = "mathml"
"""Browsers draw MathML themselves. The usual renderer would fetch a script from elsewhere."""
html_show_sphinx = False
html_copy_source = False

# --- the reference --------------------------------------------------------------------------------

autodoc_default_options = {"members": True, "inherited-members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
nitpicky = True
nitpick_ignore_regex = [
    # Links into other libraries would need their inventories from the network.
    (r"py:.*", r"(collections|concurrent|decimal|os|pathlib|re|types|typing|uuid)(\..*)?"),
    (r"py:.*", r"(Checker|FieldInfo|Finish|Ge|Gt|Le|Lt|Loop|NoneType|UUID|dict\[str|tuple\[.*)"),
    (
        r"py:.*",
        r"langchain_specfuse\.(constraints|members\.(llamacpp|local|text|transformers))\..*",
    ),
    (r"py:.*", r"langchain_specfuse\.evaluation\.running\.Ask"),
    (r"py:.*", r"langchain_specfuse\.(checks\.personal|core\.(normal|redacting))\..*"),
    (
        r"py:.*",
        r"(fastapi|langchain_core|langchain|langsmith|lm_eval|pydantic|torch|transformers)\..*",
    ),
]


def setup(app: Any) -> None:
    app.add_html_math_renderer(
        "mathml", (site_hooks.inline_math, None), (site_hooks.block_math, None)
    )
    app.connect("source-read", site_hooks.mark_old_figures)
    app.connect("autodoc-skip-member", site_hooks.skip_member)
    app.connect("autodoc-process-signature", site_hooks.replace_signature)
    app.connect("autodoc-process-docstring", site_hooks.add_default)
    app.connect("doctree-resolved", site_hooks.resolve_links)
    app.connect("build-finished", site_hooks.copy_pictures)
