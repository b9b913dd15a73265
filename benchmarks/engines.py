"""The demo's models read by llama.cpp (``examples/own_engine.py``, files in 4 to 5 bits) and by transformers, in turn.

Both engines get the same questions, of about 100 and 512 tokens, and write 128 tokens at most: the ensemble, and each
member alone. The engines take turns, each time in a process of their own. Reported are tokens per second and the
seconds until the first segment, medians of the repeats.

    python benchmarks/engines.py [--repeats 3]
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from common import about, arguments, clock, demo, query, question, save

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
SENTENCE = (
    "The lighthouse stood on a rock a mile from the village, and every evening the keeper rowed out to light it. "
)
TASK = "Tell the story to its end."
ENGINES = ("llama.cpp", "transformers")


def run(members: list[Any], text: str) -> dict[str, float]:
    from langchain_specfuse.core.method import Settings
    from langchain_specfuse.engine import Ensemble

    since, first, tokens = clock(), 0.0, 0
    for one in Ensemble(members).rounds(query(question(text)), Settings(max_tokens=128)):
        first = first or clock() - since
        tokens += len(one.drafts[one.winner].tokens)
    return {"tokens_per_second": tokens / (clock() - since), "first": first, "tokens": tokens}


def measured(engine: str) -> list[dict[str, Any]]:
    """All rows of one engine, in this process."""
    from own_engine import GgufMember

    from langchain_specfuse.demo import WHEELS

    with tempfile.TemporaryDirectory() as folder:
        if engine == "llama.cpp":
            files = [wheel.gguf(Path(folder)) for wheel in WHEELS]
            members = [GgufMember(files[0]), GgufMember(files[1], chat_template="plain")]
        else:
            members = demo("float32", repetition_penalty=1.0, prefix_cache=False)
        run(members, "Hi!")
        return [
            {"prompt": size, "members": name, **run(members[at - 1 : at] or members, SENTENCE * repeats + TASK)}
            for size, repeats in ((100, 3), (512, 19))
            for at, name in enumerate(["both", *(wheel.name for wheel in WHEELS)])
        ]


def main() -> None:
    parser = arguments(__file__, __doc__, repeats=3)
    parser.add_argument("--only", choices=ENGINES, help="one engine in this process; prints its rows")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(measured(given.only)))
        return
    found: dict[str, list[list[dict[str, Any]]]] = {engine: [] for engine in ENGINES}
    for _ in range(given.repeats):
        for engine in ENGINES:
            # A process each: the idle threads of one engine slow the other down.
            command = [sys.executable, __file__, "--only", engine]
            found[engine].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
    rows = []
    for at, first in enumerate(found[ENGINES[0]][0]):
        row: dict[str, Any] = {"prompt": first["prompt"], "members": first["members"]}
        for key in ("tokens_per_second", "first", "tokens"):
            row[key] = {engine: round(median(run[at][key] for run in runs), 2) for engine, runs in found.items()}
        rows.append(row)
        print(row)
    save(given.out, [about(given) | {"rows": rows}])


if __name__ == "__main__":
    main()
