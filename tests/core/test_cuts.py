"""Where a draft may be cut: words, code, tables, CJK, emoji, URLs, numbers, marks, and scripts without spaces."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.answer import is_safe, kept_tokens


def pieces(text):
    """The text cut wherever it may be."""
    seams = [0, *(at for at in range(1, len(text)) if is_safe(text, at)), len(text)]
    return [text[a:b] for a, b in pairwise(seams)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The sky is blue.", ["The", " sky", " is", " blue."]),
        ("It's well-known, isn't it?", ["It's", " well-known,", " isn't", " it?"]),
        ("pi is 3.14, 1,000 is 1e3", ["pi", " is", " 3.14,", " 1,000", " is", " 1e3"]),
        ("see https://a.b/c?d=e#f now", ["see", " https://a.b/c?d=e#f", " now"]),
        ("def f(x):\n    return x\n", ["def", " f(x):\n    return", " x", "\n"]),
        ("if a:\n\tb = 1\n\n\nc", ["if", " a:\n\tb", " =", " 1", "\n\n\n", "c"]),
        ("| a | b |\n|---|---|\n| 1 |", ["|", " a", " |", " b", " |\n", "|---|---|\n", "|", " 1", " |"]),
        ("- one\n- two", ["-", " one", "\n", "-", " two"]),
        ("a\r\nb", ["a", "\r\n", "b"]),
        ("天空是蓝色的", list("天空是蓝色的")),
        ("そらは青い。", list("そらは青い。")),
        ("用Python写", ["用", "Python", "写"]),
        ("nice 👨‍👩‍👧‍👦 family", ["nice", " 👨‍👩‍👧‍👦", " family"]),
        ("hi👋🏽there", ["hi", "👋🏽", "there"]),
        ("go🇩🇪🇫🇷", ["go", "🇩🇪🇫🇷"]),
        ("so❤️👍", ["so", "❤️", "👍"]),
        ("key1️⃣", ["key1️⃣"]),
        ("cafe\u0301 au", ["cafe\u0301", " au"]),
        ("ท้องฟ้าเป็นสีฟ้า", ["ท้องฟ้าเป็นสีฟ้า"]),
        ("नमस्ते दुनिया", ["नमस्ते", " दुनिया"]),
        ("하늘은 파랗다", ["하늘은", " 파랗다"]),
        ("", [""]),
    ],
)
def test_seams_fall_where_words_end(text, expected):
    assert pieces(text) == expected
    assert "".join(pieces(text)) == text


@given(st.text(alphabet=st.sampled_from("ab .\n\t 天😀\u0301\u200d\ufe0f🇩🏽1,\r"), max_size=12))
def test_no_seam_splits_a_visible_character_or_a_run_of_white_space(text):
    for left, right in pairwise(pieces(text)):
        assert right[0] not in "\u0301\u200d\ufe0f🏽"
        assert not (left[-1] == "\u200d" or left[-1] == right[0] == "🇩")
        assert not (left[-1].isspace() and right[0].isspace())
        assert not left.endswith(" ")


@given(st.text(max_size=12))
def test_nothing_is_safe_outside_the_text_and_nothing_raises(text):
    assert not is_safe(text, 0)
    assert not is_safe(text, -1)
    assert all(isinstance(is_safe(text, at), bool) for at in range(len(text) + 2))


def test_the_last_word_is_not_kept_for_it_may_go_on():
    assert kept_tokens("The answer is 4", [3, 10, 13, 15], limit=4) == 3


def test_a_line_break_or_a_space_at_the_end_is_not_kept_for_indentation_may_follow():
    assert kept_tokens("x = 1\n    ", [1, 3, 5, 6, 10], limit=5) == 3
    assert kept_tokens("a b ", [1, 3, 4], limit=3) == 2


def test_never_more_than_the_limit():
    assert kept_tokens("a b c d e", [1, 3, 5, 7, 9], limit=3) == 3
    assert kept_tokens("a b c d e", [1, 3, 5, 7, 9], limit=0) == 0


def test_one_long_word_has_no_seam_and_the_member_must_decide():
    assert kept_tokens("Donaudampfschiff", [5, 10, 16], limit=3) == 0
    assert kept_tokens("ท้องฟ้า", [2, 4, 7], limit=3) == 0
    assert kept_tokens("", [], limit=3) == 0


def test_a_token_with_only_part_of_a_character_is_never_the_last():
    # "ok😀!" by bytes: [o][k][f0 9f][98][80][!]
    assert kept_tokens("ok😀!", [1, 2, 2, 2, 3, 4], limit=4) == 2
    assert kept_tokens("ok😀!", [1, 2, 2, 2, 3, 4], limit=6) == 5
    # A draft that stops within a character.
    assert kept_tokens("天", [1, 1], limit=2) == 1


@given(
    st.lists(st.sampled_from([" the", " sky", ".", "天", "😀", "\n", "    ", "x1", "e\u0301"]), max_size=10), st.data()
)
def test_the_tokens_kept_are_whole_characters_up_to_a_safe_place(tokens, data):
    text = "".join(tokens)
    ends, done = [], b""
    for token in tokens:  # each token again in byte-sized pieces, as a byte-level tokenizer may cut it
        for byte in token.encode():
            done += bytes([byte])
            ends.append(len(done.decode(errors="ignore")))
    limit = data.draw(st.integers(0, len(ends)))
    count = kept_tokens(text, ends, limit)
    assert count <= limit
    if count:
        kept = text.encode()[:count].decode()  # strict: no partial character
        assert is_safe(text, len(kept))


def test_every_word_of_plain_prose_can_be_reached():
    prose = "It was the best of times, it was the worst of times; it was (nearly) 1859."
    assert len(pieces(prose)) == len(re.findall(r"\S+", prose))


RANGES = {
    "skin tones": "\U0001f3fb\U0001f3ff",
    "tags": "\U000e0020\U000e007f",
    "marks": "\u0301\u20dd\u0903",  # one of each kind: non-spacing, enclosing, spacing
    "variation selectors": "\ufe00\ufe0f",
    "joiner": "\u200d",
}


@pytest.mark.parametrize("kind", RANGES)
def test_what_joins_the_character_before_it_is_never_cut_off(kind):
    assert [mark for mark in RANGES[kind] if is_safe(f"天{mark}天", 1)] == []


@pytest.mark.parametrize("mark", ["\U0001f3fa", "\U0001f400", "\U000e001f", "\U000e0080", "\u0041"])
def test_what_stands_beside_those_ranges_is_cut_off(mark):
    assert is_safe(f"天{mark}", 1)


def test_flags_are_two_letters_of_their_own_and_nothing_else_is():
    first, last = "\U0001f1e6", "\U0001f1ff"
    joined = [first + first, first + last, last + first, last + last]
    assert [pair for pair in joined if is_safe(pair, 1)] == []
    before, after = "\U0001f1e5", "\U0001f200"
    apart = [before + first, first + before, after + last, last + after, "天" + first, first + "天"]
    assert [pair for pair in apart if not is_safe(pair, 1)] == []


def test_a_joiner_holds_what_stands_on_either_side_of_it():
    assert not is_safe("\u200d天", 1)
    assert not is_safe("天\u200d", 1)


@pytest.mark.parametrize("gap", ["\n", "\r", "\r\n"])
def test_a_line_ends_behind_a_word_but_not_behind_a_sign(gap):
    assert is_safe(f"a{gap}", 1)
    assert is_safe(f"1{gap}b", 1)
    assert not is_safe(f";{gap}", 1)
    assert not is_safe(f";{gap}b", 1)
    assert is_safe("; b", 1)


def test_a_space_of_an_unspaced_script_at_the_end_is_kept_open():
    """U+3000 is a space: it may be the first of several."""
    assert not is_safe("天\u3000", 2)
    assert not is_safe("天\u3000天", 2)
    assert is_safe("天空", 2)


@pytest.mark.parametrize(("first", "last"), [("\u2e80", "\u303e"), ("\u3041", "\u30ff"), ("\u31f0", "\u4dbf")])
def test_scripts_without_spaces_may_be_cut_anywhere(first, last):
    assert is_safe(f"a{first}", 1) and is_safe(f"a{last}", 1)
    assert not is_safe("a\u2e7f", 1)


def test_pictures_are_cut_from_words_on_both_sides():
    for picture in ("\u2190", "\u2bff", "\U0001f000", "\U0001faff"):
        assert is_safe(f"a{picture}", 1) and is_safe(f"{picture}a", 1)
    assert not is_safe("a\u218f", 1) and not is_safe("a\u2c00", 1)


def test_tokens_are_kept_up_to_the_last_that_completes_a_character():
    assert kept_tokens("天空", [1, 1, 2], limit=3) == 3
    assert kept_tokens("天空", [1, 1, 2], limit=2) == 1
    assert kept_tokens("天", [1, 1], limit=2) == 1
    assert kept_tokens("a b", [1, 3], limit=9) == 1
    assert kept_tokens("天", [1], limit=0) == 0
    assert kept_tokens("ab", [1, 2], limit=2) == 0
    assert kept_tokens("", [], limit=3) == 0
