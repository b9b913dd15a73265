"""Where sentences end: a table of cases, and what holds while the text grows."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse import Method, ScriptedMember, SpecFuseChatModel, checks
from langchain_specfuse.core.sentences import sentence_ends, units

CASES = {
    "full stops": "One.¦ Two!¦ Three?!¦ Four‽ x",
    "emphasis": "**One.**¦ *Two.*¦ _Three!_¦ `Four.`¦ ***Five?***¦ Six",
    "emphasis before the rest": "**Note.** the sky is blue.¦ *Oh!* he said.¦ Yes",
    "marks before emphasis": "The **sky**.¦ It is *blue*.¦ So",
    "citations": "One.[1]¦ Two.[12][13]¦ Three.[1, 2]¦ Four.[^4]¦ Five.[doc1]¦ Six",
    "citations of other kinds": "One.¹¦ Two.¹²¦ Three.【4†source】¦ Four.[[1]](http://a.org)¦ Five",
    "citations before the mark": "One [1].¦ Two [2][3].¦ Three ¹.¦ Four",
    "citations after a space": "One.¦ [1] Two.¦ [2] Three",
    "quotations": "“One.”¦ „Zwei.“¦ «Trois.»¦ ‘Four.’¦ \"Five.\"¦ 'Six.'¦ »Sieben.«¦ Eight",
    "quotations before the rest": "“Why?” he asked.¦ “No!” she said.¦ “So,” he said, “be it.”¦ Yes",
    "brackets": "(One.)¦ [Two.]¦ {Three.}¦ (See “four.”)¦ Five (of 6.) is.¦ Seven",
    "titles": "Dr. No met Mr. Fox, Mrs. Doe and Prof. Lee.¦ Hr. Maier kam.¦ Mme. Curie",
    "abbreviations": "Use e.g. Ulm, i.e. Bonn, vs. Rome.¦ Ca. fünf, z. B. Äpfel, d. h. Obst.¦ So",
    "abbreviations that may end": "In the U.S. Army.¦ In the U.S.¦ The end, etc.¦ Bob, a Ph.D. now.¦ A",
    "abbreviations of companies": "Acme Inc. sells.¦ Acme Inc.¦ It sells.¦ At 5 p.m. on Monday.¦ At",
    "a line break ends them": "Figs, plums, etc.¦\nThe U.S.¦\nAt 5 p.m.¦\nMore",
    "initials": "J. S. Bach and George W. Bush met.¦ Vitamin C.¦ It helps.¦ Yes",
    "single letters": "For all x.¦ Then b.¦ Yes",
    "numbers before": "See No. 5, fig. 3 and p. 12.¦ No.¦ The answer is no.¦ A",
    "numbers": "It is 2.5, 1.000,5 or 10.30.¦ Version 1.2.3.¦ In 1998.¦ It is 7.¦ Then 8.¦ So",
    "ordinals": "Am 3. Oktober, im 19. Jahrhundert, der 2. Weltkrieg.¦ Der 5. und 6.¦ It",
    "names with full stops": "Use Node.js and example.com.¦ Then a.b.¦ Yes",
    "ellipses": "Well... maybe.¦ Well… no.¦ Hm...¦ Yes.¦ Hm…¦ No.¦ “So...” he said.¦ And",
    "items": "1. One\n¦2. Two.¦\n3. Three\n¦\nEnd",
    "items with emphasis": "**1.** One\n¦- **2.** Two\n¦* a. Three\n¦> 4. Four\n¦> iv. Five\n¦\n6",
    "items of several sentences": "- One.¦ Two\n¦- Three\n¦• Four\n¦10) Five\n¦\nSix",
    "numbers of items alone": "1.\nOne\n¦2. Two\n¦\n",
    "headings": "# One\n¦Two\n¦## Three\n¦\nFour",
    "empty lines": "One\n¦\nTwo\n¦  \nThree.¦\n\nFour\n¦\n\n\nFive",
    "line breaks in a sentence": "One\ntwo.¦ Three\nfour.¦ Five",
    "tables": "| a | b |\n¦|---|\n¦| c. | d |\n¦\nEnd",
    "code": "So\n¦```python\nx = 1.5\n¦```\nEnd.¦ It",
    "chinese": "天空。¦海！¦陆？！¦“好。”¦是（对。）¦他说：「走。」¦2.5米。¦末",
    "chinese quotations that open": "天。¦“海。”¦「陆。」¦末",
    "chinese citations": "天空。[1]¦海。[2][3]¦陆。¹¦末",
    "japanese": "空は青い。¦海も。¦『はい。』¦末",
    "hindi": "यह है।¦ वह था॥¦ क्या?¦ हाँ",
    "arabic": "كيف حالك؟¦ بخير.¦ نعم!¦ لا",
    "urdu": "یہ ہے۔¦ وہ تھا۔¦ ہاں",
    "spanish": "¿Qué es?¦ ¡Sí!¦ El Sr. García vive en EE. UU. desde 1990.¦ Ella",
}


def divided(marked: str) -> tuple[str, list[int]]:
    """The text of a case, and its ends."""
    ends, text = [], ""
    for part in marked.split("¦"):
        text += part
        ends.append(len(text))
    return text + " x", ends[:-1]


@pytest.mark.parametrize("name", CASES)
def test_sentences_end_where_readers_see_it(name):
    text, ends = divided(CASES[name])
    starts = [0, *sentence_ends(text)]
    assert starts[1:] == ends, [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]


TEXTS = st.lists(
    st.sampled_from(
        [*"aB1.!…\"'”“»)*。」\n ¹[]#-", "Dr", "[1]", "(h", "The", "etc", "z", "3", "»"]
    ),
    max_size=30,
).map("".join) | st.sampled_from([divided(marked)[0] for marked in CASES.values()])


@given(TEXTS)
def test_an_end_of_a_text_is_an_end_of_every_longer_text(text):
    every = [sentence_ends(text[:size]) for size in range(len(text) + 1)]
    for shorter, longer in pairwise(every):
        assert longer[: len(shorter)] == shorter


@given(TEXTS)
def test_a_growing_text_is_divided_as_a_whole_one(text):
    found: list[int] = []
    for size in range(len(text) + 1):
        found += sentence_ends(text[:size], found[-1] if found else 0)
    assert found == sentence_ends(text)


@pytest.mark.parametrize("name", CASES)
def test_no_end_is_awaited_for_longer_than_the_next_word(name):
    text, ends = divided(CASES[name])
    for end in ends:
        shown = re.match(r"\s*(\d+[.)] |[^\w\s]*)\w*.?", text[end:], re.DOTALL)
        assert end in sentence_ends(text[: end + shown.end()])


def test_answers_with_citations_are_streamed_sentence_by_sentence():
    """They were held back until their end: no sentence ended before "[1]"."""
    text = "The sky is blue.[1] The sea is, too.[1][2] **Both are wet.** That is all."
    llm = SpecFuseChatModel(
        members=[ScriptedMember(text, name="ann")], method=Method(segment_tokens=2)
    )
    every = checks.at("sentence", lambda text: None)
    chunks = [chunk.text for chunk in llm.stream("Why?", checks=[every]) if chunk.text]
    assert chunks == [
        "The sky is blue.[1]",
        " The sea is, too.[1][2]",
        " **Both are wet.**",
        " That is all.",
    ]


def test_a_sentence_without_end_is_divided_after_a_line_or_a_word():
    text = "word " * 350 + "\n" + "line\n" * 300 + "天" * 1500 + " It ended.[1] So"
    ends, size = [], 0
    while size < len(text):
        size += 40
        ends += units(text[:size], ends[-1] if ends else 0)
    assert ends == units(text) and ends[-1] == len(text) - 3
    assert max(b - a for a, b in pairwise([0, *ends])) <= 1000
    assert all(text[end - 1].isspace() for end in ends[:4])


@pytest.mark.parametrize("unit", ["It is so. ", "word ", "1.", "Dr. ", "x.[", "\n", "“", ".", "[1"])
def test_a_streamed_text_takes_time_in_proportion(unit):
    def seconds(size):
        text, passed = (unit * size)[:size], 0
        start = time.process_time()
        for end in range(0, size, 40):
            passed = (units(text[:end], passed) or [passed])[-1]
        return time.process_time() - start

    seconds(1_000)
    assert seconds(16_000) < 16 * seconds(4_000)
