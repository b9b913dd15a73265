"""What a chat model is made of: its fields, how they are checked, named, written down and copied. It answers nothing.

Knows which fields change an answer; the rules for single values are in ``_options``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, Self

from langchain_core.language_models.chat_models import BaseChatModel
from pydantic import Field, PrivateAttr, SecretStr, ValidationError, model_validator

from . import _options, _registry, _shapes
from ._messages import PROVIDER
from ._version import __version__
from .engine.ensemble import Ensemble
from .errors import UsageError, advised

HELD = _options.PER_CALL | {"memory_budget"}
"""What a chat model holds of the choices that can be wrong. What is LangChain's own stays LangChain's to check."""


class AskedOfObject:
    """A method that LangChain looks up on the class and you on the object, with different answers."""

    def __init__(self, of_class: Callable[..., Any], of_object: Callable[..., Any]) -> None:
        self._of_class, self._of_object = of_class, of_object

    def __get__(self, model: object, owner: type) -> Callable[..., Any]:
        return self._of_class if model is None else partial(self._of_object, model)


def _named_only(model: SpecFuseFields) -> bool:
    who = model._who()
    return all(_registry.is_spec(one) for one in [*who["members"], *who["verifiers"]])


class SpecFuseFields(BaseChatModel):
    """The fields of ``SpecFuseChatModel``."""

    members: list[Any]
    """Who writes: hub ids, folders, ``.gguf`` files, ``base+adapter``, servers' addresses, dicts of arguments,
    or objects."""
    verifiers: list[Any] = Field(default_factory=list)
    """Who only votes. Written like ``members``."""
    cluster: str | None = None
    """A Ray cluster, ``"auto"`` or its address, over which members are spread that would work in this process."""
    model: str | None = None
    """The name shown in traces and metadata; the members' names if left out."""

    segment_tokens: int = 10
    """How long a proposal is, in its writer's tokens: short ones mix the members more finely and cost more rounds."""
    drafters: int | None = None
    """So many draft in a round, those who have won most often in this answer; when they are less sure than usual, all
    do. 1 costs far fewer passes than the default, which is all in every round."""
    speculate: bool | Literal["auto"] = False
    """``"auto"``: members guess how their drafts go on and read what they guess at once, where that is quicker; much
    larger ones check smaller ones' drafts first. They write what they would have written. True: all larger ones do."""
    max_tokens: int = 512
    """Budget of the answer, in tokens of whoever wrote each segment."""
    max_rounds: int | None = None
    """Budget of the answer in rounds."""
    stop: list[str] | None = None
    """Texts that end the answer and are no part of it. A call's own ``stop`` is added to these."""

    temperature: float = 0.0
    """0 is greedy: the same question gets the same answer."""
    top_p: float | None = None
    """Sample from the likeliest tokens that together have this probability."""
    top_k: int | None = None
    """Sample from this many tokens."""
    min_p: float | None = None
    """Leave out tokens less likely than this share of the likeliest one's probability."""
    repetition_penalty: float | None = None
    """Above 1: what was said already becomes less likely. None: as each member's own configuration has it."""
    seed: int | None = None
    """Makes sampling repeatable. None: another seed for every call; the one that was used is in the metadata."""

    preset: str = "robust"
    """``robust`` (ours), ``specfuse`` or ``specem`` (the two versions of the paper): what the next nine are."""
    score: str | None = None
    """``mean_prob``, ``mean_logprob`` or ``logprob_per_byte``."""
    voice: str | None = None
    """``equal``: every verifier's vote counts by its weight; ``assured``: less, while it finds no draft probable."""
    reward: str | None = None
    """What a draft earns its writer: ``wins`` (as third parties compare), ``margins`` (by how clearly all do)."""
    feedback: str | None = None
    """How voting weights follow success: ``published``, ``anytime`` or ``off``."""
    learning_rate: float | None = None
    """How fast they do."""
    umpire: bool | None = None
    """Whether one that is no party decides where several members are sure of different beginnings of the answer."""
    exit: str | None = None
    """Who leaves for losing: ``studentized``, ``quiet`` (sooner: fewer passes), ``literal``, ``fixed`` or ``never``."""
    loop_guard: bool | None = None
    """Whether drafts that only repeat the answer's tail must wait."""
    min_members: int | None = None
    """This many stay, whatever happens in the votes (``robust``: 2, the others: 1)."""
    prior: dict[str, float] | None = None
    """Voting weights to begin with, by member's name; whoever is not named begins with 1."""

    timeout: float | None = None
    """Seconds for a whole answer, without the time that loading takes."""
    member_timeout: float | None = None
    """Seconds for one reply of one member. What becomes of one that takes longer, ``straggler`` says."""
    straggler: str = "exit"
    """Who takes longer than ``member_timeout`` leaves this answer (``exit``), is left out of this round and asked again
    in the next (``leave_out``), or is waited for all the same (``wait``). Without ``member_timeout`` all wait."""
    at_once: int = 256
    """So many answers are under way together on these members; who comes then waits for their turn. Calls that allow
    more company pass one that allows less, but 32 turns at most: then it is waited for."""
    max_waiting: int | None = None
    """Who would have so many waiting before them is refused at once with a ``BusyError`` that says when to come again.
    None: nobody is; for one call None means, as for every field, what the chat model was made with."""
    priority: int = 0
    """Goes before calls with less, wherever it waits, up to so many turns as the difference: so nobody waits for
    ever."""
    memory_budget: int | str | dict[str, int | str] | None = None
    """Bytes (``"6GB"``) that the weights and caches of members in this process may take on a device, or a dict of such
    by device. When they are short, caches shrink, questions wait, and idle members' weights leave the device: slower,
    the same answers. Chosen when the chat model is made."""
    trace: str = "rounds"
    """How deep traces go: ``off``, ``summary`` (the ensemble as metadata), ``rounds`` (a run for each) or ``members``
    (a run for each draft and scoring too). It changes no answer."""
    streaming: bool | None = None
    """LangChain's switch: True streams inside ``invoke`` as well, False never streams."""
    max_retries: int | None = Field(default=None, exclude=True)
    """Taken so that chat models can be swapped. Nothing is retried here: members in this process do not fail by
    chance, and a failing one leaves. ``with_retry`` retries whole answers."""
    api_key: SecretStr | None = Field(default=None, exclude=True, repr=False)
    """Taken so that chat models can be swapped. Nothing here needs one."""

    _held: Ensemble | None = PrivateAttr(default=None)
    """Keeps the ensemble of member objects alive; found anew through the registry for every call."""

    def __init__(self, **fields: Any) -> None:
        chosen = _options.checked(fields, type(self).model_fields)
        chosen["members"] = members_list(chosen.get("members"), "members")
        chosen["verifiers"] = members_list(chosen.get("verifiers", []), "verifiers")
        names = _registry.names_of([*chosen["members"], *chosen["verifiers"]])
        if "prior" in chosen:
            chosen["prior"] = _options.checked_prior(chosen["prior"], names)
        try:
            super().__init__(**chosen)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(f"{where} cannot be {first.get('input')!r:.200}: {first['msg']}") from error
        if not any(isinstance(one, str | Mapping) for one in chosen["members"] + chosen["verifiers"]):
            self._held = _registry.ensemble_for(self.members, self.verifiers, self.memory_budget, self.cluster)

    @model_validator(mode="after")
    def _set_specfuse_version(self) -> Self:
        self._add_version("langchain-specfuse", __version__)
        return self

    def _now(self) -> dict[str, Any]:
        """What a call may choose, as it is chosen for all calls. Checked anew: it may have been assigned since the chat
        model was made, or changed in a copy. As everywhere, None means: not chosen."""
        fields = type(self).model_fields
        held = {name: getattr(self, name) for name in HELD}
        chosen = _options.checked(held, HELD)
        unset = {name: fields[name].get_default(call_default_factory=True) for name in HELD - chosen.keys()}
        return {**unset, **chosen, **self._who()}

    def _who(self) -> dict[str, list[Any]]:
        """Who writes and who only votes, checked."""
        verifiers = [] if self.verifiers is None else self.verifiers
        return {"members": members_list(self.members, "members"), "verifiers": members_list(verifiers, "verifiers")}

    # --- what this is, for caches and traces --------------------------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return "specfuse"

    @property
    def _identifying_params(self) -> dict[str, Any]:
        """Every choice that can change the answer, as plain JSON: the cache's key, and what traces show."""
        now = self._now()
        given = [*now["members"], *now["verifiers"]]
        identities = [_registry.identity(one, name) for one, name in zip(given, _registry.names_of(given), strict=True)]
        left_out = {"members", "verifiers", "cluster", "model", "stop", "timeout", "trace", *_options.TURNS}
        return {
            "model": now["model"] or display_name(now["members"]),
            "members": identities[: len(now["members"])],
            "verifiers": identities[len(now["members"]) :],
            **{name: now[name] for name in sorted(_options.PER_CALL - left_out)},
            # Not "stop": LangChain writes the call's own stop strings under that name.
            "always_stop": now["stop"],
            "output_version": self.output_version,
        }

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        # LangChain's own takes the serialized form, which leaves out members that are objects.
        kwargs = {name: value for name, value in kwargs.items() if name not in ("trace", *_options.TURNS)}
        params = self._get_invocation_params(stop=stop, **_shapes.plain(kwargs))
        return str(sorted(params.items(), key=lambda item: item[0]))

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> Any:
        now = self._now()  # what follows takes all fields for right
        for name in ("members", "verifiers"):  # before a tracer sees what the dict of one holds
            if kwargs.get(name) is not None:
                members_list(kwargs[name], name)
        call = {name: value for name, value in kwargs.items() if value is not None}
        params = super()._get_ls_params(stop=[*(now["stop"] or []), *_options.stop_strings(stop or [])] or None, **call)
        params["ls_provider"] = PROVIDER
        params.setdefault("ls_model_name", display_name(now["members"]))
        return params

    def _resolve_model_profile(self) -> Any:
        return {
            "text_inputs": True,
            "text_outputs": True,
            "image_inputs": False,
            "audio_inputs": False,
            "video_inputs": False,
            "tool_calling": True,
            "tool_choice": True,
            "tool_call_streaming": True,
            "structured_output": True,
            "temperature": True,
        }

    # --- copies -------------------------------------------------------------------------------------------------

    is_lc_serializable: ClassVar[Any] = AskedOfObject(lambda: False, _named_only)
    """A chat model can be written down if its members are names; the class alone cannot promise it."""
    runners_up: bool | None = None
    """True: with ``output_version="v1"``, annotations also tell the best draft that lost."""

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        return self.model_copy()

    def __getstate__(self) -> dict[Any, Any]:
        return {**super().__getstate__(), "__pydantic_private__": {"_held": None}}

    def __repr_args__(self) -> Any:
        for name, value in super().__repr_args__():
            if name in ("members", "verifiers"):
                yield name, _registry.names_of(value)
            elif name not in ("profile", "metadata"):
                yield name, value


def members_list(given: Any, field: str) -> list[Any]:
    wanted = f"{field} must be a list of hub ids, folders, .gguf files, dicts or member objects"
    if isinstance(given, SpecFuseFields):
        raise advised(UsageError(f"{wanted}, got a chat model"), f"pass what it holds: {field}=llm.members")
    if not isinstance(given, list | tuple):
        raise advised(UsageError(f"{wanted}, got {given!r:.200}"), f"put it into a list: {field}=[...]")
    if not given and field == "members":
        raise advised(UsageError(f"{wanted}, at least one; got none"), "name one, for example 'Qwen/Qwen3-0.6B'")
    return [_registry.checked_member(one) for one in given]


def display_name(members: Sequence[Any]) -> str:
    return "+".join(_registry.names_of(members))
