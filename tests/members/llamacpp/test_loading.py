"""Files load side by side, each once, and a cache is tried when it is made."""

from __future__ import annotations

import gc
import shutil
import time
import weakref
from unittest.mock import Mock

import pytest

from langchain_specfuse import MemberError, SpecFuseChatModel, UsageError
from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.engine.worker import IDLE_S
from langchain_specfuse.members.llamacpp import cache
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from .. import tiny


@pytest.fixture
def file(tiny_llama, tmp_path):
    return shutil.copy(tiny_llama, tmp_path / "model.gguf")


def test_a_file_whose_cache_gives_other_logits_is_refused(file, monkeypatch):
    monkeypatch.setattr(cache, "TRIAL_ERROR", 0.0)
    for _ in range(2):
        with pytest.raises(MemberError, match="a copy of it differs") as raised:
            LlamaCppMember(file, n_gpu_layers=0).probe()
        assert "TransformersMember" in raised.value.notes[0]


def test_a_user_without_a_home_can_name_a_folder_for_the_demos_weights(monkeypatch):
    for name in ("SPECFUSE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    with pytest.raises(UsageError, match="folder") as raised:
        file_of(SMOLLM2)
    assert "SPECFUSE_CACHE" in raised.value.notes[0]


def test_members_load_side_by_side_and_once(file, tmp_path):
    other = shutil.copy(file, tmp_path / "other.gguf")
    members = [
        LlamaCppMember(path, n_gpu_layers=0, name=str(at))
        for at, path in enumerate([file, other, file])
    ]
    for member in members:
        member.start_loading()
    for member in members:
        member.probe()
    assert members[0].cache is members[2].cache
    assert members[0].cache.weights is not members[1].cache.weights


def test_a_load_that_began_early_fails_like_any_other(tmp_path):
    missing = tmp_path / "missing.gguf"
    early, late = LlamaCppMember(missing), LlamaCppMember(missing)
    early.start_loading()
    messages = []
    for member in (early, late, early):
        with pytest.raises(MemberError) as error:
            member.probe()
        messages.append(str(error.value))
    assert len(set(messages)) == 1


def test_unloading_a_member_that_drafts_does_not_free_what_it_computes_with(file, monkeypatch):
    member = LlamaCppMember(file, n_gpu_layers=0)
    member.probe()
    used, decode, contexts = member.cache, member.cache._lib.llama_decode, []

    def unload_meanwhile(context, batch):
        if len(contexts) == 2:
            member.unload()
        contexts.append(used._context)
        return decode(context, batch) if used._context else 1

    monkeypatch.setattr(used._lib, "llama_decode", unload_meanwhile)
    job = DraftJob(tiny.query("Hello", id="q"), (), 5, 9, Sampling())
    tiny.reply_of(member, job)
    assert member.batch_group is None and len(contexts) > 2 and all(contexts)


def test_unloaded_weights_are_freed_before_the_worker_has_other_work(file):
    member = LlamaCppMember(file, n_gpu_layers=0)
    llm = SpecFuseChatModel(members=[member], max_tokens=4)
    llm.invoke("Hello")
    weights = weakref.ref(member.cache.weights)
    llm.unload()
    deadline = time.monotonic() + IDLE_S / 2
    while weights() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()
    assert weights() is None
