"""A fake server in this process that behaves as vLLM or llama-server, on tiny random weights.

The numbers are the model's own, so a member's replies can be compared with those of the same
weights in this process. What real engines get wrong or ignore, it gets wrong and ignores: unknown
fields, ``echo`` (llama.cpp), nulls. ``fault`` injects faults.
"""

from __future__ import annotations

import json
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch

LIMIT = 1024
INST_END = (
    "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ "
    "m.content }}</s>"
    "{% endif %}{% endfor %}"
)
"""A template that ends a turn with the same token as the tokenizer."""
Reply = Mapping[str, Any]


class FakeServer:
    """One engine with one model; ``asked`` records (path, body) of every request."""

    def __init__(
        self,
        engine: str,
        model: Any,
        tokenizer: Any,
        *,
        name: str = "tiny",
        key: str = "",
        tls: str = "",
        port: int = 0,
    ) -> None:
        self.engine, self.model, self.tokenizer, self.name, self.key = (
            engine,
            model,
            tokenizer,
            name,
            key,
        )
        self.tls = tls
        """A file with a certificate and its key: https."""
        self.eos = [tokenizer.eos_token_id]
        if engine == "llama.cpp":  # it treats any token that looks like an end as one
            self.eos.append(tokenizer.convert_tokens_to_ids("<|im_end|>"))
        self.asked: list[tuple[str, Any]] = []
        self.authorization: str | None = None
        """The last request's header."""
        self.fault: Callable[[str, int], Any] | None = None
        """(path, number of earlier requests) -> None, a status, bytes, a change of the reply (of
        each event of a stream), "cut" or "hang"."""
        self.pace: Callable[[int], Any] | None = None
        """Called with the number of each event of a stream before it is sent. If it is a generator,
        what it yields is sent before the event."""
        self.hung_up: list[float] = []
        """When a client closed a stream before its end, or a request that hangs."""
        self.without: set[str] = set()
        """Fields that this (older) engine does not know and silently ignores."""
        self.refuses: set[str] = set()
        """Fields that this engine refuses."""
        self.begins = False
        """llama.cpp: adds the BOS token to a text, and removes it from what the template writes."""
        self.go = threading.Event()
        self._lock = threading.Lock()
        self.port = port
        self.adapters: dict[str, str] = {}
        """vLLM: the name of each LoRA adapter -> its folder. Their weights are not applied."""
        self.start()

    @property
    def url(self) -> str:
        return f"http{'s' if self.tls else ''}://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        self._server = _Listener(("127.0.0.1", self.port), _answering(self))
        self.port = self._server.server_address[1]
        if self.tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.tls)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True).start()

    def stop(self) -> None:
        self.go.set()
        self._server.shutdown()
        self._server.server_close()
        self._server.hang_up()

    def reply(self, path: str, body: Any) -> Any:
        """Return the engine's reply; raise KeyError for unknown paths."""
        body = {key: value for key, value in (body or {}).items() if key not in self.without}
        if refused := self.refuses & body.keys():
            raise Refused(400, f"unknown fields: {', '.join(sorted(refused))}")
        with self._lock:
            return ENGINES[self.engine][path](self, body)

    # --- the model --------------------------------------------------------------------------------

    def rows(self, ids: Sequence[int]) -> Any:
        """Return log-probabilities after every token, (tokens, vocabulary)."""
        return _rows(self.model, tuple(ids))

    def drawn(
        self,
        ids: Sequence[int],
        count: int,
        temperature: float,
        seed: int,
        stops: Sequence[int],
        only: Any = None,
        never: Sequence[int] = (),
    ) -> Iterator[tuple[int, Any, bool]]:
        """Yield (token, its raw row, whether it ended the turn); ``only`` lists the ids allowed at
        each position, ``never`` those that no position allows."""
        tokens: list[int] = []
        noise = torch.Generator().manual_seed(seed)
        for place in range(count):
            row = self.rows([*ids, *tokens])[-1]
            seen = row.clone()
            if only is not None:
                mask = torch.full_like(seen, float("-inf"))
                mask[list(only(place, tokens))] = 0.0
                seen = seen + mask
            seen[list(never)] = float("-inf")
            weights = (seen / temperature).softmax(-1) if temperature > 0 else None
            token = int(
                seen.argmax() if weights is None else torch.multinomial(weights, 1, generator=noise)
            )
            tokens.append(token)
            ended = token in (*self.eos, *stops)
            yield token, row, ended
            if ended:
                return

    def texts(
        self, ids: Sequence[int], drawn: Iterable[tuple[int, Any, bool]]
    ) -> Iterator[tuple[int, Any, bool, str]]:
        """Add to each token the text that is complete with it, as engines stream it."""
        base = self.decode(ids, special=False)
        done, tokens = "", list(ids)
        for token, row, ended in drawn:
            tokens.append(token)
            text = done
            if not ended:
                text = self.decode(tokens, special=False)[len(base) :]
            if text.endswith("\ufffd"):
                text = done
            yield token, row, ended, text[len(done) :]
            done = text

    def encode(self, text: str, marks: bool = True) -> list[int]:
        how = {"add_special_tokens": False, "split_special_tokens": not marks}
        return list(self.tokenizer(text, **how)["input_ids"])

    def decode(self, ids: Sequence[int], special: bool = True) -> str:
        return str(
            self.tokenizer.decode(
                list(ids), skip_special_tokens=not special, clean_up_tokenization_spaces=False
            )
        )

    def rendered(self, body: Mapping[str, Any]) -> str:
        """Return a chat as text."""
        more = {"tools": body["tools"]} if body.get("tools") else {}
        generation = body.get("add_generation_prompt", True)
        template = self.tokenizer.apply_chat_template
        return str(
            template(
                list(body["messages"]), tokenize=False, add_generation_prompt=generation, **more
            )
        )


