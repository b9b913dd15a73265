"""GGUF files by their names on the hub, fetched from a fake hub over HTTP."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import namedtuple
from contextlib import contextmanager
from pathlib import Path

import pytest
from huggingface_hub import constants, hf_hub_download, scan_cache_dir

from langchain_specfuse import (
    LlamaCppMember,
    MemberError,
    SpecFuseChatModel,
    TransformersMember,
    UsageError,
)
from langchain_specfuse.chat.references import names_of
from langchain_specfuse.demo import SMOLLM2, file_of
from langchain_specfuse.members import hub

from . import fake_hub

REPOSITORY = "me/Model-GGUF"
NAME = f"hf:{REPOSITORY}"
Q4 = b"GGUF" + bytes(range(256)) * 40
Q8 = b"GGUF" + bytes(reversed(range(256))) * 50
FILES = {
    "README.md": b"text",
    "Model-BF16.gguf": b"GGUF bf16",
    "Model-F16.gguf": b"GGUF f16",
    "Model-Q4_K_M.gguf": Q4,
    "Model-Q8_0.gguf": Q8,
    "imatrix-Q4_K_M.gguf": b"GGUF matrix",
    "mmproj-Model-Q4_K_M.gguf": b"GGUF projector",
}
SPLIT = {f"big/B-Q2_K-0000{at}-of-00003.gguf": b"GGUF" + bytes(at) for at in (3, 1, 2)}


@pytest.fixture
def served(monkeypatch, tmp_path):
    with fake_hub.running(monkeypatch, tmp_path / "hub") as served:
        served.add(REPOSITORY, dict(FILES))
        yield served


def refused(name: str) -> tuple[MemberError, str]:
    """Return the error of a model that cannot be fetched, and its advice."""
    with pytest.raises(MemberError) as raised:
        hub.fetched(name)
    return raised.value, "\n".join(raised.value.__notes__)


# --- which file -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "file"),
    [
        ("", "Model-Q4_K_M.gguf"),
        (":q8_0", "Model-Q8_0.gguf"),
        (":F16", "Model-F16.gguf"),  # not BF16
        (":bf16", "Model-BF16.gguf"),
        (":model-q8_0.GGUF", "Model-Q8_0.gguf"),
        (":mmproj-Model-Q4_K_M.gguf", "mmproj-Model-Q4_K_M.gguf"),  # by its whole name only
    ],
)
def test_a_name_means_what_it_means_to_llama_server(served, wanted, file):
    path = hub.fetched(NAME + wanted)
    assert path.name == file and path.read_bytes() == FILES[file]


@pytest.mark.parametrize(
    ("names", "usual"),
    [
        (["a-Q8_0.gguf", "a-Q4_K_S.gguf"], "a-Q8_0.gguf"),
        (["a-Q6_K.gguf", "a-Q5_0.gguf"], "a-Q5_0.gguf"),
        (["a-UD-Q4_K_M.gguf", "a-IQ4_XS.gguf"], "a-UD-Q4_K_M.gguf"),
        (["a.gguf", "mtp-a-Q4_K_M.gguf"], "a.gguf"),
        (["a.Q4_K_M.gguf", "sub/a.Q4_K_M.gguf"], "a.Q4_K_M.gguf"),
    ],
)
def test_without_q4_k_m_the_next_one_of_llama_cpp_is_taken(names, usual):
    assert hub.files_for(names) == hub.files_for(reversed(names)) == [usual]


def test_all_parts_of_a_split_model_are_fetched_and_the_first_one_is_loaded(served):
    served.add("me/Big-GGUF", {**SPLIT, "big/B-Q3_K-00001-of-00002.gguf": b"another"})
    for wanted in ("", ":Q2_K", ":big/B-Q2_K-00003-of-00003.gguf"):
        path = hub.fetched(f"hf:me/Big-GGUF{wanted}")
        if wanted:
            parts = [path.with_name(name.rpartition("/")[2]) for name in SPLIT]
            assert [part.read_bytes() for part in parts] == list(SPLIT.values())
            assert path.name == "B-Q2_K-00001-of-00003.gguf"
    served.add("me/Cut-GGUF", dict(list(SPLIT.items())[:2]))
    assert "lacks 1 of the files" in str(refused("hf:me/Cut-GGUF")[0])


@pytest.mark.parametrize(
    "names",
    [
        ["a-00001-of-00003.gguf", "a-00003-of-00003.gguf", "a-00004-of-00003.gguf"],
        ["a-00002-of-00002.gguf", "a-00003-of-00002.gguf"],
    ],
)
def test_parts_with_wrong_numbers_do_not_make_a_model_whole(served, names):
    served.add("me/Wrong-GGUF", dict.fromkeys(names, Q4))
    assert "lacks 1 of the files" in str(refused("hf:me/Wrong-GGUF")[0])
    assert served.downloads() == []


def test_parts_are_recognised_in_capital_letters(served):
    names = [f"A-0000{at}-OF-00002.GGUF" for at in (1, 2)]
    served.add("me/Loud-GGUF", {name: Q4 + name.encode() for name in names})
    assert hub.fetched("hf:me/Loud-GGUF").name == names[0]
    assert len(served.downloads()) == 2


@pytest.mark.parametrize(
    "name", ["hf:", "hf:model", "hf:a/b/c.gguf", "hf:a/b:", "hf://a/b", "hf:a/b@main", "hf:a b/c"]
)
def test_a_name_that_names_no_repository_is_refused_at_once(name):
    for make in (LlamaCppMember, lambda name: SpecFuseChatModel(members=[name])):
        with pytest.raises(UsageError, match="hf:user/model") as raised:
            make(name)
        assert repr(name) in str(raised.value) and raised.value.__notes__


def test_members_are_called_like_the_file_and_make_no_request(served):
    names = {
        NAME: "Model",
        f"{NAME}:Q8_0": "Model-Q8_0",
        f"{NAME}:sub/Other-Q8_0-00001-of-00002.gguf": "Other-Q8_0",
    }
    assert [LlamaCppMember(name).name for name in names] == list(names.values())
    llm = SpecFuseChatModel(
        members=[*names, f"{NAME}+./law.gguf"],
    )
    assert names_of(llm.members) == [*names.values(), "law"]
    assert served.asked == []


# --- the cache ------------------------------------------------------------------------------------


def test_a_file_is_fetched_once_and_lies_in_the_hubs_cache(served, capsys):
    path = hub.fetched(NAME)
    assert "fetching Model-Q4_K_M.gguf (0.00 GB, once)" in capsys.readouterr().err
    (found,) = scan_cache_dir(constants.HF_HUB_CACHE).repos
    assert (found.repo_id, found.size_on_disk) == (REPOSITORY, len(Q4))
    served.asked.clear()
    assert hub.fetched(NAME) == hub.cached(NAME) == path
    assert served.asked == [("GET", f"/api/models/{REPOSITORY}", "")]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("without_links", [False, True])
def test_other_programs_find_the_file_in_the_hubs_cache(served, monkeypatch, without_links):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", without_links)
    path = hub.fetched(NAME)
    file = path.name
    served.asked.clear()
    assert hf_hub_download(REPOSITORY, file, local_files_only=True) == str(path)
    assert hf_hub_download(REPOSITORY, file, endpoint=served.url) == str(path)
    assert path.is_symlink() != without_links and served.downloads() == []
    # and the other way round
    other = hf_hub_download(REPOSITORY, "Model-Q8_0.gguf", endpoint=served.url)
    served.asked.clear()
    assert hub.fetched(f"{NAME}:Q8_0") == Path(other) and served.downloads() == []


def test_without_links_the_cache_holds_one_copy(served, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    path = hub.fetched(NAME)
    assert path.read_bytes() == Q4 and hub.cached(NAME) == hub.fetched(NAME) == path
    files = [file for file in Path(constants.HF_HUB_CACHE).rglob("*") if file.is_file()]
    assert [file for file in files if file.stat().st_size == len(Q4)] == [path]
    assert len(served.downloads()) == 1


def test_a_newer_file_on_the_hub_replaces_the_one_in_the_cache(served):
    hub.fetched(NAME)
    served.repositories[REPOSITORY].files["Model-Q4_K_M.gguf"] = Q8
    assert hub.fetched(NAME).read_bytes() == hub.cached(NAME).read_bytes() == Q8
    served.repositories[REPOSITORY].files["README.md"] = b"a new commit with the same model"
    assert hub.fetched(NAME).read_bytes() == Q8 and len(served.downloads()) == 2


@pytest.mark.parametrize("content", [b"", b"\0" * 40, b"\xff" * 40])
def test_a_damaged_cache_is_mended_by_the_hub_and_is_no_file_without_it(served, content):
    path = hub.fetched(NAME)
    (path.parents[2] / "refs" / "main").write_bytes(content)
    served.broken = True
    assert hub.cached(NAME) is None and "503" in str(refused(NAME)[0])
    served.broken = False
    assert hub.fetched(NAME) == path


@pytest.mark.parametrize("reason", ["offline", "broken", "gone", "unknown"])
def test_what_is_cached_is_used_where_the_hub_gives_nothing(served, monkeypatch, reason, caplog):
    path = hub.fetched(NAME)
    if reason == "offline":
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    if reason == "unknown":
        served.repositories.clear()
    served.broken = reason == "broken"
    if reason == "gone":
        served.stop()
    assert hub.fetched(NAME) == path
    about = [record for record in caplog.records if NAME in record.getMessage()]
    warned = [record.levelname for record in about if record.levelno >= logging.WARNING]
    assert warned == ([] if reason == "offline" else ["WARNING"])
    error, _ = refused(f"{NAME}:Q8_0")
    assert REPOSITORY in str(error)


def test_an_incomplete_cache_is_not_taken_for_a_model(served):
    served.add("me/Big-GGUF", dict(SPLIT))
    path = hub.fetched("hf:me/Big-GGUF")
    path.with_name("B-Q2_K-00002-of-00003.gguf").unlink()
    assert hub.cached("hf:me/Big-GGUF") is None and hub.cached("hf:me/none-GGUF") is None
    assert hub.fetched("hf:me/Big-GGUF") == path and hub.cached("hf:me/Big-GGUF") == path


@contextmanager
def as_another_user():
    """Let root be a user that permissions bind."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65_534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


