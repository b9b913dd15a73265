"""What reads bytes that somebody else wrote, each with what must hold whatever they are.

A target takes bytes and returns; it raises when something is broken: any error but the documented ones is. The short
form (``test_fuzzing.py``) gives it the corpus and mutations of it, the long one (``fuzz.py``) is guided by coverage.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from langchain_specfuse import Trace
from langchain_specfuse._calls import Splitter
from langchain_specfuse._command_choices import prior_of
from langchain_specfuse._places import fields_at, value_at
from langchain_specfuse.constraints._calls import calls_of, canonical
from langchain_specfuse.core.values import CallFormat, Constraint
from langchain_specfuse.demo import _is_whole
from langchain_specfuse.door.bodies import DEPTH, _depth, _parsed
from langchain_specfuse.door.faults import Fault
from langchain_specfuse.door.limits import Limits
from langchain_specfuse.door.orders import Order
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.evaluation.results import _lines
from langchain_specfuse.evaluation.tasks import json_lines, questions_of
from langchain_specfuse.members import _verdicts
from langchain_specfuse.members._adapter_files import _config
from langchain_specfuse.members._http import Address, Reply, Wire

FORMATS = (CallFormat(), CallFormat("[CALLS]", "[/CALLS]", "", "function", "parameters"), CallFormat("", "", "\n"))
LIMITS = Limits()
WIRE = Wire(Address("http://there"), "m", 1)


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def calls(data: bytes) -> None:
    """Calls in an answer: the same wherever the seams are, every character once, and what a referee reads, too."""
    form, step = FORMATS[data[0] % 3] if data else FORMATS[0], 1 + (data[1] if len(data) > 1 else 0)
    text = text_of(data[2:])
    at_once, in_pieces = Splitter(form, anywhere=True), Splitter(form, anywhere=True)
    pieces = [text[at : at + step] for at in range(0, len(text), step)] or [""]
    told = [in_pieces.feed(piece, last=at == len(pieces) - 1) for at, piece in enumerate(pieces)]
    whole = at_once.feed(text, last=True)
    assert "".join(part.said for part in told) == whole.said
    assert _arguments(piece for part in told for piece in part.pieces) == _arguments(whole.pieces)
    assert in_pieces.calls == at_once.calls
    parsed = calls_of(form, text)
    assert text.startswith(parsed.prose) and text.endswith(parsed.rest)
    for call in parsed.calls:
        canonical(call)
    calls_of(Constraint("calls", text), text)
    calls_of(Constraint("any_of", text), text)


def _arguments(pieces: object) -> dict[int, str]:
    found: dict[int, str] = {}
    for piece in pieces:  # type: ignore[attr-defined]
        found[piece.index] = found.get(piece.index, "") + piece.arguments
    return found


def places(data: bytes) -> None:
    """Where the fields of a JSON text stand: within it, in order, and all of what JSON knows there."""
    text = text_of(data)
    found = value_at(text)
    if found is not None:
        assert 0 <= found.start <= found.end <= len(text)
        told = list(fields_at(text))
        assert all(found.start <= one.start <= one.end <= found.end for one in told)


def bodies(data: bytes) -> None:
    """The front door's requests: an order, or a fault that is told."""
    try:
        body = _parsed(data)
        assert _depth(body) <= DEPTH
        json.dumps(body, allow_nan=False)
        Order.of(body, "specfuse", LIMITS)
    except Fault as refused:
        fault = refused
    else:
        return
    assert 400 <= fault.status < 500
    json.loads(fault.json)


def servers(data: bytes) -> None:
    """What a server replies, right or wrong: JSON, or the member's error."""
    for status in (200, 500):
        told: Any = Reply(status, data, {}, "/v1/models")
        try:
            json.dumps(WIRE._read(told))
        except MemberError as error:
            told = error
        assert not isinstance(told, MemberError) or len(str(told)) < 2000


def traces(data: bytes) -> None:
    """A trace that was saved, and the page that shows it."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        file.write_bytes(data)
        try:
            Trace.load(file).html()
        except UsageError:
            pass


def kept(data: bytes) -> None:
    """Files that we keep for ourselves: verdicts, marks, adapters, priors, results, tasks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "adapter_config.json"
        file.write_bytes(data)
        with mock.patch.object(_verdicts, "_file", return_value=file):
            assert isinstance(_verdicts.told(None), str)
        file.with_name("unpacked.json").write_bytes(data)
        assert _is_whole(Path(folder), {}) in (True, False)
        for read in (
            lambda: _config(Path(folder), "here"),
            lambda: prior_of(argparse.Namespace(prior=str(file)), ["a"]),
            lambda: _lines(data, file),
            lambda: list(json_lines(file)),
            lambda: questions_of(file),
        ):
            try:
                read()
            except UsageError:
                pass


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (calls, places, bodies, servers, traces, kept)
}
"""name -> what is tried."""

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": [true, "x\\"}"]}}\n</tool_call>'
ROUND = '{"round": 1, "text": "x", "winner": "a", "drafts": {"a": {"text": "x", "ended": true, "tokens": 1}}}'
BODY = '{"model": "specfuse", "messages": [{"role": "user", "content": "Why?"}], "stream": true, "temperature": 0.5}'
SEEDS: dict[str, list[bytes]] = {
    "calls": [f"\x00\x03So: {CALL}\n{CALL}".encode(), b'\x01\x07[CALLS]{"function": "f", "parameters": {}}[/CALLS]'],
    "places": [b'{"a": [1, {"b": "\\u00e9"}], "c": null}', b'["x", 1e9, -0.5, {"y"'],
    "bodies": [BODY.encode(), b'{"model": "specfuse", "messages": [{"role": "tool", "tool_call_id": "1"}], "n": 2}'],
    "servers": [b'{"error": {"message": "context length exceeded"}}', b'{"choices": [{"message": {}}]}'],
    "traces": [ROUND.encode(), f'{{"rounds": [{ROUND}], "question": "?", "members": ["a"]}}'.encode()],
    "kept": [b'{"store": "slab", "made_from": {}, "sizes": {}}', b'{"peft_type": "LORA", "prior": {"a": 1.5}}'],
}
"""What the campaign begins with; what it finds is in ``corpus/``."""
