"""What stands in the file: one page, no address, and text that cannot become markup. A browser's view is elsewhere."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import Trace
from langchain_specfuse.show.page import frame

from .runs import a_round, scripted

NASTY = st.lists(
    st.sampled_from(
        [
            *("</script>", "<!--", "<script>", "-->", "]]>", "</title>", "</noscript>", "{{run}}", "{{style}}", "&lt;"),
            *("<img src=x onerror=alert(1)>", "\u2028", "\u2029", "\u202e", "\x00", "\x1b[2J", "\\u003c", "\ud800"),
            *("'", '"', "=", "\r\n"),
        ]
    ),
    min_size=1,
).map("".join)


class Outline(HTMLParser):
    """The page's elements in order, and what stands in its scripts."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles: list[str] = []
        self._within = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(f"{tag} {sorted(attrs)}")
        self._within = tag
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag):
        self._within = ""

    def handle_data(self, data):
        if self._within == "script":
            self.scripts[-1] = (self.scripts[-1][0], self.scripts[-1][1] + data)
        if self._within == "style":
            self.styles.append(data)


PLAIN = Outline(Trace([a_round(1, {"a": "x", "b": "y"}, "a")], question="q").html()).tags


@given(NASTY, NASTY, NASTY)
def test_no_text_becomes_an_element_and_every_text_arrives(text, name, question):
    trace = Trace([a_round(1, {"a": text, name: question}, "a")], question=question, error=text)
    outline = Outline(trace.html())
    assert outline.tags == PLAIN
    data = {attrs["id"]: inner for attrs, inner in outline.scripts if attrs.get("type") == "application/json"}
    assert json.loads(data["run"]) == trace.as_dict()
    assert all(32 <= ord(char) < 127 and char not in "<>&" for char in data["run"] + data["pieces"])


def test_the_page_names_no_address_and_allows_only_its_own_style_and_scripts():
    page = scripted().html()
    outline = Outline(page)
    policy = next(tag for tag in outline.tags if "Content-Security-Policy" in tag)
    assert "default-src 'none'" in policy and "unsafe" not in policy and "://" not in policy and "*" not in policy
    code = [inner for attrs, inner in outline.scripts if "type" not in attrs]
    assert len(code) == 3 and len(outline.styles) == 1
    for text in (*code, *outline.styles):
        assert base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() in policy
    named = [address for address in re.findall(r"\w+://[^\"'\s)]+", page) if "w3.org/2000/svg" not in address]
    assert named == [] and "url(" not in page and "@import" not in page
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", page)


def test_what_nobody_wrote_is_told_apart():
    trace = Trace([a_round(1, {"a": "Rome"}, "a", text='{"city": "Rome"}', forced='{"city": "', closed='"}')])
    data = {attrs["id"]: inner for attrs, inner in Outline(trace.html()).scripts if "id" in attrs}
    assert json.loads(data["pieces"]) == {"0": [["", '{"city": "'], ["a", "Rome"], ["", '"}']]}


def test_without_javascript_the_answer_is_there():
    page = Trace([a_round(1, {"a": "x < y & \x1b"}, "a")]).html()
    assert "<pre>x &lt; y &amp; &#9243;</pre>" in page


@pytest.mark.parametrize("trace", [Trace(), Trace(question="Q", error="It fell.")], ids=["nothing", "failed"])
def test_a_run_without_rounds_is_a_page_too(trace):
    assert Outline(trace.html()).tags == PLAIN


def test_in_a_notebook_a_trace_is_a_window_of_its_own():
    trace = Trace([a_round(1, {"a": "it's <b>'\"&amp;"}, "a")])
    shown = trace._repr_html_()
    outline = Outline(shown)
    assert [tag.split()[0] for tag in outline.tags] == ["iframe"]
    assert "allow-same-origin" not in shown[:300] and "sandbox='allow-scripts allow-downloads'" in shown
    frames = HTMLParser(convert_charrefs=True)
    held: list[str] = []
    frames.handle_starttag = lambda tag, attrs: held.append(dict(attrs)["srcdoc"])  # type: ignore[method-assign]
    frames.feed(frame(trace.html()))
    assert held == [trace.html()]
