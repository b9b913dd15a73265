"""Are answers better with checks than without, and than whole answers that are asked for again?

Three sets of questions (``rules.py``, ``programs.py``, ``sources.py``), and two of them anew. Each
is answered in several ways: by the lead alone, by the lead again until its whole answer passes, by
the lead and a small member, by both of these with checks, and by the lead as a chat model that is
told, or not, why a check has refused its text. ``preregistration.md``, sections 6, 11 and 12, says
what was decided before any sealed question was asked.

    python studies/checked.py rules --data FOLDER                  # the development questions
    python studies/checked.py new-rules --data FOLDER --part sealed    # the sealed questions
    python studies/checked.py new-rules --part sealed --table          # the table of results

Times are measured apart, on an idle machine, with a few questions asked one at a time:

    python studies/checked.py rules --data FOLDER --part sealed --limit 40 --folder TIMED \\
        --timed --out studies/checked.json

A stopped run continues. Answers are stored as grades and costs, without their text, except for the
pairs of ``--pairs``.
"""

from __future__ import annotations

import inspect
import json
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import programs
import rules
import sources
from answers import Answers
from cases import DEVELOPMENT, PARTS, Case, hashed, spread
from command import arguments, need, parsed
from langchain_core.messages import HumanMessage
from metered import Meter, Metered
from models import MODELS, MessagesOnly, member_of
from rows import fisher, show, sign_test

from langchain_specfuse import ChatModelMember, CheckError, SpecFuseChatModel
from langchain_specfuse.checks import Check, CheckContext

LEAD, RETRIES = "lead", "retries"
CHAT, SILENT, TOLD = "chat", "chat, silent", "chat, told"
"""The lead as a chat model: without checks; with checks, of which it learns nothing; and with the
reasons for which they have refused its text."""
EQUAL = "retries, equal passes"
"""The retries, limited to the fewest attempts that cost at least as much as ``checked``."""
FILES = {"lead": MODELS["qwen"], "smollm2": MODELS["smollm2"], "gemma": MODELS["gemma"]}
FIRST = Path(__file__).with_name("checked.json")
"""The results of the first study."""
SAMPLED = 0.7
"""The temperature of answers that are asked for again. Samples with checks use the same."""
SHARE = 0.7
"""An answer with fewer than this share of the lead's words does not obey, unless a rule limits the
length."""
PAIRS = 40


@dataclass(frozen=True)
class Way:
    """How a question is answered."""

    members: tuple[str, ...] = ("lead",)
    is_checked: bool = False
    retries: int = 0
    """How often a whole answer that fails is asked for again."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the chat model."""
    seconds: float = 8.0
    """About how long a question takes on two idle cores, until it is measured."""
    count: int | None = None
    """How many sealed questions are asked, if fewer than the set has."""


@dataclass(frozen=True)
class Set:
    """Questions, and the ways to answer them."""

    cases: Callable[[str, Path], list[Case]]
    max_tokens: int
    ways: Mapping[str, Way]
    count: int
    """How many sealed questions are asked."""
    skipped: int = 0
    """How many sealed questions before these were asked in an earlier study."""
    needs_length: bool = False
    """Whether an answer that is shorter than the lead's is not good."""


