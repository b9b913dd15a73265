"""What a reply to "continue this text" is: the rule on transcripts, and takeovers by models that
start over.

The transcripts of SmolLM2 (135M, Q4_1, temperature 0) were written by llama-server on 28 November
2026, asked as ``ways.py`` asks. The others are written by hand, after what larger models reply.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from langchain_specfuse import EnsembleError, Method, ScriptedMember, SpecFuseChatModel
from langchain_specfuse.members.chat_model.continuing import Opening, Restarted
from langchain_specfuse.members.chat_model.words import words_of

OVER = "started over"


def read(text: str, reply: str, way: str, step: int = 1) -> tuple[str, int]:
    """What goes out of a reply that arrives word by word, and after how many words that was
    decided."""
    opening = Opening([text], text, is_instructed=way == "instruct", is_exact=way == "anew")
    words = words_of(reply)
    try:
        for count, word in enumerate(words, start=1):
            shown = opening.add(word)
            if shown is not None:
                return shown + "".join(words[count:]), count
        return opening.add("", is_over=True) or "", len(words)
    except Restarted:
        return OVER, 0


# --- transcripts ------------------------------------------------------------------------------------

DANCE = (
    "The answer to this question lies in the intricate dance of light and color. The sky appears "
    "blue because of a phenomenon called scattering"
)
MOON = "As the moon dipped into the horizon, casting a silver glow over the sleepy village"
PLANTS = "Photosynthesis is a vital biological process that occurs in plants,"
SMOLLM2 = [
    ("The", "The sky blue.", "instruct", " sky blue."),
    ("The answer to", "The answer to", "instruct", OVER),
    ("The answer to", f"{DANCE}, which", "prefill", f"{DANCE[13:]}, which"),
    (DANCE, f"{DANCE[:75]} The sky is so.", "instruct", OVER),
    (DANCE, f"{DANCE} of light.", "prefill", " of light."),
    ("To", "To", "instruct", OVER),
    (
        "To make a",
        "To make a tea, you need to use hot water",
        "anew",
        " tea, you need to use hot water",
    ),
    ("1.", "The answer was interrupted. Write the entire answer.", "anew", OVER),
    ("1. Paris, France\n2.", "1. Paris, France\n2.", "instruct", OVER),
    (
        "1. Paris, France\n2.",
        "1. Paris, France\n2. London, United Kingdom",
        "prefill",
        " London, United Kingdom",
    ),
    ("1. Paris, France\n2.", "Paris, France\n\nThe answer is: Paris, France", "anew", OVER),
    (
        "Photosynthesis is a",
        "I'm sorry for any confusion. I'm here to help with any topic.",
        "instruct",
        OVER,
    ),
    (PLANTS, f"{PLANTS} and it's a crucial process", "instruct", " and it's a crucial process"),
    ("As", "The sun sets over the horizon, casting a warm glow over the forest.", "instruct", OVER),
    ("As the moon", "The moon was a mysterious and enigmatic presence", "instruct", OVER),
    (MOON, f"The moon {MOON[12:]}.", "instruct", OVER),
]
QWEN = [
    # Qwen2.5-Coder (1.5B, Q4_K_M), in the same way
    (  # without the line break
        "1. Turn off lights\n2. Insulate:\n   - Walls\n   - Windows",
        "4. **Use energy-efficient appliances**.",
        "instruct",
        "\n4. **Use energy-efficient appliances**.",
    ),
    (
        "- Turn off the lights when you leave\n- Insulate your home",
        "- Use energy-efficient appliances",
        "instruct",
        "\n- Use energy-efficient appliances",
    ),
    (
        "| City | Country |\n|------|---------|\n| Paris | France |",
        "| London | England |",
        "instruct",
        "\n| London | England |",
    ),
    (  # the text has the item's mark already
        "1. Turn off the lights when you leave.\n2. Use LED bulbs at home.\n3.",
        "4. Use energy-efficient appliances.",
        "instruct",
        " Use energy-efficient appliances.",
    ),
]
SKY = "The sky is blue because air scatters blue light"
WHOLE = f"{SKY} more than red light."
BY_HAND = [
    # continuations
    (SKY, "more than red light.", "instruct", " more than red light."),
    (SKY, " more than red light.", "prefill", " more than red light."),
    (SKY, "...more than red", "instruct", "...more than red"),
    (SKY, "Sure! more than red light.", "instruct", " more than red light."),
    (SKY, "Certainly! Here is the continuation:\n\nmore than red", "instruct", " more than red"),
    (SKY, "Continuing from where I left off: more than red", "instruct", " more than red"),
    (SKY, "scatters blue light more than red light.", "instruct", " more than red light."),
    (SKY, "is blue because air scatters blue light more than", "instruct", " more than"),
    # repeated words, as OpenAI's models were seen to write them
    ("Fine, we", "we are sure.", "instruct", " are sure."),
    ("Fine, we", "We are sure.", "instruct", " are sure."),
    ("Fine, we", "weather it.", "instruct", " weather it."),
    ("Fine, and we", "and we are sure.", "instruct", " are sure."),
    ("It is here. We can", "We can be sure.", "instruct", " be sure."),
    ("It is here. In 2025 we", "In 2025 we met.", "instruct", " met."),
    ("It is here. We can", "we can, too.", "instruct", ", too."),
    ("It is blue because of the", "of the air.", "instruct", " air."),
    ("It is blue because of the", "the air.", "instruct", " air."),
    ("It is blue because of the ", "of the air.", "instruct", "air."),
    ("- We offer", "we offer tea.", "instruct", " tea."),
    ("It is blue because of the", "Certainly! of the air.", "instruct", " air."),
    # words that good text has twice, and what is no word
    ("He said", "said that.", "instruct", " that."),
    ("He said that", "that was so.", "instruct", " that was so."),
    ("She had", "had enough.", "prefill", " had enough."),
    ("The sky, I think, is", "is blue.", "instruct", " blue."),
    ("Comment est-ce que vous", "vous sentez ?", "instruct", " vous sentez ?"),
    ("I think she had", "had enough.", "instruct", " had enough."),
    ("It is very", "very old.", "instruct", " very old."),
    ("He sang: no no", "no no, never.", "instruct", " no no, never."),
    ("He sang la la", "la la.", "instruct", " la la."),
    ("The number is 7", "7 8.", "instruct", " 7 8."),
    ("Add 1 +", "+ 1.", "instruct", " + 1."),
    ("```python\nfor x in y", "y x", "instruct", " y x"),
    ("```python\nreturn", "return x", "instruct", " return x"),
    ("call go", "go()", "instruct", " go()"),
    ("他说天", "天都在。", "instruct", "天都在。"),
    # a capital that begins the whole answer again
    ("Light is bent by the", "The air bends light.", "instruct", OVER),
    ("We are here. So we", "We are there.", "instruct", OVER),
    ("Paris is the capital of", "France, and it is old.", "instruct", " France, and it is old."),
    ("Paris is the capital of", "France.", "prefill", " France."),
    ("He said that", "I know him.", "instruct", " I know him."),
    ("He said that", "I'm late.", "prefill", " I'm late."),
    (
        WHOLE,
        "Of course, violet is scattered more.",
        "instruct",
        " Of course, violet is scattered more.",
    ),
    (WHOLE, "The same holds for smoke.", "instruct", " The same holds for smoke."),
    (f"{WHOLE}[1]", "The same holds for smoke.", "instruct", " The same holds for smoke."),
    (
        WHOLE,
        "Red light passes the air, so sunsets are red.",
        "instruct",
        " Red light passes the air, so sunsets are red.",
    ),
    ('She asked: "', 'Sure, why not?" he said.', "instruct", 'Sure, why not?" he said.'),
    ("Hello! 👋", "How can I help?", "prefill", " How can I help?"),
    ("Well done!", "🎉 See you soon.", "instruct", " 🎉 See you soon."),
    ("# Colours", "\n\nThe sky is blue.", "prefill", "\n\nThe sky is blue."),
    (WHOLE, "\n\nSmoke does so, too.", "prefill", "\n\nSmoke does so, too."),
    (
        "- Berlin is the capital of Germany.\n",
        "- Paris is the capital of France.",
        "instruct",
        "- Paris is the capital of France.",
    ),
    (
        "1. Open the door of the car.\n",
        "2. Open the door of the house.",
        "prefill",
        "2. Open the door of the house.",
    ),
    ("| 1 | blue |\n| 1 | blue |\n", "| 1 | blue |\n", "prefill", "| 1 | blue |\n"),
    ("ha ha ha", "ha ha!", "prefill", " ha ha!"),
    ("size = 4", "  # The size\nstep = 2", "prefill", "  # The size\nstep = 2"),
    ("The method returns the", "\nmodule or an error.", "prefill", "\nmodule or an error."),
    ("- a\n-", "The other one.", "instruct", " The other one."),
    ('{"city": "Paris", ', '"degrees": 21}', "instruct", '"degrees": 21}'),
    ('{"city": "Paris", "sun": ', '{"hours": 7}}', "instruct", '{"hours": 7}}'),
    ("天空是", "蓝色的。", "instruct", "蓝色的。"),
    (
        "天空之所以是蓝色的,是因为空气分子对短波长的光散射得更强。瑞利勋爵解释了这一现象。紫",
        "光的散射更强,但是人眼对它不太敏感。",
        "instruct",
        "光的散射更强,但是人眼对它不太敏感。",
    ),
    (WHOLE, "", "instruct", ""),
    (WHOLE, "*", "prefill", " *"),
    ("Run this:\n\n```bash", "python read.py", "instruct", "\npython read.py"),
    ("Run this:\n\n```bash\npython read.py", "```", "instruct", "\n```"),
    ("Run this:\n\n```bash\npython read.py\n", "```", "instruct", "```"),
    # the same answer from its beginning
    (SKY, WHOLE, "instruct", " more than red light."),
    (SKY, WHOLE, "prefill", " more than red light."),
    (SKY, f"Of course! {WHOLE}", "instruct", " more than red light."),
    (SKY, f"Sure, {WHOLE}", "instruct", " more than red light."),
    (SKY, f"Here is the whole answer:\n\n{WHOLE}", "anew", " more than red light."),
    (SKY, f"The sky\n{WHOLE[8:]}", "instruct", " more than red light."),
    (f"Of course! {SKY}", f"Of course! {WHOLE}", "instruct", " more than red light."),
    ("The", "They say so.", "instruct", OVER),
    ("天空是", "天空是蓝色的。", "instruct", "蓝色的。"),
    # an answer in other words
    (SKY, "The sky looks blue since blue light is scattered.", "instruct", OVER),
    (SKY, "It is blue because of the air.", "prefill", OVER),
    (SKY, "Of course! Blue light is scattered by air.", "instruct", OVER),
    (SKY, "# Why the sky is blue\n\nAir scatters", "instruct", OVER),
    (WHOLE, "The sky is blue since air scatters short waves.", "instruct", OVER),
    (WHOLE, "Our sky looks blue as the air scatters blue light.", "instruct", OVER),
    (WHOLE, "Sure! Every sky with air is blue: it scatters blue light.", "instruct", OVER),
    ("Der Himmel ist blau, weil", "Die Luft streut blaues Licht.", "instruct", OVER),
    ("天空看起来是蓝色的，因为空气散射蓝光。", "天空是蓝色的，因为空气散射。", "prefill", OVER),
    (SKY, "The sky", "instruct", OVER),
    ('{"city": "Paris", ', '{"city": "Rome", "degrees": 21}', "instruct", OVER),
    ('{"city": "Paris", ', '```json\n"degrees": 21}\n```', "instruct", OVER),
]


@pytest.mark.parametrize(("text", "reply", "way", "shown"), [*SMOLLM2, *QWEN, *BY_HAND])
def test_the_rule_on_transcripts(text: str, reply: str, way: str, shown: str) -> None:
    assert read(text, reply, way)[0] == shown


@pytest.mark.parametrize(("text", "reply", "way", "shown"), BY_HAND)
def test_the_pieces_in_which_a_reply_arrives_do_not_matter(
    text: str, reply: str, way: str, shown: str
) -> None:
    for size in (1, 3, 7, 1000):
        opening = Opening([text], text, is_instructed=way == "instruct", is_exact=way == "anew")
        pieces = [reply[at : at + size] for at in range(0, len(reply), size)]
        found = None
        try:
            while pieces and (found := opening.add(pieces.pop(0))) is None:
                pass
            if not pieces and found is None:
                found = opening.add("", is_over=True)
            assert (found or "") + "".join(pieces) == shown
        except Restarted:
            assert shown == OVER


def test_a_continuation_in_mid_sentence_is_decided_at_its_first_word() -> None:
    for text, reply, way, shown in BY_HAND:
        if shown != OVER and reply.strip()[:1].islower() and text == SKY:
            assert read(text, reply, way)[1] <= (1 if way == "prefill" else 8)
    assert read(WHOLE, "Red light passes through the air without loss", "prefill")[1] <= 8


def test_a_long_text_that_is_repeated_takes_time_in_proportion_to_its_length() -> None:
    """Each new piece is compared once."""
    text = " ".join(f"word{number}" for number in range(20_000))
    opening = Opening([text], text)
    for word in words_of(text):
        assert opening.add(word) is None
    assert opening.add(" and more") == " and more"


# --- takeovers in prose -----------------------------------------------------------------------------

LEAD = """\
Tea is made from the leaves of one plant, and almost all that differs between the many kinds is \
what happens to the leaves after they have been picked. Green tea is heated soon, in a pan or with \
steam, so that the leaf keeps its colour. Black tea is rolled, which breaks the cells, and is then \
left in moist air until it turns dark. Oolong lies between the two, and white tea is hardly \
touched at all.

