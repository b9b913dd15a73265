"""Loading a member by name: what loads, on which device, what is shared, and which errors help."""

import json
import pickle
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch
import transformers
from huggingface_hub import constants

from langchain_specfuse.core.options import Method, Settings
from langchain_specfuse.core.values import DraftJob, Sampling
from langchain_specfuse.errors import MemberError, UsageError
from langchain_specfuse.members.transformers.member import TransformersMember

from .. import tiny
from ..tiny import NEAR

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a tiny model as ``save_pretrained`` writes it."""
    path = tmp_path_factory.mktemp("models") / "tiny-llama"
    for part in tiny.cached("llama", 1):
        part.save_pretrained(path)
    return path


@pytest.fixture
def copied(folder, tmp_path):
    """Copy the folder with other files in it."""

    def changed(leave_out=(), **files):
        for file in folder.iterdir():
            if file.name not in leave_out:
                (tmp_path / file.name).write_bytes(file.read_bytes())
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        return tmp_path

    return changed


def refused(kind, *args, match, **kwargs):
    """Return the error with which this member refuses to load; it must contain advice."""
    with pytest.raises(kind, match=match) as caught:
        TransformersMember(*args, **kwargs).probe()
    assert any(note.startswith("-> ") for note in caught.value.notes)
    return caught.value


# --- what loads -----------------------------------------------------------------------------------


def test_a_folder_gives_the_answers_of_the_model_in_memory(folder):
    settings, query = Settings(method=Method(segment_tokens=4), max_tokens=16), tiny.query()
    expected = tiny.text_of(tiny.answered([tiny.member("llama", 1)], query, settings))
    for name in (folder, str(folder), f"{folder}/"):
        member = TransformersMember(name, dtype="float32")
        assert member.name == "tiny-llama"
        assert tiny.text_of(tiny.answered([member], query, settings)) == expected


def test_nothing_is_loaded_before_it_is_needed(folder):
    member = TransformersMember(folder / "not there")
    assert (member.name, member.device, member.cache) == ("not there", "loading", None)


def test_typos_and_arguments_of_the_member_are_refused_in_model_kwargs(folder):
    with pytest.raises(UsageError, match="no argument 'divice'") as caught:
        TransformersMember(folder, divice="cpu")
    assert "device" in caught.value.notes[0]
    for name in ("dtype", "use_safetensors", "weights_only"):
        with pytest.raises(UsageError, match=name):
            TransformersMember(folder, model_kwargs={name: False})
    with pytest.raises(UsageError, match="trust_remote_code must be True or False, got 'no'"):
        TransformersMember(folder, model_kwargs={"trust_remote_code": "no"})


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("revision", "model_kwargs={'revision': ...}"),
        ("trust_remote_code", "model_kwargs={'trust_remote_code': True}"),
    ],
)
def test_an_argument_of_from_pretrained_says_where_it_belongs(folder, name, advice):
    with pytest.raises(UsageError, match=name) as caught:
        TransformersMember(folder, **{name: 1})
    assert advice in caught.value.notes[0]


def test_a_member_is_pickled_without_its_weights(folder, monkeypatch):
    member = TransformersMember(folder, dtype="float32", system_prompt="Be brief.")
    job = DraftJob(tiny.query(), (), 4, 9, Sampling())
    (before,) = member.draft([job])
    monkeypatch.chdir(folder.parent)
    copies = [
        pickle.loads(pickle.dumps(original))
        for original in (member, TransformersMember("tiny-llama", system_prompt="Be brief."))
    ]
    monkeypatch.chdir("/")  # a relative path still names the same folder
    assert [duplicate.cache for duplicate in copies] == [None, None]
    assert all(duplicate.draft([job])[0].text == before.text for duplicate in copies)
    with pytest.raises(UsageError, match="model in memory"):
        pickle.dumps(tiny.member("llama", 1))


def test_stop_tokens_and_the_context_are_those_of_the_folder(copied):
    config = json.dumps({"eos_token_id": [5, 6]}).encode()
    member = TransformersMember(copied(**{"generation_config.json": config}))
    assert member.probe().max_context == 2048 and {5, 6} < set(member.stops)


# --- where it goes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "free", "expected"),
    [
        ({}, {}, None),
        ({"device": "cpu"}, {"cuda": [10**12]}, None),
        ({"device": "cuda:1"}, {"cuda": [10**12]}, {"": "cuda:1"}),
        ({"model_kwargs": {"device_map": "auto"}}, {}, "auto"),
        ({}, {"cuda": [10**11, 10**12], "xpu": [10**13]}, {"": "cuda:1"}),
        ({}, {"xpu": [10**11, 10**11]}, {"": "xpu:0"}),
        ({}, {"mps": [10**11]}, {"": "mps"}),
    ],
    ids=str,
)
def test_a_model_goes_where_the_user_says_or_to_the_gpu_with_room(
    folder, options, free, expected, monkeypatch
):
    """``from_pretrained`` records the device, and nothing is loaded. ``free`` is the free memory
    that torch reports for each GPU."""
    asked = []
    for kind in ("cuda", "xpu"):
        gpus, room = getattr(torch, kind), free.get(kind, [])
        monkeypatch.setattr(gpus, "is_available", lambda room=room: bool(room))
        monkeypatch.setattr(gpus, "device_count", lambda room=room: len(room))
        monkeypatch.setattr(gpus, "mem_get_info", lambda gpu, room=room: (room[gpu], 10**13))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in free)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 5 + free["mps"][0])
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 5)

    def loaded(*_, **arguments):
        asked.append(arguments.get("device_map"))
        raise OSError("not here")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", loaded)
    refused(MemberError, folder, **options, match="not here")
    assert asked == [expected]


@needs_gpu
@pytest.mark.parametrize("arch", tiny.THREE)
def test_on_a_gpu_every_reply_equals_one_without_a_cache(tmp_path, arch):
    for name in (arch, "phi3"):
        for part in tiny.cached(name, 1):
            part.save_pretrained(tmp_path / name)
    member, other = (
        TransformersMember(tmp_path / name, name=name, dtype="float32") for name in (arch, "phi3")
    )
    assert member.probe().detail.startswith("cuda") and other.probe()
    compared = tiny.Compared(member)
    tiny.relayed([compared, other], tiny.query(), 4, turns=6)
    assert compared.worst < 10 * NEAR


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["./not/there", "/not/there", "~/surely/not/there"])
def test_a_missing_folder_is_an_error(name):
    assert refused(MemberError, name, match="does not exist").kind == "not_found"


@pytest.mark.parametrize(
    ("answer", "kind", "message"),
    [
        ("offline", "not_found", "nor in the hub's cache .*HF_HUB_OFFLINE"),
        ("", "error", "nor in the hub's cache .*cannot be fetched from http://127.0.0.1:"),
        ("404 RepoNotFound", "not_found", "not a valid model identifier"),
        ("403 GatedRepo", "not_found", "a gated repo"),
        ("404 RevisionNotFound", "not_found", "main is not a valid git identifier"),
    ],
)
def test_a_hub_that_refuses_a_model_is_not_asked_repeatedly(
    answer, kind, message, folder, tmp_path, monkeypatch
):
    asked = []

    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self):
            asked.append(self.path)
            if answer:  # else the connection breaks
                status, code = answer.split()
                self.send_response(int(status))
                self.send_header("X-Error-Code", code)
                self.end_headers()

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{hub.server_port}"
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", answer == "offline")
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(
            constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            url + "/{repo_id}/resolve/{revision}/{filename}",
        )
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        error = refused(MemberError, "org/tiny", model_kwargs={"revision": "main"}, match=message)
        assert error.kind == kind and error.__cause__ is not None
        if kind == "error" or answer == "offline":  # cached files need no hub
            kept = tmp_path / "models--org--tiny"
            shutil.copytree(folder, kept / "snapshots" / "123")
            (kept / "refs").mkdir()
            (kept / "refs" / "main").write_text("123")
            assert (
                TransformersMember("org/tiny", model_kwargs={"revision": "main"})
                .probe()
                .max_context
                == 2048
            )
        hub.shutdown()
    assert len(asked) <= 3


def test_a_folder_without_a_tokenizer_is_an_error(copied):
    path = copied(leave_out=["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"])
    refused((MemberError, UsageError), path, match=str(path))


@pytest.mark.parametrize(
    "text", ["Torch not compiled with CUDA enabled", "Found no NVIDIA driver", "invalid device"]
)
def test_a_missing_device_is_an_error(folder, monkeypatch, text):
    """The error contains what this build of torch reports."""

    def loaded(*_, **__):
        raise RuntimeError(text)

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", loaded)
    error = refused(UsageError, folder, device="cuda:77", match="cannot be put on device='cuda:77'")
    assert "leave device out" in str(error.notes)


def test_a_model_in_memory_needs_its_tokenizer_and_a_name_does_not(folder):
    model, tokenizer = tiny.cached("llama", 1)
    refused(UsageError, model, match="needs its tokenizer")
    refused(UsageError, str(folder), tokenizer, match="only given along with a model")
    refused(UsageError, "  ", match="name is empty")


def test_a_checkpoint_with_missing_weights_is_refused(copied):
    from safetensors.torch import load_file, save_file

    path = copied()
    weights = load_file(path / "model.safetensors")
    del weights[next(name for name in sorted(weights) if "up_proj" in name)]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    refused(MemberError, path, match=r"lacks 1 of its weights.*up_proj")
