"""Load a name from a Python file of the user's own: ``path/to/file.py:name``."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from .errors import UsageError, advised


def named_in_file(path: str, attribute: str, what: str) -> tuple[Any, str]:
    """Load the attribute of the file, and return it with the file's text. ``what`` says what it is
    for, in errors."""
    try:
        source = Path(path).read_text(errors="replace")
        module = _module(path, what)
    except Exception as error:
        unusable = UsageError(
            f"the {what}'s file {path} cannot be used: {type(error).__name__}: {error}"
        )
        raise advised(unusable, f"python {path} must run without an error") from error
    if not hasattr(module, attribute):
        missing = UsageError(f"{path} has no {attribute!r}")
        raise advised(missing, "FILE.py:NAME names something that the file defines")
    return getattr(module, attribute), source


def _module(path: str, what: str) -> Any:
    """Import the file as a module. It can import its neighbours, as if it were run as a script."""
    name = f"specfuse_{what}_{Path(path).stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for the names in annotations
    add_to_path(Path(path).resolve().parent)
    spec.loader.exec_module(module)
    return module


def add_to_path(folder: Path) -> None:
    """Let modules of this folder be imported. It comes last in the path, so that it hides no
    installed module. It stays there, because functions may import something later."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
