"""Serve an ensemble over HTTP with OpenAI's protocols, chat completions and responses."""

from .app import app_of
from .requests import Limits

__all__ = ["Limits", "app_of"]
