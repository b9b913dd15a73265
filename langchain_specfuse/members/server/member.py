"""ServerMember: a model on a server, over HTTP: vLLM, SGLang, llama.cpp, or one that echoes
prompts.

This file finds out which kind of server it is, and turns any error into the failure of one job.
Servers that only chat, such as Ollama, are asked through a :class:`.ChatModelMember`. Neither torch
nor a GPU is needed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from ...core.member import Probe
from ...core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ...errors import MemberError, UsageError, advised, check_whole_number
from ...secret_values import masked, remember
from ..network import refuse_secrets
from ..text.templates import Template
from ..text.words import Words
from ..threads import each, shown
from .chat import chat_model_of, is_ollama
from .completions import Completions
from .http import Address, Client, StrayReplyError
from .llamacpp import LlamaCpp
from .sglang import SGLang
from .tokenizers import RemoteTokenizer, local_tokenizer, stops_of
from .tokens import Dialect, TokenSession
from .vllm import VLLM

if TYPE_CHECKING:
    from ..chat_model import ChatModelMember

log = logging.getLogger("langchain_specfuse")

Engine = Literal["vllm", "sglang", "llama.cpp", "completions"]
DIALECTS: Mapping[str, type[Dialect]] = {
    "vllm": VLLM,
    "sglang": SGLang,
    "llama.cpp": LlamaCpp,
    "completions": Completions,
}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""``owned_by`` in a server's list of models -> the server's engine."""
_CONNECTION = ("_client", "_session", "_chat", "_ready")
"""Attributes that belong to the connections and are not copied."""
_OTHERS = (
    "for any other server, pass a chat model: ChatOpenAI(base_url=..., model=...) from "
    "langchain-openai"
)