@lru_cache(maxsize=1024)  # every new member makes the same requests
@torch.inference_mode()
def _rows(model: Any, ids: tuple[int, ...]) -> Any:
    return model(torch.tensor([ids], device=model.device)).logits[0].float().log_softmax(-1)


class Refused(Exception):
    """A reply with an error status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


# --- every engine ---------------------------------------------------------------------------------


def _models(server: FakeServer, body: Reply) -> Reply:
    owner = OWNERS.get(server.engine, server.engine)
    models = [{"id": server.name, "owned_by": owner, "max_model_len": LIMIT}]
    models += [
        {"id": name, "owned_by": owner, "parent": server.name, "max_model_len": None}
        for name in server.adapters
    ]
    return {"object": "list", "data": models}


# --- vLLM -----------------------------------------------------------------------------------------


def _vllm(server: FakeServer, body: Reply) -> Any:
    if body["model"] not in (server.name, *server.adapters):
        raise Refused(404, f"The model `{body['model']}` does not exist.")
    if body["max_tokens"] < 1 and not body.get("echo"):
        raise Refused(400, "max_tokens must be at least 1")
    prompts = body["prompt"] if isinstance(body["prompt"][0], list) else [body["prompt"]]
    if max(map(len, prompts)) + body["max_tokens"] > LIMIT:
        raise Refused(400, f"This model's maximum context length is {LIMIT} tokens.")
    if body.get("stream"):
        return _vllm_choice(server, body, prompts[0])
    choices = [_vllm_choice(server, body, ids) | {"index": at} for at, ids in enumerate(prompts)]
    return {
        "model": body["model"],
        "choices": choices,
        "usage": {"prompt_tokens": sum(map(len, prompts))},
    }


def _vllm_choice(server: FakeServer, body: Reply, ids: Sequence[int]) -> Any:
    if body.get("echo"):
        known = server.rows(ids)
        logprobs = [None, *(float(known[at - 1, ids[at]]) for at in range(1, len(ids)))]
        return _vllm_shape(ids, logprobs, [None] * len(ids), "length")
    stops = body.get("stop_token_ids") or []
    only = None
    if "choice" in body.get("structured_outputs", {}):
        only = _spelling(server, body["structured_outputs"]["choice"])
    drawn = server.drawn(
        ids,
        body["max_tokens"],
        body["temperature"],
        body.get("seed") or 0,
        stops,
        only,
        _never(body),
    )
    if body.get("stream"):
        return _vllm_events(server, body, ids, drawn, only)
    tokens, rows, ended = _whole(drawn)
    logprobs, tops = _vllm_numbers(body, tokens, rows, only)
    return _vllm_shape(tokens, logprobs, tops, "stop" if ended else "length")


def _whole(drawn: Iterable[tuple[int, Any, bool]]) -> tuple[list[int], list[Any], bool]:
    """Return (tokens including the one that ended, their raw rows, ended)."""
    tokens, rows, ends = zip(*drawn, strict=True)
    return list(tokens), list(rows), ends[-1]


def _vllm_events(
    server: FakeServer, body: Reply, ids: Sequence[int], drawn: Any, only: Any
) -> Iterator[Reply]:
    begun: dict[str, Any] = {"model": body["model"]}
    count = 0
    for token, row, ended, text in server.texts(ids, drawn):
        count += 1
        choice: dict[str, Any] = {"index": 0, "text": text, "logprobs": None}
        if body.get("logprobs") is not None:
            shape = _vllm_shape([token], *_vllm_numbers(body, [token], [row], only), "")
            choice["logprobs"] = shape["logprobs"]
        if ended or count == body["max_tokens"]:
            choice["finish_reason"] = "stop" if ended else "length"
        if body.get("return_token_ids"):
            choice["token_ids"] = [token]
        yield begun | {"choices": [choice]}
    if (body.get("stream_options") or {}).get("include_usage"):
        usage = {"prompt_tokens": len(ids), "completion_tokens": count}
        yield begun | {"choices": [], "usage": usage}


def _vllm_numbers(
    body: Reply, tokens: Sequence[int], rows: Sequence[Any], only: Any
) -> tuple[list[float], list[dict[str, float]]]:
    if only:  # after the mask, like the real engine
        logprobs = [0.0] * len(tokens)
    else:
        logprobs = [float(row[token]) for row, token in zip(rows, tokens, strict=True)]
    # like the real engine: given ids, or the most likely ones
    requested = body.get("logprob_token_ids")
    tops = [
        {
            f"token_id:{token_id}": float(row[token_id])
            for token_id in (token, *(requested or row.topk(body["logprobs"])[1].tolist()))
        }
        for token, row in zip(tokens, rows, strict=True)
    ]
    return logprobs, tops


def _never(body: Reply) -> list[int]:
    """Return the tokens that OpenAI's ``logit_bias`` excludes."""
    return [int(token) for token, bias in (body.get("logit_bias") or {}).items() if bias <= -100]


