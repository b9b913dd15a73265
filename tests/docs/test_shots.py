"""The photographs of the documentation can be made again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from .blocks import ROOT

pytest.importorskip("playwright")
NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
if not (os.environ.get("SPECFUSE_CHROMIUM") or any(map(shutil.which, NAMES))):
    pytest.skip("no Chromium was found: make browser", allow_module_level=True)

CODE = """
import sys, pathlib
import build, shots
shots.shot(build.recorded_trace(), pathlib.Path(sys.argv[1]))
"""


def test_the_page_of_the_recorded_run_is_photographed_in_light_and_in_dark(tmp_path):
    """In a process of its own: the browser's event loop would disturb asynchronous tests."""
    told = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "docs")])}
    subprocess.run([sys.executable, "-c", CODE, tmp_path], check=True, env=told, timeout=60)
    light, dark = ((tmp_path / f"page-{scheme}.png").read_bytes() for scheme in ("light", "dark"))
    assert light[:8] == dark[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(light) > 20_000 and len(dark) > 20_000 and light != dark


def test_the_photographs_that_the_pages_show_are_there():
    for scheme in ("light", "dark"):
        assert (ROOT / "docs" / "pictures" / f"page-{scheme}.png").stat().st_size > 20_000
