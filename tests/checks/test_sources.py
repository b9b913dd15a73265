"""Facts and their notations: what counts as the same, and what needs a source."""

from __future__ import annotations

import datetime
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage

from langchain_specfuse import UsageError, checks
from langchain_specfuse.core.checks import places_in

SOURCE = """Founded on 5 March 1998 in Ulm; it moved on 2001-07-14. Revenue: 2,500,000 euros, up
12.5 percent. The mayor said: "We will not, ever, leave this town." The report is at
https://www.Example.org/a/b_(c). It has five shops, open from 09:00 to 17:30 for 0.5 to thirty-two days, and 1’234 seats;
7\u202f000 guests came, and 10000000000000000000000000000000000000000 stars. The software is version 1.2.3, order QX7788."""


def reason(found):
    """Why a check refuses a text; None if it does not."""
    return getattr(found, "reason", found)


def grounded(answer):
    return reason(checks.grounded([SOURCE]).function(answer))


@pytest.mark.parametrize(
    "answer",
    [
        "March 5, 1998",
        "Mar. 5th 1998",
        "the 5th of March 1998",
        "1998-03-05",
        "05.03.1998",
        "3/5/1998",
        "in March 1998",
        "on 5 March",
        "in 1998",
        "July 2001",
        "2500000 euros",
        "€2.5 million",
        "2.5-million",
        "12.5%",
        "12.50 %",
        "5 shops",
        "from 9:00 to 17:30",
        "1,234 seats and 1234 seats",
        "7000 and 7,000 and 7\u00a0000",
        "version 1.2.3.",
        "“We will not ever leave this town”",
        '"we will ... LEAVE this town"',
        "«We will [...] leave this town»",
        "„leave this town“",
        'the "Big Bang" theory',
        "http://example.org/a/b_(c)/.",
        "[the report](https://example.org/a/b_(c))",
        "www.example.org/a/b_(c)",
        "1. Ulm\n2) Rome\n  - 3. Bonn",
        "As the report says [2], [3, 4].",
        "GPT4 and H2O",
        "order QX7788, or order qx7788",
        "€2500000, EUR2500000 and EUR2,500,000",
        "twelve",
        ".5 to 32 days",
        "It may be.",
    ],
)
def test_what_the_sources_say_passes_in_every_notation(answer):
    assert grounded(answer) is None


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("on 6 March 1998", "the date 6 March 1998"),
        ("on March 5, 1999", "the date March 5, 1999"),
        ("on 2001-07-15", "the date 2001-07-15"),
        ("in August 2001", "the date August 2001"),
        ("in 1999", "the number 1999"),
        ("No.1999", "the number 1999"),
        ("It opened.¹⁹⁹⁹", "the number 1999"),
        ("in _1999_", "the number 1999"),
        ("QX7788ZZ990", "the code QX7788ZZ990"),
        ("EUR2.5 million or EUR2500000 million", "the code EUR2500000 million"),
        ("train N12345", "the code N12345"),
        ("**ZD0123**", "the code ZD0123"),
        ("EUR2600000", "the code EUR2600000"),
        ("EUR1,200", "the code EUR1,200"),
        ("2.6 million", "the number 2.6 million"),
        ("2.5 billion", "the number 2.5 billion"),
        ("125%", "the number 125"),
        ("25 shops", "the number 25"),
        ("for 302 days", "the number 302"),
        (f"{10**40 + 1}", f"the number {10**40 + 1}"),
        ("until 18:30", "the number 18:30"),
        ("version 1.2.4", "the number 1.2.4"),
        ("“We will leave this town”", "the quotation “We will leave this town”"),
        ("https://example.org/other", "the link https://example.org/other"),
        ("https://evil.org/a/b_(c)", "the link https://evil.org/a/b_(c)"),
        ("1. It has 44 shops", "the number 44"),
        ("The year was\n1999. Then", "the number 1999"),
    ],
)
def test_what_the_sources_do_not_say_is_named(answer, named):
    assert grounded(answer) == f"{named} is not in the sources"


