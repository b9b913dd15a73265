"""One further request to a provider whose failure may have passed, before a reserve takes over.

Without a reserve, only the provider's own client repeats requests.
"""

from __future__ import annotations

import threading
from typing import Any

from langchain_core.language_models import BaseChatModel

from ...core.call import interrupted_by, note_arrival
from ...errors import chain
from ..network import status_of

LONGEST_S = 5.0
"""A reserve answers if a provider asks its clients to wait for longer."""
_RESETS = {"ReadError", "WriteError", "RemoteProtocolError", "ConnectionResetError"}
"""Errors of httpx and Python for a connection that was open and has broken. An idle connection may
turn out to be broken only when the next request is sent on it."""


def asked_once(model: BaseChatModel) -> BaseChatModel:
    """The chat model with a client that repeats no request, and with the same connections. Classes
    other than those of langchain-openai and langchain-anthropic have no such client, and stay as
    they are."""
    for name in ("root_client", "_client"):
        client: Any = getattr(model, name, None)
        if hasattr(client, "with_options"):
            client = client.with_options(max_retries=0)
            clients = {name: client}
            if name == "root_client":
                clients["client"] = client.chat.completions
            return model.model_copy(update=clients)
    return model


def pause_before_retry(error: BaseException | None) -> float | None:
    """How long to wait before this request is sent once more; None: it is not. The provider is
    asked again where that may help: after an error of its server, after a connection that broke,
    and when a rate limit ends soon."""
    if error is None:
        return None
    status = status_of(error)
    if status is None:
        names = {type(cause).__name__ for cause in chain(error)}
        return 0.0 if names & _RESETS else None
    if status != 429 and status < 500:
        return None
    headers = getattr(getattr(error, "response", None), "headers", {})
    try:
        seconds = float(headers["retry-after"])
    except (KeyError, ValueError):  # no header, or a date
        return None if status == 429 else 0.0
    return max(seconds, 0.0) if seconds <= LONGEST_S else None


def wait(seconds: float) -> None:
    """Wait. Raises if nobody needs the reply any more."""
    is_closed = threading.Event()
    note_arrival()  # the error
    with interrupted_by(is_closed.set):
        is_closed.wait(seconds)
    note_arrival()