def _vllm_shape(
    ids: Sequence[int], logprobs: Sequence[Any], tops: Sequence[Any], finish: str
) -> dict[str, Any]:
    names = [f"token_id:{token}" for token in ids]
    return {
        "text": "",
        "finish_reason": finish,
        "logprobs": {"tokens": names, "token_logprobs": list(logprobs), "top_logprobs": list(tops)},
    }


def _spelling(
    server: FakeServer, choices: Sequence[str]
) -> Callable[[int, Sequence[int]], list[int]]:
    """Return the ids that begin the rest of one of the choices, or that end the answer after it."""
    spelled = [[*server.encode(text), server.eos[0]] for text in choices]

    def allowed(place: int, tokens: Sequence[int]) -> list[int]:
        return [
            ids[place] for ids in spelled if ids[:place] == list(tokens) and place < len(ids)
        ] or server.eos

    return allowed


def _vllm_load_adapter(server: FakeServer, body: Reply) -> Reply:
    if not (Path(body["lora_path"]) / "adapter_config.json").exists():
        raise Refused(404, f"No adapter found for {body['lora_path']}")
    server.adapters[body["lora_name"]] = body["lora_path"]
    return {}


def _vllm_score(server: FakeServer, body: Reply) -> Reply:
    """As ``specfuse_score.Score`` does."""
    if not body:
        return {"format": 1}
    scores = []
    for draft in body["drafts"]:
        ids, begin = [*body["context"], *draft["ids"]], len(body["context"])
        rows = server.rows(ids)
        scores.append(
            {
                "logprobs": [float(rows[at - 1, ids[at]]) for at in range(begin, len(ids))],
                "stops": [float(rows[-1, stop]) for stop in body["stops"] if draft["ended"]],
            }
        )
    return {"scores": scores}


def _vllm_tokenize(server: FakeServer, body: Reply) -> Reply:
    ids = server.encode(server.rendered(body) if "messages" in body else body["prompt"])
    return {"tokens": ids, "count": len(ids), "max_model_len": LIMIT}


def _vllm_detokenize(server: FakeServer, body: Reply) -> Reply:
    return {"prompt": server.decode(body["tokens"])}


# --- llama.cpp ------------------------------------------------------------------------------------


