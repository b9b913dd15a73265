"""Checks for the agents of ``langchain``, around any chat model."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from langchain.agents.middleware import AgentMiddleware, ModelRequest, ModelResponse
from langchain_core.language_models import BaseChatModel

from ..core.checks import as_checks
from ..errors import CheckError, UsageError, advised
from .model import SpecFuseChatModel

_ADD = re.compile(r"add a member( that can take over, such as a \.gguf file)?")
_ANOTHER = "name ModelFallbackMiddleware(other) before SpecFuseChecks"


class SpecFuseChecks(AgentMiddleware[Any, Any]):
    """Middleware of ``create_agent``: checks judge what the agent's chat model writes, before it is
    shown and before a tool is called.

    ``create_agent(ChatOpenAI(...), tools, middleware=[SpecFuseChecks([checks.forbids("sorry")])])``

    Name it last: a middleware after it that replaces the model, as ``ModelFallbackMiddleware``
    does, would replace the checked one. Those before it get a :class:`.CheckError` as the error of
    the model call. Give all checks in one list: an agent takes each middleware only once. The
    arguments are fields of :class:`.SpecFuseChatModel`.
    """

    def __init__(
        self,
        checks: Sequence[Any],
        *,
        redrafts: int | None = None,
        on_failure: Literal["raise", "end"] = "raise",
    ) -> None:
        super().__init__()
        if on_failure not in ("raise", "end"):
            error = UsageError(f"on_failure must be 'raise' or 'end', got {on_failure!r:.80}")
            raise advised(error, "'keep' is for whole answers of a SpecFuseChatModel")
        self._options: dict[str, Any] = {"checks": as_checks(checks), "on_failure": on_failure}
        if redrafts is not None:
            self._options["redrafts"] = redrafts
        self._last: tuple[BaseChatModel, BaseChatModel] | None = None
        """A model, and the same one with checks."""

    def wrap_model_call(
        self,
        request: ModelRequest,
        handler: Callable[[ModelRequest], ModelResponse[Any]],
    ) -> ModelResponse[Any]:
        """Let a model with checks answer."""
        with _advising(request.model):
            return handler(request.override(model=self._checked(request.model)))

    async def awrap_model_call(
        self,
        request: ModelRequest,
        handler: Callable[[ModelRequest], Awaitable[ModelResponse[Any]]],
    ) -> ModelResponse[Any]:
        """``wrap_model_call`` for asyncio."""
        with _advising(request.model):
            return await handler(request.override(model=self._checked(request.model)))

    def _checked(self, model: BaseChatModel) -> BaseChatModel:
        last = self._last
        if last is None or last[0] is not model:
            last = self._last = (model, self._with_checks(model))
        return last[1]

    def _with_checks(self, model: BaseChatModel) -> BaseChatModel:
        if isinstance(model, SpecFuseChatModel):
            both = [*model.checks, *self._options["checks"]]
            return model.model_copy(update={**self._options, "checks": both})
        return _Checked(
            members=[model],
            name=model.get_name(),
            profile={"structured_output": False, **(model.profile or {})},
            **self._options,
        )


@contextmanager
def _advising(model: BaseChatModel) -> Iterator[None]:
    """Let an error advise what an agent can do: it has no list of members."""
    try:
        yield
    except CheckError as error:
        if not isinstance(model, SpecFuseChatModel):
            # without the advice of a member that could not go on
            error.args = (re.sub(r"\n-> .*\)$", ")", error.message),)
            error.notes = tuple(_ADD.sub(_ANOTHER, note) for note in error.notes)
        raise


class _Checked(SpecFuseChatModel):
    """One chat model, with checks."""

    @property
    def model_id(self) -> Any:
        """The provider's name of the model, by which ``create_agent`` knows whether it can be asked
        for objects."""
        (model,) = self.members
        names = (getattr(model, key, None) for key in ("model_name", "model", "model_id"))
        return next(filter(None, names), "")
