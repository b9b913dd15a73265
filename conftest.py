"""Leaves modules that need a newer langchain-core out of the doctests."""

from __future__ import annotations

from langchain_core import version

collect_ignore = []
if tuple(map(int, version.VERSION.split(".")[:2])) < (1, 8):
    collect_ignore.append("langchain_specfuse/chat/decisions.py")