For a good cup, begin with fresh water, because water that has boiled for a long time tastes flat. \
Green leaves want eighty degrees, and more heat makes them bitter. Black leaves want water that \
boils. Take two grams for each cup, which is about a level spoon, and more if the leaves are large \
and light. Warm the pot first, since cold clay takes the heat away just when it is needed.

Time matters as much as heat. Two minutes give a light cup, three a full one, and after five most \
teas are harsh. The leaves should have room, so that they can open; a small ball of wire holds them \
back. When the time is over, pour all of the tea into another vessel, or lift the leaves out. Tea \
that stands on its leaves goes on drawing, even when it is cold.

Milk belongs to strong black teas, and it softens their edge. Whether it is poured before or after \
the tea was once a question of class: thin cups could crack, and whoever owned better ones could \
show it. Sugar hides faults and also merits. Lemon turns the cup pale, because its acid changes the \
pigments, and lemon and milk together curdle. Spices such as ginger, cardamom and cloves are boiled \
with the leaves in a pan, as they do in many kitchens from Mumbai to Nairobi.

Keep the leaves in a tin that closes well, away from light, heat and anything with a strong smell, \
for they take up whatever is near. A pantry is better than a shelf above the stove. Bought in small \
amounts, green tea keeps its scent for half a year, black tea for two, and a few dark teas from the \
south of China grow better for decades, as some wines do. What is left in the pot is not lost: cold \
tea waters ferns, cleans mirrors and takes the smell of fish from a pan. Used leaves feed the \
compost. So a spoon of leaves goes further than it seems, and the next pot is never far away."""
OTHERS = {
    "exactly": LEAD,
    "with its first words": "Tea is made of leaves that are picked by hand. The leaves are dried.",
    "in other words": "The many kinds of tea come from leaves of one plant. They differ in what is "
    "done after they were picked.",
    "with a heading": "# Making tea\n\nTake leaves of one plant, almost any kind, after they were "
    "picked.",
}


class Writer(BaseChatModel):
    """Writes an answer from its beginning, whatever it is asked to continue. Asked for the whole
    answer, it writes the lead's, if it is ``willing``."""

    answer: str
    provider: str = "openai"
    willing: bool = True
    asked: list[str]

    @property
    def _llm_type(self) -> str:
        return "writer"

    def _get_ls_params(self, *args: Any, **options: Any) -> Any:
        return {**super()._get_ls_params(*args, **options), "ls_provider": self.provider}

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        raise NotImplementedError

    def _stream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **options: Any
    ) -> Iterator[ChatGenerationChunk]:
        self.asked.append(messages[-1].text)
        is_anew = messages[-1].text.startswith("The answer was interrupted")
        reply = LEAD if is_anew and self.willing else self.answer
        for word in re.findall(r"\s*\S+", reply):
            yield ChatGenerationChunk(message=AIMessageChunk(word))
        end = {"finish_reason": "stop"}
        yield ChatGenerationChunk(message=AIMessageChunk("", response_metadata=end))


