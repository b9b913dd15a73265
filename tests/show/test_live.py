"""The live page: what its server sends, and the page in a real browser."""

from __future__ import annotations

import json
import re
import threading
from html import unescape

import httpx2
import pytest
from serve.conftest import BLUE, PATH, QUESTION, WIDE, ensemble, events, serving
from serve.test_leaving import LONG, Paced
from serve.test_refusals import SECRET, Telling

from langchain_specfuse import ScriptedMember, Trace, TraceCallbackHandler, checks
from langchain_specfuse.serve import Limits
from tests import late

from .runs import HOSTILE, SCRIPTS

pytestmark = pytest.mark.slow  # together, so it is begun early
ROUNDS = "/v1/specfuse/rounds"
ASKED = {"model": "specfuse", "messages": QUESTION}


@pytest.fixture
def serve():
    with serving() as start:
        yield lambda *given, **options: start(*given, **{"page": True, **options})


# --- over HTTP ------------------------------------------------------------------------------------


def test_rounds_are_the_chat_models_streamed_or_whole_but_no_member_is_quoted(serve, tmp_path):
    endpoint = serve(ensemble(Telling(BLUE, name="mute"), BLUE, WIDE))
    recorder = TraceCallbackHandler()
    asked = {**ASKED, "messages": [{"role": "user", "content": SECRET}]}
    endpoint.llm.invoke(SECRET, {"callbacks": [recorder]})
    whole = endpoint.post(asked, ROUNDS)
    *streamed, end = events(endpoint.post({**asked, "stream": True}, ROUNDS))
    assert end == "[DONE]" and len(streamed) > 2
    (tmp_path / "run.json").write_text(whole.text)
    trace = Trace.load(tmp_path / "run.json")
    assert (
        trace.answer == BLUE
        and trace.question == SECRET
        and trace.members == recorder.trace.members
    )
    same = recorder.trace.rounds[0].keys() - {"seconds", "tokens", "left"}
    for one, other, own in zip(streamed, trace.rounds, recorder.trace.rounds, strict=True):
        assert (
            {key: one[key] for key in same}
            == {key: other[key] for key in same}
            == {key: own[key] for key in same}
        )
    assert (
        streamed[0]["left"]
        == trace.rounds[0]["left"]
        == [{"member": "mute", "kind": "error", "round": 1}]
    )
    assert SECRET in recorder.trace.rounds[0]["left"][0]["reason"] and SECRET not in json.dumps(
        streamed
    )
    assert endpoint.counted("specfuse_answers_total", 2, outcome="stop")


def test_rounds_are_refused_where_answers_are(serve):
    limits = Limits(max_body_bytes=500, max_answer_tokens=9)
    endpoint = serve(api_keys=["key"], hosts=["127.0.0.1"], limits=limits)
    wrong = {
        413: ({**ASKED, "user": "x" * 500}, {}),
        415: (ASKED, {"content_type": "text/plain"}),
        401: (ASKED, {"authorization": "Bearer other"}),
        403: (ASKED, {"host": "evil.example"}),
        404: ({**ASKED, "model": "other"}, {}),
        400: ({**ASKED, "max_tokens": 10}, {}),
    }
    for status, (body, headers) in wrong.items():
        headers = {"authorization": "Bearer key", **headers}
        one, other = (endpoint.post(body, path, **headers) for path in (PATH, ROUNDS))
        assert (one.status_code, one.json()) == (status, other.json())
    assert (
        serve(page=False).get("/").status_code
        == serve(page=False).post(ASKED, ROUNDS).status_code
        == 404
    )


def test_the_page_needs_no_key_and_is_the_same_for_every_server(serve):
    pages = [serve(api_keys=["key"], hosts=["127.0.0.1"]), serve(ensemble("Other."), model="other")]
    first, second = (endpoint.get("/") for endpoint in pages)
    assert first.status_code == 200 and first.text == second.text
    assert first.headers["content-security-policy"] == "frame-ancestors 'none'"
    policy = re.search(r"Content-Security-Policy\" content=\"([^\"]*)", first.text)[1]
    assert (
        "default-src 'none'" in policy
        and "connect-src 'self'; " in policy
        and "unsafe" not in policy
    )
    assert httpx2.get(pages[0].url, headers={"host": "evil.example"}).status_code == 403