def _llama(server: FakeServer, body: Reply) -> Any:
    forced = [int(token) for token in re.findall(r"<\[(\d+)\]>", body.get("grammar", ""))]
    ids = body["prompt"]
    if len(ids) >= LIMIT:
        raise Refused(
            400, f"request ({len(ids)} tokens) exceeds the available context size ({LIMIT} tokens)"
        )
    # as the real engine
    if any(_incomplete(server, forced[: place + 1]) for place in range(len(forced))):
        raise Refused(
            500, "got exception: Unexpected empty grammar stack after accepting piece: . (30)"
        )
    only = None
    if "grammar" in body:
        only = lambda place, _: [forced[place]] if place < len(forced) else server.eos
    never = [token for token, bias in body.get("logit_bias", ()) if bias is False]
    if "logit_bias" in body and not never:
        only = lambda *_: [token for token, _ in body["logit_bias"]]
    count = max(1, body["n_predict"])  # like the real engine, 0 still draws one token
    count = min(count, LIMIT - len(ids))
    drawn = server.drawn(ids, count, body["temperature"], body.get("seed", 0), [], only, never)
    if body.get("stream"):
        return _llama_events(server, body, drawn)
    tokens, rows, ended = _whole(drawn)
    heads = [
        tokens[: place + 1 - (ended and place + 1 == len(tokens))] for place in range(len(tokens))
    ]
    return _llama_end(server, body, len(tokens), ended) | {
        "tokens": tokens,
        # like the real engine, none for a text that is only part of a character
        "completion_probabilities": [
            _llama_row(body, token, row)
            for token, row, before in zip(tokens, rows, heads, strict=True)
            if not _incomplete(server, before)
        ],
    }


def _llama_events(server: FakeServer, body: Reply, drawn: Any) -> Iterator[Reply]:
    count, ended = 0, False
    for token, row, ended, text in server.texts(body["prompt"], drawn):
        count += 1
        if not (text or ended):
            continue  # like the real engine: it streams only the last token of a character
        event = {"content": text, "tokens": [token], "stop": False, "tokens_predicted": count}
        if body["n_probs"]:
            event["completion_probabilities"] = [_llama_row(body, token, row)]
        yield event
    yield _llama_end(server, body, count, ended) | {"tokens": [], "stop": True}


def _llama_end(server: FakeServer, body: Reply, count: int, ended: bool) -> dict[str, Any]:
    size = len(body["prompt"])
    return {
        "content": "",
        "stop_type": "eos" if ended else "limit",
        "model": server.name,
        "tokens_evaluated": size,
        "tokens_predicted": count,
        # like the real engine, even if only the answer reaches it
        "truncated": size + count >= LIMIT,
        "timings": {"cache_n": size - 1, "prompt_n": 1, "predicted_n": count},
    }


def _llama_row(body: Reply, token: int, row: Any) -> dict[str, Any]:
    return {
        "id": token,
        "logprob": float(row[token]),
        "top_logprobs": _likely(row, body["n_probs"]),
    }


def _incomplete(server: FakeServer, tokens: Sequence[int]) -> bool:
    return server.decode(tokens).endswith("\ufffd")


def _likely(row: Any, count: int) -> list[dict[str, Any]]:
    values, ids = row.topk(min(count, len(row)))
    return [
        {"id": int(token_id), "logprob": float(value)}
        for value, token_id in zip(values, ids, strict=True)
    ]


def _llama_template(server: FakeServer, body: Reply) -> Reply:
    # like the real engine, a final answer is left open
    if body["messages"][-1]["role"] == "assistant":
        body = {**body, "continue_final_message": True}
    return {
        "prompt": server.rendered(body).removeprefix(
            server.tokenizer.bos_token if server.begins else ""
        )
    }


def _llama_tokenize(server: FakeServer, body: Reply) -> Reply:
    begin = [server.tokenizer.bos_token_id] if server.begins and body.get("add_special") else []
    return {"tokens": begin + server.encode(body["content"], body["parse_special"])}


def _llama_props(server: FakeServer, body: Reply) -> Reply:
    return {
        "total_slots": 2,
        "default_generation_settings": {"n_ctx": LIMIT},
        "chat_template": server.tokenizer.chat_template or "",
        "eos_token": server.tokenizer.eos_token,
        "bos_token": server.tokenizer.bos_token,
    }