def taken_over(model: Writer, count: int) -> tuple[str, bool]:
    """The text of an answer whose lead fails after so many words, and whether it ended with an
    error."""
    begun = re.match(rf"(\s*\S+){{{count}}}", LEAD)
    assert begun is not None
    lead = ScriptedMember(LEAD, name="lead", fails_in=2)
    llm = SpecFuseChatModel(members=[lead, model], lead="lead", method=Method(segment_tokens=count))
    texts: list[str] = []
    try:
        for chunk in llm.stream("How do I make tea?"):
            texts.append(chunk.text)  # noqa: PERF401 (an error ends it)
    except EnsembleError:
        return "".join(texts), True
    return "".join(texts), False


COUNTS = (1, 2, 3, 5, 10, 40, 100, 400)
OPENERS = [
    ("openai", ""),
    ("openai", "Of course! "),
    ("openai", "Sure, "),
    ("anthropic", ""),
    ("anthropic", "Certainly! Here is the full answer:\n\n"),
]
STARTS = [
    # every answer meets every opener and every count, but not each opener with each count
    (answer, *opener, count)
    for first, answer in enumerate(OTHERS)
    for second, opener in enumerate(OPENERS)
    for third, count in enumerate(COUNTS)
    if (first + second + third) % len(OPENERS) == 0
]


