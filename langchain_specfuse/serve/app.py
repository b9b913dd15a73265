"""The endpoint as a FastAPI app: its routes and its access control."""

from __future__ import annotations

import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from langchain_core.runnables import RunnableConfig
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException

from ..chat.callbacks import TraceCallbackHandler
from ..chat.members import ensemble_for
from ..chat.model import SpecFuseChatModel
from ..chat.options import Call
from ..errors import UsageError
from ..show.page import live
from ..show.trace import Trace
from .answers import RETRY_S, AnswerResponse, Metrics
from .completions import Completion
from .errors import ApiError, api_error
from .replies import Reply
from .requests import (
    HOSTED,
    OPENAI,
    ChatRequest,
    Limits,
    read_request,
    refuse_other_model,
    request_in,
)
from .responses import Response as OpenAIResponse
from .responses import read_response_request
from .rounds import Rounds


def app_of(
    llm: SpecFuseChatModel,
    *,
    model: str = "specfuse",
    api_keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    page: bool = False,
    show_rejected: bool = False,
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> FastAPI:
    """The app that answers with this chat model.

    ``model``: the name that clients ask for. ``api_keys``: if there are any, a request must carry
    one of them. ``hosts``: if there are any, a request must use one of these host names, which
    prevents DNS rebinding where there is no key. ``page``: serve a page at ``/`` that asks
    questions and shows the drafts, scores, votes, weights and reasoning of each round.
    ``show_rejected``: if the chat model has checks, the page shows all drafts, including those that
    a check refused.

    >>> from langchain_specfuse import ScriptedMember
    >>> app = app_of(SpecFuseChatModel(members=[ScriptedMember("Blue.")]))
    """
    # the environment may have chosen content blocks
    llm = llm.model_copy(update={"output_version": "v0"})
    llm._checks_calls = False  # clients choose the schemas
    call = Call.of(llm)
    ensemble = ensemble_for(call.members, call.method.verifiers)
    providers = {_provider_of(member) for member in ensemble.members.values()} - {None}
    is_hosted = bool(providers)
    unread: tuple[str, ...] = () if is_hosted else HOSTED
    if not is_hosted or providers - {"openai", "azure"}:
        unread += OPENAI
    metrics = Metrics(ensemble.admission)
    about = {"members": list(ensemble.members)}
    card = {
        "id": model,
        "object": "model",
        "created": 0,
        "owned_by": "langchain-specfuse",
        "specfuse": about,
    }
    timeout = min(llm.timeout or limits.timeout, limits.timeout)
    bounds = {"timeout": timeout, "max_waiting": limits.max_waiting}
    guarded = [Depends(_guard(api_keys, hosts))]

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        ensemble.load(call)  # in the background, so the port opens immediately
        yield

    # No page with documentation: FastAPI's loads scripts from elsewhere.
    app = FastAPI(
        title="langchain-specfuse", openapi_url=None, redirect_slashes=False, lifespan=lifespan
    )
    app.state.loaded = lambda: ensemble.loaded(call)

    async def answer(
        request: Request,
        reply_to: Callable[[ChatRequest], Reply],
        *handlers: Any,
        read: Callable[[Any, str, Limits], ChatRequest] = read_request,
    ) -> Response:
        ensemble.load(call)  # again, if loading has failed
        if not ensemble.is_ready(call):
            loading = f"members are loading\n-> try again in about {RETRY_S} s"
            raise ApiError(503, loading, code="loading", retry_after_s=RETRY_S)
        asked = await request_in(request, limits, lambda body: read(body, model, limits))
        reply = reply_to(asked)
        leads = ensemble.has_one_writer(call)
        budget = call.budget(leads=leads, native=leads and is_hosted)
        defaults = {"max_tokens": min(budget, limits.max_answer_tokens), "reasoning": True}
        options = {**defaults, **asked.options, **bounds}
        options = {name: value for name, value in options.items() if name not in unread}
        try:
            config: RunnableConfig = {"callbacks": [metrics, reply, *handlers]}
            chunks = llm.astream(asked.messages, config, **options)
        except UsageError as error:
            raise api_error(error) from None
        return AnswerResponse(chunks, reply, metrics, stream=asked.stream, timeout=timeout)

    @app.post("/v1/chat/completions", dependencies=guarded)
    async def completions(request: Request) -> Response:
        return await answer(
            request, lambda asked: Completion(model, with_usage=asked.include_usage)
        )

    @app.post("/v1/responses", dependencies=guarded)
    async def responses(request: Request) -> Response:
        return await answer(
            request,
            lambda asked: OpenAIResponse(model, asked.sent),
            read=read_response_request,
        )

    if page:
        html = live(Trace().as_dict())
        headers = {"content-security-policy": "frame-ancestors 'none'", "cache-control": "no-cache"}

        @app.api_route("/", methods=["GET", "HEAD"], dependencies=[Depends(_guard((), hosts))])
        async def show() -> Response:
            return Response(html, media_type="text/html", headers=headers)

        @app.post("/v1/specfuse/rounds", dependencies=guarded)
        async def rounds(request: Request) -> Response:
            recorder = TraceCallbackHandler(kept=1)
            rounds = Rounds(model, recorder, show_rejected=show_rejected)
            return await answer(request, lambda asked: rounds, recorder)

    @app.get("/v1/models", dependencies=guarded)
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [card]}

    @app.get("/v1/models/{name:path}", dependencies=guarded)
    async def one_model(name: str) -> dict[str, Any]:
        refuse_other_model(name, model)
        return card

    @app.get("/metrics", dependencies=guarded)
    def all_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        ensemble.load(call)
        if ensemble.is_ready(call):
            return JSONResponse({"status": "ready"})
        return JSONResponse({"status": "loading"}, 503)

    @app.exception_handler(ApiError)
    async def refuse(request: Request, error: ApiError) -> Response:
        metrics.refused.labels(error.code).inc()
        return Response(error.body, error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def no_such_path(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        allowed = (error.headers or {}).get("Allow")
        existing = f"{allowed} {path:.80}" if allowed else "POST /v1/chat/completions"
        message = f"there is no {request.method} {path!r:.80}\n-> use {existing}"
        if path.startswith("/v1/embeddings"):
            advice = "send the request to a server that runs an embedding model"
            message = f"this endpoint has no embeddings\n-> {advice}"
        return await refuse(request, ApiError(error.status_code, message, code="unknown_url"))

    return app


def _provider_of(member: Any) -> str | None:
    """The provider of a chat model; None for other members."""
    if not getattr(member, "is_hosted", False):
        return None
    return str(getattr(member, "spec", {}).get("provider"))


def _guard(api_keys: Sequence[str], hosts: Sequence[str]) -> Callable[[Request], Awaitable[None]]:
    """A check that refuses requests without a valid key or with another host name."""
    digests = [sha256(key.encode()).digest() for key in api_keys]

    async def check(request: Request) -> None:
        host = request.headers.get("host", "").lower()
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if hosts and name not in hosts:
            message = (
                f"this endpoint is not called {name!r:.80}\n-> use {min(hosts)}, or set an API key"
            )
            raise ApiError(403, message, code="unknown_host")
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        # Headers are bytes that were decoded as Latin-1.
        own = sha256(key.strip().encode("latin-1")).digest()
        # Compare with all keys, each in constant time.
        matches = [hmac.compare_digest(own, digest) for digest in digests]
        if digests and not (any(matches) and scheme.lower() == "bearer"):
            message = "the API key is missing or wrong\n-> send it as Authorization: Bearer KEY"
            raise ApiError(401, message, code="invalid_api_key")

    return check
