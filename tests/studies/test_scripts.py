"""The studies' scripts say what their arguments are."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.mark.long
@pytest.mark.parametrize("script", ["checked", "evasion", "transcripts"])
def test_a_script_says_what_its_arguments_are(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [script, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(STUDIES / f"{script}.py"), run_name="__main__")
    assert ended.value.code == 0 and "usage" in capsys.readouterr().out
