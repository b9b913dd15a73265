"""Loops are found, plain text with repetitions in it is left alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.answer import continues_loop

SENTENCE = "The sky is blue because of the way light scatters. "

LOOPS = {
    "sentence": (SENTENCE * 2, SENTENCE[:30]),
    "sentence, cut anywhere": ("Well. " + SENTENCE * 2 + SENTENCE[:17], SENTENCE[17:40]),
    "sentence, once and then again to its end": (SENTENCE + SENTENCE[:-9], SENTENCE[-9:]),
    "phrase": ("and so on and so on and so on", " and so on and so on"),
    "clause": ("It is natural because it is natural because it is natural because", " it is natural because"),
    "word": ("very " * 8, "very very very "),
    "digits": ("x = 0.333333333333333333333333333", "3333333333"),
    "list of zeros": ("[0, 0, 0, 0, 0, 0, 0, 0, 0, 0,", " 0, 0, 0, 0,"),
    "lines": ("- item\n- item\n- item\n- item\n", "- item\n- item\n"),
    "Chinese": ("天空是蓝色的，因为光的散射。" * 3, "天空是蓝色的，因为光的散射。"),
    "exclamation": ("Yes! " * 10, "Yes! Yes! "),
    "line breaks of nothing but marks": ("...\n" * 40, "...\n...\n"),
}

PLAIN = {
    "first words": ("", "The sky is blue."),
    "new sentence": (SENTENCE, "The sea is blue for another reason."),
    "sentence said twice, not yet a loop": ("Paris is big. ", "Paris is big. "),
    "numbered list": ("1. Apples are red.\n2. Apples are green.\n", "3. Apples are yellow.\n"),
    "table": ("| name | age |\n|------|-----|\n| Ann | 31 |\n| Bob | 32 |\n", "| Cem | 33 |\n"),
    "rule of a wide table": ("| a | b | c | d | e |\n|------|------|------|", "------|------|------|"),
    "empty rows": ("|     |     |     |\n|     |     |     |\n", "|     |     |     |\n"),
    "ruler": ("# " + "-" * 60, "-" * 16),
    "dots of a table of contents": ("1 Introduction " + "." * 40, "......... 7"),
    "code": (
        "    def a(self):\n        return self._a\n\n    def b(self):\n        return self._b\n\n",
        "    def c(self):\n",
    ),
    "closing brackets": ("            }\n        }\n    }\n", "}\n"),
    "indentation": ("if a:\n" + " " * 40, " " * 8),
    "laughter": ("ha ha ha", " ha ha"),
    "refrain": (
        "Row, row your boat\nGently down the stream\nOh merrily we go\nRow, row your boat\nAgainst the evening wind\n",
        "Oh merrily we go\n",
    ),
    "leaving a loop": (SENTENCE * 2, "The sky is blue, but the sea is not."),
    "counting": ("1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,", " 13, 14, 15, 16,"),
    "the end": (SENTENCE * 2, ""),
    "a space": (SENTENCE * 2, " "),
    "times table": ("7 x 1 = 7\n7 x 2 = 14\n7 x 3 = 21\n", "7 x 4 = 28\n"),
    "base sequence": ("The gene reads ATGGCCATTGTAATGGGCC", "GCTGAAAGGGTGCCCGATAG"),
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_is_found(name):
    assert continues_loop(*LOOPS[name])


@pytest.mark.parametrize("name", PLAIN)
def test_plain_text_is_left_alone(name):
    assert not continues_loop(*PLAIN[name])


@given(st.text("abcde ,.", min_size=8, max_size=50).filter(lambda s: len(set(s)) > 3), st.integers(2, 40))
def test_whatever_repeats_long_enough_is_found_wherever_the_seam_is(period, at):
    whole = period * 12
    assert continues_loop(whole[:-at], whole[-at:]) or not whole[-at:].strip()


@given(st.lists(st.integers(0, 10**9), min_size=30, max_size=60, unique=True), st.integers(1, 60))
def test_text_without_repetition_is_never_a_loop(numbers, at):
    text = " ".join(f"{n:x}" for n in numbers)
    assert not continues_loop(text[:-at], text[-at:])


def test_only_the_tail_of_a_long_answer_matters():
    assert not continues_loop(SENTENCE * 4 + "Now something else, at length. " * 1 + "x y z " * 150 + "Fin.", SENTENCE)


def looped(unit, times, draft):
    return continues_loop(unit * times, draft)


@pytest.mark.parametrize(("unit", "least"), [("ab" * 6, 24), ("-" * 12, 96)], ids=["with letters", "marks alone"])
def test_a_repetition_counts_from_so_many_characters_on(unit, least):
    """Of a text of one unit the run is the whole but one period, whatever the draft."""
    draft = unit[:1]
    period = 2 if "a" in unit else 1
    short = (unit * 20)[: least + period - 2]
    assert not continues_loop(short, draft)
    assert continues_loop(short + unit[len(short) % len(unit)], (unit * 20)[len(short) + 1])


def test_a_loop_is_looked_for_in_so_much_of_the_tail():
    unit = "".join(f"{number:03d}," for number in range(78))[:310]  # no part of it repeats another
    more = 20  # of the last 600 characters and the draft, two periods
    assert continues_loop(unit * 2, unit[:more])
    assert not continues_loop(unit * 2, unit[: more - 1])


def test_a_loop_must_reach_back_beyond_the_draft():
    """Half a period of what stood before, at most half of what counts at all."""
    text = "abcdefghijklmnopqrstuvwxyz0123456789" * 4
    period, more = 36, 12
    assert continues_loop(text[: period + more], text[period + more :][:30])
    assert not continues_loop(text[1 : period + more], text[period + more :][:30])


def test_what_says_nothing_continues_no_loop():
    assert continues_loop(" \n" * 60, "") is False
    assert continues_loop(" \n" * 60, " \n" * 4) is False
    assert continues_loop("of the air", " and so on") is False
