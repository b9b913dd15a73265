"""The agreed text: where drafts may be cut, loops, stop strings across segments, the budget."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.answer import (
    LOOP_END,
    LOOP_WINDOW,
    Answer,
    continues_loop,
    is_safe,
    kept_tokens,
    only_repeats,
)
from langchain_specfuse.core.values import Segment


def agreed(pieces, stop=(), budget=1000, ended=True):
    """Return the answer and what each piece released; the last piece ends it if ``ended``."""
    answer, released = Answer(stop=tuple(stop), budget=budget), []
    for k, piece in enumerate(pieces):
        answer = answer.plus(Segment(piece, ended and k == len(pieces) - 1, {"a": (1,)}))
        released.append(answer.released)
        if answer.finish:
            break
    return answer, released


@pytest.mark.parametrize(("ended", "budget", "finish"), [(True, 100, "stop"), (False, 2, "length")])
def test_held_back_text_is_released_when_the_answer_ends_without_the_stop_string(
    ended, budget, finish
):
    answer, released = agreed(["one ", "E"], ["END"], budget, ended)
    assert (released, answer.finish) == (["one ", "E"], finish)


# --- safe places ----------------------------------------------------------------------------------


def pieces(text):
    """Return the text, cut at every safe place."""
    seams = [0, *(at for at in range(1, len(text)) if is_safe(text, at)), len(text)]
    return [text[a:b] for a, b in pairwise(seams)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It's well-known, isn't it?", ["It's", " well-known,", " isn't", " it?"]),
        ("see https://a.b/c?d=e#f now", ["see", " https://a.b/c?d=e#f", " now"]),
        ("def f(x):\n    return x\n", ["def", " f(x):\n    return", " x", "\n"]),
        ("if a:\n\tb = 1\n\n\nc", ["if", " a:\n\tb", " =", " 1", "\n\n\n", "c"]),
        (
            "| a | b |\n|---|---|\n| 1 |",
            ["|", " a", " |", " b", " |\n", "|---|---|\n", "|", " 1", " |"],
        ),
        ("天空是蓝色的", list("天空是蓝色的")),
        ("用Python写", ["用", "Python", "写"]),
        ("nice 👨‍👩‍👧‍👦 family", ["nice", " 👨‍👩‍👧‍👦", " family"]),
        ("hi👋🏽there", ["hi", "👋🏽", "there"]),
        ("नमस्ते दुनिया", ["नमस्ते", " दुनिया"]),
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


def test_the_last_word_is_not_kept_because_it_may_go_on():
    assert kept_tokens("The answer is 4", [3, 10, 13, 15], limit=4) == 3
    assert kept_tokens("ab", [1, 2], limit=2) == 0


def test_white_space_at_the_end_is_not_kept_because_indentation_may_follow():
    assert kept_tokens("x = 1\n    ", [1, 3, 5, 6, 10], limit=5) == 3
    assert kept_tokens("a b ", [1, 3, 4], limit=3) == 2
    assert not is_safe("天\u3000", 2)  # U+3000 is a space; it may be the first of several
    assert is_safe("天空", 2)


def test_a_token_with_part_of_a_character_is_never_the_last():
    # "ok😀!" by bytes: [o][k][f0 9f][98][80][!]
    assert kept_tokens("ok😀!", [1, 2, 2, 2, 3, 4], limit=4) == 2
    assert kept_tokens("ok😀!", [1, 2, 2, 2, 3, 4], limit=6) == 5
    assert kept_tokens("天", [1, 1], limit=2) == 1


@given(
    st.lists(
        st.sampled_from([" the", " sky", ".", "天", "😀", "\n", "    ", "x1", "e\u0301"]),
        max_size=10,
    ),
    st.data(),
)
def test_kept_tokens_are_whole_characters_up_to_a_safe_place(words, data):
    text = "".join(words)
    ends, done = [], b""
    for byte in text.encode():  # one token per byte
        done += bytes([byte])
        ends.append(len(done.decode(errors="ignore")))
    limit = data.draw(st.integers(0, len(ends)))
    count = kept_tokens(text, ends, limit)
    assert count <= limit
    if count:
        kept = text.encode()[:count].decode()  # strict: no partial character
        assert is_safe(text, len(kept))


@pytest.mark.parametrize(
    "mark", "\U0001f3fb\U0001f3ff\U000e0020\U000e007f\u0301\u20dd\u0903\ufe00\ufe0f\u200d"
)
def test_a_mark_is_never_cut_off_its_character(mark):
    assert not is_safe(f"天{mark}天", 1)


# --- loops ----------------------------------------------------------------------------------------

SENTENCE = "The sky is blue because of the way light scatters. "

LOOPS = {
    "sentence": (SENTENCE * 2, SENTENCE[:30]),
    "sentence, cut anywhere": ("Well. " + SENTENCE * 2 + SENTENCE[:17], SENTENCE[17:40]),
    "clause": (
        "It is natural because it is natural because it is natural because",
        " it is natural because",
    ),
    "list of zeros": ("[0, 0, 0, 0, 0, 0, 0, 0, 0, 0,", " 0, 0, 0, 0,"),
    "Chinese": ("天空是蓝色的，因为光的散射。" * 3, "天空是蓝色的，因为光的散射。"),
    "lines of marks": ("...\n" * 40, "...\n...\n"),
}

PLAIN = {
    "new sentence": (SENTENCE, "The sea is blue for another reason."),
    "sentence said twice, not yet a loop": ("Paris is big. ", "Paris is big. "),
    "numbered list": ("1. Apples are red.\n2. Apples are green.\n", "3. Apples are yellow.\n"),
    "table": ("| name | age |\n|------|-----|\n| Ann | 31 |\n| Bob | 32 |\n", "| Cem | 33 |\n"),
    "empty rows": ("|     |     |     |\n|     |     |     |\n", "|     |     |     |\n"),
    "dots of a table of contents": ("1 Introduction " + "." * 40, "......... 7"),
    "code": (
        "    def a(self):\n        return self._a\n\n    def b(self):\n        return self._b\n\n",
        "    def c(self):\n",
    ),
    "indentation": ("if a:\n" + " " * 40, " " * 8),
    "refrain": (
        "Row, row your boat\nGently down the stream\nOh merrily we go\nRow, row your boat\nAgainst "
        "the evening wind\n",
        "Oh merrily we go\n",
    ),
    "leaving a loop": (SENTENCE * 2, "The sky is blue, but the sea is not."),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_detected(name):
    assert continues_loop(*LOOPS[name])


@pytest.mark.parametrize("name", PLAIN)
def test_plain_text_is_not_a_loop(name):
    assert not continues_loop(*PLAIN[name])


@pytest.mark.parametrize("blank", ["\n", " ", " \n", "\n   "])
def test_a_text_that_has_only_become_blank_for_long_is_a_loop(blank):
    assert only_repeats("Hello." + blank * LOOP_END)


@pytest.mark.parametrize("period", [1, 7, 60, 800, LOOP_END - 50])
def test_a_text_that_has_repeated_a_passage_for_long_is_a_loop(period):
    begin = " ".join(map(str, range(900)))
    passage = begin[-period:]
    whole = begin + passage * (LOOP_END // period + 2)
    assert only_repeats(whole)
    assert not only_repeats(begin) and not only_repeats(whole[: len(begin) + LOOP_END // 2])
    assert not only_repeats(whole + "And now for something completely different.")


@given(
    st.text("abcde ,.", min_size=8, max_size=50).filter(lambda s: len(set(s)) > 3),
    st.integers(2, 40),
)
def test_a_long_repetition_is_detected_wherever_segments_end(period, at):
    whole = period * 12
    assert continues_loop(whole[:-at], whole[-at:]) or not whole[-at:].strip()


@given(st.lists(st.integers(0, 10**9), min_size=30, max_size=60, unique=True), st.integers(1, 60))
def test_text_without_repetition_is_never_a_loop(numbers, at):
    text = " ".join(f"{n:x}" for n in numbers)
    assert not continues_loop(text[:-at], text[-at:])


@given(st.text("ab \n", max_size=40), st.integers(1, 60), st.text("ab \n", max_size=20))
def test_only_the_end_of_a_long_answer_matters(unit, times, draft):
    answer = unit * times
    assert continues_loop(answer, draft) == continues_loop(
        "x" * 1000 + answer[-LOOP_WINDOW:], draft
    )


@pytest.mark.parametrize(
    ("unit", "period", "least"), [("ab", 2, 24), ("-", 1, 96)], ids=["letters", "marks"]
)
def test_a_repetition_counts_from_its_minimum_length_on(unit, period, least):
    text = unit * 120
    assert not continues_loop(text[: least + period - 2], text[least + period - 2])
    assert continues_loop(text[: least + period - 1], text[least + period - 1])
