"""The page in a real browser: mouse, keys, long runs, hostile text, and accessibility."""

from __future__ import annotations

from typing import Any

import pytest

from langchain_specfuse import (
    ScriptedMember,
    SpecFuseChatModel,
    Trace,
    TraceCallbackHandler,
    checks,
)

from .runs import HOSTILE, QUESTION, a_round, long, scripted

pytestmark = pytest.mark.slow  # together, so it is begun early


def test_the_answer_is_shown_by_segment_and_a_click_shows_its_round(opened):
    trace = scripted()
    one = opened(trace.html())
    assert one.page.title() == QUESTION and one.text("#question") == QUESTION
    assert one.segments() == [item["text"] for item in trace.rounds]
    kinds = one.page.eval_on_selector_all(".piece", "all => all.map(one => one.className)")
    assert kinds == [f"piece m{trace.members.index(item['winner'])}" for item in trace.rounds]
    assert "5 rounds, 3 models" in one.text("#summary") and "its author ended it" in one.text(
        "#summary"
    )
    gone = next(left for item in trace.rounds for left in item["left"])
    assert gone["member"] in one.text("#left") and gone["reason"] in one.text("#left")
    assert (
        one.page.locator("#weights path.curve").count() == 3
        and one.page.locator("#weights path.out").count() == 1
    )
    one.page.click(".segment >> nth=1")
    second = trace.rounds[1]
    assert "Round 2 of 5" in one.text("#round-head")
    assert f"{second['winner']} won by {second['margin']:.3f}" in one.text("#detail")
    rows = one.page.eval_on_selector_all(
        "#detail table >> nth=0 >> tbody tr", "rows => rows.map(r => r.innerText)"
    )
    for name, draft in second["drafts"].items():
        row = next(text for text in rows if draft["text"].strip() in text and name in text)
        assert f"{second['totals'][name]:.3f}" in row and ("✓ won" in row) == (
            name == second["winner"]
        )
        assert all(f"score {second['scores'][judge][name]:.3f}" in row for judge in second["votes"])


def test_late_looping_and_forced_parts_of_a_round_are_shown(opened):
    late = {"draft": ["<b>"], "verify": ["<b>", "c"]}
    forced = {"text": '{"city": "Rome"}', "forced": '{"city": ""}'}
    item = a_round(1, {"a": "Rome", "b": "Rome Rome"}, "a", **forced, looped=["b"], late=late)
    one = opened(Trace([{**item, "lead": "b"}]).html())
    detail = one.text("#detail")
    assert (
        "loops: not eligible" in detail and "leads" in detail and "Forced by the format" in detail
    )
    assert "Late in draft, so the round went on without: <b>." in detail
    assert one.texts(".piece") == ['{"city": "', "Rome", '"}'] and one.texts(".piece.forced") == [
        '{"city": "',
        '"}',
    ]


REFUSED = [
    {
        "member": "b",
        "text": " We guarantee it",
        "check": "no_promises",
        "reason": "promises something",
        "kept": 0,
        "is_shown": False,
        "tokens": 4,
    },
    {
        "member": "a",
        "text": " We hope to guarantee",
        "check": "no_promises",
        "reason": "promises something",
        "kept": 8,
        "is_shown": True,
        "tokens": 5,
    },
]


def refusing() -> Trace:
    """Two rounds: the second withdraws the end of the first, and has two refused drafts."""
    first = a_round(1, {"a": " Yes, surely"}, "a", text="", checks={"no_promises": {"passed": 1}})
    drafts = {"a": " We hope", "b": " We guarantee it"}
    counts = {"no_promises": {"passed": 1, "rejected": 2}}
    more = {"text": " Yes, We hope", "withdrawn": " surely", "finish": "check"}
    second = a_round(2, drafts, "a", rejected=REFUSED, checks=counts, **more)
    return Trace([first, second], question="Is it good?")


