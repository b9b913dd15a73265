"""The facts in a text that can be looked up: numbers, dates, quotations, links and addresses.

``dateutil`` and ``dateparser`` parse a text that is a date. They are bad at finding the dates in a
sentence ("may", "sat" and "10" become dates). So this module has a few patterns of its own, for
English.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import lru_cache
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

from .personal import UNSPACED

QUOTED_WORDS = 3
"""Shorter quotations are names and titles, and need no source. In scripts without spaces, two
characters count as a word."""
LONGEST = 2000
"""Longer quotations are not judged."""
DecimalSign: TypeAlias = Literal[".", ","]

_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTH = (
    r"(Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)\b\.?"
)
_DAY = r"(\d{1,2})(?:st|nd|rd|th|\.)?"
_YEAR = r"(\d{4})(?!\d)"
_DATES = {
    "ymd": re.compile(rf"(?<![\w.-]){_YEAR}[-/.](\d{{1,2}})[-/.](\d{{1,2}})(?![\d-])"),
    "xxy": re.compile(rf"(?<![\w.-])(\d{{1,2}})[-/.](\d{{1,2}})[-/.]{_YEAR}"),
    "dmy": re.compile(rf"(?<![\w.]){_DAY} (?:of )?{_MONTH}(?:,? {_YEAR})?"),
    "mdy": re.compile(rf"\b{_MONTH} (\d{{1,2}})(?:st|nd|rd|th)?(?![\d:%])(?:,? {_YEAR})?"),
    "my": re.compile(rf"\b{_MONTH},? {_YEAR}"),
}
"""The order of the parts -> how such a date is written."""
_ENDINGS = (
    "com|org|net|edu|gov|int|info|biz|io|ai|app|dev|eu|de|fr|uk|es|nl|ch|jp|cn|br|pl|se|dk|fi|cz|"
    "ru|kr|au|nz|ca|co|tv"
)
"""Endings of hosts that are neither words nor endings of files. Others count only before a path."""
_LINK = re.compile(
    r"(?:https?://|www\.)[^\s<>\"“”]+"
    r"|(?<![\w.+-])(?P<mail>[\w.+-]{1,64}@[\w-]+(?:\.[\w-]+)+)"
    r"|(?<![\w@./-])(?:(?:[a-z0-9-]{1,63}\.)+"
    rf"(?:(?:{_ENDINGS})(?![\w-]|\.\w)(?:[/?#][^\s<>\"“”]*)?"
    r"|(?:at|be|in|is|it|me|no|to|us)/[^\s<>\"“”]*))",
    re.IGNORECASE,
)
_KINDS = (
    "“[^“”]{1,N}”",
    "„[^„“”]{1,N}[“”]",
    "«[^«»]{1,N}»",
    "»[^«»]{1,N}«",
    "‹[^‹›]{1,N}›",
    "›[^‹›]{1,N}‹",
    "「[^「」]{1,N}」",
    "『[^『』]{1,N}』",
    r"‘(?:[^‘’]|(?<=\w)’(?=\w)){1,N}’(?!\w)",
    r"‚(?:[^‚‘’]|(?<=\w)’(?=\w)){1,N}[‘’](?!\w)",
    r"(?<!\w)\"(?=\S)(?:[^\"\n]|\n(?![^\S\n]*\n)){1,N}\"(?!\w)",
    r"(?<!\S)'(?=[^\W\d_])(?!tis\b|twas\b|em\b|til\b|cause\b)"
    r"(?:[^'\n]|(?<=\w)'(?=\w)|\n(?![^\S\n]*\n)){1,N}'(?!\w)",
)
"""The kinds of quotations. A mark between two letters is an apostrophe."""
_QUOTATION = re.compile("|".join(_KINDS).replace("N", str(LONGEST)))
_BEGUN_QUOTATION = re.compile(
    "|".join(re.sub(r"\{1,N\}(.*)", r"{0,N}(?:\\Z|\1)", kind) for kind in _KINDS).replace(
        "N", str(LONGEST)
    )
)
_IS_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(rf"[{UNSPACED}]|[^\W{UNSPACED}]+")
_OMISSION = re.compile(r"…|\.\.\.|\[[^\[\]]*\]")
_SCALES = {"thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SHORT_SCALES = {"bn": 9, "bln": 9, "mln": 6, "trn": 12}
_LETTERS = {"k": 3, "K": 3, "M": 6, "mn": 6, "B": 9, "tn": 12}
"""Letters that may directly follow a number -> their power of ten."""
_LETTERS_OF_MONEY = {**_LETTERS, "m": 6, "b": 9, "t": 12, "T": 12}
"""The same for an amount of money. Elsewhere, 40m is a length or a time."""
_SCALE = (
    rf"(?:[ -]?(?P<scale>{'|'.join([*_SCALES, *_SHORT_SCALES])})s?\b"
    rf"|(?P<letter>(?-i:{'|'.join(_LETTERS_OF_MONEY)}))\b)?"
)
_GROUPED = re.compile(r"(?<![\d.,])(?<!\d )\d{1,3}(?:([ '’])\d{3})(?:\1\d{3})*(?!\d)")
_SEPARATED = re.compile(r"(?<![\d.,])\d+(?:[.,]\d+)+(?!\d)")
_WITH_COMMA = re.compile(
    r"(?<![\d.,])\d+(?:\.\d{3})*,\d{1,2}(?![.,]?\d)|(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?!\.?\d)"
)
_WITH_POINT = re.compile(
    r"(?<![\d.,])\d+(?:,\d{3})*\.\d{1,2}(?![.,]?\d)|(?<![\d.,])\d{1,3}(?:,\d{3}){2,}(?!,?\d)"
)
"""Numbers that show which sign is the decimal one: 2,5 and 1.500.000, or 2.5 and 1,500,000."""
_THOUSANDS = r"\d{1,3}(?:,\d{3})+(?!\d)"
_NUMBER = re.compile(
    r"(?:(?P<money>[$€£¥₹]|\b(?:EUR|USD|GBP|CHF) ?)|(?<!\w)(?<!\d\.))"
    rf"(?P<digits>\d{{1,2}}(?::\d\d)+(?!\d)|{_THOUSANDS}(?:\.\d+)?|\d+(?:\.\d+)*|(?<!\.)\.\d+)"
    rf"(?:e(?P<exponent>[+-]?\d{{1,3}})\b|{_SCALE})",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"(?<!\w)(?:(?P<money>(?-i:[A-Z]{3}))|[^\W\d]+)"
    rf"(?P<digits>{_THOUSANDS}(?:\.\d+)?|\d{{3,}}(?:\.\d+)*){_SCALE}(?P<rest>\w*)",
    re.IGNORECASE,
)
"""A word with a number: N12345, EUR1,200. Shorter numbers are in names (GPT4, H2O)."""
_FURTHER = re.compile(r"\d{3,}")
"""A number in the rest of a code. Words of Chinese and Japanese are not separated."""
_EMPHASIS = re.compile(r"(?<!\w)_+(?=\w)|(?<=\w)_+(?!\w)")
_SUPERSCRIPT = re.compile(r"(?<=\d)[⁺⁻]?[⁰¹²³⁴-⁹]+")
_TIMES_A_POWER = re.compile(
    r"(?<=\d) ?(?:[×x*·⋅]|\\times|\\cdot) ?10\^(?:(-?\d{1,3})\b|\{(-?\d{1,3})\})"
)
_POWER = re.compile(r"(?<![\w.])10\^(?:(-?\d{1,3})\b|\{(-?\d{1,3})\})")
_FOOTNOTE = re.compile(r"(?<=[.,;:!?)\]\"'”’])[⁰¹²³⁴-⁹]{1,3}(?![⁰¹²³⁴-⁹])")
_VERSION = re.compile(r"(?<!\w)v(?=\d+\.\d)", re.IGNORECASE)
"""What may stand before the number of a version."""
_ITEM = re.compile(r"^[ \t>*#-]*\d{1,3}[.)](?=\s|\*|\Z)", re.MULTILINE)
"""The number of an item in a list."""
_MARK = re.compile(r"\[\^?\d+(?:\s*[,–-]\s*\d+)*\]|【\d+[^【】\n]*】")
"""A mark that may refer to a source."""
# fmt: off
_SMALL = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
# fmt: on
_VALUES = {word: number for number, word in enumerate(_SMALL)}
_VALUES |= {word: 10 * number for number, word in enumerate(_TENS, 2)}
_VALUES |= {"first": 1, "second": 2, "third": 3, "dozen": 12, "hundred": 100}
_POWERS = {"hundred": 2, **_SCALES}
_COUNT = re.compile(
    rf"\b(?:({'|'.join(_TENS)}) ({'|'.join(_SMALL[1:10])})|({'|'.join(_VALUES)}))\b"
    rf"(?: ({'|'.join(_POWERS)})\b)?"
)
"""A number in words, after :func:`_words`."""


class Facts(NamedTuple):
    """What a source contains."""

    numbers: frozenset[str]
    dates: frozenset[tuple[int, int, int]]
    """Each date, also with a 0 for every part that a claim may leave out."""
    words: str
    links: frozenset[str]
    """Addresses of links and e-mail, and every host after "//"."""
    decimal: DecimalSign | None
    """The decimal sign that its numbers show."""


class _Number(NamedTuple):
    value: str

    def is_in(self, facts: Facts) -> bool:
        return self.value in facts.numbers


class _Code(NamedTuple):
    word: str
    values: tuple[str, ...]

    def is_in(self, facts: Facts) -> bool:
        return f" {self.word} " in facts.words or facts.numbers.issuperset(self.values)


class _Date(NamedTuple):
    readings: tuple[tuple[int, int, int], ...]
    """Each is a year, a month and a day; 0 for what the date does not say."""

    def is_in(self, facts: Facts) -> bool:
        return not facts.dates.isdisjoint(self.readings)


class _Quotation(NamedTuple):
    parts: tuple[str, ...]

    def is_in(self, facts: Facts) -> bool:
        return all(f" {part} " in facts.words for part in self.parts)


class _Link(NamedTuple):
    address: str

    def is_in(self, facts: Facts) -> bool:
        return self.address in facts.links


Fact: TypeAlias = _Number | _Code | _Date | _Quotation | _Link


class Claim(NamedTuple):
    """A fact that needs a source."""

    kind: str
    """``number``, ``code``, ``date``, ``quotation``, ``link`` or ``e-mail address``."""
    spelling: str
    fact: Fact


@lru_cache(maxsize=1024)
def facts_in(source: str) -> Facts:
    """What a source contains. A date counts as its numbers, too, and a number that can be read in
    two ways as both, unless other numbers show its decimal sign."""
    text = _plain(source)
    links: set[str] = set()
    for link in _LINK.finditer(text):
        address = _address(link[0])
        links |= {address, f"//{address.partition('/')[0]}"}
    words = _words(_EMPHASIS.sub("", text))
    text = _VERSION.sub("", _without_links(text))
    commas, points = len(_WITH_COMMA.findall(text)), len(_WITH_POINT.findall(text))
    decimal: DecimalSign | None = None
    if commas != points:
        decimal = "," if commas > points else "."
    numbers: set[str] = set()
    for found in _COUNT.finditer(words):
        numbers |= _counted(found)
    readings = {text} if decimal != "," else set()
    readings |= {_in_english(text, sign) for sign in (".", ",") if decimal in (None, sign)}
    for reading in readings:
        numbers |= _numbers_in(reading)
    dates: set[tuple[int, int, int]] = set()
    for _, parts in _dates_in(text):
        for year, month, day in parts:
            dates.update(product((0, year), (0, month), (0, day)))
            numbers |= {str(year), str(month), str(day)}
    return Facts(frozenset(numbers), frozenset(dates), f" {words} ", frozenset(links), decimal)


def _numbers_in(text: str) -> set[str]:
    numbers: set[str] = set()
    for found in _CODE.finditer(text):
        numbers |= {*_values_of_code(found), _value(found, scaled=False)}
    for found in _NUMBER.finditer(_CODE.sub(" ", text)):
        numbers |= {_value(found), _without_seconds(found)}
        if not found["exponent"]:
            numbers.add(_value(found, scaled=False))
    return numbers


def claims_in(answer: str, decimal: DecimalSign = ".", marks: int = 99) -> Iterator[Claim]:
    """Yield everything in this text that needs a source, but for its quotations. ``marks``: up to
    this number, [1] refers to a source.

    >>> [(claim.kind, claim.spelling) for claim in claims_in("1. In 1998 [2], on May 5.")]
    [('date', 'May 5'), ('number', '1998')]
    """
    text = _plain(answer)
    for link in _LINK.finditer(text):
        address = _address(link[0])
        is_host = not link["mail"] and "/" not in address
        if is_host and not link[0].lower().startswith("http"):
            address = f"//{address}"
        kind = "e-mail address" if link["mail"] else "link"
        yield Claim(kind, _trimmed(link[0]), _Link(address))
    text = _ITEM.sub("\n", _without_links(text))  # a space would join a number to the next word
    text = _MARK.sub(lambda mark: "\n" if _refers(mark[0], marks) else mark[0], text)
    text = _in_english(text, decimal)
    rest = list(text)
    for found, readings in _dates_in(text):
        yield Claim("date", found[0], _Date(readings))
        rest[found.start() : found.end()] = " " * len(found[0])
    text = "".join(rest)
    for code in _CODE.finditer(text):
        yield Claim("code", code[0], _Code(_words(code[0]), _values_of_code(code)))
    for number in _NUMBER.finditer(_CODE.sub(" ", text)):
        yield Claim("number", number[0], _Number(_value(number)))


def _refers(mark: str, last: int) -> bool:
    numbers = re.findall(r"\d+", mark if mark[0] == "[" else mark.partition("†")[0])
    return all(int(number) <= last for number in numbers)


def quotations_in(answer: str) -> Iterator[Claim]:
    """Yield the quotations of this text that need a source.

    >>> [claim.spelling for claim in quotations_in("It’s “so” for ‘the dog’s owner’, he said.")]
    ['‘the dog’s owner’']
    """
    for quotation in _QUOTATION.finditer(_EMPHASIS.sub("", _plain(answer))):
        parts = _parts(quotation[0][1:-1])
        words = " ".join(parts).split()
        if sum(0.5 if _IS_UNSPACED.match(word) else 1.0 for word in words) >= QUOTED_WORDS:
            yield Claim("quotation", quotation[0], _Quotation(parts))


def begun_quotation(text: str, start: int, end: int) -> int:
    """Where the quotation begins that is open at ``end``; ``end`` if there is none.

    >>> begun_quotation("He said: “So be it”, “and", 0, 12), begun_quotation("“So”, he", 0, 8)
    (9, 8)
    """
    *_, quotation = None, *_BEGUN_QUOTATION.finditer(text, start, end)
    if quotation is None or quotation.end() < end or _QUOTATION.fullmatch(quotation[0]):
        return end
    return quotation.start()


def place_of(claim: Claim, text: str) -> tuple[int, int] | None:
    """Where this claim is in the text, which may write its numbers in another way.

    >>> place_of(Claim("number", "1500000.5", _Number("1500000.5")), "about 1.500.000,5 euros")
    (6, 17)
    """
    pattern = "".join(
        "[.,]" if letter == "." else re.escape(letter) + r"[.,'’\s]?" * letter.isdigit()
        for letter in claim.spelling[:-1]
    )
    found = re.search(rf"(?<!\w){pattern}{re.escape(claim.spelling[-1])}(?!\w)", text)
    return None if found is None else found.span()


def _in_english(text: str, decimal: DecimalSign) -> str:
    """The text with its numbers as in English, without separators of thousands.

    >>> _in_english("1.500.000,5 or 3,5 or 1.500 or 1 500", ",")
    '1500000.5 or 3.5 or 1500 or 1500'
    """
    text = _GROUPED.sub(lambda found: found[0].replace(found[1], ""), text)
    return _SEPARATED.sub(lambda found: _figures(found[0], decimal), text)


def _figures(number: str, decimal: DecimalSign) -> str:
    head, *groups = re.split("[.,]", number)
    last = number[-len(groups[-1]) - 1]
    thousands = groups[:-1] if "." in number and "," in number else groups
    is_grouped = len(head) <= 3 and head[0] != "0" and all(len(group) == 3 for group in thousands)
    if thousands is not groups:  # 1,500.5
        other = "," if last == "." else "."
        is_plain = is_grouped and number.count(last) == 1
        return number.replace(other, "").replace(last, ".") if is_plain else number
    if is_grouped and (len(groups) > 1 or last != decimal):
        return number.replace(last, "")
    if last == "," and len(groups) == 1 and (decimal == "," or len(groups[0]) <= 2):
        return number.replace(",", ".")
    return number


def _parts(inside: str) -> tuple[str, ...]:
    """The words of a quotation, in parts if something is left out of it."""
    return tuple(filter(None, map(_words, _OMISSION.split(inside))))


def _plain(text: str) -> str:
    """The text with one form of every digit, space and hyphen. The T between a date and a time
    becomes a space, and 2 × 10⁹ becomes 2e9. Footnotes' numbers are left out."""
    text = _SUPERSCRIPT.sub(r"^\g<0>", _FOOTNOTE.sub("", text))
    text = re.sub(r"(?<=\d)T(?=\d\d:)", " ", unicodedata.normalize("NFKC", text))
    text = re.sub(r"[\u2010-\u2012\u2212]", "-", text)
    return _POWER.sub(r"1e\1\2", _TIMES_A_POWER.sub(r"e\1\2", text))


