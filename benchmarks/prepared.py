"""A server that writes one prepared answer, whatever it is asked, at a rate of its own.

It has the part of vLLM's interface that a ``ServerMember`` uses, and OpenAI's chat completions. All
bytes are prepared in advance and one timer serves all streams, so it needs little CPU time.
It takes its settings as one line of JSON on stdin and prints its port. ``stream.py`` starts it.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

MODEL = "prepared"
BEGIN, END = "<|im_start|>", "<|im_end|>"
LIMIT = 8192
TICKS_PER_S = 120.0
"""At least how often per second it writes to the streams."""
Reply = Mapping[str, Any]


class Prepared:
    """The model: its answer, and what it says of each token."""

    def __init__(self, tokenizer: str, answer: Sequence[int]) -> None:
        self.tokenizer = Tokenizer.from_str(tokenizer)
        self.end = self.tokenizer.token_to_id(END)
        self.begin = self.tokenizer.token_to_id(BEGIN)
        self.answer = [*answer, self.end]
        heads = [self.text(answer[:size]) for size in range(len(answer) + 1)]
        pieces = [text[len(head) :] for head, text in zip(heads, heads[1:], strict=False)]
        self.pieces = [*pieces, ""]
        self._head = len(self.ids(f"{BEGIN}assistant\n"))

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def rendered(self, body: Reply) -> str:
        texts = [f"{BEGIN}{m['role']}\n{m['content']}{END}\n" for m in body["messages"]]
        if body.get("add_generation_prompt", True):
            texts.append(f"{BEGIN}assistant\n")
        return "".join(texts)

    def written(self, ids: Sequence[int]) -> int:
        """How many tokens of the answer this prompt already contains."""
        heads = [at for at, token in enumerate(ids) if token == self.begin]
        return min(max(len(ids) - (heads[-1] + self._head), 0), len(self.answer)) if heads else 0

    def drawn(self, ids: Sequence[int], body: Reply) -> tuple[list[int], bool]:
        """The tokens of a reply, and whether the last one ends the turn."""
        at = self.written(ids)
        tokens = self.answer[at : at + body["max_tokens"]] or [self.end]
        for token in body.get("logit_bias") or ():
            if int(token) == tokens[0]:
                tokens = [next(one for one in self.answer if one != tokens[0]), *tokens[1:]]
        return tokens, tokens[-1] == self.end

    def numbers(self, tokens: Sequence[int], body: Reply) -> Reply:
        """The log-probabilities of these tokens in vLLM's form: each depends on its token alone."""
        named = body.get("logprob_token_ids") or self.answer[: body["logprobs"]]
        return {
            "text_offset": [0] * len(tokens),
            "token_logprobs": [logprob(token) for token in tokens],
            "tokens": [f"token_id:{token}" for token in tokens],
            "top_logprobs": [
                {f"token_id:{one}": logprob(one) for one in (token, *named)} for token in tokens
            ],
        }

    # --- whole replies ----------------------------------------------------------------------------

    def completion(self, body: Reply) -> Reply:
        prompts = self.prompts(body)
        choices = [self._choice(ids, body) | {"index": at} for at, ids in enumerate(prompts)]
        usage = {"prompt_tokens": sum(map(len, prompts))}
        return {"model": MODEL, "choices": choices, "usage": usage}

    def _choice(self, ids: Sequence[int], body: Reply) -> dict[str, Any]:
        if body.get("echo"):
            numbers = self.numbers(ids, body)
            known = [None, *numbers["token_logprobs"][1:]]
            return {"text": "", "logprobs": {**numbers, "token_logprobs": known}}
        tokens, has_ended = self.drawn(ids, body)
        finish = "stop" if has_ended else "length"
        return {
            "text": self.text(tokens[: len(tokens) - has_ended]),
            "finish_reason": finish,
            "token_ids": tokens,
            "logprobs": self.numbers(tokens, body) if body.get("logprobs") is not None else None,
        }

    def prompts(self, body: Reply) -> list[list[int]]:
        given = body["prompt"]
        if isinstance(given, str):
            return [self.ids(given)]
        if isinstance(given[0], int):
            return [given]
        return [self.ids(one) if isinstance(one, str) else one for one in given]

    # --- streams ----------------------------------------------------------------------------------

    def stream(self, path: str, body: Reply) -> list[bytes]:
        """What is sent for each token of a stream."""
        at = 0
        if path == "/v1/completions":
            (ids,) = self.prompts(body)
            at = self.written(ids)
        else:
            body = {**body, "max_tokens": body.get("max_tokens") or body["max_completion_tokens"]}
        count = min(body["max_tokens"], len(self.answer) - at)
        has_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        fields = (body.get("logprobs"), tuple(body.get("logprob_token_ids") or ()))
        return self._events(path, at, count, bool(body.get("return_token_ids")), has_usage, fields)

    @lru_cache(maxsize=4096)  # noqa: B019
    def _events(
        self, path: str, at: int, count: int, has_ids: bool, has_usage: bool, fields: Any
    ) -> list[bytes]:
        is_chat = path != "/v1/completions"
        head = {
            "id": "cmpl-7f3c5f6e1d2b4a0f9e8d7c6b5a493827",
            "object": "chat.completion.chunk" if is_chat else "text_completion",
            "created": 1760000000,
            "model": MODEL,
        }
        usage = {"prompt_tokens": 40, "completion_tokens": count, "total_tokens": 40 + count}
        events = []
        for place in range(at, at + count):
            token, text = self.answer[place], self.pieces[place]
            finish = None
            if place == at + count - 1:
                finish = "stop" if token == self.end else "length"
            choice: dict[str, Any] = {"index": 0}
            if is_chat:
                choice["delta"] = {"content": text}
            else:
                choice["text"] = text
            choice |= {"logprobs": None, "finish_reason": finish, "stop_reason": None}
            if fields[0] is not None and not is_chat:
                asked = {"logprobs": fields[0], "logprob_token_ids": list(fields[1])}
                choice["logprobs"] = self.numbers([token], asked)
            choice["token_ids"] = [token] if has_ids else None
            parts = [{**head, "choices": [choice]}]
            if is_chat and place == at:
                first = {"index": 0, "delta": {"role": "assistant", "content": ""}}
                parts.insert(0, {**head, "choices": [{**first, "finish_reason": None}]})
            if finish and has_usage:
                parts.append({**head, "choices": [], "usage": usage})
            data = b"".join(_event(json.dumps(part, separators=(",", ":"))) for part in parts)
            events.append(data + (_event("[DONE]") + b"0\r\n\r\n" if finish else b""))
        return events


