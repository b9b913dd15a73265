"""A member exists once per process, however the chat model is copied, pickled or cached."""

from __future__ import annotations

import copy
import gc
import json
import math
import pickle
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import set_llm_cache
from langchain_core.language_models import FakeListChatModel
from langchain_core.load import dumpd, dumps, load, loads
from langchain_core.runnables import ConfigurableField

import langchain_specfuse
from langchain_specfuse import (
    ChatModelMember,
    LlamaCppMember,
    MemberError,
    Method,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
    TransformersMember,
    UsageError,
    VllmMember,
    unload,
)
from langchain_specfuse.core.member import Probe
from langchain_specfuse.members.transformers import member as transformers_member

from .conftest import BLUE, WIDE, until


class Loaded(ScriptedMember):
    """Stands in for a member that loads weights; counts how often it is created and loaded."""

    made: list[str] = []  # noqa: RUF012
    loads: list[str] = []  # noqa: RUF012

    def __init__(self, model: str, *, adapter: None, name: str) -> None:
        super().__init__(f"I am {model}.", name=name)
        self.made.append(name)

    def probe(self) -> Probe:
        self.loads.append(self.name)
        return Probe(self.name, max_context=2048 if "small" in self.name else 4096)

    def unload(self) -> None:
        self.loads.append(f"unloaded {self.name}")


@pytest.fixture
def named(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Loaded]]:
    """Allow members to be named without any download."""
    monkeypatch.setattr(transformers_member, "TransformersMember", Loaded)
    monkeypatch.setattr(Loaded, "made", [])
    monkeypatch.setattr(Loaded, "loads", [])
    unload()
    yield Loaded
    unload()


def test_nothing_is_made_or_loaded_before_the_first_question(named: Any) -> None:
    llm = SpecFuseChatModel(members=["org/one", "org/two"])
    repr(llm), dumps(llm), copy.deepcopy(llm), pickle.dumps(llm), llm.asdict()
    assert named.made == []
    llm.invoke("Who?")
    assert named.loads == ["one", "two"]


def test_chat_models_that_name_the_same_member_share_it(named: Any) -> None:
    SpecFuseChatModel(members=["org/one", "org/two"]).invoke("Who?")
    SpecFuseChatModel(members=["org/two", "org/three"], temperature=0.5).invoke("Who?")
    assert named.made == ["one", "two", "three"]


def test_configuring_copying_pickling_and_serializing_never_load_again(named: Any) -> None:
    llm = SpecFuseChatModel(members=["org/one", "org/two"])
    llm.invoke("Who?")
    configurable = llm.configurable_fields(
        temperature=ConfigurableField(id="t"), max_tokens=ConfigurableField(id="n")
    )
    for length in (1, 2, 3):
        answer = configurable.invoke("Who?", {"configurable": {"t": 0.3, "n": length}})
        assert len(answer.text.split()) == length
    written = loads(
        dumps(llm), allowed_objects=[SpecFuseChatModel], valid_namespaces=["langchain_specfuse"]
    )
    for other in (
        copy.copy(llm),
        copy.deepcopy(llm),
        pickle.loads(pickle.dumps(llm)),
        llm.model_copy(),
        written,
    ):
        assert other.invoke("Who?").text == llm.invoke("Who?").text
    assert named.loads == ["one", "two"]


def test_a_member_that_cannot_score_beside_one_that_can_warns_once(named: Any) -> None:
    members = [ScriptedMember(BLUE, name="mute", draft_only=True), "org/one"]
    llm = SpecFuseChatModel(members=members, lead=None)
    with pytest.warns(UserWarning, match=r"mute.*cannot score"):
        llm.invoke("Who?")
    llm.invoke("Who?")  # a second warning would raise


def test_member_objects_are_shared_and_never_copied() -> None:
    first, second = ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")
    llm = SpecFuseChatModel(members=[first, second])
    configurable = llm.configurable_fields(max_tokens=ConfigurableField(id="n"))
    for other in (copy.deepcopy(llm), configurable):
        calls = first.draft_calls
        other.invoke("Why?")
        assert first.draft_calls > calls


def test_member_objects_are_collected_when_nothing_refers_to_them() -> None:
    member = ScriptedMember(BLUE, name="a")
    llm = SpecFuseChatModel(members=[member])
    llm.invoke("Why?")
    reference = weakref.ref(member)
    del llm, member
    assert until(lambda: gc.collect() >= 0 and reference() is None)


