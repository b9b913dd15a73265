"""Both libraries say the same wherever both are asked; one of them is asked less."""

from __future__ import annotations

import json
import random
import subprocess
import sys

import pytest
from members.tiny import tokenizer_of

from langchain_specfuse.constraints import check, vocabulary
from langchain_specfuse.constraints._referee import Ruling, bytewise
from langchain_specfuse.core.values import Constraint
from langchain_specfuse.errors import UsageError

from .schemas import schemas
from .test_calls import calls
from .walks import allowed, assert_satisfies, json_schema, walk

pytest.importorskip("xgrammar")
SCHEMAS = schemas(80, seed=3)
OTHERS = [
    Constraint("regex", "[a-z]{2,4}-[0-9]+"),
    Constraint("choice", '["yes", "yes, sir", "no"]'),
    Constraint("grammar", 'root ::= "a" [0-9]+ ("," root)?'),
    calls(parallel=False),
]


def kept(constraint):
    try:
        check(constraint, backend="xgrammar")
    except UsageError:
        return False
    return True


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
def test_what_one_allows_satisfies_the_schema_too(number):
    constraint = json_schema(SCHEMAS[number])
    if not kept(constraint):
        pytest.skip("xgrammar does not keep it, and says so")
    dice, referee = random.Random(number), Ruling(constraint, "xgrammar")
    text = walk(bytewise("xgrammar").grammar(constraint).start(), dice, 60).decode("utf-8", "ignore")
    assert_satisfies(text + referee.closing(text), SCHEMAS[number])


def test_most_schemas_are_kept_by_both():
    assert sum(kept(json_schema(schema)) for schema in SCHEMAS) > len(SCHEMAS) / 3


@pytest.mark.parametrize("backend", ["llguidance", "xgrammar"])
@pytest.mark.parametrize("constraint", OTHERS)
def test_a_mask_is_what_put_accepts_with_either(constraint, backend):
    tokenizer = tokenizer_of("bytes")
    stops, size = [tokenizer.eos_token_id], len(tokenizer)
    state = vocabulary(tokenizer, size, stops, backend=backend).grammar(constraint).start()
    dice = random.Random(1)
    for _ in range(8):
        tokens = allowed(state.mask(), size)
        assert tokens == [token for token in range(size) if state.fork().put(token)]
        if not (on := [token for token in tokens if token not in stops]):
            break
        state.put(dice.choice(on))


@pytest.mark.parametrize("constraint", OTHERS)
def test_both_allow_the_same_bytes(constraint):
    one, other = (bytewise(name).grammar(constraint).start() for name in ("llguidance", "xgrammar"))
    dice = random.Random(2)
    for _ in range(40):
        assert one.follows() == other.follows()
        assert one.may_end() == other.may_end()
        assert one.forced() == other.forced()
        if not one.follows():
            break
        byte = bytes([dice.choice(one.follows())])
        assert one.advance(byte) == other.advance(byte) == 1


def test_using_constraints_does_not_load_torch():
    body = json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}})
    code = f"""
import sys
from langchain_specfuse.constraints import check, referee_for
from langchain_specfuse.core.values import Constraint
check(Constraint("json_schema", {body!r}))
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "xgrammar"} & set(done.stdout.split())