MAGNITUDES = [
    ["40k", "40K", "40,000", "40 thousand", "4 × 10⁴", "4e4"],
    [
        "$2.4bn",
        "€2.4 bn",
        "2.4B",
        "2.4 billion",
        "$2.4b",
        "2,400,000,000",
        "2.4 x 10^9",
        "EUR 2.4bn",
    ],
    ["1.5M", "£1.5m", "1.5mn", "1.5 million", "1,500,000", "1.5 mln", "1.5E6"],
    ["10⁶", "10^6", "1M", "a million, 1,000,000", r"$10^{6}$", "1 million"],
    ["0.002", "2×10⁻³", r"2 \times 10^{-3}", "2e-3"],
    ["EUR500m", "EUR500 million", "EUR0.5bn", "€500m"],
    ["40 metres", "40m", "40 m"],
    ["US$3tn", "$3T", "3 trillion"],
]


@pytest.mark.parametrize("spellings", MAGNITUDES)
def test_a_magnitude_is_the_same_in_every_spelling(spellings):
    for source in spellings:
        check = checks.grounded([f"We counted {source} in all."])
        for answer in spellings:
            assert check.function(f"There were {answer}.") is None, (source, answer)


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("40 shops", "40k shops"),
        ("40 shops", "$40m"),
        ("40 shops", "40B"),
        ("40 shops", "40 bn"),
        ("40k shops", "40M shops"),
        ("40m high", "€40m"),
        ("2.4 billion", "$2.4m"),
        ("106 grains", "10⁶ grains"),
        ("10⁶ grains", "106 grains"),
        ("10⁶ grains", "10⁵ grains"),
        ("10⁶ grains", "1 grain"),
        ("2.4 × 10⁹", "2.4 × 10⁸"),
        ("EUR 500", "EUR500m"),
        ("5 metres", "5³ metres"),
    ],
)
def test_another_magnitude_is_refused(source, answer):
    assert "is not in the sources" in reason(checks.grounded([source]).function(answer))


@pytest.mark.parametrize(
    ("source", "answer"),
    [
        ("It costs €1,200.50.", "It costs EUR1,200.50."),
        ("It cost EUR500 million.", "It cost €500 million, or EUR0.5 billion."),
        ("Release 2024.1 is out.", "Take v2024.1."),
        ("Take v3.11.4.", "Take 3.11.4, or v3.11.4."),
        ("Take v2024.1.", "Release 2024.1 is out."),
        ("It is 150.5 km long.", "It is _150.5 km_ long."),
        ("He said _so be it_ loudly.", "He said “so be it”."),
        ("It has 500 seats.", "It has about...500 seats, or…500."),
        ("The tower is tall.", "The tower is tall.⁵ It is old.¹²"),
        ("从1998年到2003年。", "到2003年为止。"),
    ],
)
def test_what_a_source_says_passes_where_a_number_touches_other_characters(source, answer):
    assert checks.grounded([source]).function(answer) is None


QUOTATIONS = [
    "“%s”",
    "„%s“",
    "„%s”",
    "«%s»",
    "« %s »",
    "»%s«",
    "‹%s›",
    "‘%s’",
    "‚%s‘",
    '"%s"',
    "'%s'",
]


@pytest.mark.parametrize("marks", [*QUOTATIONS, "「%s」", "『%s』"])
def test_a_quotation_of_every_kind_needs_a_source_also_over_line_breaks(marks):
    check = checks.grounded(["The dogs' owner's shop: the shop isn't open. 空は青いですね。"])
    assert check.function(f"He wrote {marks % 'the shop isn’t open'}, he said.") is None
    assert check.function(f"He wrote {marks % 'owner’s'}{marks % 'the shop'}, he said.") is None
    for invented in ("the shop is closed", "the shop\nisn’t shut", "空は赤いですね"):
        quotation = marks % invented
        found = check.function(f"Now he wrote {quotation}, he said.")
        assert found.reason == f"the quotation {quotation} is not in the sources"
        assert (found.start, found.end) == (13, 13 + len(quotation))