# --- in a browser ---------------------------------------------------------------------------------


def ask(one, question, *, state="hidden"):
    one.page.fill("#words", question)
    one.page.keyboard.press("Enter")
    one.page.wait_for_selector("#stop", state=state)


IN_VIEW = """one => {
  const { top, bottom } = one.getBoundingClientRect();
  return top >= 0 && bottom <= Math.min(innerHeight, part("ask").getBoundingClientRect().top);
}"""


def hearing(one):
    """What a screen reader announces from now on."""
    one.page.evaluate("""() => {
      window.heard = [];
      for (const region of document.querySelectorAll("[role=status].unseen")) {
        new MutationObserver(() => heard.push(region.textContent))
          .observe(region, { childList: true });
      }
    }""")
    return lambda: one.page.evaluate("heard.toSorted()")


def copied(one):
    """The words of the answer when a reader copies it."""
    one.page.evaluate("getSelection().selectAllChildren(part('answer'))")
    return " ".join(one.page.evaluate("getSelection().toString()").split())


def unlock(one, key):
    one.page.fill("#key", key)
    one.page.keyboard.press("Enter")


def test_segments_arrive_by_author_can_be_looked_into_and_the_run_taken_along(
    serve, opened, tmp_path
):
    paced = Paced(BLUE, name="a")
    endpoint = serve(ensemble(paced, WIDE))
    one = opened(url=endpoint.url)
    one.page.wait_for_selector("#summary >> text=a")
    ask(one, "Why <b>?", state="visible")
    paced.turns.release(2)
    one.page.wait_for_selector(".segment >> nth=1")
    assert one.text("#question") == "Why <b>?" and "more is to come" in one.text("#summary")
    assert (
        "Round 2 of 2" in one.text("#round-head")
        and one.page.locator("#weights path.curve").count() == 2
    )
    one.page.click(".segment >> nth=0")
    paced.turns.release(100)
    one.page.wait_for_selector("#stop", state="hidden")
    assert "Round 1 of " in one.text("#round-head"), "the chosen round stays"
    assert "".join(one.segments()) == BLUE and "its author ended it" in one.text("#summary")
    assert one.text("#status") == BLUE, "said once, as a sentence"
    for button, name in (("#download", "run.json"), ("#page", "run.html")):
        with one.page.expect_download() as taken:
            one.page.click(button)
        taken.value.save_as(tmp_path / name)
    trace = Trace.load(tmp_path / "run.json")
    assert trace.answer == BLUE and trace.question == "Why <b>?" and trace.members == ["a", "b"]
    again = opened((tmp_path / "run.html").read_text())
    assert again.segments() == one.segments() and again.page.title() == "Why <b>?"
    assert again.page.locator("#ask").count() == 0

    def normal(html):  # a number or a character can be written in different ways
        return unescape(
            re.sub(r'(id="run">)(.*?)(</script>)', lambda found: str(json.loads(found[2])), html)
        )

    assert normal((tmp_path / "run.html").read_text()) == normal(trace.html())


def test_stop_cancels_on_the_server_and_keeps_what_was_there(serve, opened):
    paced = Paced(LONG, name="a")
    endpoint = serve(ensemble(paced, max_tokens=2000))
    one = opened(url=endpoint.url)
    ask(one, "Why?", state="visible")
    paced.turns.release(1)
    one.page.wait_for_selector(".segment")
    one.page.click("#stop")
    assert endpoint.counted("specfuse_answers_total", 1, outcome="gone")
    paced.turns.release(100)
    one.page.wait_for_selector("#stop", state="hidden")
    assert endpoint.idle() and one.text("#error") == "The answer broke off: you stopped it"
    assert one.page.evaluate("document.activeElement.id") == "words"


