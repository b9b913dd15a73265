"""Scores of drafts that a vLLM server reads from its prefix cache.

With ``SamplingParams(skip_reading_prefix_cache=False)``, vLLM computes the log-probabilities of a
prompt only for tokens that are not in its cache. Its HTTP interface has no field for that. The
servers that :class:`.VllmMember` starts load this file, which adds an address. It works
in servers of your own, too:

    PYTHONPATH=THIS-FOLDER vllm serve MODEL --middleware specfuse_score.Score

``POST /v1/specfuse/score`` takes the context that all drafts share, the drafts that follow it, and
the tokens that end a turn, all as token ids:

    {"model": ..., "context": [...], "drafts": [{"ids": [...], "ended": true}, ...], "stops": [...]}

It returns for each draft the log-probability of each token and, if it ended, those of all ``stops``
after it:

    {"scores": [{"logprobs": [...], "stops": [...]}, ...]}

``GET`` returns ``{"format": 1}``. vLLM guards the address with its own keys, as all that begin with
``/v1``. This file runs in vLLM's environment, so it imports nothing of this package.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

from starlette.responses import JSONResponse, Response
from vllm import SamplingParams

ADDRESS = "/v1/specfuse/score"
FORMAT = 1
LEAST = -9999.0
"""What vLLM sends for a probability of 0, which JSON cannot express."""


class Score:
    """ASGI middleware that adds the address when the first request comes."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._is_added = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not self._is_added:
            self._is_added = True
            scope["app"].add_route(ADDRESS, _answer, methods=["GET", "POST"])
        await self._app(scope, receive, send)


async def _answer(request: Any) -> Response:
    if request.method == "GET":
        return JSONResponse({"format": FORMAT})
    asked = await request.json()
    models = request.app.state.openai_serving_models
    if asked["model"] not in models.lora_requests and not models.is_base_model(asked["model"]):
        return JSONResponse({"error": f"there is no model {asked['model']!r}"}, status_code=404)
    # If the caller goes, vLLM is told to stop.
    scoring = asyncio.ensure_future(_scores(request.app.state, **asked))
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((scoring, leaving), return_when=asyncio.FIRST_COMPLETED)
        return JSONResponse({"scores": scoring.result()} if scoring.done() else None)
    finally:
        scoring.cancel()
        leaving.cancel()


async def _gone(request: Any) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _scores(
    state: Any, model: str, context: list[int], drafts: list[dict[str, Any]], stops: list[int]
) -> list[dict[str, Any]]:
    lora = state.openai_serving_models.lora_requests.get(model)
    has_adapters = state.vllm_config.lora_config is not None
    engine = _Engine(state.engine_client, lora, reads_prompts=not has_adapters)
    return await asyncio.gather(
        *(engine.score(context, draft["ids"], stops if draft["ended"] else []) for draft in drafts)
    )


class _Engine:
    def __init__(self, client: Any, lora: Any, *, reads_prompts: bool) -> None:
        """``reads_prompts``: whether it may ask for the numbers of prompts. With LoRA adapters,
        vLLM 0.32 for CPUs dies if two such requests are computed at once."""
        self._client = client
        self._lora = lora
        self._reads_prompts = reads_prompts

    async def score(self, context: list[int], draft: list[int], stops: list[int]) -> dict[str, Any]:
        whole, first = context + draft, len(context)
        known, rows, ends = len(whole), [], []
        if draft and self._reads_prompts:
            options = {"prompt_logprobs": 0, "skip_reading_prefix_cache": False}
            read = await self._read(whole, stops, **options)
            rows, ends = read.prompt_logprobs, _after(read, stops)
            # A token that was in the cache, and the first one after those, have no numbers. That
            # happens where the context fills whole blocks, or a draft was read before.
            known = min(known, max(first, (read.num_cached_tokens or 0) + 1))
        elif stops:
            ends = _after(await self._read(whole, stops), stops)
        missing = await asyncio.gather(
            *(self._next(whole[:at], whole[at]) for at in range(first, known))
        )
        # Counted from the end: on GPUs, rows of tokens that were in the cache are left out.
        found = [_number(rows[at - len(whole)][whole[at]]) for at in range(known, len(whole))]
        return {"logprobs": [*missing, *found], "stops": ends}

    async def _next(self, context: list[int], token: int) -> float:
        """The log-probability of this token after the context."""
        (number,) = _after(await self._read(context, [token]), [token])
        return number

    async def _read(self, prompt: list[int], wanted: list[int], **options: Any) -> Any:
        """Read a prompt, and report the probabilities of the wanted tokens after it."""
        if wanted:
            options["logprob_token_ids"] = wanted
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False, **options)
        name = f"specfuse-{uuid.uuid4()}"
        replies = self._client.generate(
            {"prompt_token_ids": prompt}, params, name, lora_request=self._lora
        )
        async for reply in replies:
            read = reply
        return read


def _after(read: Any, tokens: list[int]) -> list[float]:
    """The log-probabilities of these tokens after the prompt that was read."""
    return [_number(read.outputs[0].logprobs[0][token]) for token in tokens]


def _number(entry: Any) -> float:
    return max(float(entry.logprob), LEAST)
