"""A provider that speaks OpenAI's chat completions, and fails in the way that a model's name says.

The faults, their timings and the models' names are those of Failover Bench (MIT,
https://github.com/failoverbench/failoverbench); the code and the texts are our own. Whole replies
are always the same 60 words. A request that ends with the beginning of the answer, as the
assistant's message, gets the rest of it.

The first part of an address names the client, so that many can use one provider side by side:
``http://127.0.0.1:PORT/S08/v1/chat/completions``. ``GET /log`` returns the attempts so far. The
program needs only the standard library, and prints its port.

    python benchmarks/faults.py [--profile full]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import struct
import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

ANSWER = (
    "Seven ferries cross the strait each morning, and the last one waits until the baker from the "
    "north shore has come aboard. In winter the crossing takes an hour, in summer half of that. "
    "Nobody remembers who painted the first hull green, but every boat since then has been given "
    "the same colour, and children can name each by sound."
)
WORDS = ANSWER.split()
QUESTION = "Tell me in sixty words about the ferries and the baker."


@dataclass(frozen=True)
class Timings:
    """The times of a profile, in seconds."""

    first_s: float
    """Until the first token of a slow reply."""
    stall_s: float
    silence_s: float
    outage_s: float
    token_s: float


PROFILES = {
    "full": Timings(first_s=20, stall_s=30, silence_s=120, outage_s=60, token_s=0.015),
    "fast": Timings(first_s=3, stall_s=4, silence_s=15, outage_s=6, token_s=0.005),
}
"""``full`` is the published one. ``fast`` is for tests."""
CUT_AT, STALLS_AT, MALFORMED_AT = 40, 20, 10
"""After how many words these faults come."""


class Refusal(NamedTuple):
    """An error instead of a reply."""

    status: int
    code: str | None
    message: str
    attempts: int | None = None
    """How many attempts are refused; None: all."""
    retry_after: int | None = None


OVERLOADED = Refusal(503, "overloaded", "The model is overloaded.")
LIMITED = Refusal(429, "rate_limit_exceeded", "Rate limit reached.")
TOO_LONG = "This model's maximum context length is 8192 tokens, and your messages have 9400."
UNSAFE = "The request was rejected by our safety system."
NO_PREFILL = "This model does not support assistant message prefill."
MODELS: dict[str, str | Refusal] = {
    "fb-ok": "none",
    "fb-ok-noprefill": "no prefill",
    "fb-s01-429-retry-after": LIMITED._replace(attempts=1, retry_after=2),
    "fb-s02-429-persistent": LIMITED,
    "fb-s03-500-then-200": Refusal(500, None, "The server had an error.", attempts=1),
    "fb-s04-503-persistent": OVERLOADED,
    "fb-s05-reset": "reset",
    "fb-s06-no-response": "silent",
    "fb-s07-slow-ttft": "slow",
    "fb-s08-stream-cut": "cut",
    "fb-s09-stream-stall": "stall",
    "fb-s10-malformed-chunk": "malformed",
    "fb-s11-no-done": "no sentinel",
    "fb-s12-context-length": Refusal(400, "context_length_exceeded", TOO_LONG),
    "fb-s13-content-filter": Refusal(400, "content_policy_violation", UNSAFE),
    "fb-s14-stream-cut": "cut",
    "fb-s15-flap": "down",
    "fb-s16-503-persistent": OVERLOADED,
}
"""What each model does."""


@dataclass
class Attempt:
    """One request."""

    client: str
    model: str
    at: float
    """In seconds of ``time.monotonic()``."""
    words: int
    """The length of its messages."""
    begun: bool
    """Whether it ends with an assistant's message."""
    did: str = "answered"


