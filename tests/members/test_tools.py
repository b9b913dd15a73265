"""Tools, calls, results and schemas on their way into a member's prompt: through its template, or in words."""

import json

import pytest

from langchain_specfuse.core.values import Call, CallFormat, Constraint, Tool, Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members import _native
from langchain_specfuse.members._template import Template
from langchain_specfuse.members._tools import SCHEMA_CHARS, call_format, outline, parts, speaks

from . import tiny

# Made up in the style of well-known families, as short as what they must show allows.
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
TEXTUAL = HERMES.replace("f.arguments | tojson", "'' + f.arguments")  # arguments as JSON text, a mapping raises
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
CALL = Call("get_weather", '{"city": "Köln"}', "call_8")
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
ALL = {"hermes": HERMES, "bare": BARE, "strict": STRICT, "textual": TEXTUAL, "hostile": HOSTILE, "chatml": tiny.CHATML}


def template(own, **kwargs):
    return Template(tiny.tokenizer_of("bytes", own), "m", None if own else "plain", kwargs)


# --- what a template knows --------------------------------------------------------------------------------------


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
def test_what_a_template_knows_is_found_by_rendering(style, tools, calls, results):
    native = template(ALL[style]).native
    assert (native.tools, native.calls, native.results) == (tools, calls, results)


def test_its_own_way_of_writing_calls_is_cut_out_of_a_rendering():
    own = CallFormat("<tool_call>\n", "\n</tool_call>", "\n", "name", "arguments")
    assert template(HERMES).native.format == template(TEXTUAL).native.format == own
    other = HERMES.replace("tool_call>", "call>").replace('"arguments"', '"args"')
    assert template(other).native.format == CallFormat("<call>\n", "\n</call>", "\n", "name", "args")
    empty = "{% if m.tool_calls %}{{ '\n<think>\n\n</think>\n' }}{% endif %}{% for c in m"
    thinks = HERMES.replace("{% for c in m", empty)
    assert template(thinks).native.format == own


@pytest.mark.parametrize("style", ["bare", "strict", "hostile", "chatml"])
def test_where_nothing_tells_a_call_from_other_json_there_is_no_own_way(style):
    assert template(ALL[style]).native.format is None


def test_the_probe_tells_it_only_if_its_marks_survive_as_text():
    assert tiny.member("llama", 1, chat_template=HERMES).probe().calls == CallFormat()
    special = HERMES.replace("<tool_call>\n", "<|im_start|>").replace("\n</tool_call>", "<|im_end|>")
    member = tiny.member("llama", 1, chat_template=special)
    assert member.template.native.format is None or "<|im_start|>" in member.template.native.format.begin
    assert member.probe().calls is None


# --- prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("own", [*ALL.values(), None], ids=[*ALL, "plain"])
@pytest.mark.parametrize("constraint", [None, FORCED, AUTO], ids=["unbound", "forced", "auto"])
def test_every_template_is_told_tools_calls_and_results(own, constraint):
    told = template(own).prompt(TALK, (WEATHER,), constraint)
    for part in ("Be brief.", "get_weather", "which city", "How the weather is.", "Rain?", "Köln", "It rains."):
        if own is HERMES and part == "Be brief.":
            continue  # it is in the system turn, see below
        assert part in told or part.encode("unicode_escape").decode() in told, part
    order = [told.rfind(part) for part in ("Rain?", "Köln", "It rains.", "And now?")]
    assert order == sorted(order) or own is None


def test_a_template_that_knows_tools_is_not_told_them_twice():
    told = template(HERMES).prompt(TALK, (WEATHER,), FORCED)
    assert told.count("which city") == 1 and "You can use these tools" not in told
    assert told.count("Be brief.") == 1
    assert '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>' in told
    assert "<|im_start|>user\n<tool_response>\nIt rains.\n</tool_response>" in told
    assert "To use a tool" not in told  # its own way is the common one


def test_a_template_with_another_way_of_calling_is_told_the_common_one():
    assert '<tool_call>\n{"name": "TOOL", "arguments": {...}}\n</tool_call>' in template(BARE).prompt(TALK, (WEATHER,))


def test_ids_fit_the_strictest_template_and_calls_find_their_results():
    told = template(STRICT).prompt(TALK[1:4], (WEATHER,), FORCED)
    made = _native.plain_id("call_8")
    assert len(made) == 9 and told.count(made) == 2
    assert _native.plain_id("abc123XYZ") == "abc123XYZ"


@pytest.mark.parametrize("own", [tiny.CHATML, HOSTILE, None], ids=["chatml", "hostile", "plain"])
def test_without_a_template_for_tools_they_are_told_in_words(own):
    told = template(own).prompt(TALK, (WEATHER,), AUTO)
    assert '- get_weather: How the weather is. Arguments: {"type": "object"' in told
    assert "answer in plain words" in told
    assert 'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>' in told
    assert "The tool get_weather says:\nIt rains.\n\nThanks. And now?" in told
    assert "answer in plain words" not in template(own).prompt(TALK, (WEATHER,), FORCED)


@pytest.mark.parametrize("own", [tiny.CHATML, None], ids=["chatml", "plain"])
def test_where_no_call_may_follow_calls_and_results_are_plain_sentences(own):
    """What stands there as JSON or in tags, small models copy."""
    told = template(own).prompt(TALK[:4], ())
    assert "Let me see.\nI ask the tool get_weather (city: Köln)." in told
    assert "The tool get_weather says:\nIt rains.\n\nUse this to answer my question." in told
    assert "tool_call" not in told and "{" not in told


