"""``langchain-specfuse doctor --decisions FILE``: fit how these members decide to labelled
examples."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TextIO

from ..core.options import Settings
from ..errors import amount
from .choices import ensemble_of, options_of, say


def run(arguments: argparse.Namespace, out: TextIO) -> bool:
    """Fit, print how good the probabilities are, and write the calibration if a file is named."""
    from ..chat.label_calibrations import write_labels
    from ..evaluation.decisions import examples_of, fitted_to, text_of
    from ..show.terminal import one_line, visible

    examples = examples_of(arguments.decisions)
    settings = Settings(**options_of(arguments))
    ensemble = ensemble_of(arguments)
    count = len(examples.texts)
    if not arguments.quiet:
        say(f"{amount(count, 'example')}, {len(examples.question.labels)} labels")

    def watch(done: int, whole: int) -> None:
        if arguments.quiet:
            return
        if sys.stderr.isatty():
            end = "\n" if done == whole else ""
            print(f"\r{done} of {whole}", end=end, file=sys.stderr, flush=True)
        else:
            say(f"{done} of {amount(whole, 'example')}")

    fitted = fitted_to(examples, ensemble, settings, watch=watch)
    if arguments.calibration:
        write_labels(Path(arguments.calibration), fitted.calibration)
    content = json.dumps(fitted.as_dict()) if arguments.json else visible(text_of(fitted))
    print(content, file=out)
    if arguments.calibration and not arguments.json:
        file = one_line(arguments.calibration)
        print(f"\nWrote {file}. With the same members, use it as", file=out)
        print(f"  SpecFuseDecisionModel(members=[...], calibration={file!r})", file=out)
    return True
