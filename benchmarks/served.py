"""What does a round cost with members on vLLM, outside of the engine and inside?

Outside: two members on servers that speak vLLM's protocol and reply at once, so that this process
is all that works. Its CPU time is divided by the rounds, for one answer and for 32 at once; the
servers count the requests. Inside, if ``SPECFUSE_VLLM_PYTHON`` names an environment with vLLM: what
two real servers compute, by their own counters.

    python benchmarks/served.py [--questions 64] [--tokens 60] [--tiny]
"""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx2
from common import NOTES, arguments, report, together
from transformers import AutoTokenizer

from langchain_specfuse import Method, ServerMember, SpecFuseChatModel, VllmMember
from langchain_specfuse.demo import GEMMA, SMOLLM2
from tests.members import engines

MEASURES = (
    "core",
    "engine",
    "members/server",
    "members/text/words.py",
    "core/call.py",
    "chat",
)
"""The parts of the package that decide these figures."""
AT_ONCE = (1, 32)


# --- a server that replies at once ----------------------------------------------------------------


def serve(words: list[int], salt: int, port: Any, counts: Any) -> None:
    """A server whose model writes these words in an order of its own, whatever it was asked."""

    def logprob(token: int) -> float:
        return -0.5 - token % 5 / 10

    def choice(at: int, ids: list[int], body: dict[str, Any]) -> dict[str, Any]:
        size = body["max_tokens"]
        excluded = {int(token) for token in body.get("logit_bias", {})}
        tokens = []
        for place in range(size):
            allowed = [word for word in words if word not in excluded]
            tokens.append(allowed[(len(ids) * salt + place * 3) % len(allowed)])
        named = [*(body.get("logprob_token_ids") or words[: body["logprobs"]])]
        tops = [{f"token_id:{one}": logprob(one) for one in (token, *named)} for token in tokens]
        known: list[Any] = [logprob(token) for token in tokens]
        if body.get("echo"):
            tokens, tops = ids, [{}] * len(ids)
            known = [None, *map(logprob, ids[1:])]
        names = [f"token_id:{token}" for token in tokens]
        numbers = {"tokens": names, "token_logprobs": known, "top_logprobs": tops}
        return {"index": at, "text": "", "finish_reason": "length", "logprobs": numbers}

    class Instant(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self._send({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 8192}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompts = body["prompt"]
            with counts.get_lock():
                counts[body["max_tokens"] <= 1] += 1
            self._send({"choices": [choice(at, ids, body) for at, ids in enumerate(prompts)]})

        def _send(self, reply: Any) -> None:
            data = json.dumps(reply).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def log_message(self, *_: Any) -> None:
            pass

    class Listener(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

    listener = Listener(("127.0.0.1", 0), Instant)
    port.value = listener.server_address[1]
    listener.serve_forever()


@contextmanager
def instant(words: list[int], salt: int) -> Iterator[tuple[str, Any]]:
    """The address of such a server, and how many drafts and scores it was asked for."""
    spawn = multiprocessing.get_context("spawn")
    port, counts = spawn.Value("i", 0), spawn.Array("q", 2)
    process = spawn.Process(target=serve, args=(words, salt, port, counts), daemon=True)
    process.start()
    try:
        while not port.value:
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port.value}/v1", counts
    finally:
        process.kill()
        process.join()


def whole_words(folder: str) -> list[int]:
    """Tokens that are a word each."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = {token: tokenizer.decode([token]) for token in range(1000, 3000)}
    return [token for token, text in texts.items() if re.fullmatch(" [a-z]{3,}", text)]


# --- measured -------------------------------------------------------------------------------------


def ensemble(members: list[Any], tokens: int) -> SpecFuseChatModel:
    return SpecFuseChatModel(
        members=members, max_tokens=tokens, lead=None, trace="off", method=Method(exit="never")
    )


def asked(llm: SpecFuseChatModel, questions: int, at_once: int) -> int:
    """Ask so many questions, and return the number of rounds."""
    texts = [f"{number}. {NOTES} What is this about?" for number in range(questions)]
    rounds = Counter[str]()

    def ask(first: int) -> None:
        for text in texts[first::at_once]:
            about = llm.invoke(text).response_metadata["specfuse"]
            assert not about["exits"], about["exits"]
            rounds["all"] += about["rounds"]

    together(ask, at_once)
    return rounds["all"]


def outside(questions: int, tokens: int) -> dict[str, Any]:
    """The CPU time of this process and the requests, a round."""
    folder = str(engines.folder())
    words = whole_words(folder)
    found = {}
    with instant(words[:40], 5) as (first, counts), instant(words[40:], 7) as (second, _):
        members = [
            ServerMember(url, "m", name=name, tokenizer=folder, max_concurrency=64)
            for name, url in (("a", first), ("b", second))
        ]
        llm = ensemble(members, tokens)
        asked(llm, 2, 1)  # warm up
        for at_once in AT_ONCE:
            before, since = list(counts), time.process_time()
            rounds = asked(llm, questions, at_once)
            spent = time.process_time() - since
            drafts, scores = (now - then for now, then in zip(counts, before, strict=True))
            found[str(at_once)] = {
                "rounds": rounds,
                "ms_per_round": round(1000 * spent / rounds, 2),
                "drafts_per_round": round(drafts / rounds, 2),
                "scores_per_round": round(scores / rounds, 2),
            }
            print(at_once, found[str(at_once)], flush=True)
        for member in members:
            member.unload()
    return found


COUNTERS = {
    "prompt": "vllm:prefix_cache_queries_total",
    "cached": "vllm:prefix_cache_hits_total",
    "written": "vllm:generation_tokens_total",
    "sequences": "vllm:request_success_total",
}


def counted(member: VllmMember) -> Counter[str]:
    """The counters of a member's server."""
    root = member.address.root
    text = httpx2.get(f"{root}/metrics", trust_env=False).text
    found = Counter[str]()
    for key, name in COUNTERS.items():
        values = re.findall(rf"^{name}{{.*}} (\S+)$", text, re.M)
        found[key] = int(sum(map(float, values)))
    return found


def inside(tokens: int) -> dict[str, Any]:
    """Tokens that two real servers compute, a round and member."""
    members = [
        VllmMember(engines.folder(file), name=file.name, engine_args={"max_model_len": 4096})
        for file in (SMOLLM2, GEMMA)
    ]
    llm = ensemble(members, tokens)
    asked(llm, 1, 1)
    before = {member.name: counted(member) for member in members}
    rounds = asked(llm, 2, 1)
    found = {}
    for member in members:
        spent = counted(member) - before[member.name]
        spent["computed"] = spent["prompt"] - spent["cached"]
        found[member.name] = {key: round(count / rounds, 1) for key, count in spent.items()}
        member.unload()
    return {"rounds": rounds, "a round": found}


def main() -> None:
    small = {"questions": 2, "tokens": 12}
    given = arguments(__file__, __doc__, questions=64, tokens=60, tiny=small).parse_args()
    found: dict[str, Any] = {"outside": outside(given.questions, given.tokens)}
    if os.environ.get("SPECFUSE_VLLM_PYTHON"):
        found["inside"] = inside(given.tokens)
    report(__file__, given, MEASURES, found)


if __name__ == "__main__":
    main()
