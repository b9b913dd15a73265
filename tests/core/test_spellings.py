"""What was refused is not shown in another spelling, in part or in several drafts."""

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st

from langchain_specfuse import checks
from langchain_specfuse.core.normal import normal
from langchain_specfuse.core.options import Settings
from langchain_specfuse.core.values import Draft
from langchain_specfuse.errors import CheckError

from .play import play, speakers

ADDRESS = "ann.smith@example.com"
CARD = "4111 1111 2222 3333"


def writer(*scripts, size=6):
    """A member that continues the answer with its next script each time a draft was refused."""
    left, written = list(scripts), [""]

    def reply(job, _):
        answer = "".join(segment.text for segment in job.answer)
        if answer != written[-1] and len(left) > 1:
            left.pop(0)
            left[0] = answer.rstrip() + left[0]
        rest = left[0][len(answer) :]
        written.append(answer + rest[:size])
        return Draft(rest[:size], ended=len(rest) <= size)

    return reply


def settings(*rules, **options):
    return Settings(checks=list(rules), on_failure="end", **options)


def is_readable(datum, text):
    """Whether 60% of the datum are in the text, whatever stands between its characters."""
    form, shown = normal(datum)[0], normal(text)[0]
    size = -(-6 * len(form) // 10)
    return any(form[at : at + size] in shown for at in range(len(form) - size + 1))


@pytest.mark.parametrize(
    "spelling",
    [
        "ann.smith@example.c om",
        "Ann.Smith (@) Example.com",
        "ann.smith@example.Com",
        "`a n n . s m i t h @ e x a m p l e . c o m`",
        "ann.smith@example.org",
        "аnn.ѕmith@ехample.com",
        "ａｎｎ．ｓｍｉｔｈ＠ｅｘａｍｐｌｅ．ｃｏｍ",
        "ann\u200b.smith@exam\u00adple.com",
    ],
)
@pytest.mark.parametrize("size", [3, 12, 100])
@pytest.mark.parametrize("place", ["segment", "sentence", "line", "answer"])
def test_another_spelling_of_what_was_refused_is_refused(spelling, size, place):
    """With the cut as late as possible, SmolLM2 wrote ``ann.smith@example.c om``."""
    rule = checks.at(place, checks.forbids(ADDRESS))
    scripts = (f"Write to {ADDRESS} soon.", f" {spelling} soon.", " the shop soon.")
    played = play({"a": writer(*scripts, size=size)}, settings(rule))
    assert played.error is None
    assert not is_readable(ADDRESS, played.text)
    if place in ("segment", "line"):
        assert played.text == "Write to the shop soon."


def separated(datum):
    """The datum with other capital letters, and something between its characters."""
    between = st.lists(
        st.sampled_from(["", "", "", " ", "-", " - ", "\u200d", "*", "\n"]),
        min_size=len(datum),
        max_size=len(datum),
    )
    case = st.lists(st.booleans(), min_size=len(datum), max_size=len(datum))

    def spelled(marks, capitals):
        letters = [
            letter.upper() if is_capital else letter
            for letter, is_capital in zip(datum, capitals, strict=True)
        ]
        return "".join(a + b for pair in zip(letters, marks, strict=True) for a, b in [pair])

    return st.builds(spelled, between, case)


@given(
    datum=st.sampled_from([ADDRESS, CARD, "+49 151 2345678", "DE89370400440532013000"]),
    size=st.integers(1, 30),
    place=st.sampled_from(["segment", "sentence", "line", "block", "answer"]),
    failure=st.sampled_from(["raise", "end"]),
    data=st.data(),
)
@hypothesis(max_examples=60, deadline=None)
def test_no_spelling_of_a_refused_datum_becomes_readable(datum, size, place, failure, data):
    spellings = data.draw(st.lists(separated(datum), max_size=4))
    scripts = [f"It is {datum}.", *(f" {spelling}." for spelling in spellings), " secret."]
    literal = checks.forbids(datum.replace("+", r"\+"))
    rules = [literal, checks.at(place, literal, name="other")]
    options = Settings(checks=rules, on_failure=failure)
    played = play({"a": writer(*scripts, size=size)}, options)
    assert not is_readable(datum, played.text)
    assert played.error is None or isinstance(played.error, CheckError)


@pytest.mark.parametrize("size", [1, 4, 9, 40])
def test_the_whole_match_goes_in_whatever_pieces_it_arrives(size):
    member = writer(f"Pay with {CARD} now.", " cash now.", size=size)
    played = play({"a": member}, settings(checks.forbids(CARD)))
    assert played.text == "Pay with cash now."


@pytest.mark.parametrize("place", ["segment", "sentence", "line"])
def test_an_answer_ends_before_the_whole_match(place):
    rule = checks.at(place, checks.forbids(r"\[\d+\]"))
    played = play(speakers(a="I like trains too [7] a lot."), settings(rule))
    assert played.text == "I like trains too"
    assert played.rounds[-1].finish == "check"


def test_a_match_of_which_a_part_was_shown_is_cut_at_what_was_shown():
    rule = checks.forbids(r"\d{4} \d{4} \d{4} \d{4}")
    played = play({"a": writer(f"It is {CARD} now.", size=5)}, settings(rule))
    assert played.text == "It is 4111 1111 2222"


@pytest.mark.parametrize(
    "other", ["category", "scat", "C. Attlee", "concat", "Catalan", "4111 1111", "2222-3333"]
)
def test_other_words_than_the_refused_one_pass(other):
    rules = [checks.forbids(r"\bcat\b"), checks.forbids(CARD)]
    scripts = (f"A cat, {CARD}.", " dog, 1.", f" dog, {other}.")
    played = play({"a": writer(*scripts, size=50)}, settings(*rules))
    assert played.text.startswith("A dog, ")
    assert is_readable(other, played.text) or played.text == "A dog, 1."


@pytest.mark.parametrize(
    ("pattern", "refused", "other"),
    [
        ("we're", "we're", "were"),
        ("WHO", "WHO", "who"),
        (r"\d+%", "100%", "1.00 euros"),
        ("e-commerce", "e-commerce", "ecommerce"),
        ("therapist", "therapist", "the rapist"),
        (r"\*\*[^*]+\*\*", "**very important**", "very important"),
        (r"\b[A-Z]{4,}\b", "UNFORGETTABLE", "unforgettable"),
        ("Windows 10", "Windows 10", "Windows 11"),
        ("Microsoft Azure", "Microsoft Azure", "Microsoft Word"),
        ("New York Times", "New York Times", "New York today"),
        (r"\d+ March 2024", "15 March 2024", "15 March 2025"),
    ],
)
def test_ordinary_text_that_is_written_instead_of_a_refused_one_passes(pattern, refused, other):
    """A style rule is obeyed by the same words in another spelling."""
    scripts = (f"A dog, {refused}.", f" {other}.", " none.")
    played = play({"a": writer(*scripts, size=50)}, settings(checks.forbids(pattern)))
    assert played.text == f"A dog, {other}."


@pytest.mark.parametrize(
    ("invented", "right"),
    [
        ("info@harbour-office.example", "sales@harbour-office.example"),
        ("0493023125111", "0493023125222"),
        ("12,345,678", "12,345,999"),
    ],
)
def test_what_the_sources_have_passes_after_something_similar_was_invented(invented, right):
    rule = checks.grounded([f"The answer is {right}."])
    scripts = (f"The answer is {invented}.", f" {right}.", " unknown.")
    played = play({"a": writer(*scripts, size=50)}, settings(rule))
    assert played.text == f"The answer is {right}."


def test_a_second_fault_at_a_place_withdraws_the_sentence_if_nobody_has_seen_it():
    rule = checks.at("sentence", checks.forbids(ADDRESS))
    scripts = (
        f"Sure. Write to {ADDRESS}.",
        f" *{ADDRESS.upper()}*.",
        f" {ADDRESS}!",
        " I may not say it.",
    )
    played = play({"a": writer(*scripts, size=60)}, settings(rule))
    assert played.text == "Sure. I may not say it."


def test_a_draft_that_spells_a_refused_text_does_not_win():
    members = {
        "a": writer(f"Write to {ADDRESS}.", " Ann.Smith@Example.com.", size=60),
        "b": writer("Write to us. Or call.", size=60),
    }
    played = play(members, settings(checks.forbids(ADDRESS), lead=None))
    assert played.text == "Write to us. Or call."


def test_a_chinese_sentence_is_kept_up_to_the_match():
    """There are no spaces, so the whole sentence was withdrawn."""
    scripts = ("你好。电话是秘密项目吗？不是。", "公开项目吗？不是。")
    played = play({"a": writer(*scripts, size=50)}, settings(checks.forbids("秘密项目")))
    assert played.text == "你好。电话是公开项目吗？不是。"


def test_the_reason_says_that_it_is_another_spelling():
    scripts = (f"Write to {ADDRESS}.", " Ann.Smith@Example.com.", " us.")
    played = play({"a": writer(*scripts, size=60)}, settings(checks.forbids(ADDRESS)))
    reasons = [rejection.reason for round in played.rounds for rejection in round.rejected]
    assert reasons == [
        f"contains '{ADDRESS}'",
        f"contains '{ADDRESS}', in another spelling",
    ]


@pytest.mark.parametrize("literal", [ADDRESS, CARD, r"(?i)Saffron\-743-x"])
@pytest.mark.parametrize("size", [2, 40])
def test_an_address_or_a_number_is_refused_in_every_spelling_from_the_start(literal, size):
    """Gemma-3-270M, told to repeat ``k.tanaka@uni-kyoto.ac.jp``, wrote ``K.Tanaka@...``."""
    datum = literal.removeprefix("(?i)").replace("\\", "")
    spelled = " ".join(datum.replace(" ", "").title())
    played = play(
        {"a": writer(f"It is {spelled} now.", " secret.", size=size)},
        settings(checks.forbids(literal)),
    )
    assert played.text == "It is secret."


def test_another_datum_that_looks_like_the_forbidden_one_passes():
    text = "Order 2024-0002, or write to ann.smith@example.org."
    rules = [checks.forbids("2024-0001"), checks.forbids(ADDRESS), checks.forbids("Java Script")]
    played = play(speakers(a=text + " Use JavaScript."), settings(*rules))
    assert played.text == text + " Use JavaScript."
