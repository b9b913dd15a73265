"""The app: its routes, and how what goes wrong is told. Knows paths and FastAPI; everything else is in the hall."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.routing import Route

from ..chat_models import SpecFuseChatModel
from .answers import Answers
from .faults import Fault, fault_of
from .hall import Hall
from .limits import Limits
from .orders import refuse_other_model

MODEL = "specfuse"
PROBED = ["GET", "HEAD"]
"""Some probes want no body."""


def app_of(
    llm: SpecFuseChatModel,
    *,
    model: str = MODEL,
    keys: Sequence[str] = (),
    hosts: Sequence[str] = (),
    limits: Limits = Limits(),  # noqa: B008 - it is frozen
) -> FastAPI:
    """This chat model as an app that speaks OpenAI's protocol.

    ``model``: the name that clients ask for. ``keys``: who sends none of these is refused; none: everybody may ask.
    ``hosts``: the names that it answers to; none: any.

    >>> from langchain_specfuse import ScriptedMember, SpecFuseChatModel
    >>> app = app_of(SpecFuseChatModel(members=[ScriptedMember("Blue.")]))
    """
    hall = Hall(llm, model, keys, hosts, limits)
    # No page of its own: FastAPI's would fetch its scripts from elsewhere.
    app = FastAPI(title="langchain-specfuse", openapi_url=None, redirect_slashes=False, lifespan=_loading)
    app.state.hall = hall
    app.router.routes.append(Route("/v1/chat/completions", endpoint=Answers(hall), methods=["POST"]))
    _add_state(app, hall)
    _add_models(app, hall)
    _add_faults(app, hall)
    return app


@asynccontextmanager
async def _loading(app: FastAPI) -> AsyncIterator[None]:
    """The port opens at once; whether members are there is asked of ``/ready``."""
    app.state.hall.loaded()
    yield


def _add_state(app: FastAPI, hall: Hall) -> None:
    @app.api_route("/health", methods=PROBED)
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/ready", methods=PROBED)
    async def ready() -> Response:
        told = {"status": "ready"} if hall.ready else {"status": "loading"}
        return JSONResponse(told, 200 if hall.ready else 503)

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        hall.check(request)
        return Response(await asyncio.to_thread(hall.meters.text), media_type=CONTENT_TYPE_LATEST)


def _add_models(app: FastAPI, hall: Hall) -> None:
    told = {"id": hall.model, "object": "model", "created": 0, "owned_by": "langchain-specfuse"}

    @app.get("/v1/models")
    async def models(request: Request) -> dict[str, Any]:
        hall.check(request)
        return {"object": "list", "data": [told]}

    @app.get("/v1/models/{name:path}")
    async def one(name: str, request: Request) -> dict[str, Any]:
        hall.check(request)
        refuse_other_model(name, hall.model)
        return told


def _add_faults(app: FastAPI, hall: Hall) -> None:
    async def fault(request: Request, error: Exception) -> Response:
        told = fault_of(error)
        hall.meters.refused(told.code)
        return Response(told.json, told.status, {"content-type": "application/json", **told.headers})

    async def other(request: Request, error: Exception) -> Response:
        status = getattr(error, "status_code", 500)
        what = f"{request.method} {request.url.path!r:.80}: there is nothing like that here"
        paths = "there are POST /v1/chat/completions, GET /v1/models, /health, /ready, /metrics"
        return await fault(request, Fault(status, f"{what}\n-> {paths}", code="unknown_url"))

    app.add_exception_handler(Fault, fault)
    app.add_exception_handler(HTTPException, other)
