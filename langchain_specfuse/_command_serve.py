"""The command ``specfuse serve``: an ensemble behind a port, for clients that speak OpenAI's protocol.

Knows arguments; the port and what is said through it are known in ``door``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TextIO

from . import _options
from ._command_choices import Parser, add_cluster, add_method, members_of, prior_of
from .errors import UsageError, advised

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .chat_models import SpecFuseChatModel

HOST, PORT = "127.0.0.1", 8000
HERE = ("localhost", "127.0.0.1", "[::1]")
"""What a port of this machine is called on this machine."""


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="specfuse serve",
        description="Serve an ensemble to clients that speak OpenAI's protocol: /v1/chat/completions, /v1/models, "
        "/health, /ready, /metrics. Without --members the demo ensemble answers.",
        epilog="exit codes: 0 stopped when asked to, 1 the members could not be loaded, 2 a mistake in the call",
        allow_abbrev=False,
    )
    who = made.add_argument_group("who answers")
    who.add_argument("--members", nargs="+", metavar="M", help="as of specfuse itself (default: the demo's)")
    who.add_argument("--verifiers", nargs="+", metavar="M", help="members that vote, but never write")
    add_cluster(who)
    who.add_argument("--prior", metavar="FILE", help="JSON with the voting weights to begin with, as doctor saves it")
    add_method(made)
    what = made.add_argument_group("the answer, where a client says nothing")
    what.add_argument("--max-tokens", type=int, metavar="N", help="its budget (default: 512)")
    what.add_argument("--temperature", type=float, metavar="T", help="0 (the default) is greedy and repeatable")
    what.add_argument("--top-p", type=float, metavar="P", help="sample from the likeliest tokens of this mass")
    where = made.add_argument_group("where")
    where.add_argument("--host", default=HOST, metavar="H", help="which address to listen on (default: %(default)s)")
    where.add_argument("--port", type=int, default=PORT, metavar="N", help="0: any free one (default: %(default)s)")
    where.add_argument("--name", default="specfuse", help="the model that clients ask for (default: %(default)s)")
    where.add_argument("--api-key-env", metavar="NAME", help="the variable that holds the key (several: with commas)")
    where.add_argument("--tls-cert", metavar="FILE", help="speak HTTPS with this certificate")
    where.add_argument("--tls-key", metavar="FILE", help="its private key")
    _add_bounds(made)
    return made


def _add_bounds(made: argparse.ArgumentParser) -> None:
    most = made.add_argument_group("bounds")
    most.add_argument("--at-once", type=int, metavar="N", help="answers under way together (default: 32)")
    most.add_argument("--waiting", type=int, metavar="N", help="questions that may wait for a seat (default: 64)")
    most.add_argument("--most-tokens", type=int, metavar="N", help="the largest budget of a client's (default: 4096)")
    most.add_argument("--most-prompt-tokens", type=int, metavar="N", help="of one conversation, in tokens of the first "
                      "member (default: what the members' contexts hold)")  # fmt: skip
    most.add_argument("--most-bytes", type=int, metavar="N", help="of one body (default: 2097152)")
    most.add_argument("--timeout", dest="timeout_s", type=float, metavar="S", help="of one answer (default: 300)")
    most.add_argument("--member-timeout", type=float, metavar="S", help="of one reply of one member (default: none)")
    most.add_argument("--straggler", choices=_options.STRAGGLERS, help="what becomes of who takes longer: all wait, it "
                      "is left out of that round, or it leaves (default: exit)")  # fmt: skip
    most.add_argument("--grace", type=float, default=30.0, metavar="S", help="for answers under way when it is told "
                      "to stop (default: 30)")  # fmt: skip


def run(argv: Sequence[str], members: Sequence[Any] | None, out: TextIO) -> bool:
    """Serve until told to stop. ``members`` stand in for the demo ensemble, for tests."""
    given = parser().parse_args(argv)
    if not given.grace >= 0:
        raise advised(UsageError(f"--grace must be at least 0, got {given.grace:g}"), "30 is the default")
    if given.tls_key and not given.tls_cert:
        raise advised(UsageError(f"--tls-key {given.tls_key} has no certificate"), "name it with --tls-cert FILE")
    port = _room()
    llm = chat_model(given, members)
    with port.opened(given.host, given.port) as here:
        app = _app(given, llm, near=port.is_near(here))
        server = port.server_of(app, port.Certificate(given.tls_cert, given.tls_key), given.grace)
        server.told_to_stop = lambda: _say("stopping; answers under way may end. Once more: at once")
        url = _url(given, here)
        _say(f"listening on {url}, the model is {given.name!r}; loading {', '.join(_names(llm))} ...")

        async def loaded() -> None:
            await asyncio.wrap_future(app.state.hall.loaded())
            _say(f"ready: {url}")

        asyncio.run(port.serve_until_stopped(server, here, loaded))
    return True


def _room() -> Any:
    """The room of the door, opened when it is needed: its packages are an extra."""
    try:
        from .door import port
    except ModuleNotFoundError as error:
        missing = UsageError(f"serve needs {error.name}, which is not installed")
        raise advised(missing, 'pip install "langchain-specfuse[serve]"') from error
    return port


def chat_model(given: argparse.Namespace, stand_ins: Sequence[Any] | None) -> SpecFuseChatModel:
    """The chat model that these arguments describe. Loads nothing."""
    from .chat_models import SpecFuseChatModel

    known, writing, voting = members_of(given, stand_ins)
    names = (*_options.METHOD, *_options.SAMPLING, "preset", "member_timeout", "straggler", "memory_budget")
    chosen = {name: value for name, value in vars(given).items() if name in names and value is not None}
    return SpecFuseChatModel(
        members=[known[name] for name in writing],
        verifiers=[known[name] for name in voting],
        prior=prior_of(given, list(known)),
        **chosen,
    )


def _names(llm: SpecFuseChatModel) -> list[str]:
    return [member.name for member in (*llm.members, *llm.verifiers)]


def _app(given: argparse.Namespace, llm: SpecFuseChatModel, *, near: bool) -> FastAPI:
    from .door import Limits, app_of

    keys = keys_of(given.api_key_env)
    if not near and not keys:
        _say(f"warning: {given.host} can be reached from other machines, and there is no key: everybody there may ask")
    # A page in a browser may lead its reader's machine here under another name; a key keeps it out as well.
    hosts = (*HERE, given.host.lower()) if near and not keys else ()
    bounds = ("at_once", "waiting", "most_tokens", "most_prompt_tokens", "most_bytes", "timeout_s")
    chosen = {name: getattr(given, name) for name in bounds if getattr(given, name) is not None}
    return app_of(llm, model=given.name, keys=keys, hosts=hosts, limits=Limits(**chosen))


def keys_of(variable: str | None) -> list[str]:
    """The keys that this variable of the environment holds."""
    if variable is None:
        return []
    keys = [key.strip() for key in os.environ.get(variable, "").split(",") if key.strip()]
    if not keys:
        error = UsageError(f"--api-key-env {variable}: this variable is empty or not set")
        raise advised(error, f"export {variable}=..., for example what `openssl rand -hex 32` prints")
    return keys


def _url(given: argparse.Namespace, here: socket.socket) -> str:
    host = f"[{given.host}]" if ":" in given.host else given.host
    return f"{'https' if given.tls_cert else 'http'}://{host}:{here.getsockname()[1]}/v1"


def _say(text: str) -> None:
    print(f"specfuse: {text}", file=sys.stderr, flush=True)
