"""``langchain-specfuse plan`` prints what members need and where they go, and loads nothing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from langchain_specfuse.cli.main import FAILED, FINE, MISUSED, main
from langchain_specfuse.members.hub import fetched
from tests.members import fake_hub, tiny, tiny_gguf

SERVER, HOSTED = "http://localhost:8000/v1#far", "openai:gpt-4.1-mini"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Return a GGUF file and a folder, both of tiny models."""
    folder = tmp_path_factory.mktemp("models")
    for part in tiny.cached("gemma3", 1):
        part.save_pretrained(folder / "gemma")
    return str(tiny_gguf.llama(folder / "small.gguf")), str(folder / "gemma")


@pytest.fixture
def plan(capsys):
    """Run the command; return (exit code, rows by member, standard output, standard error)."""

    def planned(*argv):
        code = main(["plan", *argv])
        out, err = capsys.readouterr()
        rows = [re.split(r"\s{2,}", line.strip()) for line in out.splitlines() if line.strip()]
        return code, {row[0]: row[1:] for row in rows}, out, err

    return planned


@pytest.mark.real  # the tiny file has SmolLM2's vocabulary
def test_members_are_planned_where_they_run(models, plan):
    file, folder = models
    code, rows, out, _ = plan(
        "--gpus", "2x24", "--members", file, folder, f"vllm:{folder}", SERVER, HOSTED
    )
    assert code == FINE
    assert rows["GPU 0: 24 GB, 22.1 GB usable"] == rows["GPU 1: 24 GB, 22.1 GB usable"] == []
    assert rows["small"][2] == "memory"
    assert {rows["gemma"][2], rows["gemma#2"][2]} == {"GPU 0", "GPU 1"}
    assert rows["far"] == ["on its server"] and rows["gpt-4.1-mini"] == ["with its provider"]
    assert "the memory of servers and providers is not counted" in out
    assert "~" not in out


@pytest.mark.parametrize("name", ["vlm:org/x", "VLLM:org/x"])
def test_a_mistyped_kind_of_name_is_corrected(plan, name):
    code, _, _, err = plan("--members", name)
    assert code == MISUSED and "did you mean 'vllm:org/x'?" in err


