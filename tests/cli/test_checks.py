"""``--check``: ready-made checks, functions of files and modules, and errors that say what is
wrong."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from langchain_specfuse import SpecFuseChatModel, UsageError
from langchain_specfuse.cli import serve
from langchain_specfuse.cli.checks import checks_of

RULES = """
from langchain_specfuse import checks
from neighbour import WORD

def no_promises(text):
    return "promises something" if WORD in text else None

def with_context(text, context):
    return None

calm = checks.at("sentence", no_promises, name="calm")
number = 7

def without_text():
    return None

class Rule:
    def __call__(self, text):
        return None
"""


@pytest.fixture
def rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "neighbour.py").write_text("WORD = 'guarantee'\n")
    file = tmp_path / "rules.py"
    file.write_text(RULES)
    return str(file)


def test_ready_made_checks_have_arguments(tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"type": "object"}))
    found = checks_of(
        [
            "forbids:a:b",
            "requires:x",
            "max_words:80",
            "max_sentences:3",
            "lowercase",
            "grounded",
            "python",
            f"json_schema:{schema}",
        ]
    )
    assert len({check.name for check in found}) == 8
    assert found[0].function("so a:b") and not found[0].function("so a")
    assert found[2].function("word " * 81) and not found[2].function("word " * 80)


def test_functions_of_files_and_modules_are_checks(rules: str) -> None:
    names = ["no_promises", "with_context", "calm"]
    found = checks_of([f"{rules}:{name}" for name in names] + ["json:loads"])
    assert [check.name for check in found] == [*names, "loads"]
    assert found[0].function("I guarantee it") == "promises something"
    assert found[2].at == "sentence"


def test_a_module_of_the_current_folder_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "house").mkdir()
    (tmp_path / "house" / "style.py").write_text("def calm(text):\n    return None\n")
    assert checks_of(["house.style:calm"])[0].name == "calm"


@pytest.mark.parametrize(
    ("argument", "message", "advice"),
    [
        ("forbid:x", "there is no check or module 'forbid'", "did you mean 'forbids'?"),
        ("nonsense", "there is no check 'nonsense'", "there are forbids, "),
        ("rules.py", "no function of this file is named", "--check rules.py:FUNCTION"),
        ("forbids", "needs an argument", "--check forbids:PATTERN"),
        ("max_words:", "needs an argument", "--check max_words:N"),
        ("max_words:many", "whole number, got 'many'", "for example"),
        ("max_words:-1", "max_words:-1", "for example"),
        ("forbids:(", "forbids:(", "for example"),
        ("lowercase:x", "takes no argument, got 'x'", "--check lowercase"),
        ("json_schema:nowhere.json", "nowhere.json cannot be read", "for example"),
        ("no_such_module:rule", "no check or module 'no_such_module'", "there are forbids, "),
        ("json:no_rule", "json has no function 'no_rule'", "MODULE:FUNCTION"),
        ("nowhere.py:rule", "nowhere.py cannot be used", "must run without an error"),
        ("{rules}:rule", "has no 'rule'", "FILE.py:NAME"),
        ("{rules}:number", "checks must be functions, got int", "a check takes the text"),
        ("{rules}:Rule", "checks must be functions, got type", "a check takes the text"),
        ("{rules}:without_text", "cannot be called with a text", "a check takes the text"),
    ],
)
def test_a_wrong_check_is_refused_with_advice(
    rules: str, argument: str, message: str, advice: str
) -> None:
    argument = argument.replace("{rules}", rules)
    with pytest.raises(UsageError) as error:
        checks_of([argument])
    assert message in str(error.value) and argument.split(":")[0] in str(error.value)
    assert advice in "\n".join(error.value.notes)


def served(*arguments: str) -> SpecFuseChatModel:
    return serve.chat_model(
        serve.parser().parse_args(["--members", "a.gguf", "b.gguf", *arguments])
    )


def test_a_server_has_its_checks_for_everybody(rules: str) -> None:
    llm = served("--check", f"{rules}:no_promises", "--check", "max_words:80")
    assert [check.name for check in llm.checks[:1]] == ["no_promises"] and len(llm.checks) == 2
    assert served().checks == []


def test_an_error_of_the_file_is_the_reason(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    file.write_text("import nothing_like_this\n")
    with pytest.raises(UsageError, match="No module named 'nothing_like_this'") as error:
        checks_of([f"{file}:rule"])
    assert isinstance(error.value.__cause__, ModuleNotFoundError)