def logprob(token: int) -> float:
    return -0.5 - token % 5 / 10


def _event(data: str) -> bytes:
    """A server-sent event as one chunk of HTTP."""
    event = f"data: {data}\n\n".encode()
    return b"%x\r\n%b\r\n" % (len(event), event)


# --- HTTP -----------------------------------------------------------------------------------------

STREAMED = (
    b"HTTP/1.1 200 OK\r\nserver: uvicorn\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)


class Server:
    """The model's streams, and what was asked."""

    def __init__(self, model: Prepared, first_s: float, tokens_per_s: float) -> None:
        self.model, self.first_s, self.rate = model, first_s, tokens_per_s
        self.asked = {"answers": 0, "other": 0}
        """The requests for tokens, and those for anything else."""
        self.streams: dict[Connection, tuple[float, list[bytes], int]] = {}
        """When each stream's first token is due, its events, and how many were sent."""

    async def tick(self) -> None:
        """Send each stream what is due."""
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            now = clock()
            due = max(due + 1 / max(self.rate, TICKS_PER_S), now)
            for connection, (first, events, sent) in list(self.streams.items()):
                count = int((now - first) * self.rate + 1.000001)
                if count > sent:
                    count = min(count, len(events))
                    connection.write(b"".join(events[sent:count]))
                    self.streams[connection] = (first, events, count)
                    if count == len(events):
                        del self.streams[connection]
            await asyncio.sleep(due - clock())

    def answer(self, connection: Connection, path: str, body: Any) -> None:
        loop = asyncio.get_running_loop()
        model = self.model
        if path in ("/v1/completions", "/v1/chat/completions"):
            self.asked["answers"] += 1
            if body.get("stream"):
                events = model.stream(path, body)
                connection.write(STREAMED)
                self.streams[connection] = (loop.time() + self.first_s, events, 0)
                return
            delay = self.first_s + max(body["max_tokens"] - 1, 0) / self.rate
            loop.call_later(delay, connection.send, model.completion(body))
            return
        if path == "/asked":
            connection.send({**self.asked, "cpu_s": time.process_time()})
        elif path == "/rate":
            self.rate = body["tokens_per_s"]
            connection.send({})
        else:
            self.asked["other"] += 1
            connection.send(self._described(path, body))

    def _described(self, path: str, body: Any) -> Reply:
        model = self.model
        if path == "/v1/models":
            return {"data": [{"id": MODEL, "owned_by": "vllm", "max_model_len": LIMIT}]}
        if path == "/tokenize":
            ids = model.ids(model.rendered(body) if "messages" in body else body["prompt"])
            return {"tokens": ids, "count": len(ids), "max_model_len": LIMIT}
        if path == "/detokenize":
            return {"prompt": model.text(body["tokens"])}
        return {"error": f"no such path: {path}"}


class Connection(asyncio.Protocol):
    """One client's connection: it sends one request after another."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._read = bytearray()
        self._transport: Any = None
        self.write: Callable[[bytes], None]

    def connection_made(self, transport: Any) -> None:
        self._transport, self.write = transport, transport.write

    def connection_lost(self, error: Exception | None) -> None:
        self._server.streams.pop(self, None)

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n")) >= 0:
            first, *lines = self._read[:end].decode().split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            size = end + 4 + int(headers.get("content-length", 0))
            if len(self._read) < size:
                return
            body = json.loads(self._read[end + 4 : size] or b"null")
            del self._read[:size]
            self._server.answer(self, first.split(" ")[1], body)

    def send(self, reply: Reply) -> None:
        data = json.dumps(reply).encode()
        status = b"404 Not Found" if "error" in reply else b"200 OK"
        head = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        if not self._transport.is_closing():
            self.write(head % (status, len(data)) + data)


async def serve(given: Mapping[str, Any]) -> None:
    model = Prepared(given["tokenizer"], given["answer"])
    server = Server(model, given["first_s"], given["tokens_per_s"])
    loop = asyncio.get_running_loop()
    listener = await loop.create_server(lambda: Connection(server), "127.0.0.1", 0, backlog=512)
    print(listener.sockets[0].getsockname()[1], flush=True)
    await server.tick()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.stdin.readline())))
