"""Whatever reads what others wrote bears anything: only the documented errors come out, soon, and no more than once.

The short form of ``fuzz.py``: everything that it has found, wrong versions of that, and what always hurts.
"""

from __future__ import annotations

import gc
import resource
import time

import pytest

from .fuzz import NAMES, kept, mutations
from .targets import CALL, SEEDS, TARGETS

MEGABYTE = 1_000_000
NASTY = {
    "nothing": b"",
    "zeros": b"\x00" * 1000,
    "no utf-8": b"\xff\xfe{\x00}\x00",
    "deep lists": b"[" * 100_000,
    "deep lists that end": b"[" * 50_000 + b"]" * 50_000,
    "deep objects": b'{"a":' * 50_000,
    "deep in a round": b'{"round": 1, "text": "x", "winner": "a", "drafts": ' + b'{"a":' * 50_000,
    "deep arguments": b'\x00\xff<tool_call>\n{"name": "f", "arguments": {"a": ' + b"[" * 50_000,
    "a long line": b'{"text": "' + b"x" * MEGABYTE + b'"}',
    "a long name": b'\x00\xff<tool_call>\n{"name": "' + b"x" * MEGABYTE,
    "a long key": b'{"' + b"k" * MEGABYTE + b'": 1}',
    "many keys": b"{" + b",".join(b'"%d": %d' % (k, k) for k in range(20_000)) + b"}",
    "backslashes": b'{"a": "' + b"\\" * 200_001 + b'"}',
    "a long number": b'{"round": ' + b"9" * 100_000 + b"}",
    "infinite": b'{"a": 1e999, "temperature": -1e999}',
    "half a pair": b'{"model": "\\ud800", "messages": "\\udfff"}',
    "not a number": b'{"a": NaN, "b": Infinity}',
    "many openings": b"\x00\xff" + b"<tool_call>\n" * 20_000,
    "many calls": b"\x00\xff" + b"\n".join([CALL.encode()] * 2000),
    "spaces": b" " * MEGABYTE,
    "lines": b"{}\n" * 100_000,
}


@pytest.mark.parametrize("name", NAMES)
def test_what_was_found_once_is_found_no_more(name):
    assert set(NAMES) == set(TARGETS) == set(SEEDS)
    for data in [*SEEDS[name], *kept(name)]:
        TARGETS[name](data)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_versions_of_right_inputs_break_nothing(name):
    for data in SEEDS[name]:
        for wrong in mutations(data, 150):
            TARGETS[name](wrong)
    for data in kept(name):
        for wrong in mutations(data, 4):
            TARGETS[name](wrong)


@pytest.mark.parametrize("kind", NASTY)
@pytest.mark.parametrize("name", NAMES)
def test_what_always_hurts_hurts_nothing_here(name, kind):
    before, since = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    TARGETS[name](NASTY[kind])
    assert time.process_time() - since < 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600_000


GROWING = {
    "calls": {
        "prose": lambda n: b"\x00\xff" + b"so <tool " * n,
        "arguments": lambda n: b'\x00\xff<tool_call>\n{"name": "f", "arguments": {"a": "' + b"x y " * 2 * n + b'"}}',
    },
    "places": {"a list": lambda n: b"[" + b"1, " * n, "texts": lambda n: b'["' + b'\\"ab' * n},
    "bodies": {"a message": lambda n: b'{"model": "specfuse", "messages": [{"role": "user", "content": "' + b"x " * n},
    "servers": {"an error": lambda n: b'{"error": {"message": "' + b"context " * n + b'"}}'},
    "traces": {
        "lines": lambda n: b"\n" * n,
        "a text": lambda n: SEEDS["traces"][0].replace(b'"x"', b'"' + b"x" * n + b'"'),
    },
    "kept": {"lines": lambda n: b"{}\n" * n},
}


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name in GROWING for kind in GROWING[name]])
def test_four_times_the_input_takes_about_four_times_as_long(name, kind):
    """What is quadratic takes sixteen times as long."""

    def seconds(data):
        since = time.process_time()
        TARGETS[name](data)
        return time.process_time() - since

    size = 20_000
    gc.disable()  # what it looks through grows with all that the other tests have left
    try:
        one, four = (min(seconds(GROWING[name][kind](n)) for _ in range(2)) for n in (size, 4 * size))
    finally:
        gc.enable()
    assert four < 9 * one + 0.02
