"""What do a million questions a day need? Arithmetic on measured figures; every assumption is an argument.

What the method asks for follows from the method and from what was measured here: rounds for an answer, how many of
them are voted on (``latency.json``), what this process computes beside the members for a round (``door.json``) and
for each question to a server (``serving.json``). How many tokens a GPU draws and reads a second was **not** measured
here: give your own figures, measured with your model, your engine and your prompts (``vllm bench serve``; many
questions at once). Without them the one measured engine stands in, vLLM with a model of 135M on one CPU thread
(``serving_rounds.json``), and is named so: nobody would serve a million questions like that, but the way of reckoning
can be checked on it.

    python benchmarks/sizing.py --draws 2500 --reads 20000 --round-ms 400 --on "my GPU, my model"
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
DAY_S = 86_400


@dataclass(frozen=True)
class Wanted:
    """What is to be served, and with what. Nothing of this was measured: it is yours to choose."""

    queries_a_day: float = 1_000_000
    peak: float = 3.0
    """The busiest time over the day's mean."""
    prompt_tokens: float = 512
    answer_tokens: float = 128
    members: int = 3
    segment_tokens: int = 10
    remembered: float = 0.0
    """The share of a prompt that an engine still holds (earlier turns, a common system prompt). 0 is the worst."""
    busy: float = 0.7
    """How busy a machine may be at the peak."""


@dataclass(frozen=True)
class Measured:
    """What was measured, and by which script."""

    tokens_a_round: float
    """``latency.py``: agreed tokens over rounds."""
    voted: float
    """``latency.py``: the share of rounds that were voted on."""
    face_ms: float
    """``door.py``: processor time of the chat model, its loop and two scripted members, for a round, many at once."""
    door_ms: float
    """``door.py``: the front door's, for a round."""
    question_ms: float
    """``serving.py``: what a draft and a vote on a vLLM member take here that is not the engine's work; a part of it is
    waiting for the network, so it is too much rather than too little."""


@dataclass(frozen=True)
class Engine:
    """What one replica of a member takes, with many questions at once."""

    on: str
    draft_s: float
    """Seconds of the replica for a draft: those of the clock over the questions that share them."""
    vote_s: float
    prompt_s: float | None
    """For reading a prompt; None: not told, so it is left out."""
    round_s: float
    """From one round's beginning to the next one's, at that load."""


def figures() -> Measured:
    latency = _told("latency.json", dtype="float32")
    door = max(json.loads((HERE / "door.json").read_text()), key=lambda one: one["streams"])
    serving = [one for one in json.loads((HERE / "serving.json").read_text()) if one["engine"] == "vllm"]
    here = [one for one in serving if one["tokenizer"] == "local"]
    beside = [one["draft"]["beside_ms"] + one["vote"]["beside_ms"] for one in here]
    return Measured(
        tokens_a_round=latency["answer_tokens"] / latency["rounds"],
        voted=latency["rounds_scored"] / latency["rounds"],
        face_ms=door["chat_model_ms_per_segment"],
        door_ms=door["door_ms_per_segment"],
        question_ms=max(beside),
    )


def stand_in() -> Engine:
    """The one engine that was measured here: a draft and a vote one at a time, and what a crowd of questions gains."""
    crowd = _told("serving_rounds.json", engine="vllm")["crowd"]
    alone = _told("serving.json", engine="vllm", tokenizer="local")
    draft_s, vote_s = alone["draft"]["ms"] / 1000, alone["vote"]["ms"] / 1000
    where = f"vLLM, SmolLM2-135M, {alone['machine']}, {crowd['at_once']} questions at once on a replica"
    shared = crowd["at_once"] / crowd["gain"]
    return Engine(where, draft_s / crowd["gain"], vote_s / crowd["gain"], None, (draft_s + vote_s) * shared)


def replica(on: str, draws: float, reads: float, round_ms: float, wanted: Wanted) -> Engine:
    """One that draws and reads so many tokens a second."""
    judged = (wanted.members - 1) * wanted.segment_tokens  # the others' drafts, at most
    prompt_s = wanted.prompt_tokens * (1 - wanted.remembered) / reads
    return Engine(on, wanted.segment_tokens / draws, judged / reads, prompt_s, round_ms / 1000)


def _told(name: str, **which: Any) -> dict[str, Any]:
    found = json.loads((HERE / name).read_text())
    return next(one for one in found if all(one[key] == value for key, value in which.items()))


def needs(wanted: Wanted, measured: Measured, engine: Engine) -> dict[str, float]:
    """The whole reckoning, line by line."""
    mean = wanted.queries_a_day / DAY_S
    peak = mean * wanted.peak
    rounds = wanted.answer_tokens / measured.tokens_a_round
    drawn = rounds * wanted.segment_tokens  # a draft draws so many, also those behind its cut
    votes = rounds * measured.voted
    judged = votes * (wanted.members - 1) * wanted.segment_tokens  # the others' drafts, at most
    read = wanted.prompt_tokens * (1 - wanted.remembered) + judged
    seconds = rounds * engine.draft_s + votes * engine.vote_s + (engine.prompt_s or 0.0)
    replicas = math.ceil(peak * seconds / wanted.busy)
    own_ms = rounds * (measured.face_ms + measured.door_ms + wanted.members * measured.question_ms)
    return {
        "queries_a_second": mean,
        "queries_a_second_at_the_peak": peak,
        "rounds_a_query": rounds,
        "passes_a_round_and_member": wanted.segment_tokens + measured.voted,
        "questions_to_each_member_a_second": peak * (rounds + votes),
        "tokens_drawn_by_each_member_a_second": peak * drawn,
        "tokens_read_by_each_member_a_second": peak * read,
        "replica_seconds_a_query": seconds,
        "replicas_of_each_member": replicas,
        "replicas": replicas * wanted.members,
        "processor_ms_a_query_here": own_ms,
        "processes_here": math.ceil(peak * own_ms / 1000 / wanted.busy),
        "answers_under_way": peak * rounds * engine.round_s,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    for name, value in asdict(Wanted()).items():
        parser.add_argument("--" + name.replace("_", "-"), type=type(value), default=value)
    parser.add_argument("--draws", type=float, help="tokens a second that one replica of a member draws")
    parser.add_argument("--reads", type=float, help="prompt tokens a second that it reads")
    parser.add_argument("--round-ms", type=float, help="from one round to the next, at that load")
    parser.add_argument("--on", help="where these were measured, in words")
    given = vars(parser.parse_args())
    own = {name: given.pop(name) for name in ("draws", "reads", "round_ms", "on")}
    if any(own.values()) and not all(own.values()):
        parser.error("--draws, --reads, --round-ms and --on belong together: give all four")
    wanted, measured = Wanted(**given), figures()
    engine = replica(**own, wanted=wanted) if own["on"] else stand_in()
    told: Mapping[str, Any] = {
        "wanted": asdict(wanted),
        "measured": asdict(measured),
        "engine": asdict(engine),
        "needs": {name: round(value, 2) for name, value in needs(wanted, measured, engine).items()},
    }
    print(json.dumps(told, indent=1))
    if not own["on"] and wanted == Wanted():  # other assumptions are yours, and only printed
        Path(__file__).with_suffix(".json").write_text(json.dumps([told], indent=1) + "\n")


if __name__ == "__main__":
    main()
