"""The trial of a cache is remembered on disk: by its files, settings and machine."""

from __future__ import annotations

import gc
import json
import os
import shutil
import time
import weakref
from importlib.metadata import PackageNotFoundError
from unittest.mock import Mock

import pytest

from langchain_specfuse import MemberError, SpecFuseChatModel, UsageError
from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.engine.worker import IDLE_S
from langchain_specfuse.members.llamacpp import cache, trials
from langchain_specfuse.members.llamacpp.member import LlamaCppMember

from .. import tiny
from .test_llamacpp import mamba


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The cache folder of this test, where results of the shortest trials are kept."""
    monkeypatch.setenv("SPECFUSE_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(cache, "LONG_TRIAL_S", 0.0)
    return tmp_path / "kept"


@pytest.fixture
def file(tiny_llama, tmp_path):
    return shutil.copy(tiny_llama, tmp_path / "model.gguf")


class Opened:
    """What is known about the cache of a member that has just loaded. The member is gone again."""

    def __init__(self, file, **options):
        member = LlamaCppMember(file, n_gpu_layers=0, **options)
        member.probe()
        store = member.cache
        self.was_tried = store.last_sign > 0
        """Whether a pass was computed while the cache was made."""
        self.facts = (store.cuts, store.kind, store.token_bytes, store.strand_bytes)


def test_a_trial_that_passed_is_not_repeated(file):
    first, again = Opened(file), Opened(file)
    assert first.was_tried and not again.was_tried
    assert again.facts == first.facts


def test_replies_are_the_same_without_the_trial(file):
    replies = []
    for _ in range(2):
        member = LlamaCppMember(file, n_gpu_layers=0)
        (draft,) = member.draft([DraftJob(tiny.query(), (), 8, 16, Sampling())])
        replies.append((draft.text, draft.logprobs))
    assert replies[0] == replies[1]


def test_a_state_that_cannot_be_cut_is_remembered_as_such(tmp_path):
    path = mamba(tmp_path / "mamba.gguf")
    first, again = Opened(path), Opened(path)
    assert first.was_tried and not again.was_tried
    assert again.facts == first.facts and not again.facts[0]


def test_another_file_another_setting_and_another_library_are_tried(file, monkeypatch):
    Opened(file)
    os.utime(file, ns=(1, 1))
    assert Opened(file).was_tried
    assert Opened(file, cache_type="q8_0").was_tried
    monkeypatch.setattr(trials, "version", lambda name: "2027.1.1")
    trials._machine.cache_clear()
    assert Opened(file).was_tried
    trials._machine.cache_clear()


@pytest.mark.parametrize(
    "damage", ["", "{", "[1]", "null", "wrong value", "no size", "wrong type", "missing"]
)
def test_a_damaged_file_only_costs_the_trial(damage, file, folder):
    Opened(file)
    path = folder / "trials.json"
    (key,) = json.loads(path.read_text())
    (result,) = json.loads(path.read_text()).values()
    damage = {
        "wrong value": json.dumps({key: result | {"token_bytes": -1}}),
        "no size": json.dumps({key: result | {"token_bytes": 0}}),
        "wrong type": json.dumps({key: result | {"cuts": "yes"}}),
        "missing": json.dumps({key: {"cuts": True}}),
    }.get(damage, damage)
    path.write_text(damage)
    assert Opened(file).was_tried
    assert not Opened(file).was_tried  # the file is whole again


def test_a_folder_that_cannot_be_written_only_costs_the_trial(file, folder):
    folder.write_text("a file where the folder should be")
    assert Opened(file).was_tried and Opened(file).was_tried


def test_the_newest_results_are_kept(file, folder, monkeypatch):
    monkeypatch.setattr(trials, "MOST", 2)
    for stamp in (1, 2, 3):
        os.utime(file, ns=(stamp, stamp))
        Opened(file)
    assert len(json.loads((folder / "trials.json").read_text())) == 2
    assert not Opened(file).was_tried
    os.utime(file, ns=(1, 1))
    assert Opened(file).was_tried


def test_a_library_without_metadata_only_costs_the_trial(file, monkeypatch):
    monkeypatch.setattr(trials, "version", Mock(side_effect=PackageNotFoundError("xllamacpp")))
    trials._machine.cache_clear()
    assert Opened(file).was_tried and Opened(file).was_tried
    trials._machine.cache_clear()


def test_a_user_without_a_home_only_pays_for_the_trial(file, monkeypatch):
    for name in ("SPECFUSE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", Mock(side_effect=KeyError))
    assert Opened(file).was_tried and Opened(file).was_tried
    with pytest.raises(UsageError, match="folder") as raised:
        file_of(SMOLLM2)
    assert "SPECFUSE_CACHE" in raised.value.__notes__[0]


def test_a_file_that_was_replaced_after_it_was_loaded_is_tried(file):
    loaded = LlamaCppMember(file, n_gpu_layers=0)
    loaded.probe()
    os.utime(file, ns=(1, 1))
    Opened(file, prefix_cache=False)  # another cache for the weights in memory
    del loaded
    gc.collect()
    assert Opened(file).was_tried


def test_a_trial_that_failed_is_repeated(file, folder, monkeypatch):
    monkeypatch.setattr(cache, "TRIAL_ERROR", 0.0)
    for _ in range(2):
        with pytest.raises(MemberError, match="a copy of it differs"):
            Opened(file)
    assert not (folder / "trials.json").exists()


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