PAIR = ("lead", "smollm2")
FEWER = 50
"""How many sealed questions are asked in a way that no bar is about."""
CONSULTING: Mapping[str, Any] = {"method": {"margin": 0.5}}
"""The lead asks the other member where it is unsure. This was the default when the study was
planned."""
SEGMENTS = {
    LEAD: Way(seconds=4),
    RETRIES: Way(retries=4, seconds=11),
    "checked": Way(is_checked=True, seconds=5),
    "pair": Way(PAIR, options=CONSULTING, seconds=7, count=FEWER),
    "checked pair": Way(PAIR, is_checked=True, options=CONSULTING, seconds=8, count=FEWER),
}
TOLD_ABOUT = 100
"""How many sealed questions are asked as a chat model and, in the second study, again until their
answers pass."""
AGAIN = {
    LEAD: Way(seconds=4.5),
    "checked": Way(is_checked=True, seconds=5.5),
    RETRIES: Way(retries=4, seconds=12.5, count=TOLD_ABOUT),
    CHAT: Way((CHAT,), seconds=5, count=TOLD_ABOUT),
    SILENT: Way(
        (CHAT,), is_checked=True, options={"feedback": False}, seconds=10, count=TOLD_ABOUT
    ),
    TOLD: Way((CHAT,), is_checked=True, options={"feedback": True}, seconds=10, count=TOLD_ABOUT),
}
"""The ways of the second study."""
WHOLE: Mapping[str, Any] = {"method": {"segment": "answer", "samples": 6}}
HALF: Mapping[str, Any] = {"method": {"segment": "answer", "samples": 3}}
"""Of each of two members."""
SETS = {
    "rules": Set(rules.cases, rules.MAX_TOKENS, SEGMENTS, 284, needs_length=True),
    "code": Set(
        programs.cases,
        programs.MAX_TOKENS,
        {
            LEAD: Way(seconds=5),
            RETRIES: Way(retries=5, seconds=14, count=FEWER),
            "checked": Way(is_checked=True, options=WHOLE, seconds=14),
            "pair": Way(PAIR, options=CONSULTING, seconds=6, count=FEWER),
            "samples": Way(
                options={"method": WHOLE["method"] | {"result": programs.same_program}},
                seconds=22,
                count=FEWER,
            ),
            "checked smollm2": Way(PAIR, is_checked=True, options=HALF, seconds=14, count=FEWER),
            "checked gemma": Way(
                ("lead", "gemma"), is_checked=True, options=HALF, seconds=16, count=FEWER
            ),
        },
        200,
    ),
    "sources": Set(sources.cases, sources.MAX_TOKENS, SEGMENTS, 144),
    "new-rules": Set(rules.new_cases, rules.MAX_TOKENS, AGAIN, 280, needs_length=True),
    "new-sources": Set(sources.cases, sources.MAX_TOKENS, AGAIN, 144, skipped=144),
}


