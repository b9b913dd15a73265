"""Every example runs as it is and prints the expected lines."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from types import ModuleType

import pytest
from langchain_core.embeddings import DeterministicFakeEmbedding
from members.fake_provider import Call, FakeProvider, Reply, Text

import langchain_specfuse
from langchain_specfuse import ScriptedMember, demo_members, unload

from .blocks import ROOT

EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}
SCRIPTED = {
    "code_that_runs": "agreed by bob and dan",
    "endpoint": "|\nwritten by {'ann': 1.0}",
    "failover": "[first left: its reply broke off after 32 characters (ConnectionError: peer closed",
    "testing": "all fine",
}
"""Example -> parts of what it prints."""
BUS = "The bus goes every 10 minutes [1]."
MERGED = Text("Pack a coat. It rains.")
HOSTED = {
    "agent": (
        [
            Reply([Call("refund", ('{"order": 17, "amount": 900}',))]),
            Reply([Call("refund", ('{"order": 17, "amount": 90}',))]),
            Reply([Text("You get 90 euros", " back for order", " 17 now.")], cut=3),
        ],
        [Reply([Text(" 17 within", " three days.")])],
        [
            "[refused: pays 900 euros, more than 100]",
            "[tool: 90 euros are on their way to the customer of order 17]",
            "failed, the next model goes on]",
            "three days.",
        ],
    ),
    "auto_mode": (
        [
            Reply([Call("read_file", ('{"path": "/logs/list.txt"}',))]),
            Reply([Call("delete_files", ('{"folder": "/"}',), id="call_0002")]),
            Reply([Text("I have read it, and deleted nothing.")]),
        ],
        [],
        [
            "tool: /logs/list.txt: three old logs",
            "was blocked because it was classified as risky",
            "ai: I have read it, and deleted nothing.",
        ],
    ),
    "fusion": (
        lambda body: Reply([Text("Pack a coat.")] if body["model"] == "gpt-5-mini" else [MERGED]),
        [Reply([Text("It rains.")])],
        [MERGED.whole],
    ),
    "rag": (
        [Reply([Text("The bus goes every 15 minutes [1].")]), Reply([Text(BUS)])],
        [],
        [BUS],
    ),
    "redaction": (
        [Reply([Text("Ann Smith (ann.smith@exam", "ple.com) pays for PX-4711", ".")])],
        [],
        ["[name] ([redacted]) pays for [project].", "redact(email): 1 replaced"],
    ),
}
"""Example -> what OpenAI's models reply, what Anthropic's reply, and parts of what it prints."""
REAL = {
    "own_model": "teacher",
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


class WordEmbeddings(DeterministicFakeEmbedding):
    """In the place of OpenAI's: texts that share words are similar."""

    size: int = 512

    def __init__(self, **options: object) -> None:
        super().__init__()

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        words = [super(WordEmbeddings, self).embed_query(word) for word in text.lower().split()]
        return [sum(values) for values in zip(*words, strict=True)]


class Careful(ScriptedMember):
    """In the place of the demo's models: finds it risky to delete."""

    def __init__(self) -> None:
        super().__init__(lambda query: "yes" if "delete" in str(query) else "no", name="guard")


@pytest.mark.parametrize("name", HOSTED)
def test_an_example_with_hosted_models_runs(name, capsys, monkeypatch):
    unload()  # models that another example made from their names have another address
    openai_replies, anthropic_replies, parts = HOSTED[name]
    if callable(openai_replies):
        openai_replies = [openai_replies]
    for kind, replies in (("openai", openai_replies), ("anthropic", anthropic_replies)):
        server = FakeProvider(kind, *replies)
        path = "/v1" if kind == "openai" else ""
        monkeypatch.setenv(f"{kind.upper()}_BASE_URL", server.url + path)
        monkeypatch.setenv(f"{kind.upper()}_API_KEY", "none")
        monkeypatch.delenv(f"{kind.upper()}_API_URL", raising=False)
    pytest.importorskip("langchain.agents", reason="langchain is not installed")
    monkeypatch.setattr("langchain_openai.OpenAIEmbeddings", WordEmbeddings)
    monkeypatch.setattr(langchain_specfuse, "demo_members", lambda: [Careful()])
    try:
        runpy.run_path(str(EXAMPLES[name]), run_name="__main__")
    finally:
        unload()
    shown = capsys.readouterr().out
    for part in parts:
        assert part in shown


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


def test_every_example_is_tested_and_says_how_to_run_it():
    assert set(EXAMPLES) == {*SCRIPTED, *HOSTED, *REAL, *RAY, *GUARDRAILS}
    texts = {name: path.read_text() for name, path in EXAMPLES.items()}
    for name, text in texts.items():
        head = text.split('"""')[1]
        assert "pip install" in head and f"examples/{name}.py" in head