@pytest.mark.parametrize("is_reached", [True, False])
@pytest.mark.parametrize("folder", [".", "refs", "snapshots", "snapshots/*"])
def test_a_cache_that_must_not_be_read_is_an_error(served, monkeypatch, folder, is_reached):
    with tempfile.TemporaryDirectory() as cache:
        Path(cache).chmod(0o755)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", f"{cache}/token")
        path = hub.fetched(NAME)
        served.broken = not is_reached
        (closed,) = path.parents[2].glob(folder) if folder != "." else [path.parents[2]]
        closed.chmod(0)
        with as_another_user():
            assert hub.cached(NAME) is None
            if is_reached and folder == "refs":
                assert hub.fetched(NAME) == path
            else:
                error, _ = refused(NAME)
                assert ("cache cannot be used" if is_reached else "503") in str(error)
        closed.chmod(0o755)


# --- fetching -------------------------------------------------------------------------------------


@pytest.mark.parametrize("redirects", [False, True])
def test_a_connection_that_breaks_is_resumed_where_it_broke(served, redirects):
    served.redirects, served.cuts = redirects, [5000]
    assert hub.fetched(NAME).read_bytes() == Q4
    ranges = [range for _, range in served.downloads() if range]
    assert ranges and set(ranges) == {"bytes=5000-"}


