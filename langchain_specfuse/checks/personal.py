"""Ready-made patterns for personal data, to be forbidden or redacted.

A regular expression cannot tell a card number from an order number, nor say from which place on a
text may still become a match. These patterns can do both, because they know check digits and
lengths. Each looks at a bounded number of characters from every place, so their time is
proportional to the length of the text, whatever the text is.

Presidio and the packages behind LangChain's ``PIIMiddleware`` search whole texts. None of them says
what may be shown of a text that is still being written.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[int, int]
"""Where a match begins and ends."""
Match: TypeAlias = tuple[int, bool]
"""Where the longest match from a place ends, 0 if there is none, and whether more text could change
that."""

BEFORE = 24
"""At most this many characters before a place decide whether a match begins there."""


@dataclass(frozen=True, slots=True)
class PersonalPattern:
    """A kind of personal data that can be found in a text that may go on."""

    name: str
    noun: str
    """What it finds, as reasons call it."""
    _begins: re.Pattern[str]
    """Matches where this kind of data may begin."""
    _match: Callable[[str, int], Match]
    _longest: int
    """No match has more characters."""

    def __repr__(self) -> str:
        return f"checks.{self.name.upper()}"

    def find(self, text: str) -> list[Span]:
        """The places of all matches.

        >>> EMAIL.find("Write to ann@example.com."), CARD.find("Order 4111111111111112")
        ([(9, 24)], [])
        """
        return self.found(text, 0)[0]

    def find_last(self, text: str, count: int) -> list[Span]:
        """The places of the matches that have one of the last characters of the text."""
        return self.found(text, self._start(text, len(text) - count))[0]

    def pending(self, text: str) -> int:
        """The place from which on the text may be the beginning of a match, if it goes on;
        otherwise its length.

        >>> CARD.pending("It costs 9 euros. Pay with 4111 11"), CARD.pending("In 1998")
        (27, 7)
        """
        return self.found(text, self._start(text, len(text)))[1]

    def _start(self, text: str, at: int) -> int:
        """A place before everything that concerns the text after this one."""
        start = max(at - 2 * self._longest, 0)
        return 0 if _UNSEEN.search(text, start) else start

    def found(self, text: str, start: int) -> tuple[list[Span], int]:
        """The places of the matches that begin at ``start`` or later, and the place from which on
        the text may be the beginning of another one."""
        base = max(start - BEFORE, 0)
        plain, places = _plain(text[base:])
        spans, begun = self._scan(plain, bisect_left(places, start - base))
        found = [(base + places[first], base + places[end - 1] + 1) for first, end in spans]
        pending = base + places[begun]
        if spelled := unspelled(text, start):
            plain, places = spelled
            spans, begun = self._scan(plain.translate(_PLAIN), bisect_left(places, start))
            found += [(places[first], places[end - 1] + 1) for first, end in spans]
            pending = min(pending, places[begun])
        return merged(found), pending

    def _scan(self, text: str, here: int) -> tuple[list[Span], int]:
        """The matches from a place on, and where the first one that may still go on begins."""
        begun = len(text)
        spans: list[Span] = []
        while match := self._begins.search(text, here):
            here = match.start()
            end, is_open = self._match(text, here)
            if is_open:
                begun = min(begun, here)
            if end:
                spans.append((here, end))
            here = max(end, here + 1)
        return spans, begun


def merged(spans: list[Span]) -> list[Span]:
    """The spans in order, those that overlap as one.

    >>> merged([(4, 9), (0, 2), (3, 5)])
    [(0, 2), (3, 9)]
    """
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


# --- one writing ----------------------------------------------------------------------------------

_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufe00-\ufe0f\ufeff]")
"""Characters without width, which may stand anywhere in a word."""


UNSPACED = "\u2e80-\u303e\u3041-\u30ff\u31f0-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Characters of scripts without spaces. Each counts as a word, as in word processors."""
_BESIDE = re.compile(f"[{UNSPACED}\uac00-\ud7a3]")
"""Characters that may be next to data without a space and are no part of it, such as Korean
particles."""


