"""One LangChain chat model around several models: a lead, its reserve, checks, or a vote.

Names are loaded when they are first used: importing the package imports neither torch nor
transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__

if TYPE_CHECKING:
    from . import checks as checks
    from .chat.callbacks import AsyncSpecFuseCallbackHandler as AsyncSpecFuseCallbackHandler
    from .chat.callbacks import ExitEvent as ExitEvent
    from .chat.callbacks import RejectedEvent as RejectedEvent
    from .chat.callbacks import RoundEvent as RoundEvent
    from .chat.callbacks import SpecFuseCallbackHandler as SpecFuseCallbackHandler
    from .chat.callbacks import TraceCallbackHandler as TraceCallbackHandler
    from .chat.callbacks import WeightsEvent as WeightsEvent
    from .chat.decisions import SpecFuseDecisionModel as SpecFuseDecisionModel
    from .chat.errors import AnswerTimeoutError as AnswerTimeoutError
    from .chat.errors import MemberNotFoundError as MemberNotFoundError
    from .chat.errors import PromptTooLongError as PromptTooLongError
    from .chat.errors import TooBusyError as TooBusyError
    from .chat.members import unload as unload
    from .chat.middleware import SpecFuseChecks as SpecFuseChecks
    from .chat.model import ChatSpecFuse as ChatSpecFuse
    from .chat.model import SpecFuseChatModel as SpecFuseChatModel
    from .core.options import METHODS as METHODS
    from .core.options import Method as Method
    from .demo import demo_members as demo_members
    from .errors import BusyError as BusyError
    from .errors import CheckError as CheckError
    from .errors import EnsembleError as EnsembleError
    from .errors import MemberError as MemberError
    from .errors import SpecFuseError as SpecFuseError
    from .errors import UsageError as UsageError
    from .members.chat_model.member import ChatModelMember as ChatModelMember
    from .members.llamacpp.member import LlamaCppMember as LlamaCppMember
    from .members.ray import RayMember as RayMember
    from .members.scripted import ScriptedMember as ScriptedMember
    from .members.server.member import ServerMember as ServerMember
    from .members.server.vllm_member import VllmMember as VllmMember
    from .members.transformers.member import TransformersMember as TransformersMember
    from .show.trace import Trace as Trace

_NAMES = {
    "chat.callbacks": "AsyncSpecFuseCallbackHandler ExitEvent RejectedEvent RoundEvent "
    "SpecFuseCallbackHandler TraceCallbackHandler WeightsEvent",
    "chat.decisions": "SpecFuseDecisionModel",
    "chat.errors": "AnswerTimeoutError MemberNotFoundError PromptTooLongError TooBusyError",
    "chat.members": "unload",
    "chat.middleware": "SpecFuseChecks",
    "chat.model": "ChatSpecFuse SpecFuseChatModel",
    "core.options": "METHODS Method",
    "demo": "demo_members",
    "errors": "BusyError CheckError EnsembleError MemberError SpecFuseError UsageError",
    "members.chat_model.member": "ChatModelMember",
    "members.llamacpp.member": "LlamaCppMember",
    "members.ray": "RayMember",
    "members.scripted": "ScriptedMember",
    "members.server.member": "ServerMember",
    "members.server.vllm_member": "VllmMember",
    "members.transformers.member": "TransformersMember",
    "show.trace": "Trace",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
_EXTRAS = {
    "LlamaCppMember": "llamacpp",
    "RayMember": "ray",
    "ServerMember": "server",
    "SpecFuseChecks": "agents",
    "TransformersMember": "transformers",
    "VllmMember": "server",
}
_MODULES = ("checks",)
__all__ = sorted(("__version__", *_HOMES, *_MODULES))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if name not in _EXTRAS:
            raise
        return _stand_in(name, f'pip install "langchain-specfuse[{_EXTRAS[name]}]"', error)
    globals()[name] = value
    return value


def _stand_in(name: str, advice: str, error: ModuleNotFoundError) -> type:
    """A class that replaces one whose requirements are not installed. Creating an instance raises
    an error that says what to install, so ``import *`` and ``inspect`` work without them."""

    def refuse(*_: Any, **__: Any) -> Any:
        needs = f"{name} needs {error.name}, which is not installed\n-> {advice}"
        raise ModuleNotFoundError(needs, name=error.name) from error

    about = {"__doc__": f"Not installed: {advice}", "__module__": __name__, "__new__": refuse}
    return type(name, (), about)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