# --- asking ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Attempt:
    """One whole answer, without its text."""

    right: bool
    note: str = ""
    faults: int = 0
    passed: bool = True
    """Whether it passes the checks of its question."""
    failed: str = ""
    """The check that ended it with an error."""
    finish: str = ""
    words: int = 0
    tokens: int = 0
    """Of the answer."""
    passes: int = 0
    read: int = 0
    prompts: int = 0
    requests: int = 0
    """To a chat model."""
    seconds: float = 0.0
    first_s: float = 0.0
    """Seconds until its first text."""
    logprob: float | None = None
    """Its mean log-probability per token, as computed by its authors."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """member -> its share of the rounds."""
    rejected: int = 0
    """Texts that checks refused."""


@dataclass(frozen=True)
class Answer:
    """How one question was answered in one way."""

    way: str
    question: str
    kind: str
    limits_length: bool
    attempts: tuple[Attempt, ...]

    @property
    def final(self) -> Attempt:
        """The attempt that a user gets: the first that passes, otherwise the first one."""
        passing = [attempt for attempt in self.attempts if attempt.passed]
        return (passing or self.attempts)[0]

    @property
    def first_s(self) -> float:
        """Seconds until the first text is shown. A whole answer is shown when it has passed."""
        if len(self.attempts) == 1 and not self.way.startswith(RETRIES):
            return self.attempts[0].first_s
        return math.fsum(attempt.seconds for attempt in self.attempts)

    def total(self, name: str) -> float:
        return math.fsum(getattr(attempt, name) for attempt in self.attempts)


class Asker:
    """Asks questions in every way of a set, with members that are loaded once."""

    def __init__(
        self, name: str, members: Mapping[str, Any], save_text: Callable[[str, str, str], None]
    ) -> None:
        self.meter = Meter()
        self._set = SETS[name]
        self._members: dict[str, Any] = {
            key: Metered(member, self.meter) for key, member in members.items()
        }
        model = MessagesOnly(
            member=self._members[LEAD], meter=self.meter, max_tokens=self._set.max_tokens
        )
        self._members[CHAT] = ChatModelMember(model, name=CHAT)
        self._save_text = save_text

    def load(self, way: Way) -> None:
        """Load the members of this way."""
        self._model(replace(way, options={}), ()).invoke("Hello", max_tokens=1)

    def answer(self, name: str, case: Case) -> Answer:
        """Ask a question until the answer passes, or until no retry is left."""
        way = self._set.ways[name]
        model = self._model(way, case.checks if way.is_checked else ())
        attempts: list[Attempt] = []
        while not attempts or (len(attempts) <= way.retries and not attempts[-1].passed):
            again = {"temperature": SAMPLED, "seed": len(attempts)} if attempts else {}
            text, attempt = self._attempt(model, case, again)
            if not attempts:
                self._save_text(name, case.id, text)
            attempts.append(attempt)
        return Answer(name, case.id, case.kind, case.limits_length, tuple(attempts))

    def _model(self, way: Way, checks: Sequence[Any]) -> SpecFuseChatModel:
        return SpecFuseChatModel(
            members=[self._members[name] for name in way.members],
            max_tokens=self._set.max_tokens,
            checks=list(checks),
            cache=False,
            **way.options,
        )

    def _attempt(
        self, model: SpecFuseChatModel, case: Case, options: Mapping[str, Any]
    ) -> tuple[str, Attempt]:
        before, since = self.meter.of(case.text), time.perf_counter()
        text, failed, first_s, message = "", "", 0.0, None
        try:
            for chunk in model.stream(case.text, logprobs=True, **options):
                if chunk.text and not text:
                    first_s = time.perf_counter() - since
                text += chunk.text
                message = chunk if message is None else message + chunk
        except CheckError as error:
            failed = error.check
        seconds = time.perf_counter() - since
        used = self.meter.of(case.text).since(before)
        grade = case.grade(text)
        metadata = message.response_metadata if message is not None else {}
        about = metadata.get("specfuse", {})
        return text, Attempt(
            right=grade.right and not failed,
            note=grade.note,
            faults=grade.faults,
            passed=not failed and all(passes(check, case.text, text) for check in case.checks),
            failed=failed,
            finish=metadata.get("finish_reason") or "",
            words=rules.words_in(text),
            tokens=_tokens(message),
            passes=used.passes,
            read=used.read,
            prompts=used.prompts,
            requests=used.requests,
            seconds=round(seconds, 3),
            first_s=round(first_s or seconds, 3),
            logprob=_mean_logprob(metadata),
            shares=about.get("shares", {}),
            rejected=sum(counts["rejected"] for counts in about.get("checks", {}).values()),
        )


def _tokens(message: Any) -> int:
    usage = getattr(message, "usage_metadata", None) or {}
    return int(usage.get("output_tokens", 0))


def _mean_logprob(metadata: Mapping[str, Any]) -> float | None:
    content = (metadata.get("logprobs") or {}).get("content") or []
    values = [token["logprob"] for token in content if token["logprob"] is not None]
    return round(math.fsum(values) / len(values), 4) if values else None


def passes(check: Any, question: str, text: str) -> bool:
    """Whether a whole answer passes a check, as a loop around ``invoke`` would ask it."""
    function = check.function if isinstance(check, Check) else check
    parameters = inspect.signature(function).parameters.values()
    required = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if len(required) < 2:
        return function(text) is None
    messages = [HumanMessage(question)]
    return function(text, CheckContext(messages, text, "", ended=True)) is None


def asked_cases(chosen: Set, part: str, data: Path) -> list[Case]:
    """The questions of a set, in the order in which they are asked."""
    cases = spread(chosen.cases(part, data), None)
    if part == DEVELOPMENT:
        return cases
    return cases[chosen.skipped :][: chosen.count]


def stored(path: Path, name: str) -> Answers[Answer]:
    """The answers of earlier runs to the questions of a set."""
    expected = {f"{name}, {key}": way.seconds for key, way in SETS[name].ways.items()}
    return Answers(path, Answer, lambda answer: (answer.way, answer.question), expected)


def left(answers: Answers[Answer], name: str, way: str, cases: Sequence[Case]) -> list[Case]:
    """The questions that were not asked in this way yet."""
    asked = cases[: SETS[name].ways[way].count]
    return answers.left(asked, lambda case: (way, case.id))


def ask_all(
    asker: Asker,
    name: str,
    ways: Sequence[str],
    cases: Sequence[Case],
    answers: Answers[Answer],
    at_once: int,
) -> None:
    """Ask every question in every way in which it was not asked yet."""
    for way in ways:
        remaining = left(answers, name, way, cases)
        if not remaining:
            continue
        asker.load(SETS[name].ways[way])
        with ThreadPoolExecutor(at_once) as threads:
            new = threads.map(partial(asker.answer, way), remaining)
            try:
                answers.store(f"{name}, {way}", len(remaining), new)
            finally:
                threads.shutdown(cancel_futures=True)  # a stopped run asks no more


# --- results --------------------------------------------------------------------------------------


def with_equal_passes(answers: Sequence[Answer]) -> list[Answer]:
    """The retries again, limited to the fewest attempts with which all questions together cost at
    least as much as their checked answers."""
    by_way = grouped(answers)
    checked, retries = by_way.get("checked", {}), by_way.get(RETRIES, {})
    shared = [question for question in retries if question in checked]
    if not shared:
        return []
    enough = math.fsum(checked[question].total("passes") for question in shared)
    for attempts in range(1, 100):
        cut = [
            replace(retries[question], way=EQUAL, attempts=retries[question].attempts[:attempts])
            for question in shared
        ]
        if math.fsum(answer.total("passes") for answer in cut) >= enough:
            break
    return cut


def grouped(answers: Sequence[Answer]) -> dict[str, dict[str, Answer]]:
    """way -> question -> answer."""
    by_way: dict[str, dict[str, Answer]] = defaultdict(dict)
    for answer in answers:
        by_way[answer.way][answer.question] = answer
    return by_way


def is_good(name: str, answer: Answer, lead: Answer) -> bool:
    """Whether the answer is right; with rules, only if it is about as long as the lead's."""
    final = answer.final
    if not final.right or final.failed or final.finish == "check":
        return False
    return not SETS[name].needs_length or not is_short(answer, lead)


