"""One copy of every member in a process, whatever is copied, pickled, configured or cached."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.load import dumpd, dumps, load
from langchain_core.messages import HumanMessage
from langchain_core.runnables import ConfigurableField

from langchain_specfuse import ScriptedMember, SpecFuseChatModel, UsageError, _registry, unload
from langchain_specfuse.core.member import Probe

from .conftest import BLUE, WIDE


class Loaded(ScriptedMember):
    """Stands in for a member that loads weights: it counts how often it was made and loaded."""

    made: list[dict[str, Any]] = []  # noqa: RUF012
    loads: list[str] = []  # noqa: RUF012

    def __init__(self, arguments: dict[str, Any]) -> None:
        super().__init__(f"I am {arguments['model']}.", name=arguments["name"])
        self.made.append(arguments)

    def probe(self) -> Probe:
        self.loads.append(self.name)
        return Probe(self.name, max_context=2048 if "small" in self.name else 4096)

    def unload(self) -> None:
        self.loads.append(f"unloaded {self.name}")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Loaded]]:
    """Members can be named, and nothing is downloaded."""
    monkeypatch.setattr(_registry, "_made", Loaded)
    monkeypatch.setattr(Loaded, "made", [])
    monkeypatch.setattr(Loaded, "loads", [])
    unload()
    yield Loaded
    unload()


def test_nothing_is_made_or_loaded_before_the_first_question(named: Any) -> None:
    llm = SpecFuseChatModel(members=["org/one", "org/two"])
    repr(llm), dumps(llm), copy.deepcopy(llm), pickle.dumps(llm), llm._identifying_params
    assert named.made == []
    llm.invoke("Who?")
    assert named.loads == ["one", "two"]


def test_chat_models_that_name_the_same_member_share_it(named: Any) -> None:
    SpecFuseChatModel(members=["org/one", "org/two"]).invoke("Who?")
    SpecFuseChatModel(members=[{"model": "org/two"}, "org/three"], temperature=0.5).invoke("Who?")
    assert [arguments["name"] for arguments in named.made] == ["one", "two", "three"]


def test_configuring_copying_and_pickling_load_nothing_again(named: Any) -> None:
    llm = SpecFuseChatModel(members=["org/one", "org/two"])
    llm.invoke("Who?")
    configurable = llm.configurable_fields(temperature=ConfigurableField(id="t"), max_tokens=ConfigurableField(id="n"))
    for length in (1, 2, 3):
        answer = configurable.invoke("Who?", {"configurable": {"t": 0.3, "n": length}})
        assert len(answer.text.split()) == length
    for other in (copy.copy(llm), copy.deepcopy(llm), pickle.loads(pickle.dumps(llm)), llm.model_copy()):
        assert other.invoke("Who?").text == llm.invoke("Who?").text
    assert named.loads == ["one", "two"]


def test_configurable_fields_still_stream(ensemble: Any) -> None:
    configurable = ensemble().configurable_fields(temperature=ConfigurableField(id="t"))
    assert len(list(configurable.stream("Why?", {"configurable": {"t": 0.0}}))) == 4


def test_member_objects_are_shared_and_never_copied() -> None:
    one, two = ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")
    llm = SpecFuseChatModel(members=[one, two])
    twin = copy.deepcopy(llm)
    assert twin.members[0] is one
    assert _registry.ensemble_for(llm.members) is _registry.ensemble_for(twin.members)
    configured = llm.configurable_fields(max_tokens=ConfigurableField(id="n"))
    configured.invoke("Why?", {"configurable": {"n": 3}})
    assert _registry.ensemble_for(llm.members) is llm._held


def test_member_objects_go_when_nobody_holds_them() -> None:
    member = ScriptedMember(BLUE, name="a")
    llm = SpecFuseChatModel(members=[member])
    llm.invoke("Why?")
    gone = weakref.ref(member)
    del llm, member
    time.sleep(0.05)  # the desk's thread lets go of its last batch
    for _ in range(100):
        gc.collect()
        if gone() is None:
            return
        time.sleep(0.05)
    pytest.fail("the member is still held")


def test_the_same_name_twice_is_two_members_and_the_same_object_twice_is_refused(named: Any) -> None:
    answer = SpecFuseChatModel(members=["org/one", "org/one"]).invoke("Who?")
    assert answer.response_metadata["specfuse"]["members"] == ["one", "one#2"]
    member = ScriptedMember(BLUE, name="a")
    with pytest.raises(UsageError, match="two members are called 'a'"):
        SpecFuseChatModel(members=[member, member])
    with pytest.raises(UsageError, match="two members are called 'a'"):
        SpecFuseChatModel(members=[member], verifiers=[ScriptedMember("x", name="a")])


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B-Instruct"),
        ("./my-model/", "my-model"),
        ("/models/m.Q4.gguf", "m.Q4"),
        (Path("models") / "here", "here"),
        ({"model": "org/x", "name": "mine"}, "mine"),
        ({"model": Path("/models/y")}, "y"),
    ],
)
def test_a_name_is_the_last_part_of_what_was_given(given: Any, name: str) -> None:
    assert _registry.names_of(SpecFuseChatModel(members=[given]).members) == [name]


def test_unloading_frees_and_the_next_question_loads_again(named: Any) -> None:
    llm = SpecFuseChatModel(members=["org/one"])
    other = SpecFuseChatModel(members=["org/two"])
    llm.invoke("Who?"), other.invoke("Who?")
    llm.unload()
    assert llm.invoke("Who?").text == "I am org/one."
    other.invoke("Who?")
    assert named.loads == ["one", "two", "unloaded one", "one"]


def test_wrong_arguments_in_a_members_dict_are_told(named: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.undo()
    with pytest.raises(UsageError, match="cannot be made from"):
        SpecFuseChatModel(members=[{"model": "org/x", "dtipe": "bfloat16"}]).invoke("Who?")


def test_the_profile_knows_the_shortest_context_once_members_are_loaded(named: Any) -> None:
    llm = SpecFuseChatModel(members=["org/one", "org/small"])
    assert "max_input_tokens" not in (llm.profile or {})
    llm.invoke("Who?")
    assert llm.profile
    assert llm.profile["max_input_tokens"] == 2048
    own = SpecFuseChatModel(members=["org/one"], profile={"max_input_tokens": 99})
    own.invoke("Who?")
    assert own.profile == {"max_input_tokens": 99}


# --- LangChain's cache ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_the_cache_tells_every_choice_apart_that_can_change_the_answer(asynchronous: bool) -> None:
    set_llm_cache(InMemoryCache())
    member, other = ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")

    async def drafts(call: dict[str, Any] | None = None, **options: Any) -> int:
        """How often the first member was asked anew."""
        before = member.draft_calls
        llm = SpecFuseChatModel(**{"members": [member, other], **options})
        _ = await llm.ainvoke("Why?", **call or {}) if asynchronous else llm.invoke("Why?", **call or {})
        return member.draft_calls - before

    assert await drafts()
    assert not await drafts()
    different: list[dict[str, Any]] = [
        {"temperature": 0.9, "seed": 1},
        {"temperature": 0.9, "seed": 2},
        {"top_p": 0.5},
        {"top_k": 4},
        {"min_p": 0.1},
        {"repetition_penalty": 1.1},
        {"segment_tokens": 3},
        {"max_tokens": 8},
        {"max_rounds": 2},
        {"stop": ["air"]},
        {"preset": "specem"},
        {"score": "mean_prob"},
        {"feedback": "off"},
        {"learning_rate": 0.5},
        {"exit": "never"},
        {"min_members": 2},
        {"loop_guard": False},
        {"prior": {"b": 2.0}},
        {"members": [member]},
        {"members": [other, member]},
        {"members": [member], "verifiers": [other]},
        {"output_version": "v1"},
    ]
    for options in different:
        assert await drafts(**options), options
        assert not await drafts(**options), options
    for call in ({"temperature": 0.7}, {"stop": ["sky"]}, {"exit": "fixed"}):
        assert await drafts(call), call
        assert not await drafts(call), call


@pytest.mark.usefixtures("no_cache")
def test_members_with_one_name_but_other_answers_do_not_share_cached_answers() -> None:
    set_llm_cache(InMemoryCache())
    for answer in ("one", "two", "three"):
        assert SpecFuseChatModel(members=[ScriptedMember(answer, name="a")]).invoke("Why?").text == answer


def test_what_identifies_a_model_is_plain_json(ensemble: Any) -> None:
    params = ensemble(stop=["x"])._identifying_params
    assert json.loads(json.dumps(params)) == params


# --- serialization ----------------------------------------------------------------------------------------------


def test_a_model_of_names_is_written_down_and_read_back() -> None:
    llm = SpecFuseChatModel(members=["org/one", {"model": "org/two", "dtype": "bfloat16"}], temperature=0.4, stop=["x"])
    assert llm.is_lc_serializable()
    written = dumpd(llm)
    again = load(written, allowed_objects=[SpecFuseChatModel], valid_namespaces=["langchain_specfuse"])
    assert again.asdict() == llm.asdict()


def test_a_model_of_objects_is_never_written_down(ensemble: Any) -> None:
    llm = ensemble()
    assert not llm.is_lc_serializable()
    assert dumpd(llm)["type"] == "not_implemented"
    assert BLUE not in dumps(llm)


def test_its_repr_is_short_and_names_the_members(ensemble: Any) -> None:
    assert repr(ensemble(temperature=0.5)) == (
        "SpecFuseChatModel(members=['a', 'b'], verifiers=[], segment_tokens=4, temperature=0.5)"
    )


# --- lightness --------------------------------------------------------------------------------------------------


def test_importing_and_constructing_load_neither_torch_nor_transformers() -> None:
    program = (
        "import sys; from langchain_specfuse import SpecFuseChatModel, ScriptedMember, SpecFuseCallbackHandler\n"
        "SpecFuseChatModel(members=['org/x']); SpecFuseChatModel(members=[ScriptedMember('x')]).invoke('?')\n"
        "print([m for m in ('torch', 'transformers', 'ray', 'langchain', 'langgraph') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_the_package_itself_imports_nothing_of_langchain() -> None:
    program = "import sys, langchain_specfuse; sys.exit(any(m.startswith('langchain_core') for m in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_all_public_names_are_sorted_and_there() -> None:
    import langchain_specfuse

    names = langchain_specfuse.__all__
    assert names == sorted(names)
    assert set(names) <= set(dir(langchain_specfuse))
    with pytest.raises(AttributeError, match="no attribute 'SpecFuse'"):
        _ = langchain_specfuse.SpecFuse


@pytest.mark.parametrize("members", [["org/one", "org/two"], [ScriptedMember("x"), ScriptedMember("y")]])
def test_constructing_takes_less_than_200_microseconds(members: list[Any]) -> None:
    def seconds() -> float:
        start = time.perf_counter()
        for _ in range(50):
            SpecFuseChatModel(members=members)
        return (time.perf_counter() - start) / 50

    assert min(seconds() for _ in range(10)) < 200e-6


def test_a_question_given_as_messages_or_text_is_the_same(ensemble: Any) -> None:
    assert ensemble().invoke([HumanMessage("Why?")]).text == ensemble().invoke("Why?").text