class _Plain(dict[int, str]):
    """code -> the plain form of this character, if that is one character; otherwise itself."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        digit = unicodedata.decimal(letter, None)
        plain = unicodedata.normalize("NFKC", letter) if digit is None else str(digit)
        if unicodedata.category(letter) == "Pd" or letter == "\u2212":
            plain = "-"
        elif letter.isspace() and letter not in "\r\n":
            plain = " "
        elif _BESIDE.match(letter):
            plain = "、"
        self[code] = plain if len(plain) == 1 else letter
        return self[code]


_PLAIN = _Plain()


def _plain(text: str) -> tuple[str, Sequence[int]]:
    """The text with one form of digits, full-width characters, dashes and spaces, and without
    characters that cannot be seen; and where its characters and its end were."""
    places: Sequence[int] = range(len(text) + 1)
    if text.isascii() and "\t" not in text and "\\" not in text:
        return text, places
    if _UNSEEN.search(text):
        places = [at for at, letter in enumerate(text) if not _UNSEEN.match(letter)]
        places.append(len(text))
        text = "".join(text[at] for at in places[:-1])
    # In JSON, these two characters are one, which is none of a word.
    return re.sub(r"\\[bfnrt]", "  ", text.translate(_PLAIN)), places


_SEPARATORS = (" ", "-", ", ", " - ", "\n", "\n- ", "\n* ")
_SPELLED = tuple(
    (re.compile(rf"(?<![^\W_])[^\s,|=](?:{re.escape(between)}[^\s,|=])+(?![^\W_])"), between)
    for between in _SEPARATORS
)


def unspelled(text: str, start: int) -> tuple[str, Sequence[int]] | None:
    """The text from a place on, or from a little before, in which each word that is spelled letter
    by letter is one word, and where its characters and its end were; None if there is no such word.

    >>> unspelled("It is a n n a, so", 0)
    ('It is anna, so', [0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 13, 14, 15, 16, 17])
    """
    base = max(start - BEFORE, 0)
    dropped: set[int] = set()
    for pattern, between in _SPELLED:
        for run in pattern.finditer(text, max(start - BEFORE, 0)):
            if run.start() < start < run.end():
                base = start  # its first letters were shown
            letters = run.end() - run.start() - len(between)
            left = len(text) - run.end()
            is_open = left <= len(between) and between.startswith(text[run.end() :])
            if letters < 2 * len(between) + 4 and not is_open:
                continue
            step = len(between) + 1
            for letter in range(run.start(), run.end() - 1, step):
                dropped.update(range(letter + 1, letter + step))
            if is_open:
                dropped.update(range(run.end(), len(text)))
    if not dropped:
        return None
    places = [at for at in range(base, len(text)) if at not in dropped]
    return "".join(text[at] for at in places), [*places, len(text)]


# --- e-mail addresses -----------------------------------------------------------------------------

_ATOM = r"\w!#$%&+?^~"
"""Without ``|``, ``{``, ``}`` and ``=``, which stand beside an address in tables and programs."""
_LOCAL = re.compile(rf"[{_ATOM}.'/*-]{{1,65}}")
_AT = re.compile(r"@ ?| @ | ?[(\[{] ?(?:@|at) ?[)\]}] ?", re.IGNORECASE)
_AT_BEGUN = re.compile(r" ?@? ?| ?[(\[{] ?(?:a|(?:@|at) ?(?:[)\]}] ?)?)?", re.IGNORECASE)
_DOT = re.compile(r"\.| ?[(\[{] ?(?:\.|dot) ?[)\]}] ?", re.IGNORECASE)
_DOT_BEGUN = re.compile(r"-*| ?(?:[(\[{] ?(?:d|do|(?:\.|dot) ?(?:[)\]}] ?)?)?)?", re.IGNORECASE)
_LABEL = re.compile(r"[^\W_](?:[\w-]{0,61}[^\W_])?")
_HOST = re.compile(r"\[(?:IPv6:)?[0-9A-Fa-f:.]{3,45}\]")
_HOST_BEGUN = re.compile(r"\[[\w:.]{0,50}")
_PICTURES = frozenset(("gif", "jpeg", "jpg", "png", "svg", "webp"))
"""Of files such as ``icon@2x.png``, which are no domains."""


def _email(text: str, at: int) -> Match:
    local = _LOCAL.match(text, at)
    assert local is not None
    end = local.end()
    if end - at > 64 or ".." in local[0]:
        return 0, False
    if local[0][-1] in ".'/*":
        return 0, end == len(text)
    sign = _AT.match(text, end)
    if sign is None:
        return 0, _rest_is(_AT_BEGUN, text, end)
    start = sign.end()
    is_spaced = sign[0] == " @ "
    if is_spaced and end - at == 1:
        return 0, False  # a product of matrices: x @ model.weights
    host = _HOST.match(text, start)
    if host:
        return host.end(), False
    labels: list[str] = []
    best, here = 0, start
    while here - start < 254:
        label = _LABEL.match(text, here)
        if label is None:
            is_begun = _rest_is(_HOST_BEGUN if here == start else _DOT_BEGUN, text, here)
            return best, is_begun or here == len(text)
        labels.append(label[0])
        here = label.end()
        if _is_domain(labels):
            best = here
        dot = _DOT.match(text, here)
        if dot is None:
            if is_spaced and text[here : here + 1] == "(":
                return 0, False  # another one: query @ key.transpose(0, 1)
            return best, _rest_is(_DOT_BEGUN, text, here)
        here = dot.end()
    return best, False


def _is_domain(labels: list[str]) -> bool:
    last = labels[-1].lower()
    is_name = last.isalpha() and len(last) > 1 and last not in _PICTURES
    is_address = len(labels) == 4 and all(map(str.isdecimal, labels))
    return len(labels) > 1 and (is_name or is_address or last.startswith("xn--"))


def _is_word(text: str, at: int) -> bool:
    """Whether a letter or a digit stands here."""
    return at < len(text) and (text[at].isalnum() or text[at] == "_")


def _rest_is(pattern: re.Pattern[str], text: str, at: int) -> bool:
    """Whether the text from this place on is the beginning of something longer."""
    return pattern.fullmatch(text, at) is not None


# --- numbers of cards -----------------------------------------------------------------------------

_CARDS = (
    (r"4", (13, 16, 19)),
    (r"5[1-5]|222[1-9]|22[3-9]|2[3-6]|27[01]|2720", (16,)),
    (r"3[47]", (15,)),
    (r"30[0-59]|3[689]", (14, 16, 19)),
    (r"6011|64[4-9]|65|62|60|35|220[0-4]|81|82|508", (16, 17, 18, 19)),
    (r"50|5[6-8]|63|67", (16, 17, 18, 19)),
)
"""The first digits of each network, and how many digits its numbers have."""
_NETWORKS = tuple((re.compile(prefix), lengths) for prefix, lengths in _CARDS)
_NETWORK_BEGUN = re.compile(r"[456]|3(?:[0-9]|\Z)|2(?:[2-7]|\Z)|8(?:[12]|\Z)")
_GROUPS = frozenset(((4, 4, 4, 4), (4, 6, 5), (4, 6, 4), (8, 8), (4, 4, 4, 4, 3), (4, 4, 5)))
_CARD_DIGITS = 19


def _card(text: str, at: int) -> Match:
    digits = ""
    groups: list[int] = []
    best, here = 0, at
    is_inside = _goes_on(text[at - 1 : at - 3 : -1] if at > 2 else text[:at][::-1])
    while group := _DIGITS.match(text, here):
        digits += group[0]
        groups.append(len(group[0]))
        here = group.end()
        follows = text[here : here + 2]
        if len(digits) > _CARD_DIGITS or not _NETWORK_BEGUN.match(digits) or _is_number(follows):
            return best, False
        if is_inside and follows and groups[0] not in (4, 8) and len(digits) < 12:
            return 0, False
        is_apart = not (is_inside or _goes_on(follows))
        if (len(groups) == 1 or tuple(groups) in _GROUPS or is_apart) and _is_card(digits):
            best = here
        if follows[:1] not in (" ", "-"):
            return best, not follows
        here += 1
    return best, here == len(text)


def _goes_on(around: str) -> bool:
    """Whether another group of digits stands beside a group."""
    return around[:1] in (" ", "-") and around[1:].isdigit()


def _is_number(follows: str) -> bool:
    """Whether what follows makes another word or number of the digits before it."""
    is_decimal = follows[:1] in (".", ",") and follows[1:].isdigit()
    return is_decimal or follows[:1].isalnum() or follows[:1] == "_"


def _is_card(digits: str) -> bool:
    for prefix, lengths in _NETWORKS:
        if len(digits) in lengths and prefix.match(digits):
            doubled = "".join(str(2 * int(digit)) for digit in digits[-2::-2])
            return sum(map(int, doubled + digits[-1::-2])) % 10 == 0
    return False


_DIGITS = re.compile(r"[0-9]{1,20}")


# --- IBAN -----------------------------------------------------------------------------------------

_COUNTRIES = """
8n12c AD, 19n AE IL SO TL, 8n16c AL CY, 21n AO CV LY MZ PT ST, 16n AT BA EE LT MN XK
14n AX DK FI FO GL SD, 4a20c AZ, 12n BE, 2c22n BF BJ ML, 4a6n8c BG, 4a14c BH
23n BI CF CG CM DJ GA GQ KM MG MR TD, 10n11c2n BL FR GF GP MC MF MQ NC PF PM RE TF WF YT
8c15n2c BR, 4c4n16c BY, 5n12c CH LI, 2a22n CI NE SN TG, 18n CR DE ME RS VA
20n CZ ES SE SK TN, 4c20n DO, 22n DZ IR IS, 25n EG, 2a12n FK, 4a14n GB GG IE IM JE
2a16n GE, 4a15c GI, 7n16c GR, 24c GT, 2c19n GW, 4a20n HN NI SV, 17n HR, 24n HU MA PL
4a15n IQ, 1a10n12c IT SM, 4a4n18c JO YE, 4a22c KW, 3n13c KZ LU, 4n20c LB, 4a24c LC
4a13c LV, 20c MD, 3n10c2n MK, 4a5n18c MT, 4a19n3a MU, 4a10n NL, 11n NO, 3n16c OM
4a16c PK RO, 4a21c PS QA, 14n15c RU, 2n18c SA, 4a20n3a SC, 15n SI, 6n16c TR, 6n19c UA
4a16n VG
"""
"""The form of account numbers by country, as in SWIFT's registry: digits (n), letters
(a), both (c)."""


def _forms() -> dict[str, str]:
    """country -> the kinds of the characters after its two letters."""
    forms: dict[str, str] = {}
    for entry in re.split(r"[,\n]", _COUNTRIES.strip()):
        form, *countries = entry.split()
        kinds = "".join(kind * int(times) for times, kind in re.findall(r"(\d+)([nac])", form))
        forms |= dict.fromkeys(countries, f"nn{kinds}")
    return forms


_FORMS = _forms()
_KINDS = {
    "n": re.compile("[0-9]"),
    "a": re.compile("[A-Za-z]"),
    "c": re.compile("[A-Za-z0-9]"),
}
_IBAN_BEGUN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z](?:\Z|[A-Za-z](?:\Z|[ .-]?(?:[0-9]|\Z)))")


def _iban(text: str, at: int) -> Match:
    country = text[at : at + 2].upper()
    if len(country) < 2:
        return 0, any(name.startswith(country) for name in _FORMS)
    form = _FORMS.get(country)
    if form is None:
        return 0, False
    written = country
    here = at + 2
    for kind in form:
        if text[here : here + 1] in (" ", "-", "."):
            here += 1
        if here == len(text):
            return 0, True
        letter = text[here]
        if (
            not letter.isascii()
            or not {"n": letter.isdigit, "a": letter.isalpha}.get(kind, letter.isalnum)()
        ):
            return 0, False
        written += letter
        here += 1
    if _is_word(text, here):
        return 0, False
    moved = written[4:] + written[:4]
    number = int("".join(str(int(letter, 36)) for letter in moved))
    return (here, here == len(text)) if number % 97 == 1 else (0, False)


# --- addresses of machines ------------------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = re.compile(rf"(?:{_OCTET}\.){{3}}{_OCTET}(?!\w|\.[0-9]|-[A-Za-z])")
_IPV4_BEGUN = re.compile(rf"(?:{_OCTET}\.){{0,3}}{_OCTET}?|(?:{_OCTET}\.){{3}}{_OCTET}[.-]")
_IPV6 = re.compile(r"[0-9A-Fa-f:.]{1,46}")
_IPV6_BEGUN = re.compile(
    r"(?:[0-9A-Fa-f]{0,4}:){0,7}(?:[0-9A-Fa-f]{0,4}|[0-9.]{1,15})(?:%[\w.-]{0,16})?"
)
_ZONE = re.compile(r"%[\w.-]{0,15}\w")
_NUMBERED = re.compile(
    r"(?<!\w)(?:v|ver|version|rev|revision|release|build|firmware|driver|update|patch|kernel|os"
    r"|§|sec|section|chapter|clause|article|paragraph|figure|fig|table|appendix|rule|step|item"
    r"|abschnitt|kapitel|ziffer|abb|versión|versione|versie|версия)\.?[:= ]{0,2}\Z",
    re.IGNORECASE,
)
"""Words before a number in four parts that is not an address."""


def _ip(text: str, at: int) -> Match:
    run = _IPV6.match(text, at)
    assert run is not None
    if run[0].isdecimal() and run.end() < len(text):
        return 0, False
    if text[at].isdigit() and _NUMBERED.search(text[max(at - BEFORE, 0) : at]):
        return 0, False
    end = 0
    if found := _IPV4.match(text, at):
        end = found.end()
    elif run[0].count(":") > 1:
        end = _ipv6_end(text, run)
    return end, _rest_is(_IPV4_BEGUN, text, at) or _rest_is(_IPV6_BEGUN, text, at)


def _ipv6_end(text: str, run: re.Match[str]) -> int:
    written = run[0]
    if _is_word(text, run.end()):
        written = written.rpartition(":")[0]
    while written.endswith(".") or (written.endswith(":") and not written.endswith("::")):
        written = written[:-1]
    while not _is_ipv6(written):
        written, colon, _ = written.rpartition(":")
        # Times, network cards and digests have groups of two.
        if not colon or max(map(len, written.split(":"))) < 3:
            return 0
    end = run.start() + len(written)
    zone = _ZONE.match(text, end)
    return zone.end() if zone else end


def _is_ipv6(written: str) -> bool:
    groups = [group for group in written.split(":") if group]
    # Slices and names in programs, such as [::2] and Bed::add, have the form of an address.
    is_long = len(groups) > 3 or "." in written
    if not (is_long or (len(groups) > 1 and max(map(len, groups)) > 2 and written[0] != ":")):
        return False
    try:
        ipaddress.IPv6Address(written)
    except ValueError:
        return False
    return any(map(str.isdigit, written))


# --- phone numbers --------------------------------------------------------------------------------

_PHONE_CODES = """
1 7 20 211 212 213 216 218 220 221 222 223 224 225 226 227 228 229 230 231 232 233 234 235 236 237
238 239 240 241 242 243 244 245 246 247 248 249 250 251 252 253 254 255 256 257 258 260 261 262 263
264 265 266 267 268 269 27 290 291 297 298 299 30 31 32 33 34 350 351 352 353 354 355 356 357 358
359 36 370 371 372 373 374 375 376 377 378 380 381 382 383 385 386 387 389 39 40 41 420 421 423 43
44 45 46 47 48 49 500 501 502 503 504 505 506 507 508 509 51 52 53 54 55 56 57 58 590 591 592 593
594 595 596 597 598 599 60 61 62 63 64 65 66 670 672 673 674 675 676 677 678 679 680 681 682 683 685
686 687 688 689 690 691 692 7 800 808 81 82 84 850 852 853 855 856 86 870 878 880 881 882 883 886
888 90 91 92 93 94 95 960 961 962 963 964 965 966 967 968 970 971 972 973 974 975 976 977 979 98 992
993 994 995 996 998
"""
"""Codes that the ITU has assigned to countries and services (E.164)."""
_CODES = frozenset(_PHONE_CODES.split())
_SHORT = {
    7: "220 230 231 238 239 241 243 246 248 254 265 267 269 291 297 353 354 372 381 423 46 48 501"
    " 507 592 595 599 62 670 673 674 675 679 680 691 692 86 882 960 961 967 975",
    6: "298 299 376 40 252 359 421 508 53 63 672 681 687 597 95 98 880 39",
    5: "247 27 290 352 358 43 49 500 676 677 678 682 685 686 688 82",
    4: "683 690",
}
"""How few digits may follow these codes. After the others, there are at least 8."""
_LEAST = {code: count for count, codes in _SHORT.items() for code in codes.split()}
_LONG = {"1": 10, "7": 10, "39": 12, "43": 13, "49": 12, "62": 12, "972": 12}
"""How many digits may follow these codes. After the others, there are at most 11."""
_WITH_ZERO = frozenset(("39", "225", "229", "241", "242", "378"))
"""Codes after which numbers begin with 0. Elsewhere, a 0 is left out after the code."""
_PHONE_PART = re.compile(r"\(0\)|\(0?\Z|[ ./()-]|[0-9]{1,16}")


def _phone(text: str, at: int) -> Match:
    digits, best, here, gap = "", 0, at + 1, 0
    while here < len(text):
        part = _PHONE_PART.match(text, here)
        if part is None or gap > 3:
            return best, False
        here = part.end()
        if not part[0].isdigit():
            gap += part[0] != "(0)"
            continue
        gap = 0
        digits += part[0]
        if not _may_be_phone(digits) or _is_word(text, here):
            return best, False
        if _is_phone(digits):
            best = here
    return best, True


def _code_of(digits: str) -> str | None:
    return next((digits[:size] for size in (1, 2, 3) if digits[:size] in _CODES), None)


def _may_be_phone(digits: str) -> bool:
    """Whether a number may begin with these digits."""
    code = _code_of(digits)
    if code is None:
        return len(digits) < 3 and any(other.startswith(digits) for other in _CODES)
    rest = digits[len(code) :]
    if rest.startswith("0") and code not in _WITH_ZERO:
        return False
    if code == "1" and (rest[:1] == "1" or rest[3:4] in ("0", "1")):
        return False
    return len(rest) <= _LONG.get(code, 11)


def _is_phone(digits: str) -> bool:
    code = _code_of(digits)
    if code is None:
        return False
    least = _LONG[code] if code in ("1", "7") else _LEAST.get(code, 8)
    return len(digits) - len(code) >= least


# --- the patterns ---------------------------------------------------------------------------------

EMAIL = PersonalPattern(
    "email", "an e-mail address", re.compile(rf"(?<![{_ATOM}])[{_ATOM}]"), _email, 400
)
CARD = PersonalPattern(
    "card", "the number of a card", re.compile(r"(?<!\w)(?<![0-9][.,])[2-68]"), _card, 48
)
IBAN = PersonalPattern("iban", "an IBAN", _IBAN_BEGUN, _iban, 80)
IP = PersonalPattern("ip", "an IP address", re.compile(r"(?<![\w:.])[0-9A-Fa-f:]"), _ip, 80)
PHONE = PersonalPattern("phone", "a phone number", re.compile(r"(?<![\w+])\+"), _phone, 80)
PERSONAL = {pattern.name: pattern for pattern in (EMAIL, CARD, IBAN, IP, PHONE)}
"""All patterns by name."""