@pytest.mark.parametrize(("answer", "provider", "opener", "count"), STARTS)
def test_a_reserve_that_starts_over_shows_no_word_twice(
    answer: str, provider: str, opener: str, count: int
) -> None:
    """OpenAI's models are asked for the rest, those of Anthropic get the text as the last
    message."""
    model = Writer(answer=opener + OTHERS[answer], provider=provider, asked=[])
    own = OTHERS[answer]
    whole = own if own.split()[:count] == LEAD.split()[:count] else LEAD
    assert taken_over(model, count) == (whole, False)
    assert len(model.asked) == (1 if whole == own else 2), "the whole answer is asked for once"


@pytest.mark.parametrize("count", [10, 400])
@pytest.mark.parametrize("answer", [name for name in OTHERS if name != "exactly"])
def test_a_reserve_that_only_starts_over_shows_nothing(answer: str, count: int) -> None:
    model = Writer(answer=OTHERS[answer], provider="unknown", willing=False, asked=[])
    text, has_failed = taken_over(model, count)
    assert has_failed and LEAD.startswith(text) and len(text.split()) <= count
    assert len(model.asked) == 3, "two ways, and the whole answer once"


@pytest.mark.parametrize(
    ("begun", "reply"),
    [
        ("Fine, we", "we are sure of it."),
        ("Fine, we", "We are sure of it."),
        ("It is here. We can", "We can be sure of it."),
        ("It is blue because of the", "of the air up there."),
    ],
)
def test_repeated_words_are_shown_once(begun: str, reply: str) -> None:
    lead = ScriptedMember(f"{begun} rest of it", name="lead", fails_in=2)
    model = Writer(answer=reply, asked=[])
    count = len(begun.split())
    llm = SpecFuseChatModel(members=[lead, model], lead="lead", method=Method(segment_tokens=count))
    shown = llm.invoke("How is it?").text
    rest = reply.split()[reply.lower().split().index(begun.lower().split()[-1]) + 1 :]
    assert shown == " ".join([begun, *rest])
    assert len(model.asked) == 1
