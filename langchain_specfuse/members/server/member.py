"""ServerMember: a model on a server, over HTTP.

This file finds out which kind of server it is, and turns any error into the failure of one job.
Servers that only chat, such as Ollama, are asked through a :class:`.ChatModelMember`. Neither torch
nor a GPU is needed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from ...core.call import failure_of, refuse_closed, replies, shown
from ...core.member import Probe
from ...core.values import Draft, DraftJob, Failure, Scored, ScoreJob
from ...errors import MemberError, UsageError, advised
from ...removed import removed
from ..arguments import checked
from ..names import check_name
from ..text.templates import Template
from ..text.words import Words
from .chat import chat_model_of, is_ollama
from .client import Address, Client, StrayReplyError
from .dialect import Dialect
from .llamacpp import LlamaCpp
from .tokenizers import ServerTokenizer, local_tokenizer, stops_of
from .tokens import ServerPrompts, TokenSession
from .vllm import VLLM

if TYPE_CHECKING:
    from ..chat_model.member import ChatModelMember

log = logging.getLogger("langchain_specfuse")

Work = Literal["draft", "score"]
DIALECTS: Mapping[str, type[Dialect]] = {"vllm": VLLM, "llamacpp": LlamaCpp}
"""``owned_by`` in a server's list of models -> the dialect of this engine."""
_CONNECTION = ("_client", "_session", "_chat", "_ready", "_connecting", "_failed")
"""Attributes that belong to the connections and are not copied."""
_OTHER_SERVERS = (
    "for any other server, pass a chat model: ChatOpenAI(base_url=..., model=...) from "
    "langchain-openai"
)


