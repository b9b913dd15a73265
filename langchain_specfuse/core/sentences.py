"""Where the sentences of a growing text end.

An end is reported once nothing that follows can change it, so the ends of a text are also ends of
every longer text. That takes the white space after the sentence and, after an abbreviation, an
ellipsis or a closing quotation mark, the word that follows: text is held back for one word at most.
Marks of scripts without spaces take the next character.

Libraries that do this (pysbd, NLTK, spaCy) read whole texts, and are not dependencies of this
package. Only abbreviations of English and of some European languages are known. Where it is
unclear, no sentence ends: two sentences are then judged together, and none is torn apart.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_WIDE = "。！？｡।॥؟۔።፧"
"""Marks that end a sentence whatever follows."""
_WIDE_MARK = re.compile(f"[{_WIDE}]")
MARKS = frozenset(f".!?…‼⁇⁈⁉{_WIDE}")
_CLOSERS = "\"'”’»›“‘«‹)\\]}〉》」』】〕）］｝*_`~"
"""What may close after a mark, written for a character class: quotations, brackets, emphasis.
German quotations close with “ and ‘, and Danish ones with «."""
_CITATION = (
    r"(?P<citation>\[{1,2}[^\[\]\n]{1,40}\]{1,2}(?:\([^()\s]{0,1000}\))?|【[^【】\n]{1,40}】"
    r"|[¹²³⁰⁴-⁹]+)"
)
"""What may refer to a source there: [1], [^1], [doc1], [1](address), 【1†source】, ¹."""
TRAILER = rf"(?:[{_CLOSERS}]|{_CITATION})*"
"""A pattern of what may stand between the marks and the next sentence."""
_END = re.compile(
    rf"(?P<marks>[{''.join(sorted(MARKS))}]+)(?P<closers>{TRAILER})"
    r"|(?P<block>\n(?=[^\S\n]*(?:\n|[-*+•–]\s|\d{1,3}[.)]\s|#{1,6}\s|[>|]|```|~~~)))|\n"
)
"""The end of a sentence; or of a line before an empty line, an item, a heading, a row or a fence;
or of another line, which may be a heading."""
_OPENERS = re.compile("[“‘«‹]")
"""Closers that open a quotation where the language has no spaces."""
_OPEN_CITATION = re.compile(r"(?:\[{1,2}[^\[\]\n]{0,40}\]?|【[^【】\n]{0,40})\Z")
_OPEN_LINK = re.compile(r"\([^()\s]{0,1000}\Z")
_NEXT = re.compile(r"(?P<space>\s+)[\"'“”„‚‘«»‹›(\[{¿¡*_`]*(?P<word>[^\W\d_]*)(?P<number>\d*)")
_HEADING = re.compile(r"[^\S\n]{0,3}#{1,6}\s")
_WORD = re.compile(r"(?<![\w'’.])(?:[^\W\d_]+\.)*[^\W\d_]+\Z")
_ORDINAL = re.compile(r"(?<![\w.,:/-])\d{1,2}\Z")
_LONG = 24
"""Longer words are no abbreviations, and longer beginnings of lines no marks of items."""
_ITEM = re.compile(r"[\s>*+#_-]*(?:\d{1,3}|[^\W\d_]|[ivxIVX]{1,4})\Z")
_SPACED = re.compile(r"(?<!\w)(?:[zuo]\. ?[BaÄ]|[id]\. ?[ehR]|p\. ?ej|s\. ?[aou])\Z")
"""Two letters that a sentence goes on after: z. B., u. a., d. h., i. e., s. o."""
_BEFORE_ORDINAL = re.compile(
    r"\b(?:im|der|die|das|dem|den|des|vom|zum|zur|beim|ab|seit|bis|jeder) \Z", re.IGNORECASE
)
"""German words before an ordinal: der 2. Weltkrieg, im 19. Jahrhundert."""
_GERMAN_MONTHS = """
    Januar Jänner Februar März April Mai Juni Juli August September Oktober November Dezember
    Jan Feb Mär Apr Jun Jul Aug Sep Sept Okt Nov Dez
"""
_MONTHS = frozenset(_GERMAN_MONTHS.split())
_UNFINISHED = """
    Dr dr Mr mr Mrs mrs Ms ms Mx Prof Hr Fr Hon Gen Sen Rep Rev Capt Lt Col Sgt Gov Pres Mt Messrs
    Mme Mlle Sra Dra Dipl Ing EE e.g i.e vs cf approx viz esp incl p.ej
    ca bzw bspw bzgl resp ggf vgl evtl inkl exkl zzgl sog insb z.B d.h u.a
"""
"""Abbreviations that no sentence ends with."""
_OPEN_ENDED = frozenset(_UNFINISHED.split())
_BEFORE_NUMBERS = """
    no nos nr nrs fig figs abb abs art bd kap tab vol vols p pp pg ch sec eq eqs ref refs núm num
"""
"""Abbreviations before a number; elsewhere, they are words."""
_NUMBERED = frozenset(_BEFORE_NUMBERS.split())
_SHORTENED = """
    Inc Ltd Co Corp Jr Sr St Ave Blvd Rd Dept Bros Univ Chr Str UU
    Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec etc usw al dept est ff ed eds
