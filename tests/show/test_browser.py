"""The page in a real browser: mouse, keys, themes, long runs, hostile text, and what a screen reader is told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from langchain_specfuse import Trace

from .runs import QUESTION, a_round, long, scripted

CHOSEN = ".segment[aria-selected=true]"
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(2)><svg onload=alert(3)>",
    "<!-- <script> -->",
    "<iframe src=javascript:alert(4)></iframe><style>*{display:none}</style>",
    "javascript:alert(5) http://127.0.0.1:9/leak <a href='http://127.0.0.1:9/'>x</a>",
    "\u2028\u2029\x00\x1b]0;title\x07\x9b31m",
    "\u202etxet sdrawkcab\u2066 \u200f",
    "half \ud83d and {{run}} {{scripts}} \\u003c/script>",
    "'\" onmouseover=alert(6) x='",
    "__proto__",
    "constructor",
]


def test_the_answer_stands_there_segment_by_segment_with_its_author(opened):
    trace = scripted()
    sheet = opened(trace)
    assert sheet.page.title() == QUESTION and sheet.text("#question") == QUESTION
    assert sheet.page.eval_on_selector_all(".segment", "all => all.map(one => one.textContent)") == [
        item["text"] for item in trace.rounds
    ]
    kinds = sheet.page.eval_on_selector_all(".piece", "all => all.map(one => one.className)")
    assert kinds == [f"piece m{trace.members.index(item['winner'])}" for item in trace.rounds]
    assert "5 rounds, 3 members" in sheet.text("#summary") and "its writer ended it" in sheet.text("#summary")


def test_a_click_shows_all_drafts_of_the_round_with_everybody_s_votes(opened):
    trace = scripted()
    sheet = opened(trace)
    sheet.page.click(".segment >> nth=1")
    second = trace.rounds[1]
    shown = sheet.text("#round")
    assert "Round 2 of 5" in shown and f"{second['winner']} won by {second['margin']:.3f}" in shown
    cells = sheet.page.eval_on_selector_all("#detail table >> nth=0 >> tbody tr", "rows => rows.map(r => r.innerText)")
    assert len(cells) == 3
    for name, draft in second["drafts"].items():
        row = next(text for text in cells if draft["text"].strip() in text and name in text)
        assert f"{second['totals'][name]:.3f}" in row and ("✓ won" in row) == (name == second["winner"])
        for judge in second["votes"]:
            assert f"score {second['scores'][judge][name]:.3f}" in row
            assert f"{second['votes'][judge][name]:.2f}" in row
    assert sheet.page.get_attribute("#answer .segment >> nth=1", "aria-selected") == "true"
    assert sheet.page.locator(CHOSEN).count() == 1


def test_keys_walk_through_the_rounds_and_say_so(opened):
    sheet = opened(long(30))
    press = sheet.page.keyboard.press
    for _ in range(12):
        press("Tab")
        if sheet.page.evaluate("document.activeElement.className") == "segment":
            break
    at = lambda: int(sheet.page.evaluate("document.activeElement.dataset.at"))
    assert at() == 0
    for key, expected in [
        ("ArrowRight", 1), ("ArrowDown", 2), ("ArrowLeft", 1), ("PageDown", 11), ("End", 29), ("ArrowRight", 29),
        ("PageUp", 19), ("Home", 0), ("ArrowUp", 0),
    ]:  # fmt: skip
        press(key)
        assert (key, at()) == (key, expected)
        assert f"Round {expected + 1} of 30" in sheet.text("#round-head")
    press("End")
    assert sheet.page.inner_text("#status").startswith("Round 30 of 30. ")
    tabbable = sheet.page.eval_on_selector_all(".segment", "all => all.filter(one => one.tabIndex === 0).length")
    assert tabbable == 1, "one stop for the whole answer"


def test_the_buttons_stop_at_both_ends(opened):
    sheet = opened(scripted())
    assert sheet.page.is_disabled("#back")
    for number in range(2, 6):
        sheet.page.click("#on")
        assert f"Round {number} of 5" in sheet.text("#round-head")
    assert sheet.page.is_disabled("#on")


def test_who_left_when_and_why_and_the_weights_as_picture_and_table(opened):
    trace = scripted()
    gone = next(left for item in trace.rounds for left in item["left"])
    sheet = opened(trace)
    told = sheet.text("#left")
    assert gone["member"] in told and gone["reason"] in told and str(gone["round"]) in told and "voted out" in told
    assert (
        sheet.page.locator("#weights path.curve").count() == 3 and sheet.page.locator("#weights path.out").count() == 1
    )
    sheet.unfold("#weights")
    rows = sheet.page.eval_on_selector_all("#weights tbody tr", "rows => rows.map(r => r.innerText.split(/\\s+/))")
    for item, row in zip(trace.rounds, rows, strict=True):
        expected = [f"{item['weights'][n]:.3f}" if n in item["weights"] else "–" for n in trace.members]
        assert row == [str(item["round"]), *expected]


def test_a_click_into_the_plot_chooses_a_round(opened):
    sheet = opened(long(40))
    plot = sheet.page.locator("#weights svg")
    box = plot.bounding_box()
    plot.click(position={"x": box["width"] * 0.94, "y": box["height"] / 2})
    assert int(re.search(r"Round (\d+)", sheet.text("#round-head"))[1]) > 36


def test_time_and_tokens_are_summed_by_phase_and_member(opened):
    trace = Trace([a_round(n, {"a": "x", "b": "y"}, "ab"[n % 2]) for n in range(1, 5)])
    rows = opened(trace).page.eval_on_selector_all(
        "#costs tbody tr", "rows => rows.map(r => r.innerText.split(/\\s+/))"
    )
    assert rows[0] == ["1a", "0.40", "0.40", "12", "6", "12", "36", "12", "36"]
    assert rows[2][:5] == ["by", "the", "clock", "1.00", "0.50"]


def test_thoughts_are_folded_and_loops_and_hands_are_named(opened):
    item = a_round(1, {"a": "Rome", "b": "Rome Rome"}, "a", text='"Rome"', forced='"', closed='"', looped=["b"])
    sheet = opened(Trace([{**item, "thoughts": {"a": "Italy? <b>Its</b> capital."}}]))
    assert "loops: not eligible" in sheet.text("#detail") and "Closed by hand" in sheet.text("#detail")
    assert sheet.page.eval_on_selector_all(".nobody", "all => all.map(one => one.textContent)") == ['"', '"']
    assert "Italy?" not in sheet.text("#thoughts")
    sheet.unfold("#thoughts")
    assert "Italy? <b>Its</b> capital." in sheet.text("#thoughts")


def test_who_was_late_is_named(opened):
    item = a_round(1, {"a": "Rome"}, "a", late={"draft": ["<b>"], "verify": ["<b>", "c"]})
    told = opened(Trace([item])).text("#detail")
    assert "went on without them (draft): <b>." in told and "went on without them (verify): <b>, c." in told


def test_the_download_is_the_run_and_is_loaded_again(opened, tmp_path):
    trace = scripted()
    trace.error = HOSTILE[0]
    sheet = opened(trace)
    with sheet.page.expect_download() as waiting:
        sheet.page.click("#download")
    file = tmp_path / "down.json"
    waiting.value.save_as(file)
    assert waiting.value.suggested_filename == "run.json"
    assert Trace.load(file).as_dict() == trace.as_dict()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_the_switch_is_used(opened, scheme):
    page = opened(scripted(), color_scheme=scheme).page
    bright = lambda: (
        sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor")))) > 382
    )
    assert bright() == (scheme == "light")
    assert page.inner_text("#theme") == ("Dark" if scheme == "light" else "Light")
    page.click("#theme")
    assert bright() == (scheme == "dark")
    page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    assert bright() == (scheme == "dark"), "who chose has chosen"
    page.click("#theme")
    assert bright() == (scheme == "light")


@pytest.mark.parametrize(("colours", "style"), [("none", "none"), ("active", "solid")])
def test_the_chosen_segment_is_seen_where_the_system_chooses_all_colours(opened, colours, style):
    page = opened(scripted(), forced_colors=colours).page
    assert page.eval_on_selector(CHOSEN, "one => getComputedStyle(one).outlineStyle") == style


def test_hostile_text_is_text_wherever_it_stands(opened):
    """No dialog, no request, no error, not one element more than the same run with harmless words."""
    shape = "document.body.innerHTML.replace(/<script type[^]*?<\\/script>/g, '').match(/<[a-z]+/g).join()"

    def run(words: list[str]) -> Trace:
        rounds = []
        for at, text in enumerate(words, 1):
            names = {f"ann{text}": text, f"bob{text}": text + "!"}
            gone = [{"member": f"bob{text}", "kind": text, "reason": text, "round": at}]
            thoughts = {f"ann{text}": text}
            rounds.append(
                a_round(at, names, f"ann{text}", left=gone, thoughts=thoughts, looped=[f"bob{text}"], finish=text)
            )
        return Trace(rounds, question=words[0], error=words[1])

    counts = []
    for words in (HOSTILE, [f"harmless {at}" for at in range(len(HOSTILE))]):
        sheet = opened(run(words))
        sheet.unfold()
        for at in range(len(words)):
            sheet.page.locator(".segment").nth(at).dispatch_event("click")
            assert f"Round {at + 1} of" in sheet.text("#round-head")
        counts.append(sheet.page.evaluate(shape))
        if words is HOSTILE:
            shown = sheet.page.eval_on_selector_all(".segment", "all => all.map(one => one.textContent)")
            assert shown[:5] == HOSTILE[:5] and shown[8:] == HOSTILE[8:]
            assert "\x1b" not in "".join(shown) and "␛" in shown[5]
            assert sheet.page.evaluate("({}).polluted === undefined && Object.keys(Object.prototype).length === 0")
    assert counts[0] == counts[1]


def test_members_called_like_parts_of_the_language_keep_their_numbers(opened):
    texts = {"__proto__": "one", "constructor": "two", "toString": "three"}
    sheet = opened(Trace([a_round(1, texts, "constructor", weights={"constructor": 1.0})]))
    assert "toString: won 0 rounds, left" in sheet.text("#legend")
    rows = sheet.page.eval_on_selector_all("#detail table >> nth=0 >> tbody tr", "rows => rows.map(r => r.innerText)")
    assert len(rows) == 3 and all("0.333" in row and row.count("score -1.250") == 3 for row in rows)


def test_the_policy_stops_what_would_still_get_in(opened):
    """The second lock: even a script element put into the file does not run."""
    page = scripted().html().replace("<main", "<script>document.title = 'broken'</script><img src='x.png'><main")
    sheet = opened(page)
    assert sheet.page.title() == QUESTION
    refused = [told for told in sheet.trouble if "Content Security Policy" in told]
    assert len(refused) == 2
    assert [told for told in sheet.trouble if told not in refused and "x.png" not in told] == []
    sheet.trouble.clear()


def test_two_thousand_rounds_are_open_in_under_two_seconds(opened, record_property):
    """In the page's own time, the best of three: another job on the machine is not the page's doing."""
    trace = long()
    seconds = []
    for _ in range(3):
        sheet = opened(trace)
        page = sheet.page
        painted = (
            "new Promise(d => requestAnimationFrame(() => requestAnimationFrame(() => d(performance.now() / 1000))))"
        )
        seconds.append(page.evaluate(painted))
        assert page.locator(".segment").count() == 2000
        if seconds[-1] < 2:
            break
    record_property("seconds", seconds)
    assert min(seconds) < 2, seconds
    page.focus(".segment")
    page.keyboard.press("End")
    assert "Round 2000 of 2000" in page.inner_text("#round-head")
    sheet.unfold("#all")
    assert page.locator("#all tbody tr").count() == 2000


@pytest.mark.parametrize("width", [320, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_that_hinders_anybody(opened, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    trace = scripted()
    trace.error = "It was interrupted."
    trace.add(a_round(9, {f"m{n}": f" {n}" for n in range(9)}, "m4", thoughts={"m1": "Hm."}, text="[ 4", forced="["))
    sheet = opened(trace, color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True)
    sheet.unfold()
    found = axe.Axe().run(sheet.page).response["violations"]
    assert [(one["id"], [node["html"] for node in one["nodes"]][:3]) for one in found] == []


def test_a_narrow_page_does_not_scroll_sideways(opened):
    sheet = opened(
        Trace([a_round(1, {"a" * 90: "x" * 400, "b": "y"}, "a" * 90)], question="q" * 300),
        viewport={"width": 320, "height": 600},
    )
    assert sheet.page.evaluate("document.documentElement.scrollWidth") <= 320


def test_several_traces_in_one_notebook_work_side_by_side(opened):
    traces = [scripted(), long(3)]
    cells = "".join(f"<div>{trace._repr_html_()}</div>" for trace in traces)
    sheet = opened(f"<!doctype html><title>notebook</title><p id=answer>own</p>{cells}")
    frames = sheet.page.frames[1:]
    sheet.page.wait_for_timeout(50)
    for frame, trace in zip(frames, traces, strict=True):
        frame.click(".segment >> nth=1")
        assert f"Round 2 of {len(trace.rounds)}" in frame.inner_text("#round-head")
    assert sheet.text("#answer") == "own"
    sheet.trouble = [told for told in sheet.trouble if "about:srcdoc" not in told]


def test_without_javascript_the_answer_is_shown(browser, tmp_path):
    trace = scripted()
    trace.save(tmp_path / "run.html")
    page = browser.new_page(java_script_enabled=False)
    page.goto((tmp_path / "run.html").as_uri())
    assert trace.answer in page.inner_text("body") and page.is_hidden("main")
    page.close()


def test_the_recorded_run_of_the_documentation_is_a_page(opened):
    told = json.loads((Path(__file__).parents[2] / "docs/pictures/run.json").read_text())
    sheet = opened(Trace(told["rounds"]))
    assert sheet.page.locator(".segment").count() == len(told["rounds"])