def test_what_checks_refused_is_struck_out_where_keys_reach_it(opened):
    one = opened(refusing().html())
    assert "a check refused the rest; checks refused 2 drafts" in one.text("#summary")
    assert "2 models, 3 tokens" in one.text("#summary"), "withdrawn tokens do not count"
    one.page.focus(".segment")
    one.page.keyboard.press("End")
    assert "Round 2 of 2" in one.text("#round-head")
    label = one.page.get_attribute(".segment >> nth=1", "aria-label")
    assert label.endswith("; checks refused 2 drafts")
    assert one.texts("#detail del") == [
        " surely",
        " We guarantee it",
        " We guarantee it",
        " to guarantee",
    ]
    assert "✗ refused by no_promises" in one.text("#detail")
    region = one.page.locator("#detail [aria-label='Drafts that checks refused']")
    assert region.get_attribute("tabindex") == "0"
    region.focus()
    assert one.page.evaluate("document.activeElement.ariaLabel") == "Drafts that checks refused"
    assert "promises something" in region.inner_text() and "all the same" in region.inner_text()
    lines = one.page.eval_on_selector_all(
        "#detail del", "all => all.map(one => getComputedStyle(one).textDecorationLine)"
    )
    assert set(lines) == {"line-through"}
    whole = one.page.locator("#checks tbody tr").all_inner_texts()
    assert whole[-1].split() == ["no_promises", "2", "2"] and len(whole) == 3


def test_what_was_refused_before_an_answer_failed_is_shown(opened):
    broken = [{**rejection, "round": 1} for rejection in REFUSED]
    for rounds in ([], [a_round(1, {"a": " x"}, "a")]):
        one = opened(Trace(rounds, question="Q", error="It fell.", rejected=broken).html())
        assert one.texts("#checks del") == [" We guarantee it", " to guarantee"]
        assert one.page.locator("#checks [tabindex='0']").count() == 1
        assert "checks refused 2 drafts" in one.text("#summary")


def test_text_that_was_held_back_has_the_colour_of_its_author(opened):
    first = a_round(1, {"a": "It is good", "b": "x"}, "a", text="It is")
    second = a_round(2, {"a": "x", "b": " for you."}, "b", text=" good for you.")
    third = a_round(3, {"a": " Not", "b": "x"}, "a", text="")
    last = a_round(4, {"a": "x", "b": " Yes."}, "b", withdrawn=" Not")
    one = opened(Trace([first, second, third, last]).html())
    pieces = one.page.eval_on_selector_all(
        ".piece", "all => all.map(one => [one.className.slice(6), one.textContent])"
    )
    assert pieces == [
        ["m0", "It is"],
        ["m0", " good"],
        ["m1", " for you."],
        ["m0", "…"],
        ["m1", " Yes."],
    ]


def test_a_departure_stands_between_the_text_before_it_and_the_text_after_it(opened):
    """Text that was held back when its author failed is released in the next round."""
    first = a_round(1, {"a": "It is good", "b": "x"}, "a", text="It is")
    gone = {"member": "a", "kind": "error", "reason": "cannot be reached " * 50, "round": 2}
    weights = {"b": 0.5, "c": 0.5}
    second = a_round(2, {"b": " for you."}, "b", text=" good for you.", left=[gone])
    third = a_round(3, {"b": " Yes.", "c": " No."}, "b", weights=weights, finish="stop")
    third["left"] = [{**gone, "member": "c", "kind": "exit", "reason": "lost"}]
    one = opened(Trace([first, second, third]).html())
    assert one.segments() == ["It is", " good for you.", " Yes."]
    parts = one.texts(".segment > *")
    assert parts[:2] == ["It is", " good"] and parts[3:] == [" for you.", " Yes.", parts[-1]]
    assert parts[2].startswith("a left (failed): cannot be") and parts[2].endswith("…; b goes on")
    assert parts[-1] == "c left (voted out): lost", "the answer has ended"