@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "show_rejected"])
def test_what_checks_refused_is_on_the_page_only_if_the_server_shows_it(serve, opened, shown):
    llm = ensemble("We guarantee it all.", "We hope so.", checks=[checks.forbids("guarantee")])
    one = opened(url=serve(llm, show_rejected=shown).url)
    ask(one, "Well?")
    assert "".join(one.segments()) == "We hope so."
    assert "checks refused 1 draft" in one.text("#summary")
    why = "contains 'guarantee'"
    row = one.page.locator("#checks .refusals tbody tr").inner_text()
    assert why in row and ("We guarantee it all." in row) == shown
    everything = one.page.content().replace(why, "").replace("forbids('guarantee')", "")
    assert ("guarantee" in everything) == shown


@pytest.mark.parametrize("shown", [False, True], ids=["hidden", "show_rejected"])
def test_a_refused_draft_is_struck_out_under_its_replacement_for_a_moment(serve, opened, shown):
    llm = ensemble("We guarantee it all.", "We hope so.", checks=[checks.forbids("guarantee")])
    one = opened(url=serve(llm, show_rejected=shown).url)
    one.page.clock.install()
    heard = hearing(one)
    ask(one, "Well?")
    (remark,) = one.texts(".segment .struck")
    assert remark.startswith("✗ a: We guarantee" if shown else "✗ a draft of a, whose text is not")
    assert remark.endswith("forbids('guarantee'): contains 'guarantee'")
    assert one.texts(".struck del") == (["We guarantee it all."] if shown else [])
    below = "one => one.closest('.segment').querySelector('.piece').getBoundingClientRect().bottom"
    place = one.page.locator(".struck")
    assert place.bounding_box()["y"] >= place.evaluate(below)
    assert one.segments() == ["We hope so."] and copied(one) == "We hope so."
    why = "Round 1: a check refused a draft of a: contains 'guarantee'."
    assert heard() == [why, "We hope so."]
    one.page.clock.run_for(10_000)
    assert one.page.locator(".struck").count() == 0
    assert one.page.get_attribute(".piece", "data-refused") == "✗1"


def test_of_many_refused_drafts_the_first_are_shown_and_the_rest_counted(serve, opened):
    scripts = [f"We guarantee it {number} times." for number in range(5)]
    llm = ensemble(*scripts, "We hope so.", checks=[checks.forbids("guarantee")])
    one = opened(url=serve(llm, show_rejected=True).url)
    one.page.clock.install()
    ask(one, "Well?")
    *shown, more = one.texts(".struck > span")
    assert [line[:4] for line in shown] == ["✗ a:", "✗ b:", "✗ c:"] and more == "and 2 more"


def denies(text):
    return "denies it" if "see no" in text else None


@pytest.mark.parametrize(
    ("rule", "struck"),
    [
        # Both words were held back: the pattern's beginning is, too.
        (checks.forbids("see no"), [" see no risk in it", *[" see no risk in"] * 4]),
        # Only the second was held back, before the first draft.
        (denies, [" no risk in it", " no risk"]),
    ],
)
def test_text_that_is_withdrawn_with_a_draft_is_struck_out_with_it(serve, opened, rule, struck):
    """The check refuses two words, of which some were held back before the draft."""
    scripts = ("We see no risk in it at all.", "We see some use in it today.")
    llm = ensemble(*scripts, lead="a", segment_tokens=3, checks=[rule])
    one = opened(url=serve(llm, show_rejected=True).url)
    one.page.clock.install()
    ask(one, "Well?")
    assert one.texts(".struck del") == struck
    assert set(one.texts("#checks del")) == set(struck)
    again = one.texts(".struck > span")[1]
    assert ("(4 times)" in again) == (rule is denies), "the lead drafts the same again"
    assert "".join(one.segments()).replace("…", "") == "We see some use in it at all."


