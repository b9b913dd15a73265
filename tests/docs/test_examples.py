"""Every example runs as it is and prints the expected lines."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest

import langchain_specfuse
from langchain_specfuse import demo_members, unload

from .blocks import ROOT
from .shell import Actor

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
SCRIPTED = {
    "agent_checks": " [pays 900, more than 100]\n [paid 90]\n",
    "async_batch": "1 2 3 4 5 6 7 8 9 done.",
    "code_that_runs": "agreed by bob and dan",
    "endpoint": "|\nwritten by {'ann': 1.0}",
    "events": "cyd left",
    "failover": "[first left: its reply broke off after 32 characters (ConnectionError: peer closed",
    "fusion": "Pack a coat. It rains.\n",
    "langgraph_node": "tools 'The next train to Ulm leaves at 10:42.'",
    "testing": "all fine",
}
"""Example -> parts of what it prints."""
REAL = {
    "agent": "tool: The museum is open from 10 to 5.",
    "chain": "library",
    "checks": "no_first_person: ",
    "own_model": "teacher",
    "quickstart": "rounds, written by",
    "rag": "[2]",
    "structured": "Booking(name=",
}
GUARDRAILS = {"guardrails_validator": "Most last for ten years."}
RAY = {
    "ray_cluster": "ann answers from a process of its own",
    "serve_ray": "The sky is blue because the air scatters short waves.\n" * 4,
}


def printed(name: str) -> str:
    """Run the example in a process of its own and return its output."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, EXAMPLES[name]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", SCRIPTED)
def test_an_example_with_scripted_members_runs(name, capsys, monkeypatch):
    for provider in ("OPENAI", "ANTHROPIC", "GOOGLE"):
        monkeypatch.delenv(f"{provider}_API_KEY", raising=False)
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    assert SCRIPTED[name] in capsys.readouterr().out


@pytest.fixture(scope="module")
def members():
    """Load the demo's members once for all examples of this process."""
    demo = demo_members()
    yield demo
    unload(*demo)


@pytest.mark.real
@pytest.mark.long
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", REAL)
def test_an_example_with_real_models_runs(name, members, monkeypatch, capsys):
    monkeypatch.setattr(langchain_specfuse, "demo_members", lambda: members)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    assert REAL[name] in capsys.readouterr().out


@pytest.mark.serving
@pytest.mark.parametrize("name", RAY)
def test_an_example_on_a_ray_cluster_runs(name):
    if name == "serve_ray" and not find_spec("aiohttp_cors"):
        pytest.skip("ray[serve] is not installed")
    assert RAY[name] in printed(name)


@dataclass
class FailResult:
    """What a validator of Guardrails returns about a text that fails."""

    error_message: str


class Validator:
    """The part of Guardrails' base class that its documentation describes."""

    rail_alias = ""

    def validate(self, value: str, metadata: dict[str, object]) -> object:
        return self._validate(value, metadata)


def register_validator(name: str, data_type: str):
    def register(validator: type[Validator]) -> type[Validator]:
        validator.rail_alias = name
        return validator

    return register


@pytest.fixture
def guardrails(monkeypatch):
    """Guardrails AI, or the few documented names of it that the example uses."""
    if find_spec("guardrails"):
        return
    module = ModuleType("guardrails.validators")
    vars(module).update(
        FailResult=FailResult,
        PassResult=type("PassResult", (), {}),
        ValidationResult=object,
        Validator=Validator,
        register_validator=register_validator,
    )
    monkeypatch.setitem(sys.modules, "guardrails", ModuleType("guardrails"))
    monkeypatch.setitem(sys.modules, "guardrails.validators", module)


@pytest.mark.usefixtures("guardrails")
@pytest.mark.parametrize("name", GUARDRAILS)
def test_an_example_with_a_validator_of_guardrails_runs(name, capsys):
    runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    printed = capsys.readouterr().out
    assert GUARDRAILS[name] in printed
    assert "guarantee" not in printed


NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
BENEFITS = {
    "first_steps": "[provider left: its reply broke off after",
    "does_it_help": "with the check  100.0",
}
"""Notebook -> a part of what it prints with real models."""


def run_notebook(path: Path) -> None:
    """Run the notebook's code cells from top to bottom in one namespace."""
    cells = json.loads(path.read_text())["cells"]
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in cells:
        if cell["cell_type"] == "code":
            where = f"{path.name} {cell['id']}"
            # A notebook does not have the future features of this file.
            exec(compile("".join(cell["source"]), where, "exec", dont_inherit=True), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_with_scripted_members_and_has_outputs(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = ("SmolLM2-135M", "Gemma-3-270M")
    monkeypatch.setattr(
        langchain_specfuse, "demo_members", lambda size: [Actor(name=name) for name in names]
    )
    run_notebook(path)
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    assert any(cell["outputs"] for cell in cells)
    assert not [
        output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"
    ]


@pytest.mark.real
@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_shows_its_benefit_with_real_models(path, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    run_notebook(path)
    assert BENEFITS[path.stem] in capsys.readouterr().out


def test_every_example_is_tested_and_says_what_it_shows():
    assert set(EXAMPLES) == {*SCRIPTED, *REAL, *RAY, *GUARDRAILS}
    texts = {name: path.read_text() for name, path in EXAMPLES.items()}
    assert all(text.startswith('"""') for text in texts.values())
