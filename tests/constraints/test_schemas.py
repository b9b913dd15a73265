"""Whatever a schema allows, every way through it ends in JSON that satisfies it, and every cut can be closed."""

from __future__ import annotations

import json
import random

import pytest

from langchain_specfuse.constraints import check, referee_for
from langchain_specfuse.constraints._referee import bytewise

from .schemas import schemas
from .walks import assert_satisfies, json_schema, walk

MANY = schemas(240, seed=1)


def cuts(text: str, dice: random.Random, count: int) -> list[int]:
    return sorted({dice.randint(0, len(text)) for _ in range(count)})


@pytest.mark.parametrize("number", range(len(MANY)))
def test_every_walk_and_every_cut_ends_in_json_that_satisfies_the_schema(number):
    schema, dice = MANY[number], random.Random(number)
    check(json_schema(schema))
    referee = referee_for(json_schema(schema))
    for _ in range(2):
        state = bytewise().grammar(json_schema(schema)).start()
        text = walk(state, dice, most=dice.choice([5, 30, 150])).decode("utf-8", "ignore")
        whole = text + referee.closing(text)
        assert_satisfies(whole, schema)
        assert referee.may_end(whole)
        assert referee.legal("", whole) == len(whole)
        assert referee.closing(whole) == ""
        for cut in cuts(whole, dice, 5):
            assert referee.legal("", whole[:cut]) == cut
            assert_satisfies(whole[:cut] + referee.closing(whole[:cut]), schema)


@pytest.mark.parametrize("number", range(0, len(MANY), 3))
def test_forced_text_is_the_only_way_on(number):
    schema, dice = MANY[number], random.Random(number)
    state = bytewise().grammar(json_schema(schema)).start()
    while len(walked := walk(state, dice, most=dice.randint(1, 9))):
        follows, forced = state.follows(), state.forced()
        if forced:
            assert not state.may_end()
            assert follows == forced[:1]
            on = state.fork()
            for byte in forced:
                assert on.follows() == bytes([byte])
                assert not on.may_end()
                assert on.advance(bytes([byte])) == 1
            assert on.may_end() or len(on.follows()) > 1
        else:
            assert state.may_end() or len(follows) != 1
        for byte in range(256):
            assert state.fits(bytes([byte])) == (byte in follows)
        if len(walked) == 0 or dice.random() < 0.1:
            break


@pytest.mark.parametrize("number", range(0, len(MANY), 6))
def test_the_spacing_is_that_of_json_dumps(number):
    schema, dice = MANY[number], random.Random(number)
    state = bytewise().grammar(json_schema(schema)).start()
    text = walk(state, dice, most=80).decode("utf-8", "ignore")
    whole = text + referee_for(json_schema(schema)).closing(text)
    bare = json.dumps(json.loads(whole), ensure_ascii=False)
    if "\\" not in whole and not any(letter.isdigit() for letter in whole):  # escapes and numbers have several forms
        assert len(bare) <= len(whole)
    assert "  " not in whole.replace(" ", "", 0) or '"' in whole
    assert not whole.endswith((" ", "\n"))
