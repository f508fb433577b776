"""The layers of a GPU give what the layers of the CPU give; here with the kernels' twins on an emulated device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf._native import Kernels
from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.cpu.weights import NativeWeights
from moeinf.models.families.llama.llama4 import SeveralExperts
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.attention.grouped import AttentionPart, attention_shapes
from moeinf.models.layers.attention_config import (
    AttentionConfig,
    AttentionSite,
    Gate,
    HeadNorms,
    NormConfig,
    NormKind,
    Projections,
    Scores,
    Sharpening,
    Sight,
)
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.protocol import RoutedBlock
from moeinf.models.layers.rope import Rope, plain_rope
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice
from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair, logits
from tests.support.pairs.experts import stored
from tests.support.pairs.on_device import on_device

TOKENS = 24  # with the prompt's further than any window, block or pool of the configs
OF_FAMILIES = {config["model_type"]: name for name, config in reversed(CONFIGS.items())}  # the first of each


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def of_prompt(pair: Pair) -> tuple[Decoder, Tensor]:
    """The model of a pair on the device, and the logits of the CPU."""
    with torch.inference_mode():
        return on_device(pair)[0], logits(pair.ours, [PROMPT])


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 5, 17])
def test_logits_are_those_of_the_cpu(of_prompt: tuple[Decoder, Tensor], size: int) -> None:
    ours, wanted = of_prompt
    chunks = [PROMPT[at : at + size] for at in range(0, len(PROMPT), size)]
    assert (logits(ours, chunks) - wanted).abs().max() < 1e-4


@torch.inference_mode()
def test_greedy_tokens_from_a_captured_program_are_those_of_the_cpu(pair: Pair) -> None:
    ours, device = on_device(pair)
    caches = [model.new_cache(256) for model in (ours, pair.ours)]
    answers: list[list[int]] = []
    for model, cache in zip((ours, pair.ours), caches, strict=True):
        answer = [int(model.forward(PROMPT, cache)[-1].argmax())]
        for _ in range(TOKENS - 1):
            answer.append(int(model.forward(answer[-1:], cache)[-1].argmax()))
        answers.append(answer)
    assert answers[0] == answers[1]
    visits = sum(
        block.router.top_k if isinstance(block, SeveralExperts) else isinstance(block, RoutedBlock)
        for block in ours._blocks
    )
    assert device.num_captures == visits + 1, "one step, in stretches between experts"


ATTENTION = AttentionConfig(64, 4, 2, 24, 1e-6, plain_rope(24, 1e4))
FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "partial rotary": {"rope": plain_rope(12, 1e4)},
    "interleaved pairs, head norms": {"rope": plain_rope(24, 1e4, interleaved=True), "head_norms": HeadNorms()},
    "interleaved, partial, norms that store one less": {
        "rope": plain_rope(8, 1e4, interleaved=True),
        "head_norms": HeadNorms(),
        "norm": "rms+1",
    },
    "no positions, all biases": {"rope": None, "projections": Projections(bias=True, output_bias=True)},
    "scaled positions and scores": {"rope": Rope(plain_rope(24, 1e4).frequencies, scale=1.3), "scores": Scores(0.31)},
    "sinks, window, output bias": {
        "scores": Scores(sinks="sinks"),
        "sight": Sight(5),
        "projections": Projections(output_bias=True),
    },
    "gate, biases, whole norms": {
        "gate": Gate(),
        "projections": Projections(bias=True),
        "head_norms": HeadNorms("full"),
        "norm": "rms+1",
    },
    "chunks, values that are keys": {
        "sight": Sight(4, chunked=True),
        "projections": Projections(values_of_keys=True),
        "head_norms": HeadNorms(of_values=True),
    },
    "sharpened queries, norms without weights": {
        "scores": Scores(sharpening=Sharpening(0.4, 3, 1)),
        "head_norms": HeadNorms("turned", names=None),
    },
    "values narrower than keys, sinks, window, biases": {
        "projections": Projections(value_dim=10, bias=True),
        "scores": Scores(sinks="sinks"),
        "sight": Sight(5),
    },
    "a gate for each head": {"gate": Gate("g_proj", per_head=True)},
    "softplus of gates": {"gate": Gate("gate_proj", function="softplus")},
    "softplus of a gate for each head": {"gate": Gate("gate_proj", per_head=True, function="softplus")},
    "layer norm, clip": {"norm": "layer", "projections": Projections(clip=0.6, bias=True)},
}


@torch.inference_mode()
@pytest.mark.parametrize("features", FEATURES.values(), ids=[name.replace(" ", "-") for name in FEATURES])
@pytest.mark.parametrize("residual", [1.0, 0.4])
def test_attention_of_every_kind_is_that_of_the_cpu(features: dict[str, Any], residual: float) -> None:
    config = replace(ATTENTION, **features)
    shapes = attention_shapes(config, "a.") | {"norm.weight": (64,), "norm.bias": (64,)}
    torch.manual_seed(3)
    weights = {name: stored(torch.randn(shape) * (0.2 if len(shape) > 1 else 1)) for name, shape in shapes.items()}
    device = EmulatedDevice()
    on_device = DeviceWeights(device, Ops(TorchVectorOps(), TorchMatrixOps()), weights, {})
    ours = DeviceLayers(on_device, "f32", 40, DecodeProgram(device))
    theirs = NativeLayers(Kernels(1), weights, "f32")
    results: list[list[Tensor]] = []
    both: tuple[Any, Any] = (ours, theirs)
    for layers in both:
        attention = layers.make(AttentionPart(config, AttentionSite(0, "a.", "norm.weight", residual)))
        rotary, cache = layers.rotary(config.rope, 40), Cache([attention.new_state(40)], 40)
        results.append([])
        for number, tokens in enumerate((3, 1, 12, 1)):
            x = torch.randn(tokens, 64, generator=torch.Generator().manual_seed(number))
            values: Any = x if layers is ours else x.numpy()
            attention.add_to(values, cache, rotary(cache.length, tokens, cache))
            cache.advance(tokens)
            results[-1].append(x)
    for found, wanted in zip(*results, strict=True):
        assert (found - wanted).abs().max() < 1e-4


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["rms", "rms+1", "layer"])
def test_norms_of_every_kind_are_those_of_the_cpu(kind: NormKind) -> None:
    weights = {name: stored(torch.randn(24)) for name in ("norm.weight", "norm.bias")}
    norm = NormConfig("norm.weight", 1e-6, kind)
    device, x = EmulatedDevice(), torch.randn(5, 3, 24)
    ours = DeviceWeights(device, Ops(TorchVectorOps(), TorchMatrixOps()), weights, {})
    wanted = NativeWeights(Kernels(1), weights).norm(norm)(x.numpy())
    assert (ours.norm(norm)(x) - torch.from_numpy(wanted)).abs().max() < 1e-5


@torch.inference_mode()
@pytest.mark.parametrize("pair", OF_FAMILIES.values(), indirect=True, ids=OF_FAMILIES)
def test_a_second_cache_has_its_own_program(pair: Pair) -> None:
    ours, _ = on_device(pair)
    caches = [ours.new_cache(256), ours.new_cache(256)]
    results = []
    for cache in caches:
        ours.forward(PROMPT, cache)
        results.append([ours.forward([token], cache)[-1] for token in (3, 9, 27, 81)])
    assert np.array_equal(results[0], results[1])
