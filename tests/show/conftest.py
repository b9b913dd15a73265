"""A real browser for the page, if there is one; if not, the end of the test run says so."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
)
_MISSING: list[str] = []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if _MISSING:
        warning = (
            f"NO BROWSER, so the page was not opened in one ({_MISSING[0]}). `scripts/browser` "
            "installs it."
        )
        terminalreporter.write_line(warning, yellow=True, bold=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One per module: while it runs, its event loop disturbs asynchronous tests."""
    with pytest.importorskip("playwright.sync_api").sync_playwright() as play:
        installed = os.environ.get("SPECFUSE_CHROMIUM") or next(
            filter(None, map(shutil.which, NAMES)), None
        )
        path = installed or play.chromium.executable_path
        if not Path(path).exists():
            _MISSING.append("no Chromium was found")
            if os.environ.get("SPECFUSE_NEEDS_BROWSER"):
                pytest.fail(
                    "no Chromium was found, and SPECFUSE_NEEDS_BROWSER is set: run scripts/browser"
                )
            pytest.skip("no Chromium was found: run scripts/browser")
        # tests may run as root
        opened = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield opened
        opened.close()


class Opened:
    """An opened page, and everything that went wrong on it. It may ask the server that it came
    from, if any."""

    def __init__(self, page: Any, server: str = "no server") -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on(
            "dialog",
            lambda dialog: (self.trouble.append(f"dialog {dialog.message}"), dialog.dismiss()),
        )
        page.on("pageerror", lambda error: self.trouble.append(f"error {error}"))
        page.on("console", self._note)
        page.on(
            "request",
            lambda request: (
                request.url.startswith(server) or self.trouble.append(f"request {request.url}")
            ),
        )

    def _note(self, line: Any) -> None:
        # A whole Chromium asks for an icon, which the page's policy forbids. It gets 404 where a
        # test bypasses the policy (Debian's Chromium 150 and 156; a headless shell never asks).
        if not line.location["url"].endswith("/favicon.ico"):
            self.trouble.append(f"console {line.text}")

    def unfold(self, place: str = "") -> None:
        """Open everything that is folded there. The page is notified a little later."""
        for summary in self.page.locator(f"{place} summary".strip()).all():
            summary.click()
        filled = (
            "[...document.querySelectorAll('details[open]')].every(one => one.children.length > 1)"
        )
        for _ in range(3000):  # no wait_for_function: the page's policy forbids it
            if self.page.evaluate(filled):
                return
            self.page.wait_for_timeout(10)
        pytest.fail("an opened part is still empty")

    def text(self, place: str) -> str:
        return str(self.page.inner_text(place))

    def segments(self) -> list[str]:
        """The text of each segment of the answer that is shown, without remarks."""
        every = """all => all.map((one) =>
          [...one.querySelectorAll(".piece")].map((piece) => piece.textContent).join(""))"""
        return list(self.page.eval_on_selector_all(".segment", every))

    def texts(self, place: str) -> list[str]:
        """The text of each element there."""
        return list(self.page.eval_on_selector_all(place, "all => all.map(one => one.textContent)"))


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Opens HTML, or an address. In the end there must be no error, and no request elsewhere."""
    pages: list[Opened] = []

    def open_(html: str = "", *, url: str = "", **options: Any) -> Opened:
        if url:
            pages.append(Opened(browser.new_page(**options), url))
            pages[-1].page.goto(url)
            return pages[-1]
        file = tmp_path / f"run-{len(pages)}.html"
        file.write_text(html, encoding="utf-8")
        pages.append(Opened(browser.new_page(**options)))
        pages[-1].page.goto(file.as_uri())
        assert pages[-1].trouble.pop(0) == f"request {file.as_uri()}"
        return pages[-1]

    yield open_
    trouble = [event for page in pages for event in page.trouble]
    for page in pages:
        page.page.close()
    assert trouble == []