def test_a_fetch_that_failed_is_continued_by_the_next_one(served, capsys):
    served.cuts = [7000]
    served.pause.clear()

    def fail():
        while not served.downloads():
            time.sleep(0.01)
        served.broken = True
        served.pause.set()

    breaking = threading.Thread(target=fail)
    breaking.start()
    error, _ = refused(NAME)
    breaking.join()
    assert error.kind == "error" and served.url in str(error) and "503" in str(error)
    assert hub.cached(NAME) is None
    served.broken = False
    served.asked.clear()
    assert hub.fetched(NAME).read_bytes() == Q4
    assert served.downloads() == [("Model-Q4_K_M.gguf", "bytes=7000-")]


def test_a_process_that_was_killed_loses_nothing_that_was_fetched(served, tmp_path):
    content = b"GGUF" + b"0123456789" * 2_000_000
    served.add("me/Large-GGUF", {"L-Q4_K_M.gguf": content})
    served.cuts = [15_000_000]
    served.pause.clear()
    environment = {
        "HF_ENDPOINT": served.url,
        "HF_HUB_CACHE": constants.HF_HUB_CACHE,
        "HF_HUB_DISABLE_XET": "1",
        "PYTHONPATH": str(Path(hub.__file__).parents[2]),
    }
    code = "from langchain_specfuse.members import hub; hub.fetched('hf:me/Large-GGUF')"
    child = subprocess.Popen([sys.executable, "-c", code], env=environment)
    partial = tmp_path / "hub" / "models--me--Large-GGUF" / "blobs"
    deadline = time.monotonic() + 60
    while not any(file.stat().st_size > 9_000_000 for file in partial.glob("*.incomplete")):
        assert time.monotonic() < deadline and child.poll() is None
        time.sleep(0.05)
    child.kill()
    child.wait()
    served.pause.set()
    served.asked.clear()
    assert hub.fetched("hf:me/Large-GGUF").read_bytes() == content
    ((_, range),) = served.downloads()
    assert int(range.removeprefix("bytes=").rstrip("-")) > 9_000_000


