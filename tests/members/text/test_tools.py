"""Tools, calls, results and schemas in a member's prompt, by its template or in words."""

import json

import pytest

from langchain_specfuse.core.values import CallFormat, Constraint, Tool, ToolCall, Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.text.native import plain_id
from langchain_specfuse.members.text.templates import Template
from langchain_specfuse.members.text.words import Words

from .. import tiny

# Invented templates in the style of well-known models, as short as possible.
HERMES = (  # Qwen: tools in the system text, calls between tags, results as the user's words
    "{% if tools %}<|im_start|>system\n{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools><|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}<|im_start|>user\n{{ m.content }}<|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant{% if m.content %}{{ '\n' + m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{% set f = c.function %}{{ '\n' }}<tool_call>\n"
    '{"name": "{{ f.name }}", "arguments": {{ f.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n'
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response><|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
BARE = (  # Llama 3.1: one call a turn, bare JSON with "parameters"
    "<s>{% if tools %}[tools] {% for t in tools %}{{ t | tojson }}{% endfor %}\n{% endif %}"
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('single calls only') }}{% endif %}{% set f = m.tool_calls[0].function %}"
    '[assistant] {"name": "{{ f.name }}", "parameters": {{ f.arguments | tojson }}}</s>'
    "{% elif m.role == 'tool' %}[ipython] {{ m.content | tojson }}</s>{% else %}[{{ m.role }}] {{ m.content }}</s>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}"
)
STRICT = (  # Mistral: no system role, ids of nine characters, a list of calls with ids
    "<s>{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% elif m.role == 'user' %}{% if loop.last and tools %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}[INST] {{ m.content }} [/INST]{% elif m.tool_calls is defined %}[TOOL_CALLS] ["
    "{% for c in m.tool_calls %}{% if c.id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}, "id": "{{ c.id }}"}'
    "{% if not loop.last %}, {% endif %}{% endfor %}]</s>{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('nine characters') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
# takes arguments as JSON text and raises for a mapping
TEXTUAL = HERMES.replace("f.arguments | tojson", "'' + f.arguments")
HOSTILE = (
    "{% if tools %}{{ raise_exception('no tools') }}{% endif %}{% for m in messages %}"
    "{% if m.tool_calls or m.role not in ('user', 'assistant') %}{{ raise_exception('what?') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turn') }}{% endif %}"
    "[{{ m.role }}] {{ m.content }}\n{% endfor %}"
)

WEATHER = Tool(
    "get_weather",
    "How the weather is.",
    '{"type": "object", "properties": {"city": {"type": "string", "description": "which city"}}}',
)
CALL = ToolCall("get_weather", '{"city": "Köln"}', "call_8")
TALK = (
    Turn("system", "Be brief."),
    Turn("user", "Rain?"),
    Turn("assistant", "Let me see.", (CALL,)),
    Turn("tool", "It rains.", name="get_weather", call_id="call_8"),
    Turn("user", "Thanks. And now?"),
)
BODY = {"tools": [{"name": "get_weather", "parameters": {}}], "parallel": False, "name_key": "name"}
FORCED = Constraint("calls", json.dumps(BODY))
AUTO = Constraint("any_of", json.dumps([["prose", ""], ["calls", json.dumps(BODY)]]))
ALL = {
    "hermes": HERMES,
    "bare": BARE,
    "strict": STRICT,
    "textual": TEXTUAL,
    "hostile": HOSTILE,
    "chatml": tiny.CHATML,
}


def template(source, **kwargs):
    return Template(tiny.tokenizer_of("bytes", source), "m", None if source else "plain", kwargs)


# --- what a template knows ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("style", "tools", "calls", "results"),
    [
        ("hermes", True, "dict", True),
        ("bare", True, "dict", True),
        ("strict", True, "dict", True),
        ("textual", True, "text", True),
        ("hostile", False, "no", False),
        ("chatml", False, "no", False),
    ],
)
def test_features_of_a_template_are_detected_by_rendering_it(style, tools, calls, results):
    native = template(ALL[style]).native
    assert (native.tools, native.calls, native.results) == (tools, calls, results)


@pytest.mark.parametrize("style", ["bare", "strict", "hostile", "chatml"])
def test_a_call_without_marks_is_not_a_call_format(style):
    assert template(ALL[style]).native.format is None


def test_a_models_own_call_format_is_used_only_if_its_marks_are_plain_text():
    special = HERMES.replace("<tool_call>\n", "<|im_start|>").replace(
        "\n</tool_call>", "<|im_end|>"
    )
    for source, expected in ((HERMES, CallFormat()), (special, None)):
        chat_template = template(source)
        assert chat_template.own_calls(Words(chat_template.tokenizer)) == expected