def test_a_way_of_calling_chosen_by_the_query_is_the_one_that_is_told():
    body = BODY | {"begin": "<<", "end": ">>", "between": ";", "name_key": "tool", "arguments_key": "with"}
    turns = (Turn("user", "x"), Turn("assistant", "", (CALL, CALL)), Turn("user", "y"))
    told = template(None).prompt(turns, (WEATHER,), Constraint("calls", json.dumps(body)))
    one = '<<{"tool": "get_weather", "with": {"city": "Köln"}}>>'
    assert f"{one};{one}" in told and '<<{"tool": "TOOL", "with": {...}}>>' in told and "<tool_call>" not in told


def test_calls_that_a_template_refuses_as_they_are_go_in_words():
    """Two calls in one turn, where the template knows one."""
    turns = (TALK[1], Turn("assistant", "", (CALL, CALL)), TALK[3], TALK[3], Turn("user", "So?"))
    told = template(BARE).prompt(turns, (WEATHER,), FORCED)
    assert told.count("<tool_call>\n") == 3 and told.count("It rains.") == 2 and "You can use these tools" in told


def test_turns_that_are_refused_in_words_too_are_a_clear_error():
    with pytest.raises(UsageError, match="refused these turns"):
        template(HOSTILE).prompt((Turn("assistant", "x"), Turn("user", "y")), (WEATHER,))


def test_arguments_that_are_no_object_are_told_all_the_same():
    for arguments in ("not json", "[1]", ""):
        turns = (Turn("user", "x"), Turn("assistant", "", (Call("get_weather", arguments),)), Turn("user", "y"))
        for own in (HERMES, TEXTUAL, tiny.CHATML, None):
            assert "get_weather" in template(own).prompt(turns)


def test_tokens_of_tools_are_counted():
    for own in (HERMES, tiny.CHATML):
        member = tiny.member("llama", 1, chat_template=own)
        assert member.token_count(TALK[:2], (WEATHER,)) > member.token_count(TALK[:2]) + 20
    assert member.token_count(TALK[:2]) == len(member._prompt_ids(TALK[:2]))


# --- what a bound answer must look like -------------------------------------------------------------------------

SCHEMA = '{"type":"object","properties":{"age":{"type":"integer","description":"in years"}}}'


@pytest.mark.parametrize("own", [tiny.CHATML, HERMES, STRICT, None], ids=["chatml", "hermes", "strict", "plain"])
def test_a_schema_is_told_in_the_system_text(own):
    told = template(own).prompt(TALK[:2], (), Constraint("json_schema", SCHEMA))
    assert "in years" in told and told.count("Be brief.") == 1
    assert "JSON object" in template(own).prompt(TALK[:2], (), Constraint("json"))
    assert "no tool is needed, answer with JSON" in template(own).prompt(
        TALK[:2], (WEATHER,), Constraint("any_of", json.dumps([["calls", json.dumps(BODY)], ["json_schema", SCHEMA]]))
    )


def test_a_long_schema_is_told_by_its_keys_and_within_bounds():
    inner = {"type": "object", "properties": {"deep": {"type": "string", "description": "the deep one"}}}
    keys = {f"key{k}": {"type": "array", "items": {"$ref": "#/$defs/inner"}} for k in range(200)}
    schema = json.dumps({"type": "object", "properties": keys, "$defs": {"inner": inner}})
    told = outline(schema, SCHEMA_CHARS)
    assert told.startswith("- key0 (array)\n  - deep (string): the deep one\n- key1 (array)")
    assert len(told) < SCHEMA_CHARS + 5 and told.endswith("...")
    assert told in template(None).prompt(TALK[:2], (), Constraint("json_schema", schema))


@pytest.mark.parametrize(
    "schema",
    [
        '{"properties": {"a": {"$ref": "#"}}}',
        '{"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}',
        '{"properties": {"a": true, "b": {"anyOf": [{"type": "null"}, {"properties": {"c": {}}}]}}}',
        '{"properties": {"a": {"type": ["string", "null"]}, "b": {"enum": [1, 2]}, "c": {"$ref": "http://x"}}}',
        "[]",
        "not json",
        "true",
    ],
)
def test_odd_schemas_are_told_somehow(schema):
    assert isinstance(outline(schema, 300), str)
    template(None).prompt(TALK[:2], (), Constraint("json_schema", schema))


def test_the_parts_of_a_constraint():
    assert [part.kind for part in parts(AUTO)] == ["prose", "calls"] and parts(None) == []
    assert speaks(None) and speaks(AUTO) and not speaks(FORCED)
    assert call_format(AUTO) == call_format(None) == CallFormat()


def test_a_base_model_sees_an_example_of_what_is_wanted():
    base = template(None)
    assert "get_time" in base.prompt(TALK[:2], (WEATHER,), FORCED)
    assert "Jupiter" not in base.prompt(TALK[:2], (WEATHER,), FORCED)
    auto = base.prompt(TALK[:2], (WEATHER,), AUTO)
    assert "Jupiter" in auto and "get_time" in auto
    assert '"moons": 2' in base.prompt(TALK[:2], (), Constraint("json_schema", SCHEMA))
