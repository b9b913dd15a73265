"""One HTML page of a trace that needs nothing else: no network, no other file.

A model's text may hold anything. In the page it occurs only as JSON in a block that is not executed, with everything
but plain ASCII and every ``<``, ``>`` and ``&`` escaped; the script shows it as text nodes. A content security policy
allows the page's own style and scripts by their hashes, and nothing else.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from typing import Any

from .terminal import split, visible

SCRIPTS = ("plot.js", "round.js", "page.js")
"""In the order in which they run; the last one draws the page."""
TITLE = "A run of langchain-specfuse"
_PLACEHOLDER = re.compile(r"\{\{([a-z]+)\}\}")
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


def page(trace: Mapping[str, Any]) -> str:
    """The page of ``Trace.as_dict()``."""
    style, scripts = _part("page.css"), [_part(name) for name in SCRIPTS]
    hashes = f"style-src {_hash(style)}; script-src {' '.join(map(_hash, scripts))}"
    parts = {
        "policy": f"default-src 'none'; {hashes}; base-uri 'none'; form-action 'none'",
        "title": _text(trace["question"].strip() or TITLE),
        "style": style,
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
        "run": _data(trace),
        "pieces": _data(_pieces(trace)),
        "answer": _text("".join(item["text"] for item in trace["rounds"])),
    }
    return _PLACEHOLDER.sub(lambda found: parts[found[1]], _part("page.html"))


def frame(page: str, height: str = "46rem") -> str:
    """The page in an iframe for a notebook's output cell, so that page and notebook do not affect each other."""
    inner = page.replace("&", "&amp;").replace("'", "&#39;")
    style = f"width:100%;height:{height};border:1px solid #8884;border-radius:8px"
    allowed = "allow-scripts allow-downloads"
    return f"<iframe title='{TITLE}' sandbox='{allowed}' style='{style}' srcdoc='{inner}'></iframe>"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(value: Any) -> str:
    """JSON in ASCII, without the characters that could end its block or begin a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _text(text: str) -> str:
    """For the title, and for readers without JavaScript."""
    return escape(visible(text)).encode("ascii", "xmlcharrefreplace").decode()


def _pieces(trace: Mapping[str, Any]) -> dict[int, list[tuple[str, str]]]:
    """Index of a round -> its pieces, where a part of its text is forced."""
    found = {}
    for at, item in enumerate(trace["rounds"]):
        segment, forced = item.get("segment", item["text"]), item.get("forced", "")
        pieces = split(item["text"], segment, item["winner"], forced=forced)
        if pieces != [(item["winner"], item["text"])]:
            found[at] = pieces
    return found