def _without_links(text: str) -> str:
    """The text without links, and without the underscores of emphasis, which links may contain."""
    return _EMPHASIS.sub("", _LINK.sub(" ", text))


def _words(text: str) -> str:
    return " ".join(_WORD.findall(text.casefold()))


def _trimmed(link: str) -> str:
    """The link without the punctuation that follows it."""
    while link:
        is_unopened = link[-1] == ")" and link.count("(") < link.count(")")
        if link[-1] not in ".,;:!?'*_`]}" and not is_unopened:
            break
        link = link[:-1]
    return link


def _address(link: str) -> str:
    address = re.sub(r"(?i)^(https?://)?(www\.)?", "", _trimmed(link)).rstrip("/")
    host, slash, path = address.partition("/")
    return host.lower() + slash + path


def _values_of_code(code: re.Match[str]) -> tuple[str, ...]:
    return (_value(code), *(number.lstrip("0") or "0" for number in _FURTHER.findall(code["rest"])))


def _value(found: re.Match[str], *, scaled: bool = True) -> str:
    """The number in one spelling, so that equal numbers are equal texts."""
    digits = found["digits"].replace(",", "")
    if ":" in digits:
        return digits.removeprefix("0")
    if digits.count(".") > 1:
        return digits
    _, figures, exponent = Decimal(digits).as_tuple()
    power = _power(found) if scaled else 0
    value = f"{Decimal((0, figures, int(exponent) + power)):f}"
    return value.rstrip("0").rstrip(".") if "." in value else value


