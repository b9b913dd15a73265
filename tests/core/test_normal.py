"""Different spellings of the same text are equal in their normal form."""

import pytest

from langchain_specfuse.core.normal import normal


@pytest.mark.parametrize(
    "spelling",
    [
        "ann.smith@example.c om",
        "ANN.SMITH (@) EXAMPLE.COM",
        "ann_smith\u200b@exam\u200dple.\u00adcom",
        "аnn.ѕmіth@ехаmрlе.соm",
        "ａｎｎ．ｓｍｉｔｈ＠ｅｘａｍｐｌｅ．ｃｏｍ",
        "**ánn.smith**@example\n.com",
    ],
)
def test_spellings_of_an_address_are_equal(spelling):
    assert normal(spelling)[0] == "annsmithexamplecom"


@pytest.mark.parametrize("number", ["٤١١١", "4-1 1.1", "４１１１", "④①①①"])
def test_digits_of_other_scripts_are_equal(number):
    assert normal(number)[0] == "4111"


def test_every_character_has_its_place_in_the_text():
    text = "– ŒUVRE ﬁn"
    form, places = normal(text)
    assert form == "œuvrefin"
    assert "".join(text[place] for place in places) == "ŒUVREﬁﬁn"