class Provider:
    def __init__(self, timings: Timings) -> None:
        self.timings = timings
        self.attempts: list[Attempt] = []

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection, one after another."""
        try:
            while await self._answered(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has hung up
        finally:
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request. Returns whether the connection stays open."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        path = head.split(" ", 2)[1]
        if path == "/log":
            _send_json(writer, 200, [asdict(attempt) for attempt in self.attempts])
            return True
        if head.startswith("get "):  # a list of models, by which servers name their engines
            _send_json(writer, 404, {})
            return True
        length = int(head.partition("content-length:")[2].split("\r\n")[0])
        body = json.loads(await reader.readexactly(length))
        texts = [_text(message) for message in body["messages"]]
        attempt = Attempt(
            client=path.split("/")[1].upper(),
            model=body["model"],
            at=time.monotonic(),
            words=sum(len(text.split()) for text in texts),
            begun=body["messages"][-1]["role"] == "assistant",
        )
        earlier = [
            one
            for one in self.attempts
            if (one.client, one.model) == (attempt.client, body["model"])
        ]
        self.attempts.append(attempt)
        fault = MODELS[body["model"]]
        if fault == "down":
            is_down = attempt.at - (earlier or [attempt])[0].at < self.timings.outage_s
            fault = OVERLOADED if is_down else "none"
        if fault == "no prefill" and attempt.begun:
            fault = Refusal(400, "invalid_prefill", NO_PREFILL)
        if isinstance(fault, Refusal):
            if fault.attempts is None or len(earlier) < fault.attempts:
                attempt.did = f"refused with {fault.status} {fault.code or ''}".strip()
                _refuse(writer, fault)
                return True
            fault = "none"
        if fault == "reset":
            if not earlier:
                attempt.did = "reset"
                _reset(writer)
                return False
            fault = "none"
        if fault == "silent":
            attempt.did = "sent nothing"
            await _closed_or_after(reader, self.timings.silence_s)
            return False
        if fault != "none":
            attempt.did = fault
        words = WORDS
        if attempt.begun and texts[-1].strip() and ANSWER.startswith(texts[-1].strip()):
            words = ANSWER[len(texts[-1].strip()) :].split()
        reply = _Reply(writer, body, words, attempt.words, fault, self.timings)
        return await (reply.streamed() if body.get("stream") else reply.whole())


class _Reply:
    def __init__(
        self,
        writer: asyncio.StreamWriter,
        body: dict[str, Any],
        words: list[str],
        prompt: int,
        fault: str,
        timings: Timings,
    ) -> None:
        self._writer, self._words, self._fault, self._timings = writer, words, fault, timings
        self._head = {"id": f"chatcmpl-{time.monotonic_ns()}", "created": int(time.time())}
        self._head["model"] = body["model"]
        self._has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        self._usage = {
            "prompt_tokens": prompt,
            "completion_tokens": len(words),
            "total_tokens": prompt + len(words),
        }
        self._space = "" if len(words) == len(WORDS) else " "

    async def whole(self) -> bool:
        if self._fault == "slow":
            await asyncio.sleep(self._timings.first_s)
        message = {"role": "assistant", "content": self._space + " ".join(self._words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        kind = {"object": "chat.completion", "choices": [choice], "usage": self._usage}
        data = json.dumps(self._head | kind).encode()
        head = _head(200, "application/json", f"Content-Length: {len(data)}")
        if self._fault == "stall":
            self._writer.write(head)
            await asyncio.sleep(self._timings.stall_s)
            return False
        if self._fault == "cut":
            self._writer.write(head + data[: len(data) * 2 // 3])
            return False
        if self._fault == "malformed":
            data = b"{" * len(data)
        self._writer.write(head + data)
        return True

    async def streamed(self) -> bool:
        self._writer.write(_head(200, "text/event-stream", "Transfer-Encoding: chunked"))
        if self._fault == "slow":
            await asyncio.sleep(self._timings.first_s)
        await self._send({"role": "assistant", "content": ""})
        for at, word in enumerate(self._words):
            if self._fault == "cut" and at == CUT_AT:
                return False
            if self._fault == "stall" and at == STALLS_AT:
                await asyncio.sleep(self._timings.stall_s)
                return False
            if self._fault == "malformed" and at == MALFORMED_AT:
                await self._event('{"object": "chat.completion.chunk", "choices": [{"delta":')
            await self._send({"content": f"{' ' if at else self._space}{word}"})
            await asyncio.sleep(self._timings.token_s)
        await self._send({}, "stop")
        if self._has_usage:
            await self._event(json.dumps(self._chunk() | {"choices": [], "usage": self._usage}))
        if self._fault != "no sentinel":
            await self._event("[DONE]")
        self._writer.write(b"0\r\n\r\n")
        return True

    async def _send(self, delta: dict[str, str], finish: str | None = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        await self._event(json.dumps(self._chunk() | {"choices": [choice]}))

    def _chunk(self) -> dict[str, Any]:
        return self._head | {"object": "chat.completion.chunk"}

    async def _event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        self._writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        await self._writer.drain()


def _text(message: dict[str, Any]) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def _head(status: int, kind: str, *more: str) -> bytes:
    lines = [f"HTTP/1.1 {status} {'OK' if status == 200 else 'Error'}", f"Content-Type: {kind}"]
    return "\r\n".join([*lines, *more, "", ""]).encode()


def _send_json(writer: asyncio.StreamWriter, status: int, value: Any, *more: str) -> None:
    data = json.dumps(value).encode()
    head = _head(status, "application/json", f"Content-Length: {len(data)}", *more)
    writer.write(head + data)


def _refuse(writer: asyncio.StreamWriter, given: Refusal) -> None:
    kind = "invalid_request_error" if given.status == 400 else "server_error"
    error = {"message": given.message, "type": kind, "param": None, "code": given.code}
    more = [] if given.retry_after is None else [f"Retry-After: {given.retry_after}"]
    _send_json(writer, given.status, {"error": error}, *more)


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close the connection with a reset instead of an end."""
    given = writer.get_extra_info("socket")
    given.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _closed_or_after(reader: asyncio.StreamReader, seconds: float) -> None:
    """Wait until the client hangs up, but not longer than this."""
    try:
        async with asyncio.timeout(seconds):
            await reader.read(1)
    except TimeoutError:
        pass


async def serve(profile: str) -> None:
    provider = Provider(PROFILES[profile])
    server = await asyncio.start_server(provider.connected, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=PROFILES, default="full")
    asyncio.run(serve(parser.parse_args().profile))
