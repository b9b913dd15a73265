"""Norms in one piece are the norms that they stand in for, and only for as long as is said."""

import pytest
import torch

from langchain_specfuse.members._norms import fused

from . import tiny
from .tape import Tape

NORMS = {"llama": 5, "qwen3": 9, "gemma3": 13, "mistral": 5, "phi3": 5, "gpt2": 0, "opt": 0, "gpt-neox": 0}


@pytest.mark.parametrize(("arch", "count"), NORMS.items())
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_says_the_same_with_its_norms_in_one_piece(arch, count, dtype):
    model, _ = tiny.made(arch, 1)
    model = model.to(dtype)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and weight.ndim == 1:  # all ones would hide what is done with them
                weight += 0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7)).to(dtype)
        ids = torch.tensor([[5, 9, 33, 80, 7, 41]])
        plain = model(input_ids=ids).logits.float()
        with fused(model) as found:
            quick = model(input_ids=ids).logits.float()
        assert len(found) == count
        assert torch.equal(model(input_ids=ids).logits.float(), plain)
    far = float((quick - plain).abs().mean() / plain.std())
    assert far < (1e-5 if dtype == torch.float32 else 0.12)


def test_what_only_looks_like_one_is_left_alone():
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.eps = torch.nn.Parameter(torch.rand(8)), 1e-6

        def forward(self, x):
            return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) + 0.1

    class Two(Shifted):
        def forward(self, x, gate):
            return super().forward(x * gate)

    class Scaled(Shifted):
        def forward(self, x):
            return super().forward(x) - 0.1

    model = torch.nn.ModuleList([Shifted(), Two(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 8)])
    with fused(model) as found:
        assert found == []
    with fused(torch.nn.ModuleList([Scaled(), Shifted()])) as found:
        assert len(found) == 1


def test_they_are_back_when_something_goes_wrong():
    model, _ = tiny.made("llama", 1)
    with pytest.raises(RuntimeError), fused(model):
        raise RuntimeError("no graph")
    assert not any("forward" in vars(module) for module in model.modules())


@torch.inference_mode()
def test_they_are_far_fewer_launches():
    launches = []
    for layers in (1, 2):
        model, _ = tiny.made("llama", 1, num_hidden_layers=layers)
        ids = torch.tensor([[5, 9, 33]])
        with Tape() as plain:
            model(input_ids=ids)
        with fused(model), Tape() as quick:
            model(input_ids=ids)
        launches.append((len(plain.work), len(quick.work)))
    (plain_1, quick_1), (plain_2, quick_2) = launches
    assert plain_2 - plain_1 >= quick_2 - quick_1 + 8
