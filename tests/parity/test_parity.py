"""Every decoder against its reference, mostly transformers, on tiny random configs that switch its features on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from moeinf._native import ExpertKernel, Kernels
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import DecoderFamily, family_of
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.weights import StoredTensor
from moeinf.models.registry import SUPPORTED
from moeinf.types import ExpertPiece, Profiler, TensorPlan
from tests.oracles.resident_experts import ResidentExperts
from tests.support.tiny_models import all_configs, reference

CONFIGS = all_configs()


class Pair:
    """A model of the reference, mostly transformers, and ours over the same weights, as save_pretrained wrote them."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        torch.manual_seed(7)
        self.theirs = reference(config)
        with torch.no_grad():
            for name, parameter in (*self.theirs.named_parameters(), *self.theirs.named_buffers()):
                if "norm" in name or name.endswith("bias"):
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        self.theirs.save_pretrained(folder)
        self.tensors = safetensors.torch.load_file(folder / "model.safetensors")
        self.config = saved = json.loads((folder / "config.json").read_text())
        family = family_of(saved)
        assert isinstance(family, DecoderFamily)
        self.plan = family.tensors
        self.info = family.info("f32")
        self.kernels = Kernels(2)
        experts = resident_experts(self.plan, self.tensors, self.kernels)
        weights = NativeLayers(self.kernels, {name: stored(tensor) for name, tensor in self.tensors.items()}, "f32")
        self.ours = family.build(weights, experts, Profiler())


def stored(tensor: Tensor) -> StoredTensor:
    return StoredTensor(tensor.contiguous().view(-1).view(torch.uint8).numpy(), "f32", tuple(tensor.shape))


def part_of(piece: ExpertPiece, source: Tensor, shape: tuple[int, ...]) -> Tensor:
    filled, part = piece.filled or shape, torch.zeros(shape)
    part[tuple(map(slice, filled))] = source.contiguous().as_strided(
        filled, piece.strides_of(filled), piece.start_element
    )
    return part


def resident_experts(plan: TensorPlan, tensors: dict[str, Tensor], kernels: Kernels) -> ResidentExperts:
    """Every expert's parts one behind the other, and the experts one behind the other."""
    layout = next(layout for layout in plan.experts if layout.keys() <= tensors.keys())
    found: dict[tuple[int, int, str], Tensor] = {}
    for name, (shape, pieces) in layout.items():
        assert tuple(tensors[name].shape) == shape
        for piece in pieces:
            part = plan.parts[piece.part]
            found[piece.layer, piece.expert, piece.part] = part_of(piece, tensors[name], part).flatten()
    memory = torch.cat(
        [
            found[layer, expert, part]
            for layer in range(plan.moe.num_layers)
            for expert in range(plan.moe.num_experts)
            for part in plan.parts
        ]
    )
    parts, size = {}, 0
    for part_name, part in plan.parts.items():
        parts[part_name] = ("f32", part[0], math.prod(part[1:]), size)
        size += math.prod(part) * 4
    kernel = ExpertKernel(kernels, memory.view(torch.uint8).numpy(), parts, plan.form)
    return ResidentExperts(kernel, lambda layer, expert: (layer * plan.moe.num_experts + expert) * size)


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"))


PROMPT = [5, 17, 3, 88, 41, 41, 2, 60, 9, 33, 75, 14, 96, 22, 8, 51, 7]


def logits(model: Decoder, chunks: list[list[int]]) -> Tensor:
    cache, whole = model.new_cache(256), sum(map(len, chunks))
    return torch.cat(
        [torch.from_numpy(model.forward(chunk, cache, of_tokens=whole, last_only=False)) for chunk in chunks]
    )


@torch.inference_mode()
def test_logits_are_those_of_the_reference(pair: Pair) -> None:
    theirs = pair.theirs(torch.tensor([PROMPT])).logits[0]
    assert theirs.std() > 0.1, "the comparison means something"
    assert (logits(pair.ours, [PROMPT]) - theirs).abs().max() < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_prefill_in_chunks_equals_prefill_at_once(pair: Pair, size: int) -> None:
    whole = logits(pair.ours, [PROMPT])
    chunks = [PROMPT[at : at + size] for at in range(0, len(PROMPT), size)]
    assert torch.equal(logits(pair.ours, chunks), whole)


@torch.inference_mode()
def test_64_greedy_tokens_are_those_of_the_reference(pair: Pair) -> None:
    theirs = pair.theirs.generate(
        torch.tensor([PROMPT]), max_new_tokens=64, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    cache = pair.ours.new_cache(256)
    ours = [int(pair.ours.forward(PROMPT, cache)[-1].argmax())]
    for _ in range(63):
        ours.append(int(pair.ours.forward(ours[-1:], cache)[-1].argmax()))
    assert ours == theirs[0, len(PROMPT) :].tolist()


def test_the_plan_names_every_tensor_of_the_checkpoint_and_no_other(pair: Pair) -> None:
    layout = next(layout for layout in pair.plan.experts if layout.keys() <= pair.tensors.keys())
    assert pair.plan.dense.keys() | layout.keys() == pair.tensors.keys()
    assert all(tuple(pair.tensors[name].shape) == shape for name, shape in pair.plan.dense.items())


def test_model_info_counts_the_parameters_of_the_reference(pair: Pair) -> None:
    buffers = [b for name, b in pair.theirs.named_buffers() if name in pair.tensors]  # correction biases of routers
    assert pair.info.num_params == sum(p.numel() for p in (*pair.theirs.parameters(), *buffers))


def test_each_supported_architecture_is_compared() -> None:
    compared = CONFIGS | all_configs("SEQ2SEQ_CONFIGS")
    assert {config["model_type"] for config in compared.values()} == set(SUPPORTED)