def test_a_file_with_the_wrong_hash_is_never_used(served):
    repository = served.repositories[REPOSITORY]
    repository.listed_sha256["Model-Q4_K_M.gguf"] = "0" * 64
    error, advice = refused(NAME)
    digest = hashlib.sha256(Q4).hexdigest()
    assert digest in str(error) and "0" * 64 in str(error) and "again" in advice
    assert hub.cached(NAME) is None
    repository.listed_sha256.clear()
    assert hub.fetched(NAME).read_bytes() == Q4


def test_a_hash_that_a_hub_makes_up_names_no_file_outside_the_cache(served, tmp_path):
    precious = tmp_path / "precious.incomplete"
    precious.write_text("precious")
    listed = served.repositories[REPOSITORY].listed_sha256
    listed["Model-Q4_K_M.gguf"] = "../../../precious"
    refused(f"{NAME}:Q4_K_M")
    assert precious.read_text() == "precious"
    assert {path.name for path in tmp_path.iterdir()} - {"hub"} == {precious.name}


@pytest.mark.parametrize(
    "name",
    [
        "../../../../there.gguf",
        "a/../../there.gguf",
        "/there.gguf",
        "..\\there.gguf",
        "\x1b[2J.gguf",
        "a\0.gguf",
        "a\ud800.gguf",
        "C:/there.gguf",
        "C:there.gguf",
        "a\\there.gguf",
        "./there.gguf",
        "a//there.gguf",
        "there" * 60 + ".gguf",
        "there/" * 200 + "a.gguf",
    ],
)
def test_a_file_whose_name_leads_elsewhere_is_passed_over(served, tmp_path, name):
    (tmp_path / "there.gguf").write_bytes(Q4)
    served.add("me/Odd-GGUF", {name: Q4, "b.gguf": Q8})
    assert hub.fetched("hf:me/Odd-GGUF").read_bytes() == Q8
    served.add("me/Odd-GGUF", {name: Q4})
    error, notes = refused("hf:me/Odd-GGUF")
    assert "no GGUF model" in str(error) and "there" not in notes


def test_a_mirror_that_lists_no_hashes_is_asked_for_them(served):
    repository = served.repositories[REPOSITORY]
    repository.describes = False
    with pytest.raises(MemberError, match=hashlib.sha256(Q4).hexdigest()):
        hub.fetched(NAME, sha256=hashlib.sha256(Q8).hexdigest())
    assert not served.downloads()
    assert hub.fetched(NAME, sha256=hashlib.sha256(Q4).hexdigest()).read_bytes() == Q4
    repository.listed_sha256["Model-Q8_0.gguf"] = "0" * 64
    assert "damaged" in str(refused(f"{NAME}:Q8_0")[0])