def test_a_name_given_twice_is_two_members_and_an_object_given_twice_is_refused(named: Any) -> None:
    answer = SpecFuseChatModel(members=["org/one", "org/one"]).invoke("Who?")
    assert answer.response_metadata["specfuse"]["members"] == ["one", "one#2"]
    member = ScriptedMember(BLUE, name="a")
    for members, verifiers in (([member, member], []), ([member], [ScriptedMember("x", name="a")])):
        with pytest.raises(UsageError, match="called 'a'"):
            SpecFuseChatModel(members=members, method=Method(verifiers=verifiers))


def test_unloading_frees_and_the_next_question_loads_again(named: Any) -> None:
    llm, other = SpecFuseChatModel(members=["org/one"]), SpecFuseChatModel(members=["org/two"])
    llm.invoke("Who?"), other.invoke("Who?")
    llm.unload()
    assert llm.invoke("Who?").text == "I am org/one."
    other.invoke("Who?")
    assert named.loads == ["one", "two", "unloaded one", "one"]


def test_a_dict_in_place_of_a_member_is_refused_and_not_shown() -> None:
    given = {"model": "org/x", "dtype": "bfloat16", "model_kwargs": {"token": "canary"}}
    llm = SpecFuseChatModel(members=[ScriptedMember(BLUE, name="a")])
    for attempt in (
        lambda: SpecFuseChatModel(members=[given]),
        lambda: SpecFuseChatModel(members=given),
        lambda: llm.invoke("Who?", members=[given]),
        lambda: llm.invoke("Who?", model=given),
    ):
        with pytest.raises(UsageError, match="a member as a dict is no longer") as error:
            attempt()
        (advice,) = error.value.notes
        assert "VllmMember('org/model', memory=0.5)" in advice
        assert "canary" not in str(error.value) + advice