class ServerMember:
    """One LLM on a server.

    >>> member = ServerMember(
    ...     "http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct"
    ... )  # sends nothing yet
    >>> member.name
    'Qwen2.5-7B-Instruct'

    The first question finds out which engine the server runs. vLLM and llama.cpp are asked through
    their own interfaces. All others, such as Ollama's or LM Studio's, join as a
    :class:`.ChatModelMember`.

    - ``model`` may be left out if the server has only one.
    - ``tokenizer`` is a local folder or hub id (or a tokenizer of transformers) with the model's
      own tokenizer, which then runs in this process. Without it, the server tokenizes.
    - ``api_key_env`` names the environment variable with the API key (``Basic ...`` is sent as it
      is). An address must not hold a key.
    - ``verify`` may name a file with the certificate authorities to trust.
    - ``timeout`` limits one HTTP request with its retries (with a server that only chats: each
      attempt). It should be shorter than ``member_timeout``. A lead writes a whole answer in one
      request. On vLLM, ``timeout`` then limits the time until the reply begins. On llama-server,
      it does not: the reply begins only when the prompt has been read, which may have to wait for
      other answers.
    - ``max_concurrency`` limits how many requests are sent at once. Without it, the server alone
      decides how many it works on.
    - ``system_prompt``, ``chat_template`` and ``chat_template_kwargs`` are as those of
      :class:`.TransformersMember`.
    """

    waits = True
    """It waits for its server, so each of its jobs has a thread of its own."""

    @checked()
    def __init__(
        self,
        base_url: str,
        model: str | None = None,
        *,
        name: str | None = None,
        tokenizer: Any = None,
        api_key_env: str = "SPECFUSE_API_KEY",
        timeout: Annotated[
            float,
            Field(
                gt=0,
                lt=1e9,
                description="in seconds; leave it out for 60 per request, including its retries",
            ),
        ] = 60.0,
        verify: Annotated[
            bool | str, Field(description="verify='./ca.pem' trusts the authorities in that file")
        ] = True,
        max_concurrency: Annotated[
            int, Field(ge=1, description="leave it out for no limit but the server's own")
        ]
        | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            error = UsageError(
                f"a server's address begins with http:// or https://, got {base_url!r}"
            )
            raise advised(error, "for example ServerMember('http://localhost:8000/v1', 'my-model')")
        check_name(base_url)
        self.address = Address(base_url, api_key_env, timeout, verify)
        self.model = model
        self.tokenizer = tokenizer
        self.name = name or _last_part(model or base_url.split("//")[1]) or base_url
        self.max_concurrency = max_concurrency
        self.chat_template = chat_template
        self.chat_template_kwargs = dict(chat_template_kwargs or {})
        self.system_prompt = system_prompt
        self._start_unconnected()

    def _start_unconnected(self) -> None:
        self._client: Client | None = None
        self._session: TokenSession | None = None
        self._chat: ChatModelMember | None = None
        """Instead of a session, for a server that only chats."""
        self._ready: Probe | None = None
        self._connecting = threading.RLock()
        self._failed: tuple[float, MemberError | UsageError] | None = None
        """When the last attempt to connect failed, and why."""

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
        """Each member has a device of its own, even if others use the same server: the server makes
        batches of simultaneous requests."""
        return f"{self.address.url}#{self.model or ''}#{self.name}"

    @property
    def guides(self) -> bool:
        """As in :class:`.Member`: an engine that takes tokens has guided decoding."""
        return self._session is not None

    @property
    def spec(self) -> dict[str, Any]:
        """Everything that affects this member's output, as plain JSON."""
        known: dict[str, Any] = {"server": self.address.url, "model": self.model}
        own: dict[str, Any] = {
            "chat_template": self.chat_template,
            "chat_template_kwargs": self.chat_template_kwargs,
            "system_prompt": self.system_prompt,
        }
        return known | {key: value for key, value in own.items() if value}

    # --- the protocol -----------------------------------------------------------------------------

    def probe(self) -> Probe:
        with self._connecting:
            if self._ready is None or not self._is_connected():
                self._ready = self._connected()
            return self._ready

    def _is_connected(self) -> bool:
        """Whether there are connections. There are none if the member was unloaded while it
        connected."""
        return self._client is not None

    def _connected(self) -> Probe:
        """Connect anew, and find out what is served."""
        self._session = self._chat = None
        client = self._client = Client(self.address, self.name)
        try:
            probe = self._probe(client)
            refuse_closed()  # a trial that was interrupted may have found out something wrong
        except (MemberError, UsageError):
            self._disconnect()
            raise
        except Exception as error:
            self._disconnect()
            strange = MemberError(
                f"the server at {self.address.url} describes itself in an unexpected way: "
                f"{shown(error)}",
                member=self.name,
            )
            advice = f"check that base_url names a model server; {_OTHER_SERVERS}"
            raise advised(strange, advice) from error
        log.info("%s: %s", self.name, probe.detail)
        return probe

    def forget(self, query_id: str) -> None:
        connected = self._session or self._chat
        if connected is not None:
            connected.forget(query_id)

    def unload(self) -> None:
        """Close the connections. The next job opens them again and probes the server again."""
        self._disconnect()

    def _disconnect(self) -> None:
        if self._chat is not None:
            self._chat.unload()
        self._ready = self._session = self._chat = None
        if self._client is not None:
            self._client.close()
        self._client = None

    # --- counting tokens --------------------------------------------------------------------------

    @property
    def token_ids(self) -> Callable[[str], list[int]]:
        """text -> its tokens in this member's tokenizer. A server that only chats has no such
        attribute."""
        return self._tokens().prompts.words.encode

    @property
    def token_count(self) -> Callable[..., int]:
        """(turns, tools) -> the length of their prompt. A server that only chats has no such
        attribute."""
        session = self._tokens()
        return lambda turns, tools=(): len(session.prompts.prompt(turns, tools))

    def _tokens(self) -> TokenSession:
        self.probe()
        if self._session is None:
            raise AttributeError(
                f"the server at {self.address.url} only chats, and offers no tokenizer"
            )
        return self._session

    # --- finding out what is served ---------------------------------------------------------------

    def _probe(self, client: Client) -> Probe:
        listed = self._listed(client)
        model = self._chosen([str(entry.get("id")) for entry in listed])
        owner = next((str(e.get("owned_by")) for e in listed if str(e.get("id")) == model), "")
        if owner in DIALECTS:
            session = self._token_session(DIALECTS[owner](client, model))
            log.info("%s: a trial finds out how %s scores", self.name, session.dialect.name)
            session.check()
            return self._probe_tokens(session)
        if self.tokenizer is not None:
            raise removed("tokenizer= for a server other than vLLM and llama-server")
        if listed or is_ollama(client):
            return self._probe_chat(client, model, owner)
        unknown = MemberError(
            f"the server at {self.address.url} cannot be a ServerMember: it is of no known kind, "
            "and lists no models",
            member=self.name,
            kind="not_found",
        )
        raise advised(unknown, f"check the server's address; {_OTHER_SERVERS}")

    def _probe_tokens(self, session: TokenSession) -> Probe:
        trouble = "; ".join(f"not by {name}: {why}" for name, why in session.refused.items())
        if not session.known:
            log.warning("%s is draft-only: %s", self.name, trouble)
        self._session = session
        scoring = f"scores by {', '.join(session.known)}" if session.known else "draft-only"
        detail = f"{session.dialect.name} at {self.address.url}, {scoring}"
        if trouble:
            detail += f" ({trouble})"
        calls = session.prompts.template.own_calls(session.prompts.words)
        return Probe(
            session.dialect.model,
            bool(session.known),
            session.limit,
            detail,
            calls,
            excludes=session.excludes,
        )

    def _probe_chat(self, client: Client, model: str, owner: str) -> Probe:
        """Join as a chat model."""
        from ..chat_model.member import ChatModelMember

        for argument in ("chat_template", "chat_template_kwargs"):
            if getattr(self, argument):
                raise self._refusal(f"it only chats, without {argument}=", f"leave {argument} out")
        self._chat = ChatModelMember(
            chat_model_of(client, model, owner),
            name=self.name,
            max_concurrency=self.max_concurrency,
            system_prompt=self.system_prompt,
        )
        self._chat.key_variable = self.address.api_key_env
        probe = self._chat.probe()
        return replace(probe, model=model, detail=f"{probe.detail}, at {self.address.url}")

    def _listed(self, client: Client) -> list[Mapping[str, Any]]:
        """The server's list of models; empty for a gateway without one."""
        try:
            return client.models()
        except StrayReplyError as error:
            error.kind = "not_found"
            raise advised(error, f"check the server's address; {_OTHER_SERVERS}") from None
        except MemberError as error:
            if error.kind != "not_found":
                raise
            return []

    def _chosen(self, served: Sequence[str]) -> str:
        """The model to ask for; an error if the server does not have it."""
        model = self.model
        if not served and model:
            return model
        fitting = [
            name
            for name in served
            if model in (None, name, os.path.basename(name), name.removesuffix(":latest"))
        ]
        if len(fitting) == 1:
            return fitting[0]
        error = MemberError(
            f"the server at {self.address.url} serves {', '.join(served) or 'nothing'}; "
            f"expected {model or 'one model, or a name'}",
            member=self.name,
            kind="not_found",
        )
        raise advised(
            error, f"name one that is served: {self.address.url}#MODEL, or model= of ServerMember"
        )

    def _token_session(self, dialect: Dialect) -> TokenSession:
        if self.tokenizer is not None:
            tokenizer = local_tokenizer(self.tokenizer)
        else:
            tokenizer = self._served_tokenizer(dialect)
        template = Template(tokenizer, self.name, self.chat_template, self.chat_template_kwargs)
        dialect.stops = stops_of(tokenizer, template, self.tokenizer)
        dialect.words = Words(tokenizer, template.answer_parts)
        prompts = ServerPrompts(
            self.name, dialect.words, template, dialect.stops, system_prompt=self.system_prompt
        )
        return TokenSession(self.name, dialect, prompts, dialect.limit())

    def _served_tokenizer(self, dialect: Dialect) -> ServerTokenizer:
        if self.chat_template not in (None, "plain"):
            raise self._refusal(
                "it always renders with its own template, without chat_template=",
                "name the model's tokenizer (tokenizer=), or start the server with that template",
            )
        try:
            tokenizer = dialect.tokenizer()
            tokenizer("a b")
        except MemberError as error:
            if error.kind != "not_found":
                raise
            # a gateway may pass on completions only
            raise self._refusal("it offers no tokenizer", "pass tokenizer=") from error
        return tokenizer

    def _refusal(self, why: str, advice: str) -> UsageError:
        """The server cannot do what the arguments ask for, so another attempt would not help."""
        error = UsageError(f"the server at {self.address.url} cannot be {self.name}: {why}")
        return advised(error, advice)

    # --- asking -----------------------------------------------------------------------------------

    def draft(self, jobs: Sequence[DraftJob]) -> list[Any]:
        return replies(partial(self._answer, "draft"), jobs)

    def score(self, jobs: Sequence[ScoreJob]) -> list[Any]:
        return replies(partial(self._answer, "score"), jobs)

    def _answer(self, work: Work, job: Any) -> Draft | Scored | Failure:
        """The server makes batches of the jobs that reach it at the same time."""
        session, chat = self._now_connected()
        if chat is not None:
            return chat._answer(work, job)
        return session.draft(job) if work == "draft" else session.score(job)

    def stream(self, job: DraftJob) -> Iterator[Draft | Failure]:
        """As in :class:`.Member`."""
        try:
            session, chat = self._now_connected()
            yield from (chat or session).stream(job)
        except Exception as error:
            yield failure_of(error)

    def _now_connected(self) -> tuple[Any, ChatModelMember | None]:
        """What this job uses, to its end. If the server was lost, the first job connects again, and
        those that wait for it share its failure."""
        since = time.monotonic()
        with self._connecting:
            if self._failed is not None and self._failed[0] >= since:
                raise copy(self._failed[1])
            try:
                if self._is_lost():
                    self._ready = None
                self.probe()
            except (MemberError, UsageError) as error:
                refuse_closed()  # the failure of this job alone: the next one connects
                # A copy, because the traceback holds the jobs that have met the error.
                self._failed = (time.monotonic(), copy(error))
                raise
            self._failed = None
            if self._client is None:
                raise MemberError("it was unloaded meanwhile", member=self.name)
            return self._session, self._chat

    def _is_lost(self) -> bool:
        """Whether this job must connect again: another server may be at the address now, or the
        key was refused and the environment has another one now."""
        client, chat = self._client, self._chat
        if client is None:
            return False
        is_denied = client.is_denied or (chat is not None and chat.is_denied)
        return client.broken or (is_denied and client.is_outdated)


def _last_part(name: str) -> str:
    """The last part of a path or an address."""
    return os.path.basename(name.rstrip("/"))
