"""Photographs the page of a run in a real browser, light and dark. Knows traces and a browser, nothing of the docs.

Needs playwright and a Chromium: ``make browser``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

from langchain_specfuse import Trace

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
SIZE = {"width": 1200, "height": 1040}


def shot(trace: Trace, folder: Path, name: str = "page") -> list[Path]:
    """The page as it opens, with the most divided round chosen: ``page-light.png`` and ``page-dark.png``."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("SPECFUSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        sys.exit("no Chromium was found: make browser")
    divided = max(range(len(trace.rounds)), key=lambda at: trace.rounds[at].get("dissent") or 0.0)
    made = []
    with tempfile.TemporaryDirectory() as held, sync_playwright() as play:
        page_file = Path(held) / "run.html"
        trace.save(page_file)
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme)  # type: ignore[arg-type]
            page.goto(page_file.as_uri())
            page.click(f".segment >> nth={divided}")
            page.evaluate("document.activeElement.blur()")
            made.append(folder / f"{name}-{scheme}.png")
            page.screenshot(path=made[-1])
        browser.close()
    return made
