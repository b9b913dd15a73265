"""The tokens of text that was withdrawn do not count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.agreed import AgreedTokens
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
