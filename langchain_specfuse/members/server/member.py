"""ServerMember: a model on a server, over HTTP: vLLM, SGLang, llama.cpp, or whatever goes on with a chat.

The parts: ``_http`` asks and asks again, a dialect (``_vllm``, ``_sglang``, ``_llamacpp``) says it as the engine wants
it, ``_exact`` drafts and scores in token ids, ``_chat`` drafts where there are none. This file finds out which it is,
and turns whatever goes wrong into the failure of one job. It knows nothing of votes, and needs neither torch nor a GPU.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ..core.member import Probe
from ..core.values import KINDS, CallFormat, Draft, DraftJob, Failure, Scored, ScoreJob, Tool, Turn
from ..errors import MemberError, UsageError, advised
from ._addresses import refuse_secrets
from ._chat import Chat
from ._crew import Crew
from ._dialects import Dialect
from ._exact import Exact
from ._http import SHOWN, Address, Wire
from ._lexicon import stops_of, tokenizer_in
from ._llamacpp import LlamaCpp
from ._remote import RemoteTokenizer
from ._sglang import SGLang
from ._template import Template
from ._text import Words
from ._vllm import VLLM

log = logging.getLogger("langchain_specfuse")

Engine = Literal["vllm", "sglang", "llama.cpp", "chat"]
DIALECTS: Mapping[str, Callable[[Wire, str], Dialect]] = {"vllm": VLLM, "sglang": SGLang, "llama.cpp": LlamaCpp}
OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp"}
"""What a server calls itself in its list of models -> the engine that it is."""
_Job = TypeVar("_Job", DraftJob, ScoreJob)


class ServerMember:
    """One LLM on a server.

    >>> member = ServerMember("http://localhost:8000/v1", "Qwen/Qwen2.5-7B-Instruct")  # asks nothing yet
    >>> member.name
    'Qwen2.5-7B-Instruct'

    ``model`` may be left out where one is served. ``tokenizer`` is a local folder or hub id (or a tokenizer of
    transformers) with the model's own tokenizer: then text becomes tokens here, else the server is asked. ``engine`` is
    found out; it may be told. The API key is read from the environment variable ``api_key_env`` (``Basic ...`` is
    sent as it is), never from the address. ``timeout`` is for one question with its ``retries``; ``verify`` may
    name the authorities to trust. ``parallel`` jobs are asked at once. ``system_prompt``, ``seed``,
    ``chat_template``, ``chat_template_kwargs`` and ``repetition_penalty`` are as those of
    :class:`.TransformersMember`.
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
        retries: int = 3,
        verify: bool | str = True,
        parallel: int = 8,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        system_prompt: str | None = None,
        repetition_penalty: float | None = None,
        seed: int = 0,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            error = UsageError(f"a server's address begins with http:// or https://, got {base_url!r}")
            raise advised(error, "for example ServerMember('http://localhost:8000/v1', 'my-model')")
        refuse_secrets(base_url)
        if engine is not None and engine not in (*DIALECTS, "chat"):
            known = ", ".join((*DIALECTS, "chat"))
            raise advised(UsageError(f"engine must be one of {known}, got {engine!r}"), "leave it out: it is found out")
        if isinstance(parallel, bool) or not isinstance(parallel, int) or parallel < 1:
            error = UsageError(f"parallel must be a whole number from 1 on, got {parallel!r}")
            raise advised(error, "leave it out: 8 questions are asked at once")
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise advised(UsageError(f"seed must be a whole number, got {seed!r}"), "for example seed=1")
        self.address = Address(base_url, api_key_env, timeout, retries, verify)
        self.model, self.engine, self.tokenizer = model, engine, tokenizer
        self.name = name or os.path.basename((model or base_url.split("//")[1]).rstrip("/")) or base_url
        self.parallel = parallel
        self.chat_template, self.chat_template_kwargs = chat_template, dict(chat_template_kwargs or {})
        self.system_prompt, self.repetition_penalty, self.seed = system_prompt, repetition_penalty, seed
        self._wire: Wire | None = None
        self._crew: Crew | None = None
        self._speech: Exact | Chat | None = None
        self._ready: Probe | None = None

    def __repr__(self) -> str:
        return f"ServerMember({self.address.url!r}, {self.model!r}, name={self.name!r})"

    @property
    def device(self) -> str:
        """A device of its own, also beside others on that server: it makes a batch of what it is asked at once."""
        return f"{self.address.url}#{self.model or ''}#{self.name}"

    @property
    def spec(self) -> dict[str, Any]:
        """All that tells this member's answers from another's, as plain JSON."""
        own: dict[str, Any] = {"chat_template": self.chat_template, "chat_template_kwargs": self.chat_template_kwargs}
        own |= {"repetition_penalty": self.repetition_penalty, "seed": self.seed, "system_prompt": self.system_prompt}
        return {"server": self.address.url, "model": self.model} | {key: value for key, value in own.items() if value}

    # --- the protocol -------------------------------------------------------------------------------------------

    def probe(self) -> Probe:
        if self._ready is None:
            self.unload()
            wire = self._wire = Wire(self.address, self.name, self.parallel)
            self._crew = Crew(self.parallel, f"specfuse-{self.name}")
            try:
                self._ready = self._probed(wire)
            except (MemberError, UsageError):
                self.unload()
                raise
            except Exception as error:  # a server may tell anything of itself
                self.unload()
                message = f"the server at {self.address.url} tells of itself what it should not: {_shown(error)}"
                odd = MemberError(message, member=self.name)
                raise advised(
                    odd, "look whether it is the engine that you mean: engine='chat' asks for least"
                ) from error
            except BaseException:
                self.unload()
                raise
            log.info("%s: %s", self.name, self._ready.detail)
        return self._ready

    def draft(self, jobs: Sequence[DraftJob]) -> list[Draft | Failure]:
        return self._each(jobs, lambda speech, job: speech.draft(job))

    def score(self, jobs: Sequence[ScoreJob]) -> list[Scored | Failure]:
        def scored(speech: Exact | Chat, job: ScoreJob) -> Scored:
            if isinstance(speech, Chat) or not speech.known:
                raise MemberError("it is draft-only", member=self.name)
            return speech.score(job)

        return self._each(jobs, scored)

    def forget(self, query_id: str) -> None:
        if isinstance(self._speech, Exact):
            self._speech.forget(query_id)

    def unload(self) -> None:
        """Close the connections. The next job opens them again, and looks again at what is served."""
        self._ready = self._speech = None
        if self._crew is not None:
            self._crew.close()
        if self._wire is not None:
            self._wire.close()
        self._wire = self._crew = None

    # --- tokens for people --------------------------------------------------------------------------------------

    def token_ids(self, text: str) -> list[int]:
        """The text's tokens in this member's tokenizer; numbers of words where the server tells none."""
        self.probe()
        speech = self._speech
        return speech.words.encode(text) if isinstance(speech, Exact) else list(speech.numbered(text) if speech else ())

    def token_count(self, turns: Sequence[Turn], tools: Sequence[Tool] = ()) -> int:
        """How long the prompt of these turns is."""
        self.probe()
        if isinstance(self._speech, Exact):
            return len(self._speech.prompt_ids(turns, tools))
        return sum(len(self.token_ids(turn.text)) for turn in turns)

    # --- finding out --------------------------------------------------------------------------------------------

    def _probed(self, wire: Wire) -> Probe:
        served, owner = self._served(wire)
        model = self._promised(served)
        engine = self.engine or OWNERS.get(owner, "chat")
        exact = self._exact(DIALECTS[engine](wire, model)) if engine in DIALECTS else None
        if exact is None:
            return self._chatting(wire, model, engine)
        self._speech = exact
        exact.check()
        scoring = f"scores by {', '.join(exact.known)}" if exact.known else "draft-only"
        trouble = "; ".join(f"not by {way}: {why}" for way, why in exact.refused.items())
        detail = f"{exact.dialect.name} at {self.address.url}, {scoring}" + (f" ({trouble})" if trouble else "")
        if not exact.known:
            log.warning("%s is draft-only: %s", self.name, trouble)
        return Probe(model, bool(exact.known), exact.limit, detail, self._own_calls(exact))

    def _served(self, wire: Wire) -> tuple[list[str], str]:
        """The models of this server, and who it says that it is."""
        try:
            told = wire.get("/v1/models").get("data") or []
        except MemberError as error:
            if error.kind != "not_found":
                raise
            told = []  # a gateway without a list
        return [str(one.get("id")) for one in told], str(told[0].get("owned_by", "")) if told else ""

    def _promised(self, served: Sequence[str]) -> str:
        """The model to ask for; an error where it is not what is served."""
        wanted = self.model
        if not served and wanted:
            return wanted
        found = [one for one in served if wanted is None or wanted in (one, os.path.basename(one))]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(served) or "nothing"
        message = f"the server at {self.address.url} serves {shown}; wanted {wanted or 'one model, or a name'}"
        error = MemberError(message, member=self.name, kind="not_found")
        raise advised(error, "name one that is served: ServerMember(base_url, model)")

    def _exact(self, dialect: Dialect) -> Exact | None:
        tokenizer = tokenizer_in(self.tokenizer) if self.tokenizer is not None else dialect.tokenizer()
        if tokenizer is None:
            return None
        own = self.chat_template not in (None, "plain")
        if own and isinstance(tokenizer, RemoteTokenizer) and not tokenizer.takes_templates():
            error = UsageError(f"the server at {self.address.url} renders with its own template, whatever it is given")
            raise advised(error, "name the model's tokenizer (tokenizer=), or start the server with that chat_template")
        words = Words(tokenizer)
        template = Template(tokenizer, self.name, self.chat_template, self.chat_template_kwargs)
        dialect.stops = stops_of(tokenizer, template, self.tokenizer)
        limit = dialect.limit()
        return Exact(self.name, dialect, words, template, limit, self.seed, self.repetition_penalty, self.system_prompt)

    def _chatting(self, wire: Wire, model: str, engine: str) -> Probe:
        if self.chat_template is not None:
            error = UsageError(f"the server at {self.address.url} only chats, with its own template")
            raise advised(error, "start the server with that chat_template, and leave it out here")
        extra = {"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {}
        self._speech = Chat(self.name, wire, model, self.seed, self.system_prompt, extra, self.repetition_penalty)
        self._speech.check()
        why = "it takes no token ids" if engine == "chat" else "it lends no tokenizer, and none was given"
        log.warning("%s is draft-only: %s", self.name, why)
        return Probe(model, False, None, f"chat at {self.address.url}, draft-only: {why}")

    @staticmethod
    def _own_calls(exact: Exact) -> CallFormat | None:
        """How it writes calls by its own training, if its tokenizer can say so in plain text."""
        own, words = exact.template.native.format, exact.words
        plain = own and all(words.decode(words.continuing(mark, marks=True)) == mark for mark in (own.begin, own.end))
        return own if plain else None

    # --- asking -------------------------------------------------------------------------------------------------

    def _each(self, jobs: Sequence[_Job], work: Callable[[Exact | Chat, _Job], Any]) -> list[Any]:
        """All of them at once; the engine makes a batch of them. One that fails takes no other along."""
        self._look_again()
        assert self._crew is not None
        return self._crew.map(lambda job: self._replied(job, work), jobs)

    def _look_again(self) -> None:
        """After a connection broke it may be another server: what it serves is looked at as if it were new."""
        if self._wire is not None and self._wire.broken:
            self._ready = None
        self.probe()

    def _replied(self, job: _Job, work: Callable[[Exact | Chat, _Job], Any]) -> Any:
        assert self._speech is not None
        try:
            return work(self._speech, job)
        except (MemberError, UsageError) as error:
            kind = getattr(error, "kind", "error")
            return Failure(kind if kind in KINDS else "error", str(error), error)
        except Exception as error:  # a server may send anything
            return Failure("error", f"the server's answer is not what it should be: {_shown(error)}", error)


def _shown(error: Exception) -> str:
    """An error as it may be told: what a server sent may be no text, and long."""
    told = f"{type(error).__name__}: {error}"
    return told.encode(errors="backslashreplace").decode()[:SHOWN]