def test_members_that_load_at_the_same_time_fetch_a_file_once(served):
    paths: list[Path] = []
    threads = [threading.Thread(target=lambda: paths.append(hub.fetched(NAME))) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(paths) == 5 and len(set(paths)) == 1 and len(served.downloads()) == 1


# --- a hostile hub --------------------------------------------------------------------------------


def outside(tmp_path: Path) -> list[str]:
    """Return what lies beside the hub's cache."""
    return sorted(path.name for path in tmp_path.iterdir() if path.name != "hub")


@pytest.mark.parametrize("describes", [True, False])
@pytest.mark.parametrize("etag", ["../../../evil", "{tmp}/evil", "a/b", "..", "", "x" * 300])
def test_an_etag_names_no_file_outside_the_cache(served, tmp_path, etag, describes):
    etag = etag.format(tmp=tmp_path)
    repository = served.repositories[REPOSITORY]
    repository.headers["X-Linked-Etag"] = f'"{etag}"'
    if describes:  # its list has the hash, so nothing else counts
        assert hub.fetched(NAME).read_bytes() == Q4
    else:
        repository.describes = False
        error, advice = refused(NAME)
        assert "ETag" in str(error) and "Model-Q4_K_M.gguf" in str(error)
        assert len(str(error)) < 300 and "HF_ENDPOINT" in advice
    assert outside(tmp_path) == []


def test_a_commit_in_a_header_names_no_file_outside_the_cache(served, tmp_path):
    repository = served.repositories[REPOSITORY]
    repository.headers["X-Repo-Commit"] = "../../../evil"
    repository.lacks = set(FILES)
    refused(NAME)
    assert outside(tmp_path) == []
    repository.lacks = set()
    assert hub.fetched(NAME).read_bytes() == Q4
    assert outside(tmp_path) == []


@pytest.mark.parametrize("commit", ["../../../evil", "..", "a/b", "\0", 5, None, ["a"], "x" * 300])
def test_a_commit_that_is_no_name_is_refused(served, tmp_path, commit):
    served.repositories[REPOSITORY].listed_commit = commit
    error, advice = refused(NAME)
    assert "commit" in str(error) and "HF_ENDPOINT" in advice and len(str(error)) < 300
    assert outside(tmp_path) == [] and served.downloads() == []


@pytest.mark.parametrize("size", ["12", -1, 1.5, True, [1], 10**400])
def test_a_size_that_is_no_number_of_bytes_is_asked_for_again(served, size):
    served.repositories[REPOSITORY].listed_size["Model-Q4_K_M.gguf"] = size
    assert hub.fetched(NAME).read_bytes() == Q4


def test_no_more_is_fetched_than_the_hub_lists(served):
    served.endless = {"file"}
    error, advice = refused(NAME)
    assert f"more than the {len(Q4)} bytes" in str(error) and "HF_ENDPOINT" in advice
    assert list((Path(constants.HF_HUB_CACHE)).rglob("*.incomplete")) == []
    served.endless = set()
    assert hub.fetched(NAME).read_bytes() == Q4


def test_a_file_of_unknown_size_is_not_fetched(served):
    repository = served.repositories[REPOSITORY]
    repository.describes = False
    repository.headers["X-Linked-Size"] = "unknown"
    error, _ = refused(NAME)
    assert "size" in str(error) and served.downloads() == []


def test_a_link_in_the_cache_is_replaced_and_not_written_through(served, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    partial = hub.downloads(REPOSITORY) / f"{hashlib.sha256(Q4).hexdigest()}.incomplete"
    partial.parent.mkdir(parents=True)
    partial.symlink_to(precious)
    path = hub.fetched(NAME)
    assert path.read_bytes() == Q4 and precious.read_text() == "precious"
    path.unlink()
    path.symlink_to(tmp_path / "none")
    assert hub.cached(NAME) is None
    assert hub.fetched(NAME).read_bytes() == Q4 and outside(tmp_path) == ["precious"]


def test_a_list_that_does_not_end_is_not_read_to_its_end(served):
    served.endless = {"list"}
    error, _ = refused(NAME)
    assert "list of files" in str(error) and served.sent < 100 * 10**6


def test_a_list_that_drips_is_given_up(served, monkeypatch):
    monkeypatch.setattr(hub, "LONGEST_S", 0.5)
    served.endless, served.drip_s = {"list"}, 0.05
    begun = time.monotonic()
    with pytest.raises(MemberError, match="cannot be reached"):
        hub.fetched(NAME)
    assert time.monotonic() - begun < 10


def test_the_body_of_an_error_is_not_read_to_its_end(served):
    served.endless = {"error"}
    error, _ = refused(NAME)
    assert "503" in str(error) and served.sent < 100 * 10**6


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b"null", b"[" * 10**6, b'{"sha": "a"}', b'{"sha": "a", "siblings": 5}'],
)
def test_a_list_that_is_none_is_an_error_that_names_the_hub(served, body):
    served.list_body = body
    error, advice = refused(NAME)
    assert served.url in str(error) and "HF_ENDPOINT" in advice


