"""Ready-made patterns for personal data."""

from __future__ import annotations

import random
import time

import pytest

from langchain_specfuse import checks
from langchain_specfuse.checks import CheckContext
from langchain_specfuse.checks.personal import PERSONAL, PersonalPattern

from .personal_data import (
    CARDS,
    EMAILS,
    IBANS,
    IPS,
    LOOK_ALIKES,
    NOT_EMAILS,
    PHONES,
    entries,
)

LISTS = {"card": CARDS, "iban": IBANS, "email": EMAILS, "ip": IPS, "phone": PHONES}
MISSED = {
    "email": [
        "I❤️CHOCOLATE@example.com",
        "用户@例子.广告",
        '"email"@example.com',
        "admin@example",
        '" "@example.org',
        '"john..doe"@example.org',
    ],
    "ip": ["::1", "::"],
}
PATTERNS = [pytest.param(pattern, id=name) for name, pattern in PERSONAL.items()]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns_find_the_data_of_public_lists(pattern: PersonalPattern) -> None:
    """Recall: 33 of 33 cards, 77 of 77 IBANs, 33 of 39 e-mail addresses (not those in quotation
    marks, in Chinese, without a dot or with an emoji), 34 of 36 IP addresses (not ``::`` and ``::1``), and 66
    of 66 phone numbers, each from its first to its last character."""
    missed = [
        entry
        for entry in entries(LISTS[pattern.name])
        if pattern.find(f"It is {entry}, yes.") != [(6, 6 + len(entry))]
    ]
    assert missed == MISSED.get(pattern.name, [])


def test_patterns_pass_what_looks_alike() -> None:
    """Precision: one alarm in 238 texts, at a latitude and a longitude without a space between them."""
    found = [
        entry
        for entry in entries(LOOK_ALIKES)
        if any(pattern.find(entry) for pattern in PERSONAL.values())
    ]
    assert len(entries(LOOK_ALIKES)) == 238
    assert found == ["+40.20361-075.00417/"]


@pytest.mark.parametrize(
    "text", ["| A | {} |", "|Ann|{}|", "ADMIN_EMAIL={}", "email={} ", "f({{{}}})", "- a\n- b {}\n"]
)
def test_tables_and_settings_keep_what_stands_beside_an_address(text: str) -> None:
    found = checks.EMAIL.find(text.format("a@example.org"))
    start = text.format("@").index("@")
    assert found == [(start, start + len("a@example.org"))]


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("text", ["联系方式是{}或者。", "これは{}です。", "연락처는{}입니다."])
def test_data_is_found_in_languages_that_put_no_space_beside_it(
    pattern: PersonalPattern, text: str
) -> None:
    entry = entries(LISTS[pattern.name])[0]
    start = text.index("{")
    whole = text.format(entry)
    assert pattern.find(whole) == [(start, start + len(entry))]
    assert all(
        min([pattern.pending(whole[:end]), *(first for first, _ in pattern.find(whole[:end]))])
        <= start
        for end in range(start + 8, start + len(entry))
    )


@pytest.mark.parametrize(
    "code", ["y = x @ model.weight", "(a @ b.sum()).T", "scores = query @ key.transpose(-2, -1)"]
)
def test_products_of_matrices_are_no_addresses(code: str) -> None:
    assert checks.EMAIL.find(code) == []


def test_invalid_addresses_of_public_lists_are_no_addresses() -> None:
    """Two of 23 are taken for one: the domain ``web`` and four numbers above 255."""
    taken = [e for e in entries(NOT_EMAILS) if checks.EMAIL.find(e) == [(0, len(e))]]
    assert len(entries(NOT_EMAILS)) == 23
    assert taken == ["email@111.222.333.44444", "email@example.web"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_beginning_of_a_match_gets_through(pattern: PersonalPattern) -> None:
    """Whatever text has arrived: what the whole text turns out to match is held back or found."""
    draw = random.Random(7)
    lists = [*LISTS.values(), LOOK_ALIKES, NOT_EMAILS]
    known = [entry for listed in lists for entry in entries(listed)]
    for _ in range(60):
        text = draw.choice((" ", "", "-", ". ")).join(draw.choices(known, k=draw.randint(1, 3)))
        spans = pattern.find(text)
        for size in range(len(text) + 1):
            begun, found = pattern.pending(text[:size]), pattern.find(text[:size])
            for start, end in spans:
                is_found = size >= end and (start, end) in found
                assert size <= start or is_found or begun <= start, (text, size)
            assert {span for span in found if span[1] <= begun} <= set(spans), (text, size)


@pytest.mark.parametrize(
    ("pattern", "longest"),
    [("email", 9), ("card", 3), ("iban", 6), ("ip", 5), ("phone", 3)],
)
def test_prose_is_held_for_a_word_or_number(pattern: str, longest: int) -> None:
    prose = (
        "The tower of Pisa was begun in 1173 and finished 199 years later, in 1372. It is 56 m\n"
        "high; de facto it leans 3.97 degrees (5.5 before 1990), which costs Italy +5 % a year."
    )
    held = [size - PERSONAL[pattern].pending(prose[:size]) for size in range(len(prose))]
    assert max(held) == longest


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("part", ["a", "a.", "a@a.", "4 ", "1.", "de89 ", "a::", "+49 ", "\u200b4"])
def test_time_is_linear_in_the_text(pattern: PersonalPattern, part: str) -> None:
    """100,000 characters of what a pattern may begin with: 0.6 s at most on two busy cores."""
    text = part * (100_000 // len(part))
    start = time.process_time()
    pattern.find(text)
    pattern.pending(text)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("pattern", PATTERNS)
def test_only_the_new_end_of_a_long_answer_is_searched(pattern: PersonalPattern) -> None:
    """With ``forbids(checks.EMAIL)``, 44,000 characters took 55 s, and half of them 15 s."""
    before = "Write 12 words, and then 3. " * 4000
    entry = entries(LISTS[pattern.name])[0]
    check = checks.forbids(pattern).function
    started = time.perf_counter()
    for _ in range(10):
        context = CheckContext([], f"{entry}.", "ann", ended=False)
        found = check(f"{before}{entry}.", context)
    took = time.perf_counter() - started
    assert (found.start, found.end) == (len(before), len(before) + len(entry))
    started = time.perf_counter()
    assert check(before) is None
    assert took < 2 * (time.perf_counter() - started), "ten times together"


def test_forbidden_personal_data_is_not_repeated_in_the_reason() -> None:
    check = checks.forbids(checks.CARD)
    finding = check.function("Pay with 4111 1111 1111 1111.")
    assert (finding.reason, finding.start, finding.end) == ("contains the number of a card", 9, 28)
    assert check.private
    assert check.pending is not None
    assert check.pending("Pay with 4111 11") == 9
