"""Several LLMs write one answer together, as one LangChain chat model.

Everything here is loaded when it is first asked for: importing the package imports neither torch nor transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from ._deciding import adecide, decide
    from ._errors import AnswerTimeoutError, MemberNotFoundError, PromptTooLongError, TooBusyError
    from ._recording import TraceCallbackHandler
    from ._registry import unload
    from .callbacks import (
        AsyncSpecFuseCallbackHandler,
        ExitEvent,
        RoundEvent,
        SpecFuseCallbackHandler,
        WeightsEvent,
    )
    from .chat_models import ChatSpecFuse, SpecFuseChatModel
    from .core.verdict import Verdict
    from .demo import demo_members
    from .errors import BusyError, EnsembleError, MemberError, SpecFuseError, UsageError
    from .members.ray import RayMember
    from .members.scripted import ScriptedMember
    from .members.server import ServerMember
    from .members.transformers import TransformersMember
    from .show.trace import Trace

_HOMES = {
    "AnswerTimeoutError": "_errors",
    "AsyncSpecFuseCallbackHandler": "callbacks",
    "BusyError": "errors",
    "ChatSpecFuse": "chat_models",
    "EnsembleError": "errors",
    "ExitEvent": "callbacks",
    "MemberError": "errors",
    "MemberNotFoundError": "_errors",
    "PromptTooLongError": "_errors",
    "RayMember": "members.ray",
    "RoundEvent": "callbacks",
    "ScriptedMember": "members.scripted",
    "ServerMember": "members.server",
    "SpecFuseCallbackHandler": "callbacks",
    "SpecFuseChatModel": "chat_models",
    "SpecFuseError": "errors",
    "TooBusyError": "_errors",
    "Trace": "show.trace",
    "TraceCallbackHandler": "_recording",
    "TransformersMember": "members.transformers",
    "UsageError": "errors",
    "Verdict": "core.verdict",
    "WeightsEvent": "callbacks",
    "adecide": "_deciding",
    "decide": "_deciding",
    "demo_members": "demo",
    "unload": "_registry",
}

__all__ = [
    "AnswerTimeoutError",
    "AsyncSpecFuseCallbackHandler",
    "BusyError",
    "ChatSpecFuse",
    "EnsembleError",
    "ExitEvent",
    "MemberError",
    "MemberNotFoundError",
    "PromptTooLongError",
    "RayMember",
    "RoundEvent",
    "ScriptedMember",
    "ServerMember",
    "SpecFuseCallbackHandler",
    "SpecFuseChatModel",
    "SpecFuseError",
    "TooBusyError",
    "Trace",
    "TraceCallbackHandler",
    "TransformersMember",
    "UsageError",
    "Verdict",
    "WeightsEvent",
    "__version__",
    "adecide",
    "decide",
    "demo_members",
    "unload",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