def test_without_a_gpu_all_is_in_memory(models, plan, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, rows, out, _ = plan("--members", models[1])
    assert code == FINE and rows["gemma"][2] == "memory" and "GPU" not in out


def test_a_server_without_a_gpu_has_a_cache_of_its_own_size(models, plan, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, rows, _, _ = plan("--members", models[1], f"vllm:{models[1]}")
    assert code == FINE and rows["gemma#2"][2:5] == ["memory", "2.1 GB", "2.1 GB"]
    assert rows["gemma"][3] == "0.0 GB" and rows["gemma"][4] != "2.1 GB"


def test_members_in_memory_have_a_total_which_is_what_they_are_refused_below(
    models, plan, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    own, server = models[1], f"vllm:{models[1]}"
    _, rows, out, _ = plan("--members", own, server)
    needed, most = re.search(
        r"^together in memory: (\S+) GB must be free; the members take at most (\S+) GB$",
        out,
        re.MULTILINE,
    ).groups()
    parts = [float(row[4].removesuffix(" GB")) for row in (rows["gemma"], rows["gemma#2"])]
    assert abs(float(most) - sum(parts)) <= 0.11 and float(needed) >= 2.1
    monkeypatch.setattr("langchain_specfuse.cli.plan.free_memory", lambda: 10**9)
    assert f"need {needed} GB, and 1.0 GB is free" in plan("--members", own, server)[3]
    assert "together" not in plan("--gpus", "24", "--members", own)[2]


@pytest.mark.real  # the tiny file has SmolLM2's vocabulary
def test_a_file_that_is_cut_off_is_named_from_its_header(models, plan, tmp_path):
    whole = Path(models[0]).read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(whole[:-1])
    code, _, _, err = plan("--members", str(cut))
    assert code == FAILED and f"has {len(whole) - 1:,} bytes" in err
    assert "incomplete or damaged: download it again" in err


def given(**arguments):
    """Return a member with arguments, as the shell passes it."""
    return json.dumps(arguments)


def test_a_member_takes_the_arguments_of_python(models, plan):
    file, folder = models
    code, rows, _, _ = plan(
        *("--gpus", "2x24", "--members"),
        given(model=f"vllm:{folder}", gpu=1, memory=0.5, name="half"),
        given(model=f"vllm:{folder}", tensor_parallel=2, name="divided"),
        given(model=folder, device="cpu", name="here"),
        given(model=file, cache_type="q8_0", name="short"),
        file,
    )
    assert code == FINE
    assert rows["half"][2:5] == ["GPU 1", "12.0 GB", "12.0 GB"]
    assert rows["divided"][2] == "GPUs 0, 1" and rows["divided"][4].endswith("each")
    assert rows["here"][2] == rows["short"][2] == "memory"
    assert rows["short"][4] == rows["small"][4] and "with" not in rows["small"][2]


def test_a_device_is_a_gpu_of_those_that_torch_sees(models, plan):
    code, rows, _, _ = plan(
        *("--gpus", "2x24", "--members"),
        given(model=models[1], device="cuda:1", name="a"),
        given(model=models[1], device="cuda", name="b"),
        given(model=models[1], device="cuda:1", dtype="float16", name="c"),
    )
    assert code == FINE and [rows[name][2] for name in "abc"] == ["GPU 1", "GPU 0", "GPU 1"]
    absent = given(model=models[1], device="cuda:2")
    code, _, _, err = plan("--gpus", "2x24", "--members", absent)
    assert code == MISUSED and "device='cuda:2', but there are only 2 GPUs" in err


def test_a_member_in_this_process_is_divided_only_if_it_is_loaded_like_this(plan, tmp_path):
    config = {"hidden_size": 8192, "num_hidden_layers": 20, "num_attention_heads": 64}
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 1000}))
    code, _, _, err = plan("--gpus", "4x24", "--members", str(tmp_path))
    assert code == MISUSED and "there is no room" in err and "tensor_parallel" not in err
    assert "runs on one GPU; vLLM divides a model" in err
    spread = given(model=str(tmp_path), model_kwargs={"device_map": "auto"}, name="spread")
    for member in (spread, given(model=f"vllm:{tmp_path}", name="spread")):
        code, rows, _, _ = plan("--gpus", "4x24", "--members", member)
        assert code == FINE and rows["spread"][2] == "GPUs 0, 1, 2, 3"


def test_engine_arguments_change_what_fits(models, plan):
    fitting = []
    for dtype in ("float32", "float16"):
        wide = given(model=f"vllm:{models[1]}", engine_args={"dtype": dtype})
        _, rows, _, _ = plan("--gpus", "24", "--members", wide)
        fitting.append(int(rows["gemma"][-1].replace(",", "")))
    assert fitting[1] == pytest.approx(2 * fitting[0], rel=0.01)


def test_a_cache_of_fewer_bits_holds_more_tokens(models, plan):
    fitting = []
    for cache in ("auto", "fp8", "fp8_e5m2"):
        chosen = given(
            model=f"vllm:{models[1]}",
            engine_args={"kv_cache_dtype": cache, "kv_cache_memory_bytes": "1G"},
        )
        _, rows, _, _ = plan("--gpus", "24", "--members", chosen)
        fitting.append(int(rows["gemma"][-1].replace(",", "")))
    assert fitting[1:] == [pytest.approx(2 * fitting[0], rel=0.01)] * 2


