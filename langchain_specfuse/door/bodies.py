"""The body of a request as JSON, with bounds on its size, its depth and the time that it takes to come.

Knows bytes and JSON, nothing of what they say.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import Request

from .._numbers import Beyond, read_json
from .faults import Fault, refusal
from .limits import Limits

DEPTH = 100
"""Schemas are read by recursion further in; this is far below what Python bears."""


async def body_of(request: Request, limits: Limits) -> Any:
    """What the client sent, as plain data."""
    try:
        async with asyncio.timeout(limits.body_s):
            return _parsed(await _bytes(request, limits.most_bytes))
    except TimeoutError:
        late = f"the body did not arrive within {limits.body_s:g} s\n-> send it at once"
        raise Fault(408, late, code="body_too_slow", closing=True) from None


async def _bytes(request: Request, most: int) -> bytes:
    told = request.headers.get("content-length", "")
    if told.isascii() and told.isdigit() and int(told[:20]) > most:
        raise _too_large(most)
    read = bytearray()
    async for piece in request.stream():
        read += piece
        if len(read) > most:  # it may say nothing of its length, or lie
            raise _too_large(most, closing=True)
    return bytes(read)


def _too_large(most: int, *, closing: bool = False) -> Fault:
    told = f"the body is larger than {most} bytes\n-> send a shorter conversation"
    return Fault(413, told, code="body_too_large", closing=closing)


def _parsed(body: bytes) -> Any:
    try:
        value = read_json(body.decode())
    except RecursionError:
        raise _too_deep() from None
    except ValueError as error:  # also what is not UTF-8, and numbers of thousands of digits
        told = getattr(error, "msg", "") or (str(error) if isinstance(error, Beyond) else type(error).__name__)
        raise refusal(f"the body is no JSON: {told}", "send a JSON object in UTF-8", code="invalid_json") from None
    if _depth(value) > DEPTH:
        raise _too_deep()
    return value


def _too_deep() -> Fault:
    return refusal(f"the body is nested more than {DEPTH} deep", "send a flatter schema", code="body_too_deep")


def _depth(value: Any) -> int:
    """How deep lists and objects lie in each other; counted without recursion."""
    depth, level = 0, [value]
    while level := [inner for one in level if isinstance(one, dict | list) for inner in _inside(one)]:
        depth += 1
    return depth


def _inside(value: dict[str, Any] | list[Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value