def is_short(answer: Answer, lead: Answer) -> bool:
    """Whether the answer is much shorter than the lead's, and no rule limits its length."""
    return not answer.limits_length and answer.final.words < SHARE * lead.attempts[0].words


def table(name: str, answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    """Yield a row for each way and kind of question, compared with the lead, or with the lead as a
    chat model. The first row of each way is for all kinds."""
    by_way = grouped([*answers, *with_equal_passes(answers)])
    for way, own in by_way.items():
        is_chat = way.startswith(CHAT)
        lead = by_way.get(CHAT if is_chat else LEAD, {})
        others = (CHAT, SILENT) if is_chat else (LEAD, EQUAL, RETRIES, "samples", "checked")
        shared = [question for question in own if question in lead]
        if not shared:
            continue
        kinds = sorted({own[question].kind for question in shared})
        for kind in ["", *kinds] if len(kinds) > 1 else [""]:
            chosen = [question for question in shared if kind in ("", own[question].kind)]
            row: dict[str, Any] = {"way": way, "kind": kind or "all"}
            row |= numbers(name, [own[q] for q in chosen], [lead[q] for q in chosen])
            if not kind:
                for other in others:
                    if other in by_way and other != way:
                        row[f"against {other}"] = against(name, own, by_way[other], lead)
            yield row


def numbers(name: str, own: Sequence[Answer], lead: Sequence[Answer]) -> dict[str, Any]:
    """The numbers of one row."""
    good = [is_good(name, *pair) for pair in zip(own, lead, strict=True)]
    finals = [answer.final for answer in own]
    logprobs = [final.logprob for final in finals if final.logprob is not None]
    shares: dict[str, float] = defaultdict(float)
    for final in finals:
        for member, share in final.shares.items():
            shares[member] += share / len(finals)
    return {
        "questions": len(own),
        "good": sum(good),
        "kept": sum(final.right and not final.failed for final in finals),
        "failed": sum(bool(final.failed) for final in finals),
        "short": sum(is_short(*pair) for pair in zip(own, lead, strict=True)),
        "faults": sum(final.faults for final in finals),
        "with faults": sum(final.faults > 0 for final in finals),
        "words": _mean([final.words for final in finals]),
        "passes": _ratio(own, lead, "passes"),
        "read": _ratio(own, lead, "read"),
        "passes per token": _passes_per_token(own),
        "requests": _mean([answer.total("requests") for answer in own]),
        "seconds": _mean([answer.total("seconds") for answer in own]),
        "first text": _mean([answer.first_s for answer in own]),
        "first text, median": median(answer.first_s for answer in own),
        "rejected": _mean([answer.total("rejected") for answer in own]),
        "logprob": _mean(logprobs) if logprobs else None,
        "shares": {member: round(share, 3) for member, share in shares.items()},
    }


def against(
    name: str, own: Mapping[str, Answer], other: Mapping[str, Answer], lead: Mapping[str, Answer]
) -> dict[str, Any]:
    """Wins and losses, in good answers and in answers with faults."""
    shared = [question for question in own if question in other and question in lead]
    pairs = [(is_good(name, own[q], lead[q]), is_good(name, other[q], lead[q])) for q in shared]
    faults = [(own[q].final.faults > 0, other[q].final.faults > 0) for q in shared]
    result: dict[str, Any] = sign_test(pairs)._asdict()
    more, fewer, p = sign_test(faults)
    if fewer or more:
        result |= {"fewer faults": fewer, "more faults": more, "p of faults": p}
    return result


def against_first(name: str, rows: Sequence[Mapping[str, Any]], path: Path) -> dict[str, Any]:
    """The shares of checked answers, beside those of the first study, which had other questions,
    each with the p of Fisher's exact test."""
    before = json.loads(path.read_text())[name.removeprefix("new-")]["rows"]
    found: dict[str, Any] = {"way": "checked, against the first study"}
    then, now = (
        next(row for row in some if (row["way"], row["kind"]) == ("checked", "all"))
        for some in (before, rows)
    )
    for key in ("kept", "good", "with faults"):
        shares = now[key], now["questions"], then[key], then["questions"]
        found[key] = "{} of {}, then {} of {}".format(*shares) + f", p {fisher(*shares):.2g}"
    return found


def _mean(values: Sequence[float]) -> float:
    return round(math.fsum(values) / len(values), 3) if values else 0.0


def _ratio(own: Sequence[Answer], lead: Sequence[Answer], name: str) -> float:
    whole = math.fsum(answer.total(name) for answer in lead)
    return round(math.fsum(answer.total(name) for answer in own) / whole, 3) if whole else 0.0


def _passes_per_token(answers: Sequence[Answer]) -> float:
    """Passes for each token of the final answers; those that a check ended are left out, because
    their tokens are not reported."""
    complete = [answer for answer in answers if answer.final.tokens]
    tokens = sum(answer.final.tokens for answer in complete)
    return round(math.fsum(answer.total("passes") for answer in complete) / max(tokens, 1), 3)


# --- pairs for a blind reading --------------------------------------------------------------------


class Texts:
    """The answers to the questions of the blind comparison, in a file of their own."""

    def __init__(self, path: Path, questions: Sequence[str]) -> None:
        self._path = path
        self._questions = set(questions)

    def save(self, way: str, question: str, text: str) -> None:
        if question not in self._questions or way not in (LEAD, "checked"):
            return
        with self._path.open("a") as file:
            file.write(json.dumps({"way": way, "question": question, "text": text}) + "\n")

    def export(self, cases: Sequence[Case], out: Path) -> int:
        """Write the pairs, each in an order that only the key file tells. Returns how many there
        are."""
        texts: dict[str, dict[str, str]] = defaultdict(dict)
        for line in self._path.read_text().splitlines():
            saved = json.loads(line)
            texts[saved["question"]][saved["way"]] = saved["text"]
        pages, key = [], {}
        for case in cases:
            pair = texts.get(case.id, {})
            if len(pair) < 2:
                continue
            ways = sorted(pair, key=lambda way: hashed(f"{case.id} {way}"))
            number = len(key) + 1
            key[number] = {"question": case.id, "A": ways[0], "B": ways[1]}
            pages.append(
                f"## {number}\n\n{case.text}\n\n### A\n\n{pair[ways[0]]}\n\n"
                f"### B\n\n{pair[ways[1]]}\n"
            )
        out.write_text("\n".join(pages))
        out.with_suffix(".key.json").write_text(json.dumps(key, indent=1) + "\n")
        return len(key)


# --- the command ----------------------------------------------------------------------------------


def main() -> None:
    parser = arguments(__doc__, PARTS, at_once=1)
    parser.add_argument("set", choices=SETS)
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="default: all of the set")
    parser.add_argument("--limit", type=int, help="only so many questions (default: as planned)")
    parser.add_argument("--pairs", type=Path, metavar="FILE.md", help="write pairs to be compared")
    parser.add_argument("--timed", action="store_true", help="the rows show times, not results")
    options = parsed(parser)
    chosen = SETS[options.set]
    label = f"{options.set}, timed" if options.timed else options.set
    folder = options.folder / "checked" / options.part
    answers = stored(folder / f"{options.set}.jsonl", options.set)
    if options.table:
        found = list(table(options.set, answers.all))
        if options.set.startswith("new-") and any(row["way"] == "checked" for row in found):
            print(against_first(options.set, found, FIRST))
        return show(found, options.out, label)
    if not options.set.endswith("sources"):
        need(parser, options, "data")
    cases = asked_cases(chosen, options.part, options.data)[: options.limit]
    texts = Texts(folder / f"{options.set}-texts.jsonl", [case.id for case in cases[:PAIRS]])
    if options.pairs:
        print(f"{texts.export(cases, options.pairs)} pairs in {options.pairs}")
        return None
    ways = options.ways or list(chosen.ways)
    unknown = set(ways) - set(chosen.ways)
    if unknown:
        parser.error(f"--ways must be among {', '.join(chosen.ways)}, got {', '.join(unknown)}")
    remaining = {
        f"{options.set}, {way}": len(left(answers, options.set, way, cases)) for way in ways
    }
    print(answers.plan(remaining), flush=True)
    if options.plan:
        return None
    folder.mkdir(parents=True, exist_ok=True)
    needed = {LEAD, *(member for way in ways for member in chosen.ways[way].members)}
    members = {key: member_of(file) for key, file in FILES.items() if key in needed}
    asker = Asker(options.set, members, texts.save)
    ask_all(asker, options.set, ways, cases, answers, options.at_once)
    return show(list(table(options.set, answers.all)), options.out, label)


if __name__ == "__main__":
    main()