Answer = Callable[[FakeServer, Reply], Any]
VLLM: dict[str, Answer] = {
    "/health": lambda server, body: {},
    "/v1/models": _models,
    "/v1/load_lora_adapter": _vllm_load_adapter,
    "/v1/completions": _vllm,
    "/tokenize": _vllm_tokenize,
    "/detokenize": _vllm_detokenize,
}
OWNERS = {"llama.cpp": "llamacpp", "vllm that we start": "vllm"}
ENGINES: dict[str, dict[str, Answer]] = {
    "vllm": VLLM,
    "vllm that we start": {**VLLM, "/v1/specfuse/score": _vllm_score},
    "llama.cpp": {
        "/v1/models": _models,
        "/props": _llama_props,
        "/completion": _llama,
        "/tokenize": _llama_tokenize,
        "/detokenize": lambda server, body: {"content": server.decode(body["tokens"])},
        "/apply-template": _llama_template,
    },
    "other": {"/v1/models": _models},
}


# --- HTTP -----------------------------------------------------------------------------------------


class _Listener(ThreadingHTTPServer):
    """A listener whose connections are closed with it, like those of a process."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def hang_up(self) -> None:
        for connection in self._open:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that hang up."""


def _answering(server: FakeServer) -> type[BaseHTTPRequestHandler]:
    class Answering(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # headers and body in one packet: otherwise each reply waits for an acknowledgement
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Any) -> None:
            before = len(server.asked)
            server.asked.append((self.path, body))
            server.authorization = self.headers.get("Authorization")
            effect = server.fault(self.path, before) if server.fault else None
            is_guarded = server.key and self.path != "/health"
            if is_guarded and server.authorization != f"Bearer {server.key}":
                return self._send(401, {"error": {"message": "Invalid API key"}})
            if effect == "hang":
                return self._hang()
            if isinstance(effect, int):
                return self._send(effect, {"error": {"message": "not now"}})
            if isinstance(effect, tuple):
                return self._send(*effect)
            if isinstance(effect, bytes):
                return self._bytes(200, effect)
            try:
                reply = server.reply(self.path, body)
            except KeyError as error:
                return self._send(404, {"error": f"no such path or field: {error}"})
            except Refused as error:
                return self._send(error.status, {"error": {"message": str(error)}})
            if isinstance(reply, Iterator):
                return self._stream(reply, effect)
            return self._send(
                200, effect(reply) if callable(effect) else reply, cut=effect == "cut"
            )

        def _send(self, status: int, body: Any, cut: bool = False) -> None:
            self._bytes(status, json.dumps(body).encode(), cut)

        def _bytes(self, status: int, data: bytes, cut: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.wfile.flush()
            if cut:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)

        def _stream(self, events: Iterator[Reply], effect: Any) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            for number, event in enumerate(self._locked(events)):
                if callable(effect):
                    event = effect(event)
                if server.pace:
                    self._wait(server.pace(number))
                if self._is_closed() or (effect == "cut" and number == 2):
                    server.hung_up.append(time.monotonic())
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                try:
                    self._event(json.dumps(event))
                except ConnectionError:  # it has hung up just now, before it had read everything
                    server.hung_up.append(time.monotonic())
                    self.close_connection = True
                    return
            if server.engine.startswith("vllm"):
                self._event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

        def _wait(self, paced: Any) -> None:
            for sent in paced if isinstance(paced, Iterator) else ():
                if self._is_closed():
                    return
                if sent:
                    self._chunk(sent)

        def _hang(self) -> None:
            """Reply nothing until ``go``, and then hang up."""
            self.close_connection = True
            while not server.go.wait(0.01):
                if self._is_closed():
                    server.hung_up.append(time.monotonic())
                    return

        def _locked(self, events: Iterator[Reply]) -> Iterator[Reply]:
            while True:
                with server._lock:
                    event = next(events, None)
                if event is None:
                    return
                yield event

        def _event(self, data: str) -> None:
            self._chunk(f"data: {data}\n\n".encode())

        def _chunk(self, sent: bytes) -> None:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(sent), sent))
            self.wfile.flush()

        def _is_closed(self) -> bool:
            """Whether the client has hung up."""
            readable, _, _ = select.select([self.connection], [], [], 0)
            try:
                return bool(readable) and not self.connection.recv(1, socket.MSG_PEEK)
            except ConnectionError:  # a reset: it had not read all that was sent
                return True

        def log_message(self, *args: Any) -> None:
            pass

    return Answering


def later(after: int, effect: Any, path: str = "", times: int = 10**6) -> Callable[[str, int], Any]:
    """Return a fault that begins after this many requests to a path and lasts for ``times``
    requests."""
    count = 0

    def fault(asked: str, _: int) -> Any:
        nonlocal count
        if path not in asked:
            return None
        count += 1
        return effect if after < count <= after + times else None

    return fault
