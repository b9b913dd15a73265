"""The letter that an answer to a multiple-choice question chooses.

A capital letter counts where a choice is stated: after "the answer is", "it is", "I choose" or
"so"; before "is right"; at the beginning, on its own line, or in brackets. The article "A" and the
pronoun "I" never count. A small letter counts only where it cannot be a word: alone, in brackets,
or before a bracket, a colon or a full stop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
NEAR = 160
"""How many characters before and after a letter are considered."""

_OPENING, _CLOSING = r"(?:\\[a-z]+\{|[(\[{<*_`\"'“‘«$])", r"[)\]}>*_`\"'”’»$]"
_NOUN = r"(?:(?:option|choice|letter|answer|number|continuation|candidate)\s+)?"
_FILLING = (
    r"[\s*_]*(?:(?:therefore|thus|hence|then|indeed|clearly|definitely|(?:most )?likely|probably"
    r"|obviously|certainly|surely|simply|just|actually|still|also|now|in fact|perhaps|maybe"
    r"|of course|rather|the|my)\b[\s,]*)*"
)
_IS = r"(?:\b(?:is|are|be|was|ist|est|es|è|é)\b|['’]s\b|[是为はが])"
_NOT = r"\bnot\b|n['’]t\b|\bcannot\b|\bnever\b"

_FINAL = re.compile(r"(?:####|\\boxed\s*\{|<answer>)[\s\\{(\[*a-z]*$")
_ANSWER = re.compile(
    r"(?:\b(?:answers?|choice|option|solution|antwort|respuesta|réponse|risposta)\b"
    r"|答案|正解|答え|정답)"
    rf"(?:(?!choices|options|{_NOT})[^.?!\n]){{0,60}}?"
    rf"(?:{_IS}|[:：=→-]|->){_FILLING}{_NOUN}$"
    rf"|\banswer:?[\s*_]+$",
    re.IGNORECASE,
)
_CHOSEN = re.compile(
    r"(?<!not )(?<!n't )(?<!n’t )(?<!never )\b(?:choose|chose|pick(?:ed)?|select(?:ed)?|prefer|say"
    r"|go(?:ing)? (?:with|for)|went with|vote(?:d| is)? for|opt for|settled? (?:on|for)|guess"
    r"|suggest|lean(?:ing)? (?:to|towards?)|favou?r|recommend|think|believe|means?|conclude)\b"
    rf"{_FILLING}{_NOUN}$|(?<!what ){_IS}:?{_FILLING}{_NOUN}$|选择?$",
    re.IGNORECASE,
)
_SO = re.compile(
    r"(?:(?:^|[\s,;:—–-])(?:so|thus|therefore|hence|then|definitely|probably|clearly|surely"
    r"|certainly|obviously|likely|maybe|perhaps|finally|rather|but|yes|no)[,:]?|[:：,→…—–]|[=-]>)"
    rf"\s*{_NOUN}$",
    re.IGNORECASE,
)
_RIGHT = re.compile(
    rf"\s+(?:is|looks|seems|must be|would be|has to be)\s+{_FILLING}(?:(?:only|most)\s+)?"
    r"(?:correct|right|best|better|true|answer|choice|pick|one|it)\b|\s+(?:it is|wins)\b",
    re.IGNORECASE,
)
_WRONG = re.compile(
    r"\s+(?:(?:is|was|are|would be|can be|seems|looks)\s+(?:\w+ly\s+|also\s+)?"
    r"(?:not|wrong|incorrect|false|out|worse|excluded|impossible|ruled|eliminated)\b"
    r"|\w+n['’]t\b|cannot\b|does not\b|has nothing\b)",
    re.IGNORECASE,
)
_WRONG_ONE = re.compile(
    rf"\b(?:wrong|incorrect|worst|false) (?:answer|choice|option|one)s?\s+{_IS}{_FILLING}{_NOUN}$",
    re.IGNORECASE,
)
_CLAUSE_END = re.compile(
    r"\s*(?:$|[.!;,\n)。，、<]|because\b|since\b|as\b|due\b|\()", re.IGNORECASE
)
_BEGINS = re.compile(
    r"$|[).:!。，、：）<]|\s*\n|\s*,|\s+(?:[-–—(]|because\b|since\b|due\b|definitely\b|obviously\b)",
    re.IGNORECASE,
)
_COMPOUND = re.compile(r"[-+#&/°]\w|[+#?]|\.\w|['’]\w")
"""What follows a letter that is part of a word (B-tree, C++, A/B, I'd) or in doubt (A?)."""
_GOES_ON = {
    "A": re.compile(r"\s+(?!(?:because|since|as|is|and|or|but|for|which|due|so|given)\b)\w"),
    "I": re.compile(r"\s+(?!(?:because|is)\b)\w|\s*,"),
}
"""What follows the article or the pronoun."""


@dataclass(frozen=True)
class Mention:
    """A letter in the answer that may be a choice."""

    letter: str
    before: str
    """The text before it, without the brackets and marks around it."""
    raw: str
    """The text before it, with the brackets and marks around it."""
    after: str
    begins: bool
    """Only marks and a word such as "option" come before it."""
    wrapped: bool
    """It is in brackets, in bold or in quotes."""
    small: bool
    several: bool
    """It is the first of several: "A or B"."""

    @property
    def is_final(self) -> bool:
        return bool(_FINAL.search(self.raw))

    @property
    def is_stated(self) -> bool:
        return bool(_ANSWER.search(self.before))

    @property
    def is_alone(self) -> bool:
        """Whether it is alone on a line, or is the whole last sentence."""
        line = self.before.rpartition("\n")[2] if "\n" in self.before else None
        ends_line = re.match(r"[.!)]?\s*(?:\n|$)", self.after)
        last = re.search(r"[.!?]\s+$", self.before) and re.match(r"[.!)]?\s*$", self.after)
        return bool((line is not None and not line.strip() and ends_line) or last)

    @property
    def is_first(self) -> bool:
        if not self.begins or self.several:
            return False
        return self.wrapped or bool(_BEGINS.match(self.after) or _RIGHT.match(self.after))

    @property
    def is_declared(self) -> bool:
        if _CHOSEN.search(self.before) or _RIGHT.match(self.after):
            return True
        return bool(_SO.search(self.before) and _CLAUSE_END.match(self.after))

    @property
    def is_marked(self) -> bool:
        return self.wrapped and not self.small


def chosen_letter(answer: str, choices: Sequence[str] = ()) -> str:
    """The letter that an answer chooses; "" if it chooses none, or several.

    >>> (
    ...     chosen_letter("B"),
    ...     chosen_letter("The answer is (c)."),
    ...     chosen_letter("It is red", ["blue", "red"]),
    ... )
    ('B', 'C', 'B')
    >>> chosen_letter("A or B"), chosen_letter("A carrot"), chosen_letter("I think it is B")
    ('', '', 'B')
    """
    mentions = list(_mentions(answer.strip(), LETTERS[: len(choices) or 10]))
    # Ways to state a choice, the clearest first. Among several letters of one way the last counts.
    for way in ("is_final", "is_stated", "is_alone"):
        stated = [mention for mention in mentions if getattr(mention, way)]
        if stated:
            return "" if stated[-1].several else stated[-1].letter
    first = mentions[0] if mentions else None
    if first and first.is_first and not _is_list(mentions):
        return first.letter
    declared = [mention for mention in mentions if mention.is_declared]
    if declared:
        return "" if declared[-1].several else declared[-1].letter
    named = _named(answer, choices)
    if named:
        return LETTERS[named[0]] if len(named) == 1 else ""
    marked = {mention.letter for mention in mentions if mention.is_marked}
    return marked.pop() if len(marked) == 1 else ""


def _mentions(answer: str, letters: str) -> Iterator[Mention]:
    # In Chinese and Japanese there is no white space around a letter.
    word = r"[^\W\u3040-\uffef]"
    token = re.compile(rf"(?<!{word})(?<![-+.°&/#])[{letters}{letters.lower()}](?!{word})")
    for match in token.finditer(answer):
        raw = answer[max(0, match.start() - NEAR) : match.start()]
        before = re.sub(rf"{_OPENING}+$", "", raw)
        rest = answer[match.end() : match.end() + NEAR]
        # "A)" is not in brackets, but its closing bracket shows that it is not the article.
        after = re.sub(rf"^{_CLOSING}+", "", rest) if before != raw else rest
        wrapped = before != raw and after != rest
        wrong = _WRONG.match(after) or _WRONG_ONE.search(before)
        if wrong or (_COMPOUND.match(rest) and not wrapped):
            continue
        without_noun = re.sub(rf"{_NOUN}$", "", before, flags=re.I)
        begins = match.start() < NEAR and not without_noun.strip()
        letter, small = match[0].upper(), match[0].islower()
        if not (wrapped or (small and _is_small_letter(letter, rest, before))):
            goes_on = _GOES_ON.get(letter)
            if small or (goes_on and goes_on.match(after)):
                continue
        several = bool(re.match(_another(letters), after))
        yield Mention(letter, before, raw, after, begins, wrapped, small, several)


def _another(letters: str) -> str:
    """The pattern of another letter in the same list: ", C", "and (D)", but not "and B is"."""
    plain = letters.replace("A", "").replace("I", "")
    letter = rf"(?:[{plain}](?!\s+(?:is|was|has)\b)|[AI](?!\s+\w))(?![\w'’])"
    return rf"\s*(?:,|/|&|,?\s*(?:and|or|und|oder|ou|et)\b)\s*{_NOUN}\W{{0,3}}{letter}"


def _is_small_letter(letter: str, after: str, before: str) -> bool:
    """Whether this cannot be a word: ``b)``, ``b.``, ``b:``, or a letter without other text. At the
    end of the text, "a" and "i" need a full stop, because the text may have been cut there."""
    if re.match(r"[).:](?:\s|$)", after) or not (before.strip() or after.strip(" .!)\n")):
        return True
    return letter not in _GOES_ON and bool(_CLAUSE_END.match(after))


def _is_list(mentions: Sequence[Mention]) -> bool:
    """Whether the letters belong to a list that comments on each of them."""
    first = mentions[0]
    mark = first.after[:1] if first.after[:1] in (")", ".", ":") else ""
    for other in mentions[1:]:
        same_mark = other.after[:1] == mark
        same_form = mark != "" or other.wrapped == first.wrapped
        begins_item = re.search(r"(?:^|[\n;,.!?])\s*$", other.before)
        if other.letter != first.letter and same_mark and same_form and begins_item:
            return True
    return False


def _named(answer: str, choices: Sequence[str]) -> list[int]:
    """The choices whose text is in the answer, and not only inside the text of a longer choice."""
    places: list[tuple[int, int, int]] = []
    for at, text in enumerate(choices):
        pattern = rf"(?<!\w){re.escape(text)}(?!\w)"
        matches = re.finditer(pattern, answer, re.IGNORECASE)
        places += [(at, *match.span()) for match in matches]
    named = {at for at, start, end in places if not _is_inside_longer(start, end, places)}
    return sorted(named)


def _is_inside_longer(start: int, end: int, places: Sequence[tuple[int, int, int]]) -> bool:
    for _, longer_start, longer_end in places:
        contains = longer_start <= start and end <= longer_end
        if contains and longer_end - longer_start > end - start:
            return True
    return False
