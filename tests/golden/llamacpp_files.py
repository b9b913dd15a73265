"""SmolLM2-135M, which llama.cpp runs in this process. Needs the demo's weights.

One thread computes: with two, scores differ in the fourth digit. The wheel of llama.cpp uses AVX2
on all x86 processors, also on those with AVX-512.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from langchain_specfuse import LlamaCppMember, ScriptedMember
from langchain_specfuse.demo import SMOLLM2, file_of

from .record import asked
from .scripted import BLUE, PERSON, WEATHER
from .tiny_models import chat_model, conversation

QUESTION = "Why is the sky blue?"
LONG = "Repeat the last word. " + " ".join(f"Word {number} is red." for number in range(40))
"""More tokens than a member reads before others have their turn."""


@cache
def folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="specfuse-golden-")


def file() -> Path:
    """A second name of the weights: members of other tests share no cache with it."""
    path = Path(folder().name, "smollm2.gguf")
    if not path.exists():
        try:
            os.link(file_of(SMOLLM2), path)
        except OSError:  # another file system
            shutil.copyfile(file_of(SMOLLM2), path)
    return path


def member(name: str = "smollm2", **options: Any) -> LlamaCppMember:
    return LlamaCppMember(file(), name=name, **options)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """What a user sets to choose the number of threads."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


@on_one_thread()
def alone() -> dict[str, Any]:
    with chat_model(member(), max_tokens=24, segment_tokens=8) as llm:
        record = conversation(llm)
        sampled = asked(llm, QUESTION, temperature=0.8, seed=3)
        repeating = asked(llm, QUESTION, repetition_penalty=1.3)
    return record | {
        "temperature 0.8": sampled["message"]["content"],
        "repetition_penalty": repeating["message"]["content"],
    }


@on_one_thread()
def forms() -> dict[str, Any]:
    with chat_model(member(), max_tokens=40, segment_tokens=8) as llm:
        return {
            "schema": asked(llm, "Who was Marie Curie?", response_format=PERSON),
            "tool": asked(
                llm.bind_tools([WEATHER], tool_choice="any"), "What is the weather in Rome?"
            ),
            "stop": asked(llm, QUESTION, stop=["the"], logprobs=True)["message"],
        }


@on_one_thread()
def long_prompt() -> dict[str, Any]:
    """Read in several chunks, and once more in a crowd of short prompts."""
    with chat_model(member(), max_tokens=12) as llm:
        record = asked(llm, LONG)
    with chat_model(member(), max_tokens=12) as llm:
        crowd = [message.content for message in llm.batch([QUESTION, LONG, "Hello!"])]
    return record | {"crowd": crowd}


@on_one_thread()
def two_prompts() -> dict[str, Any]:
    """One model under two system prompts: both votes, and what is shared in the cache."""
    curt = member("curt", system_prompt="You are a poet. Answer in verse.")
    with chat_model(member(), curt, max_tokens=20) as llm:
        return conversation(llm)


@on_one_thread()
def with_another() -> dict[str, Any]:
    """A lead whose reserve writes other words."""
    other = ScriptedMember(BLUE, name="ann")
    with chat_model(member(), other, max_tokens=20) as llm:
        equals = asked(llm, QUESTION)
        return {
            "equals": equals,
            "lead": asked(
                llm, QUESTION, lead="smollm2", method={"margin": 0.5, "segment_tokens": 5}
            ),
        }


SCENARIOS = [alone, forms, long_prompt, two_prompts, with_another]
