"""One HTML page of a trace that needs nothing else: no network, no other file. Knows a trace's JSON and its own parts.

A model's text may hold anything. So it stands in the page only as JSON in a block that is not executed, in which
everything but plain ASCII and every ``<``, ``>`` and ``&`` is escaped; the script shows it as text nodes. A content
security policy allows this page's own style and scripts by their hashes, and nothing else: no request, no other script.
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

from .terminal import parted, visible

SCRIPTS = ("plot.js", "round.js", "page.js")
"""In the order in which they are run: the last one draws."""
_PLACE = re.compile(r"\{\{([a-z]+)\}\}")
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


def page(trace: Mapping[str, Any]) -> str:
    """The page of ``Trace.as_dict()``."""
    style, scripts = _part("page.css"), [_part(name) for name in SCRIPTS]
    answer = "".join(item["text"] for item in trace["rounds"])
    places = {
        "policy": _policy([style], scripts),
        "title": _text(trace["question"].strip() or "A run of specfuse"),
        "style": style,
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
        "run": _data(trace),
        "pieces": _data(_pieces(trace)),
        "answer": _text(answer),
    }
    return _PLACE.sub(lambda found: places[found[1]], _part("page.html"))


def frame(page: str, height: str = "46rem") -> str:
    """The page inside another one, a notebook's output cell: a window of its own, so neither touches the other."""
    inner = page.replace("&", "&amp;").replace("'", "&#39;")
    look = f"width:100%;height:{height};border:1px solid #8884;border-radius:8px"
    allowed = "allow-scripts allow-downloads"
    return f"<iframe title='A run of specfuse' sandbox='{allowed}' style='{look}' srcdoc='{inner}'></iframe>"


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _policy(styles: list[str], scripts: list[str]) -> str:
    """What the page may do: its own style and scripts. No address at all is allowed."""
    told = {"style-src": styles, "script-src": scripts}
    hashed = "; ".join(f"{kind} {' '.join(map(_digest, texts))}" for kind, texts in told.items())
    return f"default-src 'none'; {hashed}; base-uri 'none'; form-action 'none'"


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(value: Any) -> str:
    """JSON that is no HTML: ASCII, and without the characters that could end its block or begin a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _text(text: str) -> str:
    """For the title, and for readers without JavaScript."""
    return escape(visible(text)).encode("ascii", "xmlcharrefreplace").decode()


def _pieces(trace: Mapping[str, Any]) -> dict[int, list[tuple[str, str]]]:
    """place of a round -> its pieces, where somebody else than its winner stands behind a part of what it shows."""
    found = {}
    for at, item in enumerate(trace["rounds"]):
        around = {"forced": item.get("forced", ""), "closed": item.get("closed", "")}
        pieces = parted(item["text"], item.get("segment", item["text"]), item["winner"], **around)
        if pieces != [(item["winner"], item["text"])]:
            found[at] = pieces
    return found