class ServerMember:
    """One LLM on a server.

    >>> member = ServerMember(
    ...     "http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct"
    ... )  # asks nothing yet
    >>> member.name
    'Qwen2.5-7B-Instruct'

    - ``model`` may be left out if the server has only one.
    - ``tokenizer`` is a local folder or hub id (or a tokenizer of transformers) with the model's
      own tokenizer: then text becomes tokens here. Without it the server is asked.
    - ``engine`` is found out; it may be given: ``"vllm"``, ``"sglang"``, ``"llama.cpp"`` or
      ``"completions"``. The last is any server whose ``/v1/completions`` returns the
      log-probabilities of a prompt: it is tried where ``tokenizer`` is given. Any other server,
      such as Ollama's or LM Studio's, joins as a :class:`.ChatModelMember`.
    - ``api_key_env`` names the environment variable with the API key (``Basic ...`` is sent as it
      is). An address must not hold a key.
    - ``verify`` may name a file with the certificate authorities to trust.
    - ``timeout`` is that of one HTTP request with its retries: the narrowest of three limits. It
      should be shorter than ``member_timeout``, unless late members are only skipped.
    - ``max_concurrency`` requests are sent at once.
    - ``system_prompt``, ``seed``, ``chat_template``, ``chat_template_kwargs`` and
      ``repetition_penalty`` are as those of :class:`.TransformersMember`.
    """

    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        name: str | None = None,
        tokenizer: Any = None,
        engine: Engine | None = None,
        api_key_env: str = "SPECFUSE_API_KEY",
        timeout: float = 60.0,
        verify: bool | str = True,
        max_concurrency: int = 8,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            error = UsageError(
                f"a server's address begins with http:// or https://, got {base_url!r}"
            )
            raise advised(error, "for example ServerMember('http://localhost:8000/v1', 'my-model')")
        refuse_secrets(base_url)
        if engine is not None and engine not in DIALECTS:
            known = ", ".join(DIALECTS)
            raise advised(
                UsageError(f"engine must be one of {known}, got {engine!r}"),
                "leave it out: the engine is detected",
            )
        check_whole_number(
            "max_concurrency", max_concurrency, "leave it out for 8 requests at once"
        )
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise advised(
                UsageError(f"seed must be a whole number, got {seed!r}"), "for example seed=1"
            )
        remember(chat_template_kwargs)
        self.address = Address(base_url, api_key_env, timeout, verify)
        self.model, self.engine, self.tokenizer = model, engine, tokenizer
        self.name = (
            name or os.path.basename((model or base_url.split("//")[1]).rstrip("/")) or base_url
        )
        self.max_concurrency = max_concurrency
        self.chat_template, self.chat_template_kwargs = (
            chat_template,
            dict(chat_template_kwargs or {}),
        )
        self.system_prompt, self.repetition_penalty, self.seed = (
            system_prompt,
            repetition_penalty,
            seed,
        )
        self._start_unconnected()

    def _start_unconnected(self) -> None:
        self._client: Client | None = None
        self._session: TokenSession | None = None
        self._chat: ChatModelMember | None = None
        """Instead of a session, for a server that only chats."""
        self._ready: Probe | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Everything except the connections: a copy opens its own."""
        return {key: value for key, value in vars(self).items() if key not in _CONNECTION}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        self._start_unconnected()

    def __repr__(self) -> str:
        return f"ServerMember({self.address.url!r}, {self.model!r}, name={self.name!r})"

    @property
    def device(self) -> str:
        """Its own, also beside others on the same server: the server makes a batch of what it is
        asked at once."""
        return f"{self.address.url}#{self.model or ''}#{self.name}"

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON."""
        own: dict[str, Any] = {
            "chat_template": self.chat_template,
            "chat_template_kwargs": self.chat_template_kwargs,
        }
        own |= {
            "repetition_penalty": self.repetition_penalty,
            "seed": self.seed,
            "system_prompt": self.system_prompt,
        }
        known: dict[str, Any] = {"server": self.address.url, "model": self.model}
        return dict(masked(known | {key: value for key, value in own.items() if value}))

    # --- the protocol -----------------------------------------------------------------------------

    def probe(self) -> Probe:
        if self._ready is None:
            self.unload()
            client = self._client = Client(self.address, self.name, self.max_concurrency)
            try:
                self._ready = self._probe(client)
            except BaseException as error:
                self.unload()
                if isinstance(error, MemberError | UsageError) or not isinstance(error, Exception):
                    raise
                message = (
                    f"the server at {self.address.url} describes itself in an unexpected "
                    f"way: {shown(error)}"
                )
                odd = MemberError(message, member=self.name)
                raise advised(
                    odd, f"check that base_url and engine= match the server; {_OTHERS}"
                ) from error
            log.info("%s: %s", self.name, self._ready.detail)
        return self._ready

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._each("draft", jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        return self._each("score", jobs)

    def forget(self, query_id: str) -> None:
        if (asked := self._session or self._chat) is not None:
            asked.forget(query_id)

    def unload(self) -> None:
        """Close the connections. The next job opens them again, and finds out again what is
        served."""
        if self._chat is not None:
            self._chat.unload()
        self._ready = self._session = self._chat = None
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- tokens for people ------------------------------------------------------------------------

    @property
    def token_ids(self) -> Callable[[str], list[int]]:
        """text -> its tokens in this member's tokenizer. A server that only chats has no such
        attribute."""
        return self._tokens().words.encode

    @property
    def token_count(self) -> Callable[..., int]:
        """(turns, tools) -> the length of their prompt. A server that only chats has no such
        attribute."""
        session = self._tokens()
        return lambda turns, tools=(): len(session.prompt_ids(turns, tools))

    def _tokens(self) -> TokenSession:
        self.probe()
        if self._session is None:
            raise AttributeError(
                f"the server at {self.address.url} only chats, and offers no tokenizer"
            )
        return self._session

    # --- finding out what is served ---------------------------------------------------------------

    def _probe(self, client: Client) -> Probe:
        served, owner = self._served(client)
        model = self._chosen(served)
        engine = (
            self.engine
            or OWNERS.get(owner)
            or ("completions" if self.tokenizer is not None else None)
        )
        if engine is None and (served or is_ollama(client)):
            return self._probe_chat(client, model, owner)
        session = (
            self._token_session(DIALECTS[engine](client, model)) if engine is not None else None
        )
        if session is None:
            if engine is not None:
                raise self._refusal("it offers no tokenizer; pass tokenizer=", _OTHERS)
            unknown = self._refusal(
                "it is of no known kind, and lists no models",
                f"check the server's address; {_OTHERS}",
            )
            unknown.kind = "not_found"
            raise unknown
        self._session = session
        session.check()
        if engine == "completions" and not session.known:
            why = f"its completions do not score prompts ({'; '.join(session.refused.values())})"
            raise self._refusal(why, "leave out tokenizer= and engine=: it joins as a chat model")
        scoring = f"scores by {', '.join(session.known)}" if session.known else "draft-only"
        trouble = "; ".join(f"not by {name}: {why}" for name, why in session.refused.items())
        detail = f"{session.dialect.name} at {self.address.url}, {scoring}" + (
            f" ({trouble})" if trouble else ""
        )
        if not session.known:
            log.warning("%s is draft-only: %s", self.name, trouble)
        calls = session.template.own_calls(session.words)
        return Probe(model, bool(session.known), session.limit, detail, calls)

    def _refusal(self, why: str, advice: str) -> MemberError:
        error = MemberError(
            f"the server at {self.address.url} cannot be a ServerMember: {why}", member=self.name
        )
        return advised(error, advice)

    def _probe_chat(self, client: Client, model: str, owner: str) -> Probe:
        """Join as a chat model."""
        from ..chat_model import ChatModelMember

        mine = ("chat_template", "chat_template_kwargs", "repetition_penalty")
        if given := [name for name in mine if getattr(self, name)]:
            raise self._refusal(f"it only chats, without {given[0]}=", f"leave {given[0]} out")
        how: dict[str, Any] = {"name": self.name, "system_prompt": self.system_prompt}
        chat_model = chat_model_of(client, model, owner, self.seed)
        self._chat = ChatModelMember(chat_model, max_concurrency=self.max_concurrency, **how)
        probe = self._chat.probe()
        return replace(probe, model=model, detail=f"{probe.detail}, at {self.address.url}")

    def _served(self, client: Client) -> tuple[list[str], str]:
        """The server's models, and who it says that it is."""
        try:
            models = client.models()
        except StrayReplyError as error:
            error.kind = "not_found"
            raise advised(error, f"check the server's address; {_OTHERS}") from None
        except MemberError as error:
            if error.kind != "not_found":
                raise
            models = []  # a gateway without a list
        return [str(one.get("id")) for one in models], str(
            models[0].get("owned_by", "")
        ) if models else ""

    def _chosen(self, served: Sequence[str]) -> str:
        """The model to ask for; an error if the server does not have it."""
        wanted = self.model
        if not served and wanted:
            return wanted
        found = [
            one
            for one in served
            if wanted in (None, one, os.path.basename(one), one.removesuffix(":latest"))
        ]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(served) or "nothing"
        message = (
            f"the server at {self.address.url} serves {shown}; wanted "
            f"{wanted or 'one model, or a name'}"
        )
        error = MemberError(message, member=self.name, kind="not_found")
        raise advised(
            error, f"name one that is served: {self.address.url}#MODEL, or model= of ServerMember"
        )

    def _token_session(self, dialect: Dialect) -> TokenSession | None:
        tokenizer = (
            local_tokenizer(self.tokenizer) if self.tokenizer is not None else dialect.tokenizer()
        )
        if tokenizer is None:
            return None
        own = self.chat_template not in (None, "plain")
        if own and isinstance(tokenizer, RemoteTokenizer) and not tokenizer.takes_templates():
            error = UsageError(
                f"the server at {self.address.url} always renders with its own template"
            )
            raise advised(
                error,
                "name the model's tokenizer (tokenizer=), or start the server with that "
                "chat_template",
            )
        template = Template(tokenizer, self.name, self.chat_template, self.chat_template_kwargs)
        dialect.stops, dialect.words = (
            stops_of(tokenizer, template, self.tokenizer),
            Words(tokenizer, template.answer_parts),
        )
        how = (self.seed, self.repetition_penalty, self.system_prompt)
        return TokenSession(self.name, dialect, dialect.words, template, dialect.limit(), *how)

    # --- asking -----------------------------------------------------------------------------------

    def _each(self, work: Literal["draft", "score"], jobs: Sequence[Any]) -> list[Any]:
        """All jobs at once, so that the engine makes a batch of them."""
        if self._client is not None and self._client.broken:
            self._ready = None  # another server may be there now: find out again what is served
        self.probe()
        if self._chat is not None:
            return list(getattr(self._chat, work)(jobs))
        return each(jobs, getattr(self._session, work), self.name, self.max_concurrency)
