"""benchmarks/gpu.py stays alive where there is no GPU: the same script with small shapes on the CPU."""

import sys
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
if not (BENCHMARKS / "gpu.py").exists():
    pytest.skip("not in a checkout", allow_module_level=True)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield pytest.importorskip("gpu")
    for name in ("gpu", "latency"):
        sys.modules.pop(name, None)


def test_it_measures_all_that_it_tells_and_keeps_nothing_of_small_shapes(gpu, capsys):
    before = sorted(BENCHMARKS.iterdir())
    told = gpu.main(
        ["--tiny", "--device", "cpu", "--queries", "2", "--tokens", "16", "--prompt", "40", "--repeats", "1"]
    )
    one = told["one_query"]
    assert one["tokens"] == 16 and one["rounds"] > 1
    assert 0 < one["floor_ms_per_token"] < one["captured_ms_per_token"]
    assert one["of_floor_captured"] == pytest.approx(
        one["floor_ms_per_token"] / one["captured_ms_per_token"], rel=0.05, abs=2e-3
    )
    assert set(told["captured"].values()) == {False}  # what is no graph is not called one
    assert told["gain_of_queries_at_once"] > 0 and told["speedup_over_uncached"] > 0
    assert "of the floor" in capsys.readouterr().out
    assert sorted(path for path in BENCHMARKS.iterdir() if path.suffix == ".json") == [
        path for path in before if path.suffix == ".json"
    ]


def test_the_shapes_are_those_of_seven_to_eight_billion_weights(gpu):
    for shape in gpu.SHAPES:
        with torch.device("meta"):
            model = gpu.transformers.AutoModelForCausalLM.from_config(gpu.config_of(shape, 1, 2, tiny=False))
        assert 7.2e9 < sum(one.numel() for one in model.parameters()) < 8.1e9


def test_without_a_gpu_it_says_so(gpu, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) is None
    assert "no GPU here" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        gpu.main(["--device", "cpu"])
