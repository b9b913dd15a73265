"""The path of a question through the package: which files it enters when its member is loaded, in
order, and how many classes' methods it calls.

One member in this process is asked twice; the second answer is counted. A figure that grows says
that a reader must open one more file to follow a question.

    python benchmarks/route.py [FILE.gguf] [--classes]
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

import langchain_specfuse
from langchain_specfuse import LlamaCppMember, SpecFuseChatModel
from langchain_specfuse.demo import SMOLLM2, file_of

PACKAGE = Path(langchain_specfuse.__file__).parent
QUESTION = "Name one colour."
FORGOTTEN_S = 1.0
"""After this long, the worker's thread has freed what was kept for a question."""


class Route:
    """The files of the package and the classes of ``self`` whose code runs, in any thread."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        """File -> the first function of it that was called."""
        self.classes: dict[str, None] = {}

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call":
            return
        if code.co_filename.startswith(str(PACKAGE)):
            file = Path(code.co_filename).relative_to(PACKAGE).as_posix()
            self.files.setdefault(file, code.co_qualname)
        if code.co_argcount and code.co_varnames[0] == "self":  # also methods of dataclasses
            kind = type(frame.f_locals["self"])
            if kind.__module__.startswith("langchain_specfuse"):
                self.classes[f"{kind.__module__}.{kind.__qualname__}"] = None


def route(model: str) -> Route:
    """The path of the second question to this model."""
    found = Route()
    threading.setprofile(found.note)  # of threads that begin from now on
    sys.setprofile(found.note)
    llm = SpecFuseChatModel(members=[LlamaCppMember(model)], max_tokens=12)
    llm.invoke(QUESTION)
    time.sleep(FORGOTTEN_S)
    found.files.clear()
    found.classes.clear()
    llm.invoke(QUESTION)
    time.sleep(FORGOTTEN_S)
    sys.setprofile(None)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=str(file_of(SMOLLM2)), help="a .gguf file")
    parser.add_argument("--classes", action="store_true", help="list the classes, too")
    given = parser.parse_args()
    found = route(given.model)
    for number, (file, function) in enumerate(found.files.items(), 1):
        print(f"{number:3} {file:36} {function}")
    print(f"{len(found.files)} files, {len(found.classes)} classes")
    if given.classes:
        print(*sorted(found.classes), sep="\n")


if __name__ == "__main__":
    main()
