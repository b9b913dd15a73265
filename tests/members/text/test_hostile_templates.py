"""A hostile chat template reaches nothing."""

from __future__ import annotations

import pytest

from langchain_specfuse import UsageError
from langchain_specfuse.core.values import Turn
from langchain_specfuse.members.text.templates import Template
from tests.members import tiny

TURNS = [Turn("user", "Why?")]
BREAKING_OUT = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals of a macro": "{% macro f() %}{% endmacro %}{{ f.__globals__ }}",
    "globals of a function": "{{ raise_exception.__globals__ }}",
    "builtins": "{{ namespace.__init__.__globals__['__builtins__'] }}",
    "by attr": "{{ ''|attr('__class__') }}",
    "by map": "{{ [''] | map(attribute='__class__') | list | string }}",
    "by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "by format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "the template itself": "{{ self._TemplateReference__context.environment.globals }}",
    "cycler": "{{ cycler.__init__.__globals__.os.popen('touch BROKEN').read() }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('touch BROKEN').read() }}",
    "a file": "{% include '/etc/passwd' %}",
    "an import": "{% import '/etc/passwd' as x %}{{ x }}",
    "another template": "{% extends '/etc/passwd' %}",
    "the messages": "{% set _ = messages.append(messages[0]) %}{{ messages | length }}",
}
SECRETS = ("<class", "<module", "root:", "os.", "built-in", "<function", "<Environment")


def template(text: str) -> Template:
    return Template(tiny.tokenizer_of("bytes", text), "hostile", None, None)


@pytest.mark.parametrize("how", BREAKING_OUT)
def test_a_template_reaches_nothing_but_its_arguments(how, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        shown = template(BREAKING_OUT[how]).prompt(TURNS)
    except UsageError as error:
        shown = str(error)
    assert not any(secret in shown for secret in SECRETS), shown
    assert list(tmp_path.iterdir()) == []