@pytest.mark.parametrize(
    "answer",
    [
        "It’s the dogs’ owner’s shop, isn’t it? It’s the Joneses’.",
        "It's the dogs' owner's shop, isn't it? It's the Joneses'.",
        "'Tis so, and 'twas so for the dogs' owner.",
        "A 5' 5\" screen",
    ],
)
def test_an_apostrophe_is_no_quotation(answer):
    assert checks.grounded(["A screen of 5' 5 inches."]).function(answer) is None


@pytest.mark.parametrize(
    ("answer", "named"),
    [
        ("See example.com.", None),
        ("See www.example.com or EXAMPLE.COM/", None),
        ("See (example.com/path/a).", None),
        ("See example.com/path/b.", "the link example.com/path/b"),
        ("See example.org.", "the link example.org"),
        ("See docs.example.com", "the link docs.example.com"),
        ("Write to Ann@Example.com, please.", None),
        ("Write to **bob@example.com**.", "the e-mail address bob@example.com"),
        ("Use Node.js, i.e. main.py and/or a.b/c.", None),
    ],
)
def test_links_without_a_scheme_and_addresses_need_a_source(answer, named):
    sources = ["Read https://www.example.com/path/a, or write to ann@example.com."]
    expected = named and f"{named} is not in the sources"
    assert reason(checks.grounded(sources).function(answer)) == expected


@pytest.mark.parametrize(
    ("source", "answer", "passes"),
    [
        ("It costs 3.5 million.", "Es kostet 3,5 million.", True),
        ("Es kostet 3,5 Euro.", "It costs 3.5 euros.", True),
        ("1,500,000 people", "1.500.000, 1 500 000, 1'500'000, 1’500’000 and 1500000", True),
        ("1.500.000 Menschen", "1,500,000, or 1.5 million", True),
        ("1 500 000", "1.500.000", True),
        ("1.500 Menschen, 3,5 % mehr", "1500 oder 1.500", True),
        ("1.500 Menschen, 3,5 % mehr", "1,5", False),
        ("1.500 grams", "1500 or 1.5", True),  # both, if nothing shows which
        ("1.500 kg, 2.25 g", "1.5 kg", True),
        ("1.500 kg, 2.25 g", "1500 kg", False),
        ("1.500,5 Euro", "1500.5, EUR1.500,50 und EUR1500,50", True),
        ("1.500.000 people", "1.600.000", False),
        ("points (3,5), 2.25 high", "3 and 5", True),
        ("version 1.2.3, 5.3.1998", "version 1.2.3, 5.3.1998", True),
    ],
)
def test_numbers_are_read_in_the_writing_that_the_sources_show(source, answer, passes):
    assert (checks.grounded([source]).function(answer) is None) is passes


def test_the_decimal_sign_of_the_answer_can_be_given():
    sources = ["1,500 people, 2.5% more"]
    assert reason(checks.grounded(sources).function("Es sind 1.500.")) == (
        "the number 1.500 is not in the sources"
    )
    assert checks.grounded(sources, decimal=",").function("Es sind 1.500, 2,5 % mehr.") is None
    assert checks.grounded(decimal=",").identity != checks.grounded().identity
    with pytest.raises(UsageError, match="decimal must be"):
        checks.grounded(sources, decimal=";")


def test_a_mark_refers_to_a_source_up_to_their_number():
    one, two = checks.grounded(["It is old."]), checks.grounded(["It is old.", "It is tall."])
    for answer in ("It is old.[1] It is tall [1, 2].[^2]【1†source】", "It is old [1–2]."):
        assert one.function(answer) is two.function(answer) is None
    assert reason(two.function("It is old [3].")) == "the number 3 is not in the sources"
    assert reason(one.function("It is old [1984].")) == "the number 1984 is not in the sources"
    assert checks.grounded(["Founded in 1984."]).function("It is old [1984].") is None