def _power(found: re.Match[str]) -> int:
    """The power of ten that follows a number, as a word, as letters or as an exponent.

    >>> [_power(_NUMBER.search(text)) for text in ("2.4 billion", "40k", "$5m", "5m", "2.4e9")]
    [9, 3, 6, 0, 9]
    """
    groups = found.groupdict()
    if groups.get("exponent"):
        return int(groups["exponent"])
    if groups["scale"]:
        return {**_SCALES, **_SHORT_SCALES}[groups["scale"].lower()]
    letters = _LETTERS_OF_MONEY if groups["money"] else _LETTERS
    return letters.get(groups["letter"], 0)


def _without_seconds(found: re.Match[str]) -> str:
    """Of 9:05:30, 9:05; any other number as it is."""
    value = _value(found)
    return value[:-3] if value.count(":") > 1 else value


def _counted(found: re.Match[str]) -> set[str]:
    """The values of a number in words: five million is 5 and 5,000,000.

    >>> sorted(_counted(_COUNT.search("in twenty five million years")))
    ['25', '25000000']
    """
    tens, unit, other, scale = found.groups()
    value = _VALUES[other] if other else _VALUES[tens] + _VALUES[unit]
    return {str(value), str(value * 10 ** _POWERS.get(scale, 0))}


def _dates_in(text: str) -> Iterator[tuple[re.Match[str], tuple[tuple[int, int, int], ...]]]:
    """Yield the dates of a text, each with all ways to read it. Dates do not overlap."""
    taken = bytearray(len(text))
    for order, pattern in _DATES.items():
        for found in pattern.finditer(text):
            start, end = found.span()
            readings = tuple(_readings(order, found.groups()))
            if readings and not any(taken[start:end]):
                taken[start:end] = b"1" * (end - start)
                yield found, readings


def _readings(order: str, parts: Sequence[str | None]) -> Iterator[tuple[int, int, int]]:
    """The dates that this may be, as year, month and day."""
    for letters in dict.fromkeys((order.replace("xx", "dm"), order.replace("xx", "md"))):
        known = dict.fromkeys("ymd", 0)
        for letter, part in zip(letters, parts, strict=True):
            if part:
                known[letter] = int(part) if part.isdigit() else _month(part)
        if known["m"] <= 12 and known["d"] <= 31:
            yield known["y"], known["m"], known["d"]


def _month(name: str) -> int:
    return _MONTHS.index(name[:3].lower()) + 1
