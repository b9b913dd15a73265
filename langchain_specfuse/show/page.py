"""Make a self-contained HTML page of a trace, which needs no network and no other file.

A model's text may contain anything. The page contains it only as JSON in a block that is not
executed, in plain ASCII with every ``<``, ``>`` and ``&`` escaped; the script shows it as text
nodes. A content security policy allows nothing but the page's own style and scripts, by their
hashes. The live page may also send requests to its own server.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

from .terminal import visible

SCRIPTS = ("plot.js", "round.js", "page.js")
"""The page's scripts, in the order in which they run. The last one draws the page."""
TITLE = "A run of langchain-specfuse"
_PLACEHOLDER = re.compile(r"\{\{([a-z]+)\}\}")
_ESCAPED = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}


def page(trace: Mapping[str, Any]) -> str:
    """The page of ``Trace.as_dict()``."""
    title = trace["question"].strip() or TITLE
    answer = "".join(round["text"] for round in trace["rounds"])
    return _filled(ask="", title=_text(title), run=_data(trace), answer=_text(answer))


def live(trace: Mapping[str, Any]) -> str:
    """The live page, which sends questions to its own server. It begins with this trace, and
    contains the template of a saved run's page."""
    saved = f'<script type="application/json" id="shell">{_data(_filled(ask=""))}</script>\n'
    blank = {
        "title": "Ask a question",
        "run": _data(trace),
        "answer": "none yet",
    }
    scripts = (*SCRIPTS, "talk.js", "live.js")
    return _filled(scripts, connect="'self'", ask=_part("ask.html") + saved, **blank)


def frame(page: str, height: str = "46rem") -> str:
    """The page in an iframe for a notebook's output cell, so that page and notebook do not affect
    each other."""
    inner = page.replace("&", "&amp;").replace("'", "&#39;")
    style = f"width:100%;height:{height};border:1px solid #8884;border-radius:8px"
    allowed = "allow-scripts allow-downloads"
    return f"<iframe title='{TITLE}' sandbox='{allowed}' style='{style}' srcdoc='{inner}'></iframe>"


def _filled(scripts: Sequence[str] = SCRIPTS, *, connect: str = "'none'", **parts: str) -> str:
    """The page with these parts. Placeholders of other parts stay."""
    style = _part("page.css")
    code = [_part(name) for name in scripts]
    policy = (
        f"default-src 'none'; style-src {_hash(style)}; script-src {' '.join(map(_hash, code))}"
    )
    parts["policy"] = f"{policy}; connect-src {connect}; base-uri 'none'; form-action 'none'"
    parts |= {"style": style, "scripts": "".join(f"<script>{script}</script>\n" for script in code)}
    return _PLACEHOLDER.sub(lambda match: parts.get(match[1], match[0]), _part("page.html"))


def _part(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _data(value: Any) -> str:
    """JSON in ASCII, without the characters that could end its block or begin a comment."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).translate(_ESCAPED)


def _text(text: str) -> str:
    """Text as HTML, for the title and for readers without JavaScript."""
    return escape(visible(text)).encode("ascii", "xmlcharrefreplace").decode()