@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        ("It opened in 1999.", "1999"),
        ("It cost $2.4bn, not $2.5bn.", "$2.4bn"),
        ("It cost 1.600.000,5 euros.", "1.600.000,5"),
        ("It is at https://evil.org/a.", "https://evil.org/a"),
        ("On 6 March 1998 it moved.", "6 March 1998"),
    ],
)
def test_the_fault_is_the_fact_and_no_more(answer, fault):
    found = checks.grounded([SOURCE]).function(answer)
    assert answer[found.start : found.end] == fault


NOTATIONS = ["%Y-%m-%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d %B %Y", "%B %d, %Y", "%b %d %Y"]
DAYS = st.dates(datetime.date(1000, 1, 1), datetime.date(2999, 12, 31))


@given(day=DAYS, mine=st.sampled_from(NOTATIONS), theirs=st.sampled_from(NOTATIONS))
def test_a_date_is_the_same_in_every_notation(day, mine, theirs):
    check = checks.grounded([f"It was on {day.strftime(theirs)}."])
    assert check.function(f"On {day.strftime(mine)}.") is None


@given(day=DAYS, other=DAYS, notation=st.sampled_from(["%Y-%m-%d", "%d %B %Y", "%B %d, %Y"]))
def test_another_date_is_refused(day, other, notation):
    check = checks.grounded([f"It was on {day.isoformat()}."])
    assert (check.function(f"On {other.strftime(notation)}.") is None) == (day == other)


@given(st.integers(0, 10**15))
def test_a_number_is_the_same_with_and_without_separators(number):
    spellings = [f"{number}", f"{number:,}", f"{number:,}".replace(",", "\u202f"), f"{number}.0"]
    for theirs in spellings:
        check = checks.grounded([f"There are {theirs} of them."])
        assert [check.function(f"It has {mine}.") for mine in spellings] == [None] * 4
        assert check.function(f"It has {number + 1:,}.")


@given(
    st.text(alphabet="0123456789.,:/-% \n\"“”‘「」@()[]_…⁵hJMarch'’thmilon$kbe^×青", max_size=60)
)
def test_every_text_is_grounded_in_itself(text):
    assert checks.grounded([text]).function(text) is None


PIECES = st.sampled_from(
    [
        *(
            "In 1998. ",
            "in 1999, ",
            "5. March 2001",
            "it cost 2.5",
            " million.",
            "\n1. ",
            "[2, 3] ",
        ),
        *("“so be it", "”", "„so be it", "“", "«", "»", '"', '"so it may be"', "https://a.org/b. "),
        *(
            "‘so be it",
            "’",
            "it’s ",
            "'so be ",
            "'",
            "「so",
            "」",
            " 1 500 ",
            "3,5 ",
            "a.org ",
            "\n\n",
        ),
        *("blue. ", "N12345 ", ". ", "\n", "x" * 300, "7.\n"),
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join), st.data())
def test_a_text_that_is_read_sentence_by_sentence_fails_where_it_would_fail_as_a_whole(text, data):
    """A check that reads each sentence once is as strict as one that reads the whole text again."""
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=3)))
    places = sorted({*places_in("sentence", text, True)[0], *cuts} - {0})
    check = checks.grounded(["In 1998 it cost 2.5 million, so be it: https://a.org/b"])
    passed = 0
    for place in places:
        part = text[:place]
        drafted = checks.CheckContext((), text[passed:place], "ann", False)
        verdict = check.function(part, drafted)
        assert (verdict is None) == (check.function(part) is None)
        if verdict is not None:
            break
        passed = place


