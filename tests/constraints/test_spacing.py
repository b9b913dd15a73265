"""JSON that was spaced in another way is the same JSON, spaced as the grammars want it, wherever it was cut."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from langchain_specfuse.constraints import respaced
from langchain_specfuse.core.values import Constraint

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
spacings = st.sampled_from(
    [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"separators": (" ,", " :")}]
)
ANY = Constraint("json")


@given(values, spacings, st.floats(0, 1))
def test_whatever_the_spacing_it_comes_out_one_way(value: Any, spacing: dict[str, Any], share: float) -> None:
    right, text = json.dumps(value, ensure_ascii=False), json.dumps(value, ensure_ascii=False, **spacing)
    assert respaced(ANY, "", text) == right
    answer = right[: int(share * len(right))]
    left = right[len(answer) :]
    assert answer + respaced(ANY, answer, left) == right


def test_what_is_no_json_stays_as_it_is() -> None:
    for constraint in (None, Constraint("regex", r"[a, b]*"), Constraint("choice", '["a , b"]')):
        assert respaced(constraint, "", "a , b") == "a , b"