def test_strange_entries_of_a_list_are_passed_over(served):
    siblings = [5, None, {}, {"rfilename": 5}, {"rfilename": None}, {"rfilename": ""}]
    siblings += [{"rfilename": "a.gguf", "lfs": 5, "size": "x"}, {"rfilename": "Model-Q4_K_M.gguf"}]
    siblings += [{"rfilename": "b.gguf", "lfs": {"sha256": 5}}]
    commit = served.repositories[REPOSITORY].commit
    served.list_body = json.dumps({"sha": commit, "siblings": siblings}).encode()
    assert hub.fetched(NAME).read_bytes() == Q4


@pytest.mark.parametrize("kind", ["list", "file"])
def test_a_token_is_sent_to_no_other_host(served, monkeypatch, kind):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    served.list_redirects, served.redirects = kind == "list", kind != "list"
    assert hub.fetched(NAME).read_bytes() == Q4
    shown = set(zip(served.hosts, served.tokens, strict=True))
    assert shown == {("127.0.0.1", "Bearer hf_secret"), ("localhost", None)}


def test_the_protocol_for_large_files_sends_the_token_to_no_other_host(served, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(10**12, 0, 10**12))
    repository = served.repositories[REPOSITORY]
    repository.listed_size["Model-Q4_K_M.gguf"] = 60 * 10**9
    repository.headers["X-Xet-Hash"] = "a" * 64
    repository.headers["X-Xet-Refresh-Route"] = f"{served.elsewhere}/xet"
    error, _ = refused(NAME)
    assert served.elsewhere in str(error)
    assert "localhost" not in served.hosts


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "what", "advice"),
    [
        ("hf:me/Nothing-GGUF", "no repository me/Nothing-GGUF", "/me/Nothing-GGUF"),
        (f"{NAME}:Q5_K_M", "no quantisation 'Q5_K_M'", "Model-BF16.gguf, Model-F16.gguf"),
        (f"{NAME}:Other.gguf", "no file 'Other.gguf'", "Model-Q8_0.gguf"),
        ("hf:me/Plain", "no GGUF model", "'vllm:me/Plain'"),
        ("hf:me/a..b", "'me/a..b' cannot be a repository", "'hf:ggml-org/gemma-3-4b-it-GGUF'"),
    ],
)
def test_a_name_without_a_file_is_an_error_that_lists_what_there_is(served, name, what, advice):
    served.add("me/Plain", {"config.json": b"{}", "model.safetensors": b""})
    error, notes = refused(name)
    assert error.kind == "not_found" and what in str(error) and advice in notes
    assert "mmproj" not in notes


def test_a_gated_model_needs_the_licence_and_a_token(served, monkeypatch):
    served.repositories[REPOSITORY].token = "hf_right"
    for token in (None, "hf_wrong"):
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        error, advice = refused(NAME)
        assert error.kind == "not_found" and "gated" in str(error)
        assert f"{served.url}/{REPOSITORY}" in advice and "HF_TOKEN" in advice
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    served.redirects = True
    served.tokens.clear()
    served.asked.clear()
    assert hub.fetched(NAME).read_bytes() == Q4
    elsewhere = [
        token
        for token, (_, path, _) in zip(served.tokens, served.asked, strict=True)
        if path.startswith("/store/")
    ]
    assert elsewhere and not any(elsewhere), "the token went to another host"