def test_text_that_an_endpoint_leaves_out_is_said_to_be_missing(opened):
    trace = refusing()
    for rejection in trace.rounds[1]["rejected"]:
        rejection["text"] = ""
    trace.rounds[1]["drafts"]["b"]["text"] = ""
    one = opened(trace.html())
    one.page.click(".segment >> nth=1")
    assert one.text("#detail").count("its text is not shown here") == 3
    assert "guarantee" not in one.page.inner_text("body")


def test_a_run_without_checks_does_not_mention_them(opened):
    one = opened(scripted().html())
    assert one.page.locator("#checks-part").is_hidden() and "refused" not in one.text("main")


def test_neighbouring_segments_of_one_author_are_told_apart(opened):
    winners = ["a", "a", "b", "a", "a"]
    rounds = [a_round(at, {"a": " x", "b": " y"}, name) for at, name in enumerate(winners, 1)]
    rounds[4] |= {"text": "[ x", "segment": " x", "forced": "["}
    for scheme in ("light", "dark"):
        one = opened(Trace(rounds).html(), color_scheme=scheme)
        begins = """all => all.map(one => [
          one.dataset.by ?? "", getComputedStyle(one).borderInlineStartWidth
        ])"""
        pieces = one.page.eval_on_selector_all(".piece", begins)
        # an author who follows another has a number, one who goes on has a line
        named = [["1", "0px"], ["", "2px"], ["2", "0px"], ["1", "0px"], ["·", "0px"], ["1", "0px"]]
        assert pieces == named


def test_keys_move_through_a_long_run_and_are_announced(opened):
    one = opened(long(2000).html())
    one.page.focus(".segment")
    for key, place in [
        ("ArrowRight", 1),
        ("ArrowLeft", 0),
        ("PageDown", 10),
        ("End", 1999),
        ("Home", 0),
        ("End", 1999),
    ]:
        one.page.keyboard.press(key)
        assert int(one.page.evaluate("document.activeElement.dataset.at")) == place
        assert f"Round {place + 1} of 2000" in one.text("#round-head")
    assert one.text("#status").startswith("Round 2000 of 2000. ")
    one.unfold("#all")
    assert one.page.locator("#all tbody tr").count() == 2000


def test_hostile_text_is_text_wherever_it_stands(opened):
    """No dialog, no request, no error, and the same elements as with harmless words."""
    shape = (
        "document.body.innerHTML.replace(/<script type[^]*?<\\/script>/g, "
        "'').match(/<[a-z]+/g).join()"
    )

    def run(words: list[str]) -> Trace:
        rounds = []
        for at, text in enumerate(words, 1):
            names = {f"ann{text}": text, f"bob{text}": text + "!"}
            left = [{"member": f"bob{text}", "kind": text, "reason": text, "round": at}]
            more = {
                "left": left,
                "thoughts": {f"ann{text}": text},
                "looped": [f"bob{text}"],
                "finish": text,
                "rejected": [{**REFUSED[0], "text": text, "check": text, "reason": text}],
                "checks": {text: {"passed": 1, "rejected": 1}},
                "withdrawn": text,
            }
            rounds.append(a_round(at, names, f"ann{text}", **more))
        return Trace(rounds, question=words[0], error=words[1])

    counts = []
    for words in (HOSTILE, [f"harmless {at}" for at in range(len(HOSTILE))]):
        one = opened(run(words).html())
        one.unfold()
        for at in range(len(words)):
            one.page.locator(".segment").nth(at).dispatch_event("click")
            assert f"Round {at + 1} of" in one.text("#round-head")
        counts.append(one.page.evaluate(shape))
        if words is HOSTILE:
            shown = one.segments()
            assert shown[:5] == HOSTILE[:5] and shown[8:] == HOSTILE[8:]
            assert "\x1b" not in "".join(shown) and "␛" in shown[5]
    assert counts[0] == counts[1]


