"""The page as a file: no address, and text that cannot become markup. ``test_browser.py`` opens it
in a browser."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import Trace

from .runs import HOSTILE, a_round, scripted

MARKS = [
    "<!--",
    "-->",
    "]]>",
    "</title>",
    "</noscript>",
    "{{style}}",
    "&lt;",
    "'",
    '"',
    "=",
    "\r\n",
]
NASTY = st.lists(st.sampled_from(HOSTILE + MARKS), min_size=1).map("".join)


def tags_of(page: str) -> list[str]:
    """The page's elements in order, with the names of their attributes."""
    tags: list[str] = []
    parser = HTMLParser()
    parser.handle_starttag = lambda tag, attrs: tags.append(f"{tag} {sorted(attrs)}")  # type: ignore[method-assign]
    parser.feed(page)
    return tags


def data_in(page: str, name: str) -> str:
    return re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', page)[1]


PLAIN = tags_of(Trace([a_round(1, {"a": "x", "b": "y"}, "a")], question="q").html())


@given(NASTY, NASTY, NASTY)
def test_no_text_becomes_an_element_and_every_text_arrives(text, name, question):
    trace = Trace([a_round(1, {"a": text, name: question}, "a")], question=question, error=text)
    page = trace.html()
    assert tags_of(page) == PLAIN
    assert json.loads(data_in(page, "run")) == trace.as_dict()
    assert all(32 <= ord(char) < 127 and char not in "<>&" for char in data_in(page, "run"))


def test_the_page_names_no_address_and_allows_no_other_script():
    page = scripted().html()
    policy = next(tag for tag in PLAIN if "Content-Security-Policy" in tag)
    assert (
        "default-src 'none'" in policy
        and "unsafe" not in policy
        and "://" not in policy
        and "*" not in policy
    )
    named = [
        address
        for address in re.findall(r"\w+://[^\"'\s)]+", page)
        if "w3.org/2000/svg" not in address
    ]
    assert named == [] and "url(" not in page and "@import" not in page
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)


def test_without_javascript_or_rounds_there_is_a_page():
    page = Trace([a_round(1, {"a": "x < y & \x1b"}, "a")]).html()
    assert "<pre>x &lt; y &amp; &#9243;</pre>" in page
    for trace in (Trace(), Trace(question="Q", error="It fell.")):
        assert tags_of(trace.html()) == PLAIN
