"""Who wrote which text that is released, and which tokens count: not those that were withdrawn."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.agreed import AgreedTokens, ReleasedText
from langchain_specfuse.core.round import Round
from langchain_specfuse.core.values import Draft, Segment

WORDS = st.lists(st.sampled_from(["a", " bc", " def"]), min_size=1, max_size=4)


def agreed(words: list[str], withdrawn: str = "", forced: str = "", ends: bool = True) -> Round:
    text = "".join(words)
    places = [len("".join(words[: at + 1])) for at in range(len(words))]
    draft = Draft(text, tokens=tuple(range(len(words))), ends=tuple(places) if ends else None)
    return Round(
        number=1,
        text=text,
        segment=Segment(text),
        winner="a",
        drafts={"a": draft, "b": Draft(" other", tokens=(1, 2, 3, 4, 5))},
        scores={},
        votes={},
        totals={},
        rewards={},
        weights_before={},
        weights={},
        withdrawn=withdrawn,
        forced=forced,
    )


@given(st.lists(st.tuples(WORDS, st.integers(0, 12)), min_size=1, max_size=8))
def test_the_count_is_that_of_the_text_that_stands(steps):
    """Withdraws at the ends of tokens, across rounds."""
    tokens, standing, written = AgreedTokens(), [], 0
    for words, cut in steps:
        kept = standing[: max(0, len(standing) - cut)]
        withdrawn = "".join(standing[len(kept) :])
        tokens.add(agreed(words, withdrawn))
        standing = kept + words
        written += len(words)
        assert tokens.count() == len(standing)
        assert tokens.withdrawn == written - len(standing)


def test_a_token_that_is_cut_in_two_does_not_count():
    tokens = AgreedTokens()
    tokens.add(agreed(["one", " guaranteed"]))
    tokens.add(agreed([" sure"], withdrawn="anteed"))
    assert (tokens.count(), tokens.withdrawn) == (2, 1)


def test_a_draft_without_the_ends_of_its_tokens_counts_whole_or_not_at_all():
    tokens = AgreedTokens()
    tokens.add(agreed(["one"], ends=False))
    tokens.add(agreed([" two", " three"], ends=False))
    tokens.add(agreed([" 3"], withdrawn=" three"))
    assert (tokens.count(), tokens.withdrawn) == (2, 2)


def test_forced_text_has_a_length_and_no_tokens():
    tokens = AgreedTokens()
    tokens.add(agreed(["a", " b"], forced='"}'))
    tokens.add(agreed([" c"], withdrawn=' b"}'))
    assert (tokens.count(), tokens.count(without={"a"})) == (2, 0)


@pytest.mark.parametrize(
    ("draft", "length"), [(Draft("a b", tokens=(1, 2)), 2), (Draft("a"), 1), (Draft(""), 0)]
)
def test_the_length_of_a_draft_is_a_number_even_if_it_has_no_token(draft, length):
    assert draft.size == length and type(draft.size) is int


# --- who wrote it ---------------------------------------------------------------------------------


def released(round: Round, text: str, author: str = "a", segment: str | None = None) -> Round:
    more = {} if segment is None else {"segment": Segment(segment)}
    return replace(round, text=text, winner=author, **more)


def authors(*rounds: Round) -> list[list[tuple[str, str]]]:
    text = ReleasedText()
    return [[(piece.author, piece.text) for piece in text.add(item)] for item in rounds]


def test_every_piece_has_its_author_and_nothing_is_lost():
    for text, segment, forced, expected in [
        ("held back, Hello", "Hello", "", [("a", "held back, Hello")]),
        ('{"a": "a', "a", '{"a": "', [("", '{"a": "'), ("a", "a")]),
        (
            '{"a": "Rome", "b":',
            "Rome",
            '{"a": "", "b":',
            [("", '{"a": "'), ("a", "Rome"), ("", '", "b":')],
        ),
        ("cut by a stop", "cut by a stop string", "x", [("a", "cut by a stop")]),
    ]:
        item = released(agreed([segment], forced=forced), text)
        assert authors(item) == [expected]


def test_text_that_was_held_back_keeps_its_author():
    first = released(agreed(["The sky", " is"]), "The", "a")
    second = released(agreed([" blue", "."]), " sky is blue", "b")
    last = released(agreed([" Yes."]), ". Yes.", "a")
    assert authors(first, second, last) == [
        [("a", "The")],
        [("a", " sky is"), ("b", " blue")],
        [("b", "."), ("a", " Yes.")],
    ]


def test_text_that_was_withdrawn_is_never_released():
    first = released(agreed(["We", " guarantee"]), "", "a")
    second = released(agreed([" hope."], withdrawn=" guarantee"), "We hope.", "b")
    assert authors(first, second) == [[], [("a", "We"), ("b", " hope.")]]


@given(st.lists(st.tuples(WORDS, st.integers(0, 9), st.integers(0, 6)), min_size=1, max_size=8))
def test_the_pieces_are_the_text_and_each_is_in_its_segment(steps):
    """Rounds hold back some text and withdraw some of what they hold back."""
    text, shown, rounds = "", 0, []
    for at, (words, held, cut) in enumerate(steps):
        base = max(shown, len(text) - cut)
        withdrawn, segment = text[base:], "".join(words)
        text = text[:base] + segment
        end = max(shown, len(text) - held)
        rounds.append(released(agreed(words, withdrawn), text[shown:end], "ab"[at % 2]))
        shown = end
    pieces = ReleasedText()
    for item in rounds:
        found = pieces.add(item)
        assert "".join(piece.text for piece in found) == item.text
        assert all(piece.text in piece.round.segment.text for piece in found)
