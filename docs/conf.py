"""How the pages of this folder become a site. ``make docs`` builds it; nothing is fetched, then or by who reads it.

The pages stay plain Markdown that reads well without this file. Only ``reference/`` is made of directives: it shows
docstrings, so that nothing is said twice. ``docs/reference.py`` says which of them.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
sys.path[:0] = [str(DOCS.parent), str(DOCS)]

import links  # noqa: E402
import reference  # noqa: E402

from langchain_specfuse import __version__  # noqa: E402

reference.stand_in_for_decisions()

project = "langchain-specfuse"
author = "The langchain-specfuse authors"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = ["_site"]

# --- pages ------------------------------------------------------------------------------------------------------

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
"""Headings can be linked to by the names that code hosts give them."""

html_theme = "furo"
html_title = project
html_math_renderer = "mathml"
"""Browsers draw MathML themselves. The usual renderer would fetch a script from elsewhere."""
html_show_sphinx = False
html_copy_source = False

# --- the reference ----------------------------------------------------------------------------------------------

autodoc_default_options = {"members": True, "inherited-members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
nitpicky = True
nitpick_ignore_regex = [
    # The libraries around us: their inventories would have to be fetched.
    (r"py:.*", r"(collections|concurrent|os|pathlib|types|typing|uuid)(\..*)?"),
    (r"py:.*", r"(langchain_core|langchain|langsmith|lm_eval|pydantic|torch|transformers)\..*"),
]


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (reference.inline_math, None), (reference.block_math, None))
    app.connect("autodoc-skip-member", reference.skipped)
    app.connect("autodoc-process-signature", reference.with_fields)
    app.connect("autodoc-process-docstring", reference.with_default)
    app.connect("doctree-resolved", links.led_on)
    app.connect("build-finished", links.pictures_copied)