def test_the_policy_stops_scripts_that_are_not_the_pages_own(opened):
    page = (
        scripted()
        .html()
        .replace("<main", "<script>document.title = 'broken'</script><img src='x.png'><main")
    )
    one = opened(page)
    assert one.page.title() == QUESTION
    assert sum("Content Security Policy" in event for event in one.trouble) == 2
    assert all("Content Security Policy" in event or "x.png" in event for event in one.trouble)
    one.trouble.clear()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 320), pytest.param("dark", 1280, marks=pytest.mark.long)]
)
def test_axe_finds_no_barrier(opened, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    trace = scripted()
    trace.error = "It was interrupted."
    trace.add(
        a_round(
            9,
            {f"m{n}": f" {n}" for n in range(9)},
            "m4",
            thoughts={"m1": "Hm."},
            text="[ 4",
            forced="[",
        )
    )
    trace.add(
        a_round(10, {"a": " x", "b": " y"}, "a", rejected=REFUSED, checks={"c": {"passed": 1}})
    )
    one = opened(
        trace.html(), color_scheme=scheme, viewport={"width": width, "height": 900}, bypass_csp=True
    )
    one.unfold()
    found = axe.Axe().run(one.page).response["violations"]
    assert [
        (violation["id"], [node["html"] for node in violation["nodes"]][:3]) for violation in found
    ] == []
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width


def leading(**options: Any) -> Trace:
    """One model leads; a check refuses some of its text, and a reserve is there."""
    reply = "We are glad to help. Your order is late, but it arrives tomorrow before noon."
    lead = ScriptedMember(f"We are sorry. {reply[21:]}", name="a", **options)
    recorder = TraceCallbackHandler()
    llm = SpecFuseChatModel(
        members=[lead, ScriptedMember(reply, name="b")],
        lead="a",
        checks=[checks.forbids("(?i)sorry")],
    )
    llm.invoke("Where is my order?", {"callbacks": [recorder]})
    return recorder.trace


def test_where_one_model_leads_the_page_shows_checks_and_takeovers_and_nothing_of_a_vote(opened):
    one = opened(leading(fails_in=3).html())
    one.unfold()
    everything = one.text("main").lower()
    for word in ("vote", "voting", "weight", "score", "scoring", "margin", "dissent", "reward"):
        assert word not in everything
    assert one.page.locator("#weights-part").is_hidden()
    assert "a: leads, wrote" in one.text("#legend") and "b: wrote" in one.text("#legend")
    refused = one.page.locator("#checks [aria-label='Drafts that checks refused'] tbody tr")
    assert refused.first.locator("del").inner_text().startswith(" sorry")
    why, instead = refused.first.locator("td").all_inner_texts()[-2:]
    assert "contains 'sorry'" in why and instead.startswith("2")
    (gone,) = one.page.locator("#left tbody tr").all_inner_texts()
    assert gone.split("\t")[1:4] == ["failed", "RuntimeError: scripted failure", "b"]
    assert one.page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_what_was_redacted_is_counted(opened):
    counts = {"redact(email)": {"redacted": 2}, "polite": {"passed": 1}}
    one = opened(Trace([a_round(1, {"a": "[redacted]"}, "a", checks=counts)]).html())
    rows = one.page.locator("#checks tr").all_inner_texts()
    assert [row.split() for row in rows] == [
        ["check", "passed", "refused", "replaced"],
        ["redact(email)", "0", "0", "2"],
        ["polite", "1", "0", "0"],
    ]


def test_members_in_reserve_have_not_left(opened):
    """The lead writes alone; the reserve has no weight."""
    lead = a_round(1, {"a": "A coat."}, "a", lead="a", ended=True, finish="stop")
    one = opened(Trace([lead], members=["a", "b"]).html())
    assert "b: in reserve" in one.text("#legend")
    assert one.page.locator("#weights path.out").count() == 0
    gone = {"member": "b", "kind": "timeout", "reason": "too slow", "round": 1}
    left = opened(Trace([{**lead, "left": [gone]}], members=["a", "b"]).html())
    assert "b: left" in left.text("#legend")