"""
"""Abbreviations that a sentence may end with."""
_ABBREVIATED = frozenset(_SHORTENED.split())
_SENTENCE_STARTS = """
    The A An This That These Those It Its There Here In On At When While If As For From We Our They
    You Your He She Because Since Most Many Some All What Why How To
    Der Die Das Dass Ein Eine Es Im Wir Weil Wenn Dieser Diese Dieses Um Zu Ja
    Un Une Il Elle Ce Cette Ces Dans Parce Nous Una Este Esta Es Se Porque Questo Questa
"""
"""English, German, French, Spanish and Italian words that have a capital only where a sentence
begins; none that begins a name in another language, such as "La" and "Los"."""
STARTS = frozenset(_SENTENCE_STARTS.split())
_CONTEXT = 64
"""A place is decided by this many characters before it."""
LONGEST = 1000
"""Longer sentences are divided."""


def units(text: str, start: int = 0) -> list[int]:
    """The ends of the sentences after ``start``. A sentence of more than 1,000 characters, such as
    a long row of a table, is divided after a line or a word: otherwise its text would be held back
    for long, and be searched again whenever it grows.

    >>> units("One. Two is 2.5"), units("word " * 300)
    ([4], [1000])
    """
    ends = sentence_ends(text, start)
    places: list[int] = []
    for end in [*ends, len(text)]:
        is_open = end == len(text)
        while end - start > LONGEST + is_open * _CONTEXT:
            part = text[start : start + LONGEST]
            seam = part.rfind("\n") if "\n" in part else part.rfind(" ")
            start += seam + 1 or LONGEST
            places.append(start)
        start = end
        places.append(end)
    return places[:-1]


def sentence_ends(text: str, start: int = 0) -> list[int]:
    """The places after ``start`` where a sentence has certainly ended, whatever follows.

    >>> sentence_ends("Dr. No paid 2.5 million.[1] “Why?” he asked. And")
    [27, 44]
    >>> sentence_ends("# Fruit\\n1. Figs\\n2. Plums\\n")
    [8, 16]

    The text before ``start`` is not read again, but for its last characters.
    """
    return [end for end in _ends(text, max(start - _CONTEXT, 0)) if end > start]


def _ends(text: str, start: int) -> Iterator[int]:
    last = -1
    for found in _END.finditer(text, start):
        if found["marks"] is None:
            is_blank = last >= 0 and not text[last : found.start()].strip()
            if is_blank:
                last = found.end()
                continue
            is_end = found["block"] is not None or _is_heading(text, found)
            end = found.end() if is_end else None
        elif _WIDE_MARK.search(found["marks"]):
            end = _wide_end(text, found)
        else:
            end = found.end() if _ends_sentence(text, found) else None
        if end is not None:
            yield end
            last = end


def _is_heading(text: str, line_break: re.Match[str]) -> bool:
    begin = text.rfind("\n", 0, line_break.start()) + 1
    return _HEADING.match(text, begin) is not None


def _wide_end(text: str, found: re.Match[str]) -> int | None:
    end = found.end()
    opener = _OPENERS.search(text, found.end("marks"), end)
    if opener is not None:
        return opener.start()
    is_open = _OPEN_CITATION.match(text, end) or (found["citation"] and _OPEN_LINK.match(text, end))
    return None if is_open or end == len(text) else end


def _ends_sentence(text: str, found: re.Match[str]) -> bool:
    """Whether a sentence has certainly ended with these marks."""
    follows = _NEXT.match(text, found.end())
    if follows is None:
        return False
    marks, at = found["marks"], found.start()
    if marks == "." and _is_item(text, at):
        return False
    if "\n" in follows["space"]:
        return True
    word, number = follows["word"], follows["number"]
    is_known = bool(word or number) or follows.end() < len(text)
    goes_on = not is_known or word[:1].islower()
    is_said = bool(found["closers"]) and not found["citation"]
    if goes_on and (is_said or marks[-1] == "…" or marks.endswith("..")):
        return False
    if marks != ".":
        return True
    first = max(at - _LONG, 0)
    ordinal = _ORDINAL.search(text, first, at)
    if ordinal is not None:
        is_german = _BEFORE_ORDINAL.search(text, first, ordinal.start())
        is_word_over = follows.end("word") < len(text)
        return not (goes_on or is_german or word in _MONTHS) and is_word_over
    before = _WORD.search(text, first, at)
    name = before[0] if before is not None else ""
    if not name.replace(".", "").isalpha():
        return True
    if not {name, name[:1].lower() + name[1:]}.isdisjoint(_OPEN_ENDED):
        return False
    if _SPACED.search(text, first, at):
        return False
    if name.lower() in _NUMBERED:
        return is_known and not number
    parts = name.split(".")
    longest = 1 if len(parts) == 1 else 2  # J., U.S., Ph.D.
    if name not in _ABBREVIATED and max(map(len, parts)) > longest:
        return True
    is_pair = len(word) == 1 and text.startswith(".", follows.end("word"))  # z. B., J. S. Bach
    if goes_on or number or is_pair or follows.end("word") == len(text):
        return False
    return word in STARTS or (name.islower() and word != "")


def _is_item(text: str, at: int) -> bool:
    """Whether the full stop at this place belongs to the mark of an item, as in "1. Figs"."""
    first = max(at - _LONG, 0)
    begin = text.rfind("\n", first, at) + 1
    return (begin > 0 or first == 0) and _ITEM.fullmatch(text, begin, at) is not None
