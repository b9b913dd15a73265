"""Leaves out of the doctests what the installed langchain-core does not have."""

from __future__ import annotations

from langchain_core import version

collect_ignore = []
if tuple(map(int, version.VERSION.split(".")[:2])) < (1, 8):
    collect_ignore.append("langchain_specfuse/chat/decisions.py")
