"""Puts scripted members in the place of the demo's: without ``--members`` the command asks these."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from langchain_specfuse import ScriptedMember, demo


def replace_demo(members: Sequence[Any], replace: Callable[[Any, str, Any], Any] = setattr) -> None:
    """Let these members be the demo. ``replace`` may be ``monkeypatch.setattr``."""
    replace(demo, "to_fetch", lambda *size: ())
    replace(demo, "ensemble", lambda *size: members)
    replace(demo, "demo_members", lambda *size: list(members))


class SlowMember(ScriptedMember):
    """Takes a moment for each draft, so that its process can be killed during one. Processes can
    import it."""

    def draft(self, jobs: Sequence[Any]) -> Any:
        time.sleep(0.15)
        return super().draft(jobs)
