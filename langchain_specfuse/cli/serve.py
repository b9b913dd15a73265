"""``langchain-specfuse serve``: serve an ensemble to clients that speak OpenAI's protocol."""

from __future__ import annotations

import argparse
import ipaddress
import os
from concurrent.futures import Future
from typing import Any, TextIO

from ..chat.model import SpecFuseChatModel
from ..chat.references import names_of
from ..errors import UsageError, advised
from ..serve import Limits, app_of
from ..serve.server import listening, server_of
from .choices import (
    WHOLE,
    add_answer,
    add_calibration,
    add_fields,
    add_members,
    members_of,
    new_parser,
    options_of,
    read_flag,
    say,
    whole,
)

LIMITS = ("max_waiting", "max_answer_tokens", "timeout")


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "serve",
        "Serve an ensemble to clients that speak OpenAI's protocol: /v1/chat/completions, "
        "/v1/responses, /v1/models, /health, /ready, /metrics; and a page for the browser at /. "
        "Without --members the demo ensemble answers.",
        "exit codes: 0 stopped by a signal, 1 the members could not be loaded, 2 a mistake in the "
        "call",
    )
    add_members(parser)
    add_calibration(parser)
    add_fields(add_answer(parser, *WHOLE, "max_concurrency"), Limits.model_fields, LIMITS)
    port = parser.add_argument_group("port")
    port.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default: %(default)s)"
    )
    port.add_argument(
        "--port",
        type=whole,
        default=8000,
        metavar="N",
        help="0: any free one (default: %(default)s)",
    )
    port.add_argument(
        "--name", default="specfuse", help="the model's name for clients (default: %(default)s)"
    )
    port.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="environment variable with the API keys, separated by commas",
    )
    port.add_argument(
        "--no-page", action="store_true", help="do not serve the page at /, which shows the rounds"
    )
    port.add_argument(
        "--show-rejected",
        action="store_true",
        help="with --check: let the page show all drafts, including those that a check refused",
    )
    port.add_argument(
        "--grace",
        type=whole,
        default=30,
        metavar="S",
        help="seconds for answers under way when a signal stops the server (default: %(default)s)",
    )
    return parser


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Serve until a signal comes."""
    limits, keys, llm = _limits(arguments), keys_of(arguments.api_key_env), chat_model(arguments)
    with listening(arguments.host, arguments.port) as listener:
        address, port = listener.getsockname()[:2]
        local = ipaddress.ip_address(address).is_loopback
        if not local and not keys:
            say(
                f"warning: other machines can reach {arguments.host}, and no API key is set: "
                "anyone there can use it"
            )
        # A web page may direct a browser here under its own host name (DNS rebinding). A key
        # prevents that as well.
        hosts: tuple[str, ...] = ()
        if local and not keys:
            hosts = ("localhost", "127.0.0.1", "[::1]", arguments.host.lower())
        app = app_of(
            llm,
            model=arguments.name,
            api_keys=keys,
            hosts=hosts,
            page=not arguments.no_page,
            show_rejected=arguments.show_rejected,
            limits=limits,
        )
        server = server_of(app, grace_s=arguments.grace)
        server.on_stop = lambda: say("stopping after the running answers; again: stop now")
        host = f"[{arguments.host}]" if ":" in arguments.host else arguments.host
        root = f"http://{host}:{port}"
        where = f"{root}/v1"
        if not arguments.no_page:
            where += f" for clients, {root}/ for browsers"
        names = ", ".join(names_of([*llm.members, *llm.method.verifiers]))
        say(f"listening on {where}; the model is {arguments.name!r}; loading {names} ...")

        def after_loading(loading: Future[Any]) -> None:
            if loading.exception():
                server.should_exit = True
            else:
                say(f"ready: {where}")

        loading = app.state.loaded()
        loading.add_done_callback(after_loading)
        server.run([listener])
        if loading.done():
            loading.result()
    return True


def chat_model(arguments: argparse.Namespace) -> SpecFuseChatModel:
    """The chat model that these arguments describe. Loads nothing."""
    members, verifiers = members_of(arguments)
    options = {name: value for name, value in options_of(arguments).items() if name not in LIMITS}
    options["method"] = options["method"].model_copy(update={"verifiers": verifiers})
    return SpecFuseChatModel(members=members, calibration=arguments.calibration, **options)


def _limits(arguments: argparse.Namespace) -> Limits:
    limits = {}
    for name in LIMITS:
        value = getattr(arguments, name)
        if value is not None:
            limits[name] = read_flag(Limits, name, value)
    return Limits(**limits)


def keys_of(variable: str | None) -> list[str]:
    """The API keys in this environment variable."""
    if variable is None:
        return []
    keys = [key.strip() for key in os.environ.get(variable, "").split(",")]
    keys = [key for key in keys if key]
    if not keys:
        error = UsageError(f"--api-key-env {variable}: this variable is empty or not set")
        raise advised(
            error, f"export {variable}=..., for example what `openssl rand -hex 32` prints"
        )
    return keys
