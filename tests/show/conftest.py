"""A real browser for the page, where there is one; where there is none, the end of the test run says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_MISSING: list[str] = []


def chromium() -> str | None:
    """The path of a Chromium: ``SPECFUSE_CHROMIUM``, or the first that is installed."""
    return os.environ.get("SPECFUSE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _MISSING:
        told = f"NO BROWSER, so the page was not opened in one ({_MISSING[0]}). `make browser` installs it."
        terminalreporter.write_line(told, yellow=True, bold=True)


def _absent(why: str) -> None:
    _MISSING.append(why)
    if os.environ.get("SPECFUSE_NEEDS_BROWSER"):
        pytest.fail(f"{why}, and SPECFUSE_NEEDS_BROWSER is set: make browser")
    pytest.skip(f"{why}: make browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """For a module only: while it runs, its event loop would disturb asynchronous tests."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        _absent("playwright is not installed")
    with sync_playwright() as play:
        path = chromium() or play.chromium.executable_path  # the second: playwright's own, where it has been loaded
        if not Path(path).exists():
            _absent("no Chromium was found")
        opened = play.chromium.launch(executable_path=path, args=["--no-sandbox"])  # tests may run as root
        yield opened
        opened.close()


class Sheet:
    """An opened page, and everything that it should not have done."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("dialog", lambda dialog: (self.trouble.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("pageerror", lambda error: self.trouble.append(f"error {error}"))
        page.on("console", lambda line: self.trouble.append(f"console {line.text}"))
        page.on("request", self._asked)

    def _asked(self, request: Any) -> None:
        if not (request.is_navigation_request() and request.url.startswith("file:")):
            self.trouble.append(f"request {request.url}")

    def unfold(self, place: str = "") -> None:
        """Open everything that is folded there; a browser tells the page of it a little later."""
        for summary in self.page.locator(f"{place} summary".strip()).all():
            summary.click()
        filled = "[...document.querySelectorAll('details[open]')].every(one => one.children.length > 1)"
        for _ in range(500):  # no wait_for_function: the page's policy forbids what that does
            if self.page.evaluate(filled):
                return
            self.page.wait_for_timeout(10)
        pytest.fail("what was opened is still empty")

    def text(self, place: str) -> str:
        return str(self.page.inner_text(place))


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Sheet]]:
    """Saves a trace (or HTML) and opens it; at the end nothing may have gone wrong, and nothing been asked for."""
    sheets: list[Sheet] = []

    def open_(what: Any, **options: Any) -> Sheet:
        file = tmp_path / f"run-{len(sheets)}.html"
        if isinstance(what, str):
            file.write_text(what, encoding="utf-8")
        else:
            what.save(file)
        size = options.pop("viewport", {"width": 1280, "height": 900})
        sheets.append(Sheet(browser.new_page(viewport=size, **options)))
        sheets[-1].page.goto(file.as_uri())
        return sheets[-1]

    yield open_
    trouble = [told for sheet in sheets for told in sheet.trouble]
    for sheet in sheets:
        sheet.page.close()
    assert trouble == []
