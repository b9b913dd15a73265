"""The demo's models read by llama.cpp (``examples/own_engine.py``, files in 4 to 5 bits) and by transformers, in turn.

Both engines get the same questions, of about 100 and 512 tokens, and write 128 tokens at most: the ensemble, and each
member alone. Reported are tokens per second and the seconds until the first segment, medians of the repeats.

    python benchmarks/engines.py [--repeats 3]
"""

from __future__ import annotations

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


def run(members: list[Any], text: str) -> dict[str, float]:
    from langchain_specfuse.core.method import Settings
    from langchain_specfuse.engine import Ensemble

    since, first, tokens = clock(), 0.0, 0
    for one in Ensemble(members).rounds(query(question(text)), Settings(max_tokens=128)):
        first = first or clock() - since
        tokens += len(one.drafts[one.winner].tokens)
    return {"tokens_per_second": tokens / (clock() - since), "first": first, "tokens": tokens}


def main() -> None:
    given = arguments(__file__, __doc__, repeats=3).parse_args()
    from own_engine import GgufMember

    from langchain_specfuse.demo import WHEELS

    with tempfile.TemporaryDirectory() as folder:
        files = [wheel.gguf(Path(folder)) for wheel in WHEELS]
        engines = {
            "llama.cpp": [GgufMember(files[0]), GgufMember(files[1], chat_template="plain")],
            "transformers": demo("float32", repetition_penalty=1.0, prefix_cache=False),
        }
        for members in engines.values():
            run(members, "Hi!")
        rows = []
        for size, repeats in ((100, 3), (512, 19)):
            for at, name in enumerate(["both", *(wheel.name for wheel in WHEELS)]):
                found: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
                for _ in range(given.repeats):
                    for engine, members in engines.items():
                        found[engine].append(run(members[at - 1 : at] or members, SENTENCE * repeats + TASK))
                row: dict[str, Any] = {"prompt": size, "members": name}
                for key in ("tokens_per_second", "first", "tokens"):
                    row |= {key: {engine: round(median(one[key] for one in runs), 2) for engine, runs in found.items()}}
                rows.append(row)
                print(row)
    save(given.out, [about(given) | {"rows": rows}])


if __name__ == "__main__":
    main()
