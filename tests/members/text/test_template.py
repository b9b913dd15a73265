"""Rendering turns as the prompt that a model expects, and detecting how it ends its turn."""

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.core.values import Turn
from langchain_specfuse.errors import UsageError
from langchain_specfuse.members.text.templates import (
    PLAIN_END,
    Template,
    end_of_turn,
    stop_ids,
    with_system_folded,
)

from .. import tiny

TALK = (
    Turn("system", "Be brief."),
    Turn("user", "Why?"),
    Turn("assistant", "So."),
    Turn("user", "And?"),
)
ODD = (
    "{% if messages[0].role != 'user' %}{{ raise_exception('users first') }}{% endif %}{{ "
    "messages[0].content }}"
)
THINKS = "{{ messages[-1].content }}{% if think %}<think>{% else %}<no>{% endif %}"
SWALLOWS = (
    "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


def template(source=None, override=None, **kwargs):
    return Template(tiny.tokenizer_of("bytes", source), "m", override, kwargs)


def test_the_tokenizers_template_is_used_and_asks_for_an_answer():
    assert template(tiny.CHATML).prompt(TALK) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n"
        "<|im_start|>assistant\nSo.<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_template_from_the_user_takes_precedence():
    assert template(tiny.CHATML, "own: {{ messages[-1].content }}").prompt(TALK) == "own: And?"


def test_template_arguments_reach_the_template():
    assert template(THINKS, think=True).prompt(TALK) == "And?<think>"
    assert template(THINKS).prompt(TALK) == "And?<no>"


@pytest.mark.parametrize("source", [tiny.INST, SWALLOWS, ODD])
def test_a_template_without_a_system_role_gets_it_in_the_first_question(source):
    assert "Be brief.\n\nWhy?" in template(source).prompt(TALK[:2])


def test_a_system_role_that_the_template_knows_is_left_where_it_is():
    assert template(tiny.CHATML).prompt(TALK).count("Be brief.") == 1
    assert "Be brief.\n\nWhy?" not in template(tiny.CHATML).prompt(TALK)


def test_turns_that_a_template_refuses_are_a_clear_error():
    with pytest.raises(UsageError, match=r"assistant, user.*users first") as caught:
        template(ODD).prompt((Turn("assistant", "x"), Turn("user", "y")))
    assert caught.value.notes


def test_an_invalid_template_is_a_clear_error():
    with pytest.raises(UsageError, match="chat template"):
        template(override="{% if %}").prompt(TALK)


def test_without_a_template_a_plain_one_is_used_with_one_warning(caplog):
    with caplog.at_level(logging.WARNING, "langchain_specfuse"):
        plain = template()
        prompts = {plain.prompt(TALK) for _ in range(2)}
    assert caplog.text.count("has no chat template") == 1
    (prompt,) = prompts
    places = [prompt.find(part) for part in ("<s>", "Be brief.", "Why?", "So.", "And?")]
    assert places == sorted(places) and places[0] == 0
    assert prompt.endswith("## Answer\n\n")
    assert plain.end_text == PLAIN_END and prompt.count("So." + PLAIN_END) == 1


turns = st.lists(
    st.builds(Turn, st.sampled_from(["system", "user", "assistant"]), st.text(max_size=5)),
    max_size=5,
)


@given(turns)
def test_folding_keeps_all_text_and_leaves_no_system_turn(given_turns):
    folded = with_system_folded(given_turns)
    assert not any(turn.role == "system" for turn in folded)
    text = "".join(turn.text for turn in folded)
    assert all(turn.text in text for turn in given_turns)


# --- the end of a turn ----------------------------------------------------------------------------


def test_stop_tokens_come_from_config_tokenizer_and_template():
    # its own end is </s>, the template's is <|im_end|>
    tokenizer = tiny.tokenizer_of("bytes", tiny.CHATML)
    end = end_of_turn(Template(tokenizer, "m", None, None))
    assert end == "<|im_end|>"
    ids = tokenizer.convert_tokens_to_ids(["</s>", "<|im_end|>"])
    assert stop_ids(tokenizer, SimpleNamespace(eos_token_id=[7, 9]), end) == sorted([*ids, 7, 9])
    assert stop_ids(tokenizer, SimpleNamespace(eos_token_id=7), None) == sorted([ids[0], 7])
    assert stop_ids(tokenizer, SimpleNamespace(eos_token_id=None), None) == ids[:1]


@pytest.mark.parametrize(
    ("source", "end"),
    [
        (tiny.INST, "</s>"),
        ("{{ messages[-1].content }}", None),
        ("{{ messages[-1].content }} \n<|im_end|>", "<|im_end|>"),
        ("{{ messages[-1].content }} and then <|im_end|>", None),
        ("{{ raise_exception('no answers here') }}", None),
        (None, None),
    ],
)
def test_the_templates_end_is_the_special_token_after_an_answer(source, end):
    assert end_of_turn(template(source)) == end
