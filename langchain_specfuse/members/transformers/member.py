"""TransformersMember: a decoder-only causal LM that transformers loads, in this process.

torch takes seconds to import, so this waits until the member loads. Wrong arguments are refused
before that.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import UsageError, advised
from ..arguments import checked
from ..local.member import (
    LocalMember,
    MemberSettings,
    PrefixCache,
    RepetitionPenalty,
    ThinkingTokens,
)
from ..names import check_argument
from .source import Source

if TYPE_CHECKING:
    from .cache import ModelCache
    from .model import TransformersWeights

_RESERVED = {
    "dtype": "TransformersMember(..., dtype=...)",
    "torch_dtype": "TransformersMember(..., dtype=...)",
    "use_safetensors": "leave it out: only safetensors are read",
    "weights_only": "leave it out: only safetensors are read",
}
"""Arguments of from_pretrained that are not for ``model_kwargs``, and what to do instead."""


class TransformersMember(LocalMember):
    """One LLM in this process.

    >>> member = TransformersMember(
    ...     "Qwen/Qwen2.5-0.5B-Instruct", dtype="bfloat16"
    ... )  # loads when first used
    >>> member.name
    'Qwen2.5-0.5B-Instruct'

    ``model``
        A hub id, a local folder, or a model in memory, then with its ``tokenizer``.
    ``adapter``
        A folder or hub id with a LoRA, as peft writes it.
    ``name``
        The member's name (default: the last part of the adapter's or model's name).
    ``dtype``, ``device``
        By default, the checkpoint's precision if the device computes in it, and the GPU with the
        most free memory, otherwise the CPU.
    ``model_kwargs``
        More arguments of transformers' ``from_pretrained``, such as ``revision``,
        ``device_map``, ``attn_implementation`` and ``quantization_config``. Code in a repository
        runs only with ``{"trust_remote_code": True}``.
    ``chat_template``, ``chat_template_kwargs``
        A template instead of the tokenizer's; ``"plain"`` is for base models. Arguments for the
        template.
    ``system_prompt``
        Replaces the conversation's system messages.
    ``repetition_penalty``
        Above 1, tokens that occurred become less probable (default: as the model's generation
        config says). A base model that repeats itself needs one of its own; a call's takes its
        place.
    ``thinking_tokens``
        A reasoning model thinks before its first word, for at most this many tokens (0: never).
    ``prefix_cache``
        How many bytes the cached prefixes of earlier queries may take. True: a third of the cache;
        False: nothing is kept.

    Members of one model that differ in ``adapter``, ``system_prompt``, ``chat_template`` or
    ``repetition_penalty`` share the weights. Equal members draft alike, even at a temperature above
    0; ``Method(samples=...)`` gives several answers. Several questions are read in one pass
    if a trial at loading finds that the results are the same. Otherwise, and if the model is
    recurrent, texts are read one after another. For many questions at once, a server is faster.
    """

    usual_source: ClassVar[Mapping[str, Any]] = {**vars(Source("")), "dtype": None}

    @checked(
        elsewhere={
            "revision": "model_kwargs={'revision': ...}",
            "trust_remote_code": "model_kwargs={'trust_remote_code': True}",
        }
    )
    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        adapter: str | os.PathLike[str] | None = None,
        name: str | None = None,
        dtype: str = "auto",
        device: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        repetition_penalty: RepetitionPenalty = None,
        thinking_tokens: ThinkingTokens = 1024,
        prefix_cache: PrefixCache = True,
    ) -> None:
        is_named = isinstance(model, (str, os.PathLike))
        _refuse_tokenizer(model, tokenizer, is_named)
        label = os.fspath(model) if is_named else type(model).__name__
        if is_named:
            check_argument(label, "TransformersMember", ["transformers"], "a hub id or a folder")
        settings = MemberSettings(
            chat_template,
            dict(chat_template_kwargs or {}),
            system_prompt,
            repetition_penalty,
            thinking_tokens,
        )
        super().__init__(
            Source(label, dtype, device, _checked_kwargs(model_kwargs)),
            settings,
            adapter=adapter,
            name=name,
            prefix_cache=prefix_cache,
            in_memory=None if is_named else _in_memory(model, tokenizer),
        )
        _refuse_without_engine()

    def _new_cache(self, weights: Any, adapter: Any) -> ModelCache:
        from .cache import best_cache

        return best_cache(weights, adapter, self.name)

    def _load_weights(self) -> TransformersWeights:
        from .model import load

        return load(self.source, self.name)


def _in_memory(model: Any, tokenizer: Any) -> TransformersWeights:
    from .model import in_memory

    return in_memory(model, tokenizer)


def _refuse_without_engine() -> None:
    for module in ("torch", "transformers"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(
                f"TransformersMember needs {module}, which is not installed\n"
                '-> pip install "langchain-specfuse[transformers]"',
                name=module,
            )


# --- checks ---------------------------------------------------------------------------------------


def _refuse_tokenizer(model: Any, tokenizer: Any, is_named: bool) -> None:
    if not is_named and tokenizer is None:
        error = UsageError(
            f"a model in memory needs its tokenizer too, got {type(model).__name__} alone"
        )
        raise advised(error, "TransformersMember(model, tokenizer)")
    if is_named and tokenizer is not None:
        raise advised(
            UsageError("a tokenizer is only given along with a model in memory"), "leave it out"
        )


def _checked_kwargs(model_kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    arguments = dict(model_kwargs or {})
    for name, advice in _RESERVED.items():
        if name in arguments:
            raise advised(UsageError(f"model_kwargs must not contain {name!r}"), advice)
    trust = arguments.get("trust_remote_code", False)
    if not isinstance(trust, bool):
        raise UsageError(f"model_kwargs: trust_remote_code must be True or False, got {trust!r}")
    return arguments