@pytest.mark.parametrize("sep", [" ", "\n", "open"])
def test_a_long_answer_is_read_once(sep):
    """24 kB took 9.8 s when the whole text was read again at every sentence. "Open" begins a
    quotation that does not end."""
    fact = f"The tower is 324 m high.{sep}It cost “far too much for us” on 5 March 1998.{sep}"
    if sep == "open":
        fact = "He said: “so it is. So it was. "
    check = checks.grounded([fact])

    def seconds(count):
        text, passed = fact * count, 0
        start = time.process_time()
        for place in places_in("sentence", text, True)[0]:
            drafted = checks.CheckContext((), text[passed:place], "ann", False)
            assert check.function(text[:place], drafted) is None
            passed = place
        return time.process_time() - start

    seconds(20)
    assert seconds(400) < 16 * seconds(50)  # 8 times as long; it took 64 times the time


def test_many_dates_take_time_in_proportion():
    days = [datetime.date(1990, 1, 1) + datetime.timedelta(days=7 * n) for n in range(2000)]

    def seconds(count):
        text = " ".join(f"On {day:%d %B %Y} it rained." for day in days[:count])
        start = time.process_time()
        assert checks.grounded([text]).function(text) is None
        return time.process_time() - start

    seconds(10)
    assert seconds(2000) < 16 * seconds(250)


# --- where the sources come from ------------------------------------------------------------------


def context(*messages):
    return checks.CheckContext(messages, "", "ann", False)


def test_without_sources_the_conversation_and_its_tools_results_are_the_sources():
    check = checks.grounded()
    call = {"name": "trains", "args": {"town": "Ulm"}, "id": "1", "type": "tool_call"}
    asked = [HumanMessage("When does train 7 leave?"), AIMessage("", tool_calls=[call])]
    told = [ToolMessage("It leaves at 10:42.", tool_call_id="1")]
    blocks = [HumanMessage([{"type": "text", "text": "Gate 12."}])]
    assert check.function("Train 7 leaves.", context(*asked)) is None
    assert "10:42" in reason(check.function("Train 7 leaves at 10:42.", context(*asked)))
    assert check.function("Train 7 leaves at 10:42.", context(*asked, *told)) is None
    assert check.function("Train 7, gate 12.", context(*asked, *blocks)) is None


def test_documents_are_sources_with_the_address_they_came_from():
    document = Document("It is 324 m high.", metadata={"source": "https://example.org/t", "n": 9})
    check = checks.grounded([document, "There are two."])
    assert check.function("It is 324 m high, and has 2 lifts: https://example.org/t") is None
    assert reason(check.function("It has 9.")) == "the number 9 is not in the sources"


def test_a_tools_time_in_iso_notation_is_a_date_and_a_time():
    check = checks.grounded(['{"leaves": "2024-03-05T09:42:30+01:00"}'])
    assert check.function("It leaves on March 5, 2024, at 9:42.") is None
    assert check.function("It leaves at 09:42:30.") is None
    assert reason(check.function("It leaves at 9:43.")) == "the number 9:43 is not in the sources"


def test_with_no_source_nothing_is_grounded():
    assert checks.grounded([]).function("It has 9.")
    assert checks.grounded([]).function("It is high.") is None


@pytest.mark.parametrize("sources", ["text", 3, [3], [b"text"], {"a": 1}])
def test_sources_are_a_list_of_texts_or_documents(sources):
    with pytest.raises(UsageError) as caught:
        checks.grounded(sources)
    assert caught.value.notes[0].startswith("-> ")


def test_sources_are_not_in_the_repr():
    check = checks.grounded(["secret"])
    assert "secret" not in f"{check!r} {check.function!r} {check.identity}"


def test_the_number_of_an_item_is_no_fact_also_where_the_text_ends_behind_it():
    check = checks.grounded(["Nothing is counted."])
    for text in ("Steps:\n\n1.", "Steps:\n\n1. Look.\n2.", "- 3)"):
        assert check.function(text) is None
