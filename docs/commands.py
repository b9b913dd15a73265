"""The options of the commands as tables, from the parsers themselves: the same on every version of Python.

Knows argparse; nothing of what the options do.
"""

from __future__ import annotations

import argparse


def options(parser: argparse.ArgumentParser) -> str:
    """Every option with its help, in the parser's groups."""
    parts = []
    for group in parser._action_groups:
        rows = [_row(action) for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
        if rows:
            parts += [*_title(group.title), "| option | what it does |", "|---|---|", *rows, ""]
    return "\n".join(parts)


def _title(given: str | None) -> list[str]:
    """Our own groups have names; argparse's two say nothing, and not always the same."""
    return [] if given in ("positional arguments", "options", "optional arguments") else [f"**{given}**", ""]


def _row(action: argparse.Action) -> str:
    names = ", ".join(f"`{name}`" for name in action.option_strings) or f"`{action.dest}`"
    value = f" `{action.metavar}`" if action.option_strings and isinstance(action.metavar, str) else ""
    choices = f" ({', '.join(f'`{one}`' for one in action.choices)})" if action.choices else ""
    told = (action.help or "").replace("%(default)s", str(action.default)).replace("%%", "%").replace("|", "\\|")
    return f"| {names}{value} | {told}{choices} |"
