"""Puts scripted members in the place of the demo's: without ``--members`` the command asks these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from langchain_specfuse import demo


def replace_demo(members: Sequence[Any], replace: Callable[[Any, str, Any], Any] = setattr) -> None:
    """Let these members be the demo. ``replace`` may be ``monkeypatch.setattr``."""
    replace(demo, "to_fetch", lambda *size: ())
    replace(demo, "ensemble", lambda *size: members)
    replace(demo, "demo_members", lambda *size: list(members))
