"""What a TransformersMember loads, and how. This module needs neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...errors import MemberError, advised
from ..files import refuse_unsafe

_TOKENIZER_TOO = ("revision", "trust_remote_code")
"""Arguments of from_pretrained that the tokenizer and the config take as well."""


@dataclass(frozen=True)
class Source:
    """What to load and how: everything that makes two loads the same."""

    model: str
    dtype: str = "auto"
    device: str | None = None
    model_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """More arguments of ``from_pretrained``."""

    @property
    def revision(self) -> str | None:
        return self.model_kwargs.get("revision")

    @property
    def common(self) -> dict[str, Any]:
        """Arguments for model, tokenizer and config. Code of the repository runs only if the user
        says so."""
        arguments: dict[str, Any] = {"revision": None, "trust_remote_code": False}
        for name in _TOKENIZER_TOO:
            if name in self.model_kwargs:
                arguments[name] = self.model_kwargs[name]
        return arguments

    def located(self) -> str:
        """The folder or hub id."""
        path = Path(self.model).expanduser()
        looks_local = self.model.startswith((".", "/", "~", "\\")) or path.exists()
        if not looks_local:
            return self.model
        if not path.is_dir():
            problem = "is a file, not a folder with a model" if path.exists() else "does not exist"
            error = MemberError(f"{self.model} {problem}", kind="not_found")
            raise advised(
                error, "name a folder with *.safetensors, or a hub id; .gguf is for LlamaCppMember"
            )
        refuse_unsafe(path)
        return str(path)
