"""What do our changes to JSON schemas add to llguidance's own compiler?

Random answers under 240 schemas (as pydantic, dataclasses and tools make them) and under the hard ones of the tests,
judged by ``jsonschema``: once with each schema as it is, once as ``constraints/schema.py`` changes it. A dead end is an
answer that can neither end nor go on; a hard schema is missed where an answer that it allows cannot be written.

    python benchmarks/schemas.py [--walks 30]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT)]

from langchain_specfuse.constraints import Vocabulary, rules  # noqa: E402
from tests.constraints.schemas import schemas  # noqa: E402
from tests.constraints.test_schemas import KEPT  # noqa: E402
from tests.constraints.walks import assert_satisfies, json_schema, walk  # noqa: E402

WAYS: dict[str, Callable[[Any, str, Any], Any]] = {
    "llguidance alone": lambda schema, where, error_of: schema,
    "as changed here": rules.prepared,
}


def judged(vocab: Vocabulary, schema: Any, walks: int) -> tuple[str, list[float]]:
    """What becomes of random answers under this schema, and the seconds that compiling and each byte's mask took."""
    began = time.perf_counter()
    try:
        grammar = vocab.grammar(json_schema(schema))
    except ValueError:
        return "refused", []
    took, dice = [time.perf_counter() - began], random.Random(1)
    for _ in range(walks):
        began = time.perf_counter()
        try:
            data, whole = walk(grammar.start(), dice, dice.choice([5, 30, 150]))
        except AssertionError:
            return "dead end", took
        took.append((time.perf_counter() - began) / max(len(data), 1))
        try:
            if whole:
                assert_satisfies(data.decode(), schema)
        except (jsonschema.ValidationError, ValueError):
            return "wrong", took
    return "right", took


def writable(vocab: Vocabulary, schema: Any, text: str) -> bool:
    try:
        state = vocab.grammar(json_schema(schema)).start()
    except ValueError:
        return False
    return state.advance(text) == len(text.encode()) and state.may_end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--walks", type=int, default=30)
    walks = parser.parse_args().walks
    for way, prepared in WAYS.items():
        rules.prepared = prepared  # type: ignore[assignment]
        rules.plan_of.cache_clear()
        vocab = Vocabulary([bytes([byte]) for byte in range(256)])
        found, compiled, masks = Counter[str](), [], []
        for schema in schemas(240, seed=1):
            verdict, took = judged(vocab, schema, walks)
            found[verdict] += 1
            compiled += took[:1]
            masks += took[1:]
        hard = Counter(judged(vocab, schema, walks)[0] for _, schema, _, _ in KEPT)
        missed = sum(not writable(vocab, schema, right) for _, schema, right, _ in KEPT)
        times = (
            f"compiled in {statistics.median(compiled) * 1e3:.1f} ms, {statistics.median(masks) * 1e6:.0f} us a byte"
        )
        print(f"{way}: {dict(found)}; {times}; of {len(KEPT)} hard ones {dict(hard)}, {missed} missed")


if __name__ == "__main__":
    main()
