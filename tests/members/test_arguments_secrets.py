"""A secret among a member's arguments, however deeply nested, appears in nothing that can be
read."""

from __future__ import annotations

import json
import logging
import traceback
from contextlib import suppress
from typing import Any

import pytest
from chat.recording import recorded
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.load import dumps
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_openai import ChatOpenAI
from pydantic import Field, SecretStr

from langchain_specfuse import (
    ChatModelMember,
    LlamaCppMember,
    RayMember,
    ScriptedMember,
    ServerMember,
    SpecFuseChatModel,
    SpecFuseError,
    TransformersMember,
    UsageError,
)
from langchain_specfuse.chat.members import ensemble_for
from langchain_specfuse.chat.references import checked_member
from langchain_specfuse.cli.main import main
from langchain_specfuse.members.server import http

CANARY = "canary-8f2e1d"
SHORT = "k7"
"""Too short to be searched for in texts, but hidden under its name."""
NESTED = {
    "token": CANARY,
    "proxies": {"https": f"http://me:{CANARY}@proxy:3128"},
    "storage_options": [{"client_secret": CANARY}, {"headers": {"X-Custom": CANARY}}],
    "x-api-key": SHORT,
}


class Provider(BaseChatModel):
    """A chat model that takes secrets like real ones and whose provider repeats them in errors."""

    api_key: SecretStr = SecretStr(CANARY)
    base_url: str = f"https://me:{CANARY}@localhost:9/v1?api-version=1&sig={CANARY}"
    model_kwargs: dict[str, Any] = Field(default_factory=lambda: dict(NESTED))
    default_headers: dict[str, str] = Field(
        default_factory=lambda: {"Authorization": f"Bearer {CANARY}"}
    )
    max_tokens: int = 7
    fails: bool = False

    @property
    def _llm_type(self) -> str:
        return "provider"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"model_kwargs": self.model_kwargs, "max_tokens": self.max_tokens}

    def _generate(
        self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        if self.fails:
            error = RuntimeError(f"401: wrong key {CANARY} for {self.base_url}")
            error.body = {"error": {"message": f"got Bearer {CANARY}"}}  # type: ignore[attr-defined]
            raise error
        return ChatResult(generations=[ChatGeneration(message=AIMessage("Hello."))])


class Events(BaseCallbackHandler):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_custom_event(self, name: str, data: Any, **kwargs: Any) -> None:
        self.seen.append(repr((name, data, kwargs)))

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.seen.append("".join(traceback.format_exception(error)))


def members(folder: str) -> dict[str, Any]:
    """Return one member of each kind, with the canary in every argument that can hold it."""
    local = {"model_kwargs": NESTED, "chat_template_kwargs": NESTED}
    missing = f"{folder}/missing"
    return {
        "transformers": TransformersMember(missing, name="one", **local),
        "ray": RayMember(TransformersMember(missing, name="one", **local)),
        "llamacpp": LlamaCppMember(f"{missing}.gguf", name="one", chat_template_kwargs=NESTED),
        "server": ServerMember("http://127.0.0.1:9", "m", name="one", chat_template_kwargs=NESTED),
        "a chat model": Provider(),
        "a chat model that fails": Provider(fails=True),
        "its member": ChatModelMember(Provider(fails=True), name="one"),
        "a dict": {"model": missing, "name": "one", **local},
        "a dict of a server": {
            "model": "http://127.0.0.1:9#m",
            "name": "one",
            "chat_template_kwargs": NESTED,
        },
    }


KINDS = list(members(""))


@pytest.fixture(autouse=True)
def key_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECFUSE_API_KEY", CANARY)
    monkeypatch.setattr(http, "RETRIES", 0)


def shown_of(error: BaseException) -> str:
    """Return everything that an error shows: its traceback, causes, notes and attributes."""
    known = [error]
    for current in known:
        more = [current.__cause__, current.__context__, *getattr(current, "failures", ())]
        known += [other for other in more if other is not None and other not in known]
    details = [
        repr((current, current.args, {**vars(current), "failures": ()})) for current in known
    ]
    return "".join(traceback.format_exception(error)) + "".join(details)


def refused(text: str) -> bool:
    return CANARY not in text and f"'{SHORT}'" not in text


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at_call", [False, True], ids=["made with it", "called with it"])
def test_a_secret_in_a_members_arguments_is_in_no_output(
    kind: str, at_call: bool, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "langchain_specfuse")
    member = members(str(tmp_path))[kind]
    other = ScriptedMember("Hello.", name="other")
    events, errors = Events(), list[str]()
    llm = SpecFuseChatModel(members=[other] if at_call else [member, other])
    call: dict[str, Any] = {"members": [member, other]} if at_call else {}
    shown = [repr(llm), str(llm), dumps(llm), json.dumps(llm._identifying_params)]
    shown += [llm._get_llm_string(**call), repr(llm._get_invocation_params(**call))]
    bound = llm.bind(**call)
    shown += [repr(bound), dumps(bound)]
    with recorded() as (tracer, endpoint):
        for way in (llm.invoke, lambda *args, **more: list(llm.stream(*args, **more))):
            try:
                way("Hi", {"callbacks": [tracer, events]}, **call)
            except SpecFuseError as error:
                errors.append(shown_of(error))
    assert "Hi" in endpoint.received
    shown += [endpoint.received, caplog.text, *events.seen, *errors]
    if not isinstance(member, BaseChatModel | dict):  # those are the user's own
        shown += [repr(member), str(member), json.dumps(member.spec)]
    assert all(map(refused, shown)), next(text for text in shown if not refused(text))
    assert kind == "a chat model" or errors or events.seen


def test_an_api_key_does_not_change_the_cache_key() -> None:
    """The key cannot be guessed from the cache key either."""

    def string(secret: str, **changes: Any) -> str:
        model = Provider(
            api_key=SecretStr(secret),
            base_url=f"https://me:{secret}@localhost:9/v1",
            model_kwargs={"token": secret},
            default_headers={"Authorization": secret},
            **changes,
        )
        local = TransformersMember("m", model_kwargs={"token": secret, "attn": "eager"})
        llm = SpecFuseChatModel(members=[ChatModelMember(model, name="a"), local])
        return llm._get_llm_string()

    assert string("one-secret-1") == string("another-2") == string("x")
    assert string("one-secret-1") != string("one-secret-1", max_tokens=8)


def test_headers_that_identify_the_client_are_not_treated_as_secrets() -> None:
    headers = {
        "HTTP-Referer": "http://localhost:8765",
        "X-Title": "wonderful",
        "Accept": "text/csv",
    }
    secret = {"X-Own": CANARY, "User-Agent": "my wonderful program"}
    ChatModelMember(Provider(default_headers=headers | secret), name="a")
    words = "a wonderful program asks http://localhost:8765 for text/csv"
    assert str(UsageError(words)) == words and CANARY not in str(UsageError(f"got {CANARY}"))


def test_bound_members_show_no_secret() -> None:
    secretive = {"model": "m.gguf", "chat_template_kwargs": {"token": CANARY}}
    llm = SpecFuseChatModel(members=[ScriptedMember("Hi.")])
    for bound in (
        llm.bind(model=secretive),
        llm.bind(members=[secretive]),
        llm.bind(verifiers=[secretive]),
    ):
        assert CANARY not in repr(bound) + dumps(bound)


def test_members_with_different_keys_are_different_members() -> None:
    def member(secret: str) -> Any:
        spec = {"model": "m.gguf", "chat_template_kwargs": {"token": secret}}
        return next(iter(ensemble_for([checked_member(spec)]).members.values()))

    assert member("one-secret-1") is member("one-secret-1")
    assert member("one-secret-1") is not member("another-2")


def test_other_arguments_are_shown() -> None:
    kwargs = {"max_tokens": 5, "tokenizer": "t", "eos_token": "</s>", "attn": "eager"}
    member = TransformersMember("m", name="a", model_kwargs=kwargs)
    assert member.spec["model_kwargs"] == kwargs


@pytest.mark.parametrize(
    "member",
    [
        f"http://me:{CANARY}@127.0.0.1:9#m",
        f"http://127.0.0.1:9?key={CANARY}#m",
        f"Qwen/Qwen3-0.6B+https://me:{CANARY}@example.com/adapter",
        f"me:{CANARY}@127.0.0.1:9/v1",
        {"model": "Qwen/Qwen3-0.6B", "adapter": f"https://example.com/a?token={CANARY}"},
        {"model": "Qwen/Qwen3-0.6B", "api_key": CANARY},
    ],
    ids=str,
)
def test_a_secret_in_an_address_is_refused_and_not_shown(
    member: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SpecFuseError) as error:
        SpecFuseChatModel(members=[member]).invoke("Hi")
    assert refused(shown_of(error.value))
    if isinstance(member, str):
        assert main(["Hi", "-m", member]) != 0
        printed = capsys.readouterr()
        assert refused(printed.out + printed.err)


def test_a_dict_passed_in_place_of_a_list_shows_no_secret() -> None:
    with pytest.raises(UsageError) as error:
        SpecFuseChatModel(members={"model": "m", "model_kwargs": NESTED})
    assert refused(shown_of(error.value))


def test_a_secret_that_is_logged_is_hidden(caplog: pytest.LogCaptureFixture) -> None:
    with suppress(SpecFuseError):
        SpecFuseChatModel(members=[Provider()])
    log = logging.getLogger("langchain_specfuse")
    try:
        raise RuntimeError(CANARY)
    except RuntimeError:
        log.warning("with %s", CANARY, exc_info=True)
    assert "with ***" in caplog.text and CANARY not in caplog.text


def test_models_stay_apart_where_the_environment_holds_their_names(monkeypatch):
    """``MODEL_KEY`` looks like the name of a secret, but two models must never share an answer."""
    names = "Qwen/Qwen3-0.6B", "Qwen/Qwen3-1.7B"
    for place, name in enumerate(names):
        monkeypatch.setenv(f"MODEL_{place}_KEY", name)
    keys = {SpecFuseChatModel(members=[name], model_name="m")._get_llm_string() for name in names}
    chats = [ChatModelMember(ChatOpenAI(model=name, api_key=CANARY), name="x") for name in names]
    keys |= {SpecFuseChatModel(members=[chat], model_name="m")._get_llm_string() for chat in chats}
    assert len(keys) == 4
    assert not any(CANARY in key for key in keys)
