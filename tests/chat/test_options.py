"""Invalid options are refused with advice; valid options work wherever they are set."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.runnables import ConfigurableField

import langchain_specfuse
from langchain_specfuse import (
    METHODS,
    Method,
    ScriptedMember,
    SpecFuseChatModel,
    SpecFuseError,
    UsageError,
)
from langchain_specfuse.chat.options import NOT_FOR_A_CALL, Call, Options
from langchain_specfuse.core.member import Probe

from .conftest import BLUE, asked

WRONG: list[tuple[dict[str, Any], list[str]]] = [
    ({"temperature": -0.1}, ["temperature", "0", "got -0.1"]),
    ({"temperature": "hot"}, ["temperature", "number", "got 'hot'"]),
    ({"temperature": float("nan")}, ["temperature", "finite"]),
    ({"method": {"segment_tokens": 0}}, ["segment_tokens", "1", "got 0"]),
    ({"method": {"segment_tokens": 2.5}}, ["segment_tokens", "integer"]),
    ({"max_tokens": True}, ["max_tokens", "integer", "got True"]),
    ({"top_p": 1.5}, ["top_p", "1", "got 1.5"]),
    ({"min_p": 2}, ["min_p", "got 2"]),
    ({"repetition_penalty": 0}, ["repetition_penalty", "greater than 0"]),
    ({"seed": "x"}, ["seed", "integer"]),
    ({"timeout": 0}, ["timeout", "greater than 0"]),
    ({"on_failure": "keep"}, ["on_failure='keep'", "whole answers", "draft by draft"]),
    ({"max_concurrency": 0}, ["max_concurrency", "1"]),
    ({"trace": "all"}, ["trace", "'off' or 'rounds'", "got 'all'"]),
    (
        {"method": "fast"},
        ["method", "'robust', 'specfuse', 'specem' or a Method", "got 'fast'"],
    ),
    (
        {"method": {"score": "logits"}},
        ["score", "'mean_prob', 'mean_logprob' or 'logprob_per_byte'"],
    ),
    ({"method": {"samples": 3}}, ["samples", "segment by segment", "segment='answer'"]),
    ({"method": {"result": "number"}}, ["result", "segment by segment", "segment='answer'"]),
    ({"method": {"scores": "mean_prob"}}, ["no option 'scores'", "method"]),
    ({"stop": ["END", ""]}, ["stop", "empty"]),
    ({"stop": 7}, ["stop", "a text or a list of texts"]),
    ({"members": []}, ["members", "a list"]),
    ({"members": "Qwen/Qwen3-0.6B"}, ["members", "a list"]),
    ({"members": [7]}, ["a hub id"]),
    ({"members": ["  "]}, ["name", "empty"]),
    ({"members": ["http:///v1#m"]}, ["http:///v1#m", "server"]),
    ({"members": [{"model": "org/x", "api_key": "not-a-key"}]}, ["a member as a dict"]),
    ({"members": ["org/a"], "model": "org/b"}, ["model", "members", "both"]),
    ({"method": {"verifiers": [None]}}, ["a hub id"]),
    ({"method": {"prior": {"nobody": 1.0}}}, ["prior", "'nobody'", "not a member"]),
    ({"method": {"prior": {"a": 0}}}, ["prior of 'a'", "above 0"]),
    ({"method": {"prior": [1, 2]}}, ["prior", "a dict"]),
]
UNKNOWN = [
    ({"n": 3}, "n is not supported, got 3", "samples=3, result='number'"),
    ({"stream_usage": False}, "stream_usage is not supported", "ends with its usage"),
    ({"openai_api_key": "x"}, "there is no option 'openai_api_key'", "set it on the member"),
    ({"organization": "x"}, "there is no option 'organization'", "set it on the member"),
    ({"num_ctx": 8192}, "there is no option 'num_ctx'", "-> set it on the member"),
    ({"user": "u1"}, "there is no option 'user'", "{'metadata': {'user'"),
    ({"format": "json"}, "there is no option 'format'", "response_format={'type': 'json_object'}"),
    ({"frequency_penalty": 0.5}, "frequency_penalty is not supported", "repetition_penalty="),
    ({"presence_penalty": 0.5}, "presence_penalty is not supported", "repetition_penalty="),
    ({"top_logprobs": 5}, "top_logprobs is not supported", "logprobs=True"),
    ({"logit_bias": {"50256": -100}}, "logit_bias is not supported", "grammar="),
    ({"reasoning_effort": "low"}, "reasoning_effort is not supported", "members=[ChatOpenAI("),
    ({"repeat_penalty": 1.1}, "there is no option 'repeat_penalty'", "repetition_penalty="),
    ({"base_url": "http://x/v1"}, "there is no option 'base_url'", "members=["),
    ({"temprature": 0.5}, "there is no option 'temprature'", "did you mean 'temperature'?"),
    ({"num_predict": 5}, "there is no option 'num_predict'", "use max_tokens=..."),
    ({"reserve": "b"}, "there is no option 'reserve'", "after the lead: members=[lead, reserve]"),
    ({"fallbacks": ["b"]}, "there is no option 'fallbacks'", "after the lead: members=[lead"),
    (
        {"score": "mean_prob"},
        "score is an option of the method",
        "method=Method(score='mean_prob')",
    ),
    ({"models": ["org/a"]}, "there is no option 'models'", "-> use members=[...]"),
    ({"segment_tokens": 4}, "segment_tokens is an option", "-> method=Method(segment_tokens=4)"),
    ({"segment": "answer"}, "segment is an option of", "-> method=Method(segment='answer')"),
    (
        {"result": len},
        "result is an option of the method",
        "-> method=Method(segment='answer', result=...)",
    ),
    (
        {"samples": 3},
        "samples is an option of the method",
        "-> method=Method(segment='answer', samples=3)",
    ),
    ({"prior": {"a": 2.0}}, "prior is an option of the method", "-> method=Method(prior=...)"),
    ({"verifiers": ["c"]}, "verifiers is an option of the", "-> method=Method(verifiers=...)"),
    ({"refusals": "any"}, "refusals is an option of the", "-> method=Method(refusals='any')"),
    ({"embeddings": 1}, "embeddings= is no longer supported", "make the calibration file again"),
    ({"streaming": False}, "streaming is not supported, got False", "disable_streaming=True"),
    ({"colour": "blue"}, "there is no option 'colour'", "the options are "),
]


def refusal(attempt: Any) -> tuple[str, str]:
    with pytest.raises(UsageError) as error:
        attempt()
    return str(error.value), error.value.notes[0]


@pytest.mark.parametrize(("options", "parts"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_option_is_refused_with_what_was_expected_and_what_to_do(
    ensemble: Any, options: dict[str, Any], parts: list[str]
) -> None:
    attempts = [lambda: ensemble(**options), lambda: ensemble().invoke("Why?", **options)]
    if "model" not in options:  # assigned or copied values are refused when a question is asked
        assigned, copied = ensemble(), ensemble().model_copy(update=options)
        for name, value in options.items():
            setattr(assigned, name, value)
        attempts += [lambda: assigned.invoke("Why?"), lambda: list(copied.stream("Why?"))]
    for attempt in attempts:
        error, note = refusal(attempt)
        assert all(part in error for part in parts)
        assert "not-a-key" not in error + note
        assert note.startswith("-> ")


@pytest.mark.parametrize(
    ("options", "message", "advice"), UNKNOWN, ids=lambda value: str(value)[:40]
)
def test_an_unknown_option_is_refused_with_its_new_name_or_a_close_one(
    ensemble: Any, options: dict[str, Any], message: str, advice: str
) -> None:
    members = ensemble().members
    made = lambda: SpecFuseChatModel(members=members, **options)
    for attempt in (made, lambda: ensemble().bind(**options).invoke("Why?")):
        error, note = refusal(attempt)
        assert message in error and advice in note


@pytest.mark.parametrize("way", ["invoke", "stream", "ainvoke", "astream", "batch", "abatch"])
async def test_every_way_of_asking_refuses_a_wrong_option(ensemble: Any, way: str) -> None:
    with pytest.raises(UsageError, match="temperature"):
        await asked(ensemble(), way, temperature=-1)


def test_options_of_a_chat_model_and_of_a_call_are_not_confused(ensemble: Any) -> None:
    for name in ("output_version", "cache", "calibration"):
        error, _ = refusal(lambda name=name: ensemble().invoke("?", **{name: "v1"}))
        assert f"{name} is chosen when the chat model is made" in error
    for name in ("regex", "logprobs", "max_waiting"):
        error, note = refusal(lambda name=name: ensemble(**{name: "[0-9]"}))
        assert f"{name} is chosen for a call" in error and f"llm.bind({name}=...)" in note
    assert (
        "max_waiting must be greater than or equal to 0"
        in refusal(lambda: ensemble().invoke("?", max_waiting=-1))[0]
    )


class Marked:
    """A value that no option accepts."""

    name = 7


@pytest.mark.parametrize("name", sorted(Options.model_fields))
def test_every_field_is_described_and_checked_in_the_constructor_and_in_a_call(
    ensemble: Any, name: str
) -> None:
    """Adding an option takes a field and nothing else."""
    assert Options.model_fields[name].description
    attempts = [lambda: ensemble(**{name: Marked()})]
    if name not in NOT_FOR_A_CALL:
        attempts.append(lambda: ensemble().invoke("?", **{name: Marked()}))
    for attempt in attempts:
        error, note = refusal(attempt)
        assert name in error and note.startswith("-> ")


def test_neutral_values_of_unsupported_options_are_accepted(ensemble: Any) -> None:
    neutral = {
        "n": 1,
        "stream_usage": True,
        "streaming": True,
        "frequency_penalty": 0,
        "presence_penalty": 0.0,
        "top_logprobs": 0,
        "logit_bias": {},
        "reasoning_effort": None,
        "store": False,
    }
    assert ensemble(**neutral).invoke("Why?").text == BLUE
    assert ensemble().invoke("Why?", **neutral).text == BLUE


def test_the_suggested_replacements_for_n_and_format_work(ensemble: Any) -> None:
    method = Method(segment="answer", samples=3, result="text")
    assert ensemble().invoke("Why?", method=method, temperature=0.5).text == BLUE
    with pytest.raises(UsageError, match=r"dict or a class.*'json'") as error:
        ensemble().invoke("Why?", response_format="json")
    assert "{'type': 'json_object'}" in error.value.notes[0]
    llm = SpecFuseChatModel(members=[ScriptedMember('{"a": 1}')])
    assert llm.invoke("?", response_format={"type": "json_object"}).text == '{"a": 1}'


def test_missing_members_are_refused_with_everything_that_can_be_a_member() -> None:
    for options in ({}, {"members": []}, {"members": None}):
        error, note = refusal(lambda options=options: SpecFuseChatModel(**options))
        assert "chat models" in error and "'openai:gpt-4.1-mini'" in error and "name one" in note
    error, note = refusal(lambda: SpecFuseChatModel(model_name="gpt-4.1-mini"))
    assert "model_name='gpt-4.1-mini' is given, but no members are" in error
    assert "members=[...]" in note and "only the label in traces" in note


def test_langchains_standard_parameters_are_accepted(ensemble: Any, caplog: Any) -> None:
    llm = ensemble(max_retries=2, api_key="not-a-key")
    assert llm.invoke("Why?").text == BLUE
    assert "max_retries is ignored" in caplog.text and "not-a-key" not in caplog.text + repr(llm)


def test_an_option_works_in_the_constructor_in_bind_in_the_call_and_in_the_config(
    ensemble: Any,
) -> None:
    three = " ".join(BLUE.split()[:3])
    configurable = ensemble().configurable_fields(max_tokens=ConfigurableField(id="length"))
    assert ensemble(max_tokens=3).invoke("Why?").text == three
    assert ensemble().bind(max_tokens=3).invoke("Why?").text == three
    assert ensemble().invoke("Why?", max_tokens=3).text == three
    assert configurable.invoke("Why?", {"configurable": {"length": 3}}).text == three
    assert configurable.invoke("Why?").text == BLUE
    assert ensemble(max_tokens=9).invoke("Why?", max_tokens=None).text == " ".join(BLUE.split()[:9])


def test_members_can_be_chosen_for_a_call(ensemble: Any) -> None:
    answer = ensemble().invoke("Why?", members=[ScriptedMember("Something else.", name="other")])
    assert (answer.text, answer.response_metadata["model_name"]) == ("Something else.", "other")
    assert ensemble().invoke("Why?", model=ScriptedMember("One.", name="one")).text == "One."
    assert SpecFuseChatModel(model="org/model-7b").model_name == "org/model-7b"
    assert ensemble(model_name="fused").invoke("Why?").response_metadata["model_name"] == "fused"


def test_a_method_is_given_by_name_as_an_object_or_as_its_options() -> None:
    def method(value: Any) -> Method:
        return SpecFuseChatModel(members=["org/a"], method=value).method

    assert method("specem") == METHODS["specem"]
    assert method({"name": "specem", "loop_guard": True}) == Method.named("specem", loop_guard=True)
    assert method({"exit": "never"}) == method(Method(exit="never")) == Method(exit="never")
    assert method({"segment": "answer"}) == Method(segment="answer")


def test_an_option_of_the_method_is_refused_with_chat_models_too() -> None:
    """Other arguments of a call go to their provider."""
    llm = SpecFuseChatModel(members=[FakeListChatModel(responses=["Blue."])])
    assert (
        "-> method=Method(segment='answer', samples=3)"
        in refusal(lambda: llm.invoke("?", samples=3))[1]
    )


def test_a_prior_decides_whose_draft_wins() -> None:
    members = [ScriptedMember("left is right", name="a"), ScriptedMember("right is left", name="b")]
    llm = SpecFuseChatModel(members=members, method=Method(learning_rate=0.0))
    assert llm.invoke("?").text == "left is right"
    assert llm.invoke("?", method=Method(prior={"b": 3.0})).text == "right is left"


def test_standard_parameters_for_traces_follow_the_call(ensemble: Any) -> None:
    seen: list[Any] = []

    class Noting(langchain_specfuse.SpecFuseCallbackHandler):
        def on_chat_model_start(self, *args: Any, metadata: Any = None, **kwargs: Any) -> None:
            seen.append({key: value for key, value in metadata.items() if key.startswith("ls_")})

    ensemble(temperature=0.3, stop=["x"]).invoke(
        "Why?", {"callbacks": [Noting()]}, stop=["y"], max_tokens=9
    )
    assert (
        seen[0].items()
        >= {
            "ls_provider": "specfuse",
            "ls_model_name": "a+b",
            "ls_model_type": "chat",
            "ls_temperature": 0.3,
            "ls_max_tokens": 9,
            "ls_stop": ["y"],
        }.items()
    )


def test_the_options_of_a_stream_are_validated_once(ensemble: Any, monkeypatch: Any) -> None:
    llm, of = ensemble(), Call.of
    validated: list[Any] = []

    def counted(*given: Any) -> Call:
        validated.append(given)
        return of(*given)

    monkeypatch.setattr(Call, "of", counted)
    assert "".join(chunk.text for chunk in llm.stream("Why?")) == BLUE
    assert len(validated) == 1


def test_every_public_error_is_a_specfuse_error() -> None:
    names = langchain_specfuse.__all__
    errors = [getattr(langchain_specfuse, name) for name in names if name.endswith("Error")]
    assert len(errors) >= 7 and all(issubclass(error, SpecFuseError) for error in errors)
    assert names == sorted(names) and set(names) <= set(dir(langchain_specfuse))


# --- ensembles without a decisive vote ------------------------------------------------------------


def of(*scoring: bool, verifier: bool = False) -> SpecFuseChatModel:
    """Return members that can score or not, perhaps with a verifier that can."""
    members = [
        ScriptedMember(BLUE, name=name, draft_only=not can)
        for name, can in zip("abc", scoring, strict=False)
    ]
    verifiers = [ScriptedMember(BLUE, name="judge")] if verifier else []
    return SpecFuseChatModel(members=members, method=Method(verifiers=verifiers), lead=None)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(
    ("scoring", "message"),
    [
        ((False, True, False), "a, c cannot score, so only b votes: the drafts of b always win"),
        ((False, False), "no member can score (a, b): the drafts of a always win"),
    ],
)
async def test_an_ensemble_whose_votes_decide_nothing_warns_once(
    scoring: Any, message: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It warns when it is created if its members are known without loading, else with its first
    answer."""
    if not known:
        monkeypatch.setattr(ScriptedMember, "preview", lambda self: None)
        monkeypatch.setattr(
            ScriptedMember, "probe", lambda self: Probe(self.name, not self.draft_only)
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        llm = of(*scoring)
        assert len(caught) == known
        await llm.ainvoke("?")
        assert SpecFuseChatModel(members=llm.members, lead=None).invoke("?").text == BLUE
    (warning,) = caught
    assert str(warning.message).startswith(f"{message}\n-> add a member that can score")
    assert (Path(warning.filename) == Path(__file__)) is known  # the user's own line


@pytest.mark.parametrize(
    "llm", [of(True), of(False), of(True, True), of(True, True, False), of(False, verifier=True)]
)
def test_other_ensembles_do_not_warn(llm: SpecFuseChatModel) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert llm.invoke("?").text == BLUE


def test_verifiers_that_have_nothing_to_verify_are_named_once() -> None:
    members = [ScriptedMember(BLUE, name=name) for name in "ab"]
    judges = [ScriptedMember(BLUE, name="judge")]
    llm = SpecFuseChatModel(members=members, method=Method(verifiers=judges), lead="a")
    with pytest.warns(UserWarning, match="a leads and writes alone, so judge has nothing"):
        llm.invoke("?")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.invoke("?")
        llm.invoke("?", lead=None)
        llm.invoke("?", method={"margin": 0.5})