@pytest.mark.parametrize("machine", [["--gpus", "24"], []], ids=["on a GPU", "in memory"])
def test_a_chosen_cache_is_planned(models, plan, machine, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    fitting = []
    for size in ("300_000_000", "600_000_000"):
        chosen = given(model=f"vllm:{models[1]}", engine_args={"kv_cache_memory_bytes": int(size)})
        code, rows, _, _ = plan(*machine, "--members", chosen)
        assert code == FINE and rows["gemma"][3] == rows["gemma"][4]
        fitting.append(int(rows["gemma"][-1].replace(",", "")))
    assert fitting[1] == pytest.approx(2 * fitting[0], rel=0.01)


def test_members_with_other_arguments_share_no_weights(models, plan):
    _, folder = models
    twice = given(model=f"vllm:{folder}", memory=0.3, name="b")
    code, rows, _, _ = plan("--gpus", "24", "--members", f"vllm:{folder}", twice)
    assert code == FINE and rows["b"][2] == "GPU 0"


@pytest.mark.parametrize(
    ("member", "message", "advice"),
    [
        ("{model: 'a'}", "must be JSON", '\'{"model": "vllm:Qwen/Qwen3-8B", "memory": 0.5}\''),
        ("['a', 'b']", "must be JSON", '"memory"'),
        ('["a", "b"]', "must be a name, or a JSON object", "one by one"),
        pytest.param("[" * 100_000, "must be JSON", '"memory"', id="deep"),
        ('{"model": 5}', "with a model's name; got '{\"model\": 5}'", '"memory"'),
        ('{"model": "vllm:a/b", "memory": 20}', "in bytes", "memory=20e9"),
        ('{"model": "vllm:a/b", "tensor_paralel": 2}', "no argument", "'tensor_parallel'"),
    ],
)
def test_wrong_arguments_are_refused_as_in_python(plan, member, message, advice):
    code, _, _, err = plan("--members", member)
    assert code == MISUSED and message in err and advice in err


def test_a_missing_adapter_is_an_error(models, plan, tmp_path):
    file, folder = models
    for name in (f"vllm:{folder}+/no/law", f"{folder}+/no/law", f"{file}+/no/law.gguf"):
        _, _, _, err = plan("--gpus", "24", "--members", name)
        assert "/no/law" in err and "does not exist" in err


def test_all_names_that_are_wrong_are_told_at_once(models, plan):
    code, rows, _, err = plan("--members", models[1], "/no/one.gguf", "./no-two")
    assert code == MISUSED and "no-two does not exist" in err and "has no one.gguf" in err
    assert rows["one"] == ["not known"] and len(rows["gemma"]) == 2


def test_what_the_hub_has_is_planned_without_fetching_it(models, plan, monkeypatch, tmp_path):
    with fake_hub.running(monkeypatch, tmp_path / "hub") as hub:
        hub.add("org/tiny", {file.name: file.read_bytes() for file in Path(models[1]).iterdir()})
        code, rows, out, _ = plan("--gpus", "24", "--members", "vllm:org/tiny")
        assert code == FINE and rows["tiny"][2] == "GPU 0" and "~" not in out
        asked = [part for name, part in hub.downloads() if name.endswith(".safetensors")]
        assert asked and all(asked)  # parts alone


def test_a_revision_is_planned_that_loading_takes(models, plan, monkeypatch, tmp_path):
    files = {file.name: file.read_bytes() for file in Path(models[1]).iterdir()}
    config = json.loads(files["config.json"])
    wide = {**files, "config.json": json.dumps({**config, "head_dim": 512}).encode()}
    with fake_hub.running(monkeypatch, tmp_path / "hub") as hub:
        hub.add("org/tiny", files)
        hub.add("org/tiny@wide", wide)
        code, rows, _, _ = plan(
            *("--gpus", "4x24", "--members", "org/tiny", "vllm:org/tiny"),
            given(model="org/tiny", model_kwargs={"revision": "wide"}, name="own"),
            given(model="vllm:org/tiny", engine_args={"revision": "wide"}, name="served"),
        )
        assert code == FINE
        tokens = {
            name: int(rows[name][-1].replace(",", ""))
            for name in ("tiny", "tiny#2", "own", "served")
        }
        assert tokens["own"] * 10 < tokens["tiny"]
        assert tokens["served"] * 10 < tokens["tiny#2"]
        absent = given(model="org/tiny", model_kwargs={"revision": "none"})
        code, _, _, err = plan("--gpus", "24", "--members", absent)
        assert code == MISUSED and "org/tiny has no such revision" in err


@pytest.mark.parametrize("machine", [["--gpus", "24"], []], ids=["GPU", "CPU"])
def test_a_context_that_is_longer_than_the_cache_is_remarked(
    models, plan, machine, monkeypatch, tmp_path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    server = {"model": f"vllm:{models[1]}", "name": "s"}
    for length, is_too_long in ((64, False), (10**9, True)):
        asked = given(**server, engine_args={"max_model_len": length})
        code, _, out, _ = plan(*machine, "--members", asked)
        assert code == FINE
        assert (f"s: vLLM would not start with max_model_len {length:,}" in out) == is_too_long


@pytest.mark.parametrize("is_reached", [True, False])
def test_the_file_is_named_that_a_name_on_the_hub_means(
    models, plan, monkeypatch, tmp_path, caplog, is_reached
):
    content = Path(models[0]).read_bytes()
    with fake_hub.running(monkeypatch, tmp_path / "hub") as hub:
        hub.add("org/t-GGUF", {"t-Q4_K_M.gguf": content, "t-Q8_0.gguf": content + bytes(10)})
        fetched("hf:org/t-GGUF:Q8_0")
        hub.broken = not is_reached
        code, rows, out, _ = plan("--members", "hf:org/t-GGUF")
    assert code == FINE and len(rows["t"]) == 6
    file = "t-Q4_K_M.gguf" if is_reached else "t-Q8_0.gguf"
    assert f"t means the file {file}" in out
    assert ("using the cached file t-Q8_0.gguf" in caplog.text) == (not is_reached)


def test_members_of_one_model_share_its_weights(models, plan):
    _, folder = models
    adapted = f"vllm:{folder}+org/law"
    code, rows, out, _ = plan("--gpus", "24", "--members", f"vllm:{folder}", adapted)
    assert code == FINE and rows["law"] == ["with gemma"]
    assert "share its weights" in out
    assert "adapters are not counted" in out


def test_what_does_not_fit_is_an_error_below_the_sizes(models, plan):
    code, rows, _, err = plan("--gpus", "1", "--members", models[1])
    assert code == MISUSED and len(rows["gemma"]) == 2
    assert re.search(r"no room for gemma: .* \d+\.\d GB is missing\n  -> ", err)


def test_an_estimate_is_marked(models, plan, tmp_path):
    (tmp_path / "config.json").write_bytes(Path(models[1], "config.json").read_bytes())
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "a.safetensors"}, "metadata": {}}'
    )
    (tmp_path / "other.safetensors").write_bytes(b"")
    code, rows, out, _ = plan("--gpus", "24", "--members", str(tmp_path))
    assert code == FINE and rows[tmp_path.name][0].startswith("~")
    assert "~ estimated" in out


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        ([], MISUSED, "--members"),
        (["--members", "a.gguf", "--gpus", "many"], MISUSED, "described by their gigabytes"),
        (["--members", "a,b"], MISUSED, "put spaces between members"),
        (["--members", "/no/where.gguf"], MISUSED, "has no where.gguf"),
    ],
)
def test_a_mistake_is_told(argv, code, message, plan):
    given, _, _, err = plan(*argv)
    assert given == code and message in err


def test_no_engine_is_imported(models):
    program = (
        "import sys; from langchain_specfuse.cli.main import main; "
        f"main(['plan', '--gpus', '24', '--members', {models[1]!r}]); "
        "print([name for name in ('torch', 'transformers', 'xllamacpp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