# --- prompts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [*ALL.values(), None], ids=[*ALL, "plain"])
@pytest.mark.parametrize("constraint", [None, FORCED, AUTO], ids=["unbound", "forced", "auto"])
def test_every_prompt_has_the_tools_calls_and_results(source, constraint):
    prompt = template(source).prompt(TALK, (WEATHER,), constraint)
    for part in (
        "Be brief.",
        "get_weather",
        "which city",
        "How the weather is.",
        "Rain?",
        "Köln",
        "It rains.",
    ):
        if source is HERMES and part == "Be brief.":
            continue  # it is in the system turn, which is checked below
        assert part in prompt or part.encode("unicode_escape").decode() in prompt, part
    order = [prompt.rfind(part) for part in ("Rain?", "Köln", "It rains.", "And now?")]
    assert order == sorted(order) or source is None


def test_tools_in_the_template_are_not_repeated_in_words():
    prompt = template(HERMES).prompt(TALK, (WEATHER,), FORCED)
    assert prompt.count("which city") == 1 and "You can use these tools" not in prompt
    assert prompt.count("Be brief.") == 1
    assert (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        in prompt
    )
    assert "<|im_start|>user\n<tool_response>\nIt rains.\n</tool_response>" in prompt
    assert "To use a tool" not in prompt  # its own format is the common one


def test_another_call_format_is_explained_in_words():
    assert '<tool_call>\n{"name": "TOOL", "arguments": {...}}\n</tool_call>' in template(
        BARE
    ).prompt(TALK, (WEATHER,))


def test_ids_fit_the_strictest_template_and_match_calls_with_results():
    prompt = template(STRICT).prompt(TALK[1:4], (WEATHER,), FORCED)
    call_id = plain_id("call_8")
    assert len(call_id) == 9 and prompt.count(call_id) == 2
    assert plain_id("abc123XYZ") == "abc123XYZ"


@pytest.mark.parametrize("source", [tiny.CHATML, HOSTILE, None], ids=["chatml", "hostile", "plain"])
def test_without_tools_in_the_template_they_are_described_in_words(source):
    prompt = template(source).prompt(TALK, (WEATHER,), AUTO)
    assert '- get_weather: How the weather is. Arguments: {"type": "object"' in prompt
    assert "answer in plain words" in prompt
    assert (
        'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
        in prompt
    )
    assert "The tool get_weather says:\nIt rains.\n\nThanks. And now?" in prompt
    assert "answer in plain words" not in template(source).prompt(TALK, (WEATHER,), FORCED)


def test_the_prompt_uses_the_call_format_of_the_query():
    body = BODY | {
        "begin": "<<",
        "end": ">>",
        "between": ";",
        "name_key": "tool",
        "arguments_key": "with",
    }
    turns = (Turn("user", "x"), Turn("assistant", "", (CALL, CALL)), Turn("user", "y"))
    prompt = template(None).prompt(turns, (WEATHER,), Constraint("calls", json.dumps(body)))
    call = '<<{"tool": "get_weather", "with": {"city": "Köln"}}>>'
    assert (
        f"{call};{call}" in prompt
        and '<<{"tool": "TOOL", "with": {...}}>>' in prompt
        and "<tool_call>" not in prompt
    )


def test_calls_that_a_template_refuses_are_written_as_text():
    """Here the template allows one call per turn, and the turn has two."""
    turns = (TALK[1], Turn("assistant", "", (CALL, CALL)), TALK[3], TALK[3], Turn("user", "So?"))
    prompt = template(BARE).prompt(turns, (WEATHER,), FORCED)
    assert (
        prompt.count("<tool_call>\n") == 3
        and prompt.count("It rains.") == 2
        and "You can use these tools" in prompt
    )


def test_turns_that_the_template_refuses_as_text_too_are_a_clear_error():
    with pytest.raises(UsageError, match="refused these turns"):
        template(HOSTILE).prompt((Turn("assistant", "x"), Turn("user", "y")), (WEATHER,))


def test_arguments_that_are_not_an_object_are_rendered_too():
    for arguments in ("not json", "[1]", ""):
        turns = (
            Turn("user", "x"),
            Turn("assistant", "", (ToolCall("get_weather", arguments),)),
            Turn("user", "y"),
        )
        for source in (HERMES, TEXTUAL, tiny.CHATML, None):
            assert "get_weather" in template(source).prompt(turns)


# --- what a constrained answer must look like -----------------------------------------------------

SCHEMA = '{"type":"object","properties":{"age":{"type":"integer","description":"in years"}}}'


@pytest.mark.parametrize(
    "source", [tiny.CHATML, HERMES, STRICT, None], ids=["chatml", "hermes", "strict", "plain"]
)
def test_a_schema_is_in_the_system_text(source):
    prompt = template(source).prompt(TALK[:2], (), Constraint("json_schema", SCHEMA))
    assert "in years" in prompt and prompt.count("Be brief.") == 1
    assert "JSON object" in template(source).prompt(TALK[:2], (), Constraint("json"))
    assert "no tool is needed, answer with JSON" in template(source).prompt(
        TALK[:2],
        (WEATHER,),
        Constraint("any_of", json.dumps([["calls", json.dumps(BODY)], ["json_schema", SCHEMA]])),
    )
