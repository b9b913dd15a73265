"""Lets helpers of tests take every option by its own name, also those of the method."""

from __future__ import annotations

from typing import Any

from langchain_specfuse import Method
from langchain_specfuse.core.options import Settings


def in_method(**options: Any) -> dict[str, Any]:
    """These options of ``Settings`` or of a chat model, with those of the method in ``method``."""
    of_method = {name: options.pop(name) for name in list(options) if name in Method.model_fields}
    if of_method:
        method = Settings(method=options.get("method", "robust")).method
        options["method"] = Method(**{**dict(method), **of_method})
    return options


def changed(settings: Settings, **options: Any) -> Settings:
    """These settings with other options, also of the method."""
    return settings.model_copy(update=in_method(method=settings.method, **options))
