"""Serve an ensemble over HTTP with OpenAI's chat completions protocol."""

from .app import app_of
from .requests import Limits

__all__ = ["Limits", "app_of"]
