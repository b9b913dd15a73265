"""The tokenizer of a model that runs elsewhere, from a folder here; and which tokens end its turns.

Needs transformers where a folder is named, but neither torch nor weights. Knows nothing of servers.
"""

from __future__ import annotations

import os
from typing import Any

from ..errors import UsageError, advised
from ._remote import RemoteTokenizer
from ._template import Template, end_of_turn, stop_ids

SHOWN = 300
"""So many characters of what transformers says are passed on."""


def tokenizer_in(given: Any) -> Any:
    """A tokenizer in this process; needs transformers, but no torch and no weights."""
    if not isinstance(given, (str, os.PathLike)):
        return given
    try:
        from transformers import AutoTokenizer
    except ModuleNotFoundError as error:
        missing = UsageError(f"a local tokenizer needs {error.name}, which is not installed")
        raise advised(missing, "pip install transformers, or leave tokenizer= out: the server is asked") from error
    path, gguf = os.fspath(given), {}
    if path.endswith(".gguf"):
        path, gguf = os.path.dirname(path) or ".", {"gguf_file": os.path.basename(path)}
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=False, **gguf)
    except (OSError, ValueError) as error:
        unread = UsageError(f"no tokenizer can be read at {os.fspath(given)!r}: {str(error)[:SHOWN]}")
        advice = "name the folder or hub id of the model's own, or leave tokenizer= out: the server is asked"
        raise advised(unread, advice) from error


def stops_of(tokenizer: Any, template: Template, given: Any) -> list[int]:
    """The tokens that end a turn, as far as tokenizer, template and generation config tell them."""
    if isinstance(tokenizer, RemoteTokenizer):
        return [] if template.plain else tokenizer.stops()
    return stop_ids(tokenizer, _generation_config(given), end_of_turn(template))


def _generation_config(given: Any) -> Any:
    """What a folder says about how generation ends."""
    if not isinstance(given, (str, os.PathLike)):
        return None
    from transformers import GenerationConfig

    try:
        return GenerationConfig.from_pretrained(os.fspath(given))
    except (OSError, ValueError):  # it says nothing
        return None