class Hanging(ScriptedMember):
    """Does not return from its third draft until the test lets it."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.go_on = threading.Event()

    def draft(self, jobs):
        if self.draft_calls == 2:
            assert self.go_on.wait(30)
        return super().draft(jobs)


@pytest.mark.parametrize("how", ["failed", "too slow"])
def test_who_leaves_and_who_goes_on_is_said_at_its_place_in_the_text(serve, opened, how):
    hanging = Hanging(BLUE, name="a", device="elsewhere")
    first = ScriptedMember(BLUE, name="a", fails_in=3) if how == "failed" else hanging
    llm = ensemble(first, BLUE, BLUE, lead="a", member_timeout=0.5)
    one = opened(url=serve(llm).url)
    heard = hearing(one)
    with late.only_where(lambda name: name == "a" and how == "too slow"):
        ask(one, "Why?")
    hanging.go_on.set()
    said = f"a left ({how}); b goes on"
    parts = one.page.eval_on_selector_all(
        "#answer .piece, #answer .note", "all => all.map(one => [one.className, one.textContent])"
    )
    at = parts.index(["note left failed", said])
    assert {kind for kind, _ in parts[:at]} == {"piece m0"}
    assert {kind for kind, _ in parts[at + 1 :]} == {"piece m1"}
    assert "".join(one.segments()) == copied(one) == BLUE
    label = one.page.get_attribute(".segment:has(.note)", "aria-label")
    assert said in label and heard() == [f"Round 3: {said}.", BLUE]


def test_a_member_that_is_voted_out_leaves_after_its_last_draft(serve, opened):
    members = [ScriptedMember(text, name=name) for name, text in SCRIPTS.items()]
    one = opened(url=serve(ensemble(*members)).url)
    ask(one, "Why?")
    (remark,) = one.texts(".segment .note.left:not(.failed)")
    assert remark.startswith("cyd left (voted out): its drafts kept losing")
    assert remark.endswith("; ann and bob go on")
    last = one.page.locator(".segment:has(.note) > *").last
    assert last.text_content() == remark, "it stands after the text of that round"


def test_on_a_phone_neither_keyboard_nor_form_covers_the_answer(serve, opened):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    paced = Paced(BLUE, name="a")
    one = opened(url=serve(ensemble(paced)).url, **phone)
    one.page.wait_for_selector("#summary >> text=a")
    for _ in range(3):
        one.page.fill("#words", "Why?")
        one.page.tap("#go")
        paced.turns.release(1000)
        one.page.wait_for_selector("#stop", state="hidden")
        assert one.page.evaluate("document.activeElement.id") != "words"
        assert one.page.locator(".segment").last.evaluate(IN_VIEW)


# --- a conversation -------------------------------------------------------------------------------


class Recording(Paced):
    """Notes the conversation at the beginning of each answer."""

    def __init__(self, answers, *, allowed=1000, **options):
        self.asked = []
        super().__init__([lambda query, text=text: self.note(query, text) for text in answers])
        self.turns.release(allowed)

    def note(self, query, text):
        self.asked.append([(turn.role, turn.text) for turn in query.turns])
        return text


def test_questions_continue_the_conversation_until_it_begins_anew(serve, opened, tmp_path):
    member = Recording(["One <i>.", "Two, as said.", "Three."])
    one = opened(url=serve(ensemble(member)).url)
    assert one.page.locator("#anew").is_hidden()
    for question in ("A <b>?", "B?"):
        ask(one, question)
    first = [("user", "A <b>?"), ("assistant", "One <i>.")]
    second = [("user", "B?"), ("assistant", "Two, as said.")]
    assert member.asked[-1] == [*first, ("user", "B?")]
    assert one.texts("main h1, main .question") == ["A <b>?", "B?"]
    assert one.texts(".exchange .said") == ["One <i>."] and one.segments()[0] == "Two, as said."
    one.page.click("text=Show its rounds")
    assert one.texts("main h1, main .question") == ["A <b>?", "B?"], "the order stays"
    assert one.text("#question") == "A <b>?" and "".join(one.segments()) == "One <i>."
    assert one.page.evaluate("document.activeElement.id") == "question"
    assert "Round 1 of 1" in one.text("#round-head")
    with one.page.expect_download() as taken:
        one.page.click("#download")
    taken.value.save_as(tmp_path / "run.json")
    trace = Trace.load(tmp_path / "run.json")
    assert (trace.question, trace.answer) == ("A <b>?", "One <i>.")
    ask(one, "C?")
    assert member.asked[-1] == [*first, *second, ("user", "C?")]
    assert one.texts("main h1, main .question") == ["A <b>?", "B?", "C?"]
    one.page.click("#anew")
    assert one.page.locator(".exchange, #run-part:visible").count() == 0
    assert one.page.evaluate("document.activeElement.id") == "words"
    ask(one, "D?")
    assert member.asked[-1] == [("user", "D?")]


def test_an_answer_that_was_stopped_with_escape_is_continued_from_what_was_there(serve, opened):
    member = Recording([LONG, "Yes."], allowed=1)
    one = opened(url=serve(ensemble(member, max_tokens=2000)).url)
    ask(one, "Tell me.", state="visible")
    one.page.wait_for_selector(".segment")
    one.page.keyboard.press("Escape")
    one.page.wait_for_selector("#stop", state="hidden")
    assert one.text("#error") == "The answer broke off: you stopped it"
    (begun,) = one.segments()
    assert begun.startswith("word0 word1")
    member.turns.release(1000)
    ask(one, "Is that all?")
    told = [("user", "Tell me."), ("assistant", begun), ("user", "Is that all?")]
    assert member.asked[-1] == told
    assert one.text(".exchange .error") == "The answer broke off: you stopped it"


def test_a_question_that_got_no_answer_is_not_part_of_the_conversation(serve, opened):
    member = Recording(["Yes.", "No."])
    one = opened(url=serve(ensemble(member), limits=Limits(max_body_bytes=500)).url)
    ask(one, "A?")
    ask(one, "B" * 500)
    assert "There is no answer: the body is larger than 500" in one.text("#error")
    assert one.page.input_value("#words") == "B" * 500
    assert all("413" in event for event in one.trouble)
    one.trouble.clear()
    ask(one, "C?")
    assert [text for _, text in member.asked[-1]] == ["A?", "Yes.", "C?"]
    assert one.texts("main h1, main .question") == ["A?", "C?"]


@pytest.mark.parametrize("width", [390, 1280])
def test_the_newest_round_stays_in_view_unless_the_reader_scrolls_away(serve, opened, width):
    paced = Paced(LONG, name="a")
    endpoint = serve(ensemble(paced, max_tokens=2000))
    one = opened(url=endpoint.url, viewport={"width": width, "height": 844})
    ask(one, "Why?\n" * 9, state="visible")

    def arrived(rounds: int) -> None:
        paced.turns.release(rounds - one.page.locator(".segment").count())
        one.page.wait_for_selector(f"#round-head >> text=Round {rounds} of {rounds}")

    for rounds in (1, 2, 30, 60):
        arrived(rounds)
        assert one.page.locator(".segment").last.evaluate(IN_VIEW)
        assert one.page.locator("#round-head").evaluate(IN_VIEW)
    place = one.page.evaluate("scrollY")
    one.page.click("#words")
    one.page.keyboard.type("And then?")
    assert one.page.evaluate("scrollY") == place, "typing does not move what is read"
    one.page.evaluate("scrollTo(0, 0)")
    arrived(62)
    assert one.page.evaluate("scrollY") == 0
    one.page.click("#stop")
    one.page.wait_for_selector("#stop", state="hidden")
    paced.turns.release(1000)
    assert endpoint.idle()


class Loading(ScriptedMember):
    """Loads once it is allowed to."""

    go_on = threading.Event()

    def probe(self):
        assert self.go_on.wait(30)
        return super().probe()


def test_a_question_waits_for_the_members_and_an_error_keeps_what_was_there(serve, opened):
    one = opened(url=serve(ensemble(Loading(BLUE, fails_in=3)), ready=False).url)
    ask(one, "Why?", state="visible")
    one.page.wait_for_selector("#state >> text=The models are loading")
    Loading.go_on.set()
    one.page.wait_for_selector("#stop", state="hidden")
    assert len(one.segments()) == 2 and "broke off: no member is left" in one.text("#error")
    assert all("503" in event for event in one.trouble)
    one.trouble.clear()


def test_the_key_is_asked_for_and_kept_by_the_page_alone(serve, opened):
    one = opened(url=serve(api_keys=["söcond"]).url)
    one.page.wait_for_selector("#state >> text=needs an API key")
    unlock(one, "wrong")
    one.page.wait_for_selector("#state >> text=this API key is wrong")
    unlock(one, "söcond")
    one.page.wait_for_selector("#unlock", state="hidden")
    ask(one, "Why?")
    assert "".join(one.segments()) == BLUE
    kept = "[localStorage.length, sessionStorage.length, document.cookie, part('key').value].join()"
    assert one.page.evaluate(kept) == "0,0,,"
    assert all("401" in event for event in one.trouble)
    one.trouble.clear()


def test_other_sites_cannot_ask_or_frame_the_page(serve, opened):
    endpoint = serve()
    one = opened(
        "<!doctype html><form method=post enctype=text/plain></form><iframe "
        f"src={endpoint.url}></iframe>"
    )
    for kind, mode in (
        ("application/json", "cors"),
        ("application/json", "no-cors"),
        ("text/plain", "no-cors"),
    ):
        options = {
            "method": "POST",
            "body": json.dumps(ASKED),
            "mode": mode,
            "headers": {"content-type": kind},
        }
        one.page.evaluate(f"fetch('{endpoint.url}{ROUNDS}', {json.dumps(options)}).catch(() => 0)")
    assert any("frame-ancestors" in event for event in one.trouble)
    one.page.evaluate(
        f"document.forms[0].action = '{endpoint.url}{ROUNDS}'; document.forms[0].submit()"
    )
    assert endpoint.counted("specfuse_refused_total", 3, code="unsupported_media_type")
    assert endpoint.metric("specfuse_answers_total") == 0
    one.trouble.clear()


@pytest.mark.parametrize(
    ("scheme", "width"), [("light", 320), pytest.param("dark", 1280, marks=pytest.mark.long)]
)
def test_axe_finds_no_barrier_and_hostile_text_is_text(serve, opened, scheme, width):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    look = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}, "bypass_csp": True}
    look["reduced_motion"] = "reduce"  # or colours are measured while they appear
    failing = ScriptedMember(BLUE, name=HOSTILE[1], fails_in=1)
    refusing = {"lead": "a", "checks": [checks.forbids("leak")]}
    llm = ensemble(" ".join(HOSTILE[:7]), failing, BLUE, **refusing)
    one = opened(url=serve(llm, api_keys=["key"], show_rejected=True).url, **look)
    one.page.wait_for_selector("#unlock")
    for question in ("", *HOSTILE[:2]):
        if question == HOSTILE[0]:
            unlock(one, "key")
        if question:
            ask(one, question)
            assert (
                one.page.locator(".note.left").count() and one.page.locator(".struck del").count()
            )
            one.unfold("#run-part")
        found = axe.Axe().run(one.page).response["violations"]
        assert [
            (violation["id"], [node["html"] for node in violation["nodes"]][:3])
            for violation in found
        ] == []
        assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    assert one.segments() and one.page.locator(".exchange .piece").count()
    assert one.page.locator("iframe, img, [onerror]").count() == 0
    assert all("401" in event for event in one.trouble)
    one.trouble.clear()