def test_offline_the_error_says_so(served, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    error, _ = refused(NAME)
    assert error.kind == "not_found" and "HF_HUB_OFFLINE" in str(error) and NAME in str(error)
    assert served.asked == []


def test_a_hub_that_does_not_answer_is_given_up_soon(served, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.2)
    served.silent = True
    begun = time.monotonic()
    error, advice = refused(NAME)
    assert time.monotonic() - begun < 3
    assert error.kind == "error" and served.url in str(error) and "HF_ENDPOINT" in advice


def test_a_full_disk_is_noticed_before_anything_is_fetched(served, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage(9, 9, len(Q4) - 1))
    error, advice = refused(NAME)
    assert "no room" in str(error) and "HF_HOME" in advice and served.downloads() == []


def test_a_disk_that_becomes_full_is_an_error_with_advice(served, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("huggingface_hub.file_download.http_get", full)
    error, advice = refused(NAME)
    assert "No space left" in str(error) and "HF_HOME" in advice


def test_without_huggingface_hub_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UsageError, match="huggingface_hub") as raised:
        hub.fetched(NAME)
    assert "langchain-specfuse[hub]" in raised.value.__notes__[0]


# --- members --------------------------------------------------------------------------------------


def test_a_member_by_name_is_the_member_of_its_file(served, tiny_llama):
    content = tiny_llama.read_bytes()
    served.add("me/Tiny-GGUF", {"Tiny-Q4_K_M.gguf": content})
    member = LlamaCppMember("hf:me/Tiny-GGUF")
    assert member.preview() is None
    probe = member.probe()
    assert member.preview().max_context == probe.max_context == 8192
    same = LlamaCppMember("hf:me/Tiny-GGUF:q4_k_m", prefix_cache=False)
    same.probe()
    assert same.cache.weights is member.cache.weights, "the same file is loaded once"


def test_a_chat_model_names_its_members_on_the_hub(served, tiny_llama):
    served.add("me/Tiny-GGUF", {"Tiny-Q4_K_M.gguf": tiny_llama.read_bytes()})
    llm = SpecFuseChatModel(members=["hf:me/Tiny-GGUF"], max_tokens=5)
    local = SpecFuseChatModel(members=[str(tiny_llama)], max_tokens=5)
    assert llm.invoke("Hello").text == local.invoke("Hello").text
    llm.unload()
    wrong = SpecFuseChatModel(members=["hf:me/Tiny-GGUF:Q5_K_M"])
    with pytest.raises(MemberError, match="Q5_K_M") as raised:
        wrong.invoke("Hello")
    assert "Tiny-Q4_K_M.gguf" in "".join(raised.value.__notes__)


@pytest.mark.parametrize("with_config", [False, True])
def test_transformers_says_how_a_repository_of_gguf_files_is_named(
    served, with_config, monkeypatch
):
    # transformers keeps the address of the hub that it asked first
    monkeypatch.setattr("transformers.utils.hub._hf_api", None)
    files = {"A-Q4_K_M.gguf": Q4}
    if with_config:
        files["config.json"] = b'{"model_type": "llama"}'
    served.add("me/Only-GGUF", files)
    with pytest.raises(UsageError, match="GGUF") as raised:
        TransformersMember("me/Only-GGUF").probe()
    assert "'hf:me/Only-GGUF'" in raised.value.__notes__[0]


def test_transformers_says_that_it_reads_no_gguf_file_by_name(served):
    with pytest.raises(UsageError, match="GGUF") as raised:
        TransformersMember(NAME).probe()
    assert f"LlamaCppMember('{NAME}')" in raised.value.__notes__[0]


@pytest.mark.parametrize("model", ["ollama/llama3.2", "llama3.2"])
def test_a_name_that_is_not_on_the_hub_may_mean_a_chat_model(served, model):
    with pytest.raises(MemberError) as raised:
        TransformersMember(model).probe()
    assert any(
        "model 'ollama:llama3.2'" in note or "named 'ollama:llama3.2'" in note
        for note in raised.value.__notes__
    )


def test_a_repository_without_the_prefix_is_no_file():
    with pytest.raises(MemberError) as raised:
        LlamaCppMember("me/Only-GGUF").probe()
    assert "'hf:me/Only-GGUF'" in raised.value.__notes__[0]


@pytest.mark.real
def test_a_real_model_from_the_hub_answers_like_its_file(served):
    file = file_of(SMOLLM2)
    served.add("me/SmolLM2-GGUF", {"SmolLM2.Q4_1.gguf": file.read_bytes()})
    texts = [
        SpecFuseChatModel(members=[name], max_tokens=12).invoke("Why is the sky blue?").text
        for name in ("hf:me/SmolLM2-GGUF:Q4_1", str(file))
    ]
    assert texts[0] == texts[1] != ""