@pytest.mark.parametrize(
    ("name", "message", "advice"),
    [
        ("localhost:11434#llama3.2", "is not a model", "'http://localhost:11434#llama3.2'"),
        ("llama3.2:latest", "LangChain has no provider 'llama3.2'", "'ollama:llama3.2:latest'"),
        (
            "olama:llama3.2",
            "LangChain has no provider 'olama'",
            "did you mean 'ollama'?",
        ),
        ("vlm:org/x", "LangChain has no provider 'vlm'", "did you mean 'vllm'?"),
        ("VLLM:org/x", "LangChain has no provider 'VLLM'", "did you mean 'vllm'?"),
        ("vllm:one.gguf", "got the GGUF file 'one.gguf'", "llama.cpp reads it: 'one.gguf'"),
        ("vllm:hf:org/x", "got the GGUF file 'hf:org/x'", "llama.cpp reads it: 'hf:org/x'"),
        ("vllm:+./law", "does not name a model", "for example 'vllm:Qwen/Qwen3-8B'"),
        (
            "https://huggingface.co/org/x",
            "is a page of the hub",
            "'org/x', or 'hf:org/x' if it has GGUF files; on vLLM it is 'vllm:org/x'",
        ),
        ("huggingface.co/org/x", "is a page of the hub", "the model on it is 'org/x'"),
        (
            "https://hf.co/org/x/blob/main/x-Q8_0.gguf",
            "is a page of the hub",
            "'hf:org/x:x-Q8_0.gguf'",
        ),
        (
            "org/x@v1",
            "'org/x@v1' names a revision",
            "TransformersMember('org/x', model_kwargs={'revision': 'v1'})",
        ),
        (
            "vllm:org/x@refs/pr/1",
            "'org/x@refs/pr/1' names a revision",
            "VllmMember('org/x', engine_args={'revision': 'refs/pr/1'})",
        ),
        ("vllm:org/x+org/law@v1", "'org/law@v1' names a revision", "'org/law' is that of the main"),
        ("hf:org/x@v1:Q8_0", "got 'hf:org/x@v1:Q8_0'", "files are those of the main branch"),
        ("vllm:org/x+./law", "law does not exist", "name a folder with an adapter, or a hub id"),
        ("vllm:./nowhere", "/nowhere does not exist", "name a folder with a model, or a hub id"),
        ("vllm:~/no-such", "/no-such does not exist", "name a folder with a model, or a hub id"),
        ("vllm:./model.bin", "is a file, not a folder", "name a folder with a model, or a hub id"),
        ("ollama:", "'ollama:' does not name a model", "for example 'ollama:llama3.2'"),
        ("C:\\models\\qwen", "qwen does not exist", "name a folder with a model"),
        ("models/of/mine", "models/of/mine does not exist", "name a folder with a model"),
        ("models/", "does not exist", "name a folder with a model"),
        ("localhost:8000", "'localhost:8000' is not a model", "'http://localhost:8000'"),
        ("gpu.example.org:8000/v1#m", "is not a model", "begins with http"),
        ("./nowhere", "/nowhere does not exist", "name a folder with a model"),
        (
            "htp://localhost:8000",
            "LangChain has no provider 'htp'",
            "begins with http:// or https://",
        ),
        ("models\\one", "one does not exist", "name a folder with a model"),
        ("empty", "empty contains no model", "name a folder that save_pretrained wrote"),
        (
            "./model.bin",
            "is a file, but not a .gguf file",
            "name a folder with a model, a .gguf file",
        ),
        (
            "./sha256-01",
            "is a file, but not a .gguf file",
            "LlamaCppMember('./sha256-01') reads a GGUF file of any name",
        ),
    ],
)
def test_a_mistyped_name_is_refused_before_transformers_is_imported(
    name: str, message: str, advice: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.bin").write_bytes(b"weights")
    (tmp_path / "sha256-01").write_bytes(b"GGUF")
    (tmp_path / "empty").mkdir()
    (tmp_path / "one.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "langchain_specfuse.members.transformers.member", None)
    with pytest.raises((UsageError, MemberError)) as error:
        SpecFuseChatModel(members=[name]).invoke("Who?")
    assert message in str(error.value) and advice in error.value.notes[0]


@pytest.mark.parametrize(
    ("make", "given", "message", "advice"),
    [
        (LlamaCppMember, {"n_gpu_layer": 4}, "no argument 'n_gpu_layer'", "'n_gpu_layers'?"),
        (LlamaCppMember, {"threads": 4}, "no argument 'threads'", "set $OMP_NUM_THREADS"),
        (LlamaCppMember, {"cache_type": "q5"}, "cache_type must be 'f16'", "cache_type"),
        (TransformersMember, {"dtyp": "float16"}, "no argument 'dtyp'", "mean 'dtype'?"),
        (TransformersMember, {"colour": "red"}, "'colour'", "its arguments are model, tokenizer,"),
        (TransformersMember, {"device": 0}, "device must be a string", "device"),
        (TransformersMember, {"model_kwargs": {"dtype": 1}}, "must not contain", "dtype=..."),
        (ServerMember, {"timout": 3}, "no argument 'timout'", "'timeout'?"),
    ],
)
def test_wrong_arguments_are_refused_when_the_member_is_made(
    make: Any, given: dict[str, Any], message: str, advice: str
) -> None:
    with pytest.raises(UsageError) as error:
        make({LlamaCppMember: "x.gguf", ServerMember: "http://gpu:8000/v1"}.get(make, "x"), **given)
    assert message in str(error.value) and advice in error.value.notes[0]


@pytest.mark.parametrize(
    ("make", "name", "message", "advice"),
    [
        (VllmMember, "", "a member's name is empty", "name a model"),
        (VllmMember, "vllm:org/x", "takes a hub id or a folder", "leave out 'vllm:': VllmMember("),
        (VllmMember, "hf:org/x", "takes a hub id or a folder", "LlamaCppMember('hf:org/x')"),
        (VllmMember, "http://gpu:8000/v1", "takes a hub id", "ServerMember('http://gpu:8000/v1')"),
        (VllmMember, "vlm:org/x", "LangChain has no provider 'vlm'", "did you mean 'vllm'?"),
        (VllmMember, "hf.co/org/x", "is a page of the hub", "'org/x'"),
        (TransformersMember, " ", "a member's name is empty", "name a model"),
        (TransformersMember, "vllm:org/x", "takes a hub id", "VllmMember('org/x') reads it"),
        (TransformersMember, "hf:org/x", "takes a hub id", "LlamaCppMember('hf:org/x')"),
        (TransformersMember, "a.gguf", "takes a hub id", "LlamaCppMember('a.gguf')"),
        (TransformersMember, "ollama:x", "takes a hub id", "ChatModelMember('ollama:x')"),
        (TransformersMember, "localhost:8000", "is not a model", "'http://localhost:8000'"),
        (LlamaCppMember, "", "a member's name is empty", "name a model"),
        (LlamaCppMember, "ollama:x", "takes a .gguf file", "ChatModelMember('ollama:x')"),
        (LlamaCppMember, "hf:x", "expected hf:user/model", "hf:ggml-org/gemma"),
        (LlamaCppMember, "vllm:org/x", "takes a .gguf file", "VllmMember('org/x')"),
        (ServerMember, "http://", "does not name a server", "for example 'http://localhost"),
        (ServerMember, "https://huggingface.co/org/x", "is a page of the hub", "'org/x'"),
        (ChatModelMember, "vllm:org/x", "takes provider:model", "VllmMember('org/x') reads it"),
    ],
)
def test_a_member_object_refuses_the_names_that_a_list_refuses(
    make: Any, name: str, message: str, advice: str
) -> None:
    with pytest.raises(UsageError) as error:
        make(name)
    assert message in str(error.value) and advice in error.value.notes[0]


@pytest.mark.parametrize("make", [VllmMember, TransformersMember])
@pytest.mark.parametrize("name", ["one.gguf", "ollama:x", "run:1"])
def test_a_folder_may_have_any_name(
    make: Any, name: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    assert make(name, name="a").name == "a"


def test_without_transformers_a_mistyped_name_is_still_reported_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "langchain_specfuse.members.transformers.member", None)
    with pytest.raises(UsageError, match=r"'qwem'.*not installed") as error:
        SpecFuseChatModel(members=["qwem"]).invoke("Who?")
    assert (
        "ollama:" in error.value.notes[0]
        and '[transformers]" (this brings PyTorch' in error.value.notes[1]
    )


def test_a_member_class_without_its_extra_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "langchain_specfuse.members.server.member", None)
    monkeypatch.delitem(vars(langchain_specfuse), "ServerMember", raising=False)
    with pytest.raises(ModuleNotFoundError, match="ServerMember needs") as error:
        langchain_specfuse.ServerMember("http://localhost:8000/v1")
    assert str(error.value).endswith('\n-> pip install "langchain-specfuse[server]"')


def test_a_lead_is_one_of_the_members_that_write(ensemble: Any) -> None:
    members = [ScriptedMember(BLUE, name="ann"), ScriptedMember(WIDE, name="bob")]
    with pytest.raises(UsageError, match=r"lead.*ann, bob.*'bo'") as error:
        SpecFuseChatModel(members=members, lead="bo")
    assert error.value.notes == ("-> did you mean 'bob'?",)
    assert type(error.value) is UsageError  # LangChain's class is for calls
    with pytest.raises(UsageError, match="no member leads"):
        SpecFuseChatModel(members=members, lead="ann", method="specem")
    with pytest.raises(UsageError, match="lead must be one of ann"):
        SpecFuseChatModel(members=members[:1], method=Method(verifiers=members[1:]), lead="bob")


def test_the_lead_may_be_the_member_itself() -> None:
    said = [BLUE, WIDE]
    chats = [FakeListChatModel(responses=[text]) for text in said]
    scripted = [ScriptedMember(text, name=name) for text, name in zip(said, "ab", strict=True)]
    for members in (chats, scripted):
        for lead, text in zip(members, said, strict=True):
            llm = SpecFuseChatModel(members=members, lead=lead)
            assert llm.invoke("Why?").text == text and isinstance(llm.lead, str)
            assert llm.model_copy(update={"lead": members[0]}).invoke("Why?").text == said[0]
            assert SpecFuseChatModel(members=members).invoke("Why?", lead=lead).text == text
            assert SpecFuseChatModel(members=members).bind(lead=lead).invoke("Why?").text == text
    with pytest.raises(UsageError, match="lead must be one of a, b, or the member itself") as error:
        SpecFuseChatModel(members=scripted, lead=chats[0])
    assert "list it in members=" in error.value.notes[0]


def test_a_call_to_one_member_ignores_the_lead() -> None:
    ann, bob = ScriptedMember(BLUE, name="ann"), ScriptedMember(WIDE, name="bob")
    llm = SpecFuseChatModel(members=[ann, bob], lead="bob")
    assert (llm.invoke("Why?").text, llm.invoke("Why?", model=ann).text) == (WIDE, BLUE)


def test_the_lead_writes_unless_another_draft_is_better() -> None:
    members = [ScriptedMember(BLUE, name="ann"), ScriptedMember(WIDE, name="bob")]
    for lead, text in (("ann", BLUE), ("bob", WIDE)):
        llm = SpecFuseChatModel(members=members, lead=lead, method=Method(margin=math.inf))
        assert llm.invoke("Why?").text == text
        assert (
            SpecFuseChatModel(members=members)
            .invoke("Why?", lead=lead, method={"margin": math.inf})
            .text
            == text
        )


# --- LangChain's cache ----------------------------------------------------------------------------


DIFFERENT: list[dict[str, Any]] = [
    {"temperature": 0.9, "seed": 1},
    {"temperature": 0.9, "seed": 2},
    {"top_p": 0.5},
    {"top_k": 4},
    {"min_p": 0.1},
    {"repetition_penalty": 1.1},
    {"method": Method(segment_tokens=3)},
    {"max_tokens": 8},
    {"stop": ["air"]},
    {"method": "specem"},
    {"lead": "a"},
    {"lead": None},
    {"method": Method(reward="wins")},
    {"method": Method(prior={"b": 2.0})},
    {"method": Method(segment="answer", result=len)},
]
"""Options that can change the answer."""


@pytest.mark.usefixtures("no_cache")
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
async def test_the_cache_key_has_every_option_that_can_change_the_answer(
    asynchronous: bool,
) -> None:
    set_llm_cache(InMemoryCache())
    member, other = ScriptedMember(BLUE, name="a"), ScriptedMember(WIDE, name="b")

    async def answered(call: dict[str, Any] | None = None, **options: Any) -> bool:
        """Whether the first member was asked."""
        before = member.draft_calls
        llm = SpecFuseChatModel(**{"members": [member, other], **options})
        if asynchronous:
            await llm.ainvoke("Why?", **call or {})
        else:
            llm.invoke("Why?", **call or {})
        return member.draft_calls > before

    assert await answered()
    variants = [
        *DIFFERENT,
        {"members": [member]},
        {"members": [other, member]},
        {"output_version": "v1"},
    ]
    judged = {"members": [member], "method": Method(verifiers=[other])}
    for options in [{}, *variants, judged]:
        assert await answered(**options) == bool(options), options
        assert not await answered(**options), options
    for call in ({"temperature": 0.7}, {"stop": ["sky"]}, {"method": Method(exit="never")}):
        assert await answered(call), call
        assert not await answered(call), call
    for same in ({"trace": "off"}, {"max_concurrency": 3}):
        assert not await answered(same), same
        assert not await answered(**same), same


@pytest.mark.usefixtures("no_cache")
def test_different_members_with_the_same_name_do_not_share_cached_answers() -> None:
    set_llm_cache(InMemoryCache())
    for answer in ("one", "two", "three"):
        assert (
            SpecFuseChatModel(members=[ScriptedMember(answer, name="a")]).invoke("Why?").text
            == answer
        )


# --- serialization --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "method",
    [
        "specem",
        Method(reward="wins", margin=math.inf),
        {"exit": "never", "segment_tokens": 3, "prior": {"one": 2.0}},
        Method(verifiers=["org/three"], refusals="any"),
    ],
)
def test_a_chat_model_of_names_round_trips_with_its_method(method: Any) -> None:
    members = ["org/one", "org/two"]
    llm = SpecFuseChatModel(members=members, temperature=0.4, stop=["x"], method=method)
    options: Any = {
        "allowed_objects": [SpecFuseChatModel],
        "valid_namespaces": ["langchain_specfuse"],
    }
    for again in (
        load(dumpd(llm), **options),
        loads(dumps(llm), **options),
        pickle.loads(pickle.dumps(llm)),
    ):
        assert again.asdict() == llm.asdict()
        assert again.method == llm.method
    assert json.loads(json.dumps(llm.asdict())) == llm.asdict()


def test_a_chat_model_of_objects_is_never_serialized(ensemble: Any) -> None:
    llm = ensemble(temperature=0.5)
    assert dumpd(llm)["type"] == "not_implemented"
    assert BLUE not in dumps(llm)
    expected = (
        "SpecFuseChatModel(members=['a', 'b'], temperature=0.5, method=Method(segment_tokens=4))"
    )
    assert repr(llm) == expected
