"""Encoder-decoder models on a GPU give what they give on the CPU; on an emulated device, captured steps and all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.family import family_of
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.assemble import EncoderDecoderFamily
from moeinf.models.layers.encoder_decoder import EncoderDecoder
from moeinf.sampling.beam_search import BeamSearch
from moeinf.types import Profiler
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.pairs.experts import stored
from tests.support.pairs.on_device import ExpertsOnTheDevice
from tests.support.pairs.translators import ANSWER, CONFIGS, SOURCE, Pair, logits, searched


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"))


def on_device(pair: Pair) -> tuple[EncoderDecoder, EmulatedDevice]:
    device = EmulatedDevice()
    program = DecodeProgram(device)
    weights = {name: stored(tensor) for name, tensor in pair.tensors.items()}
    ops = recorded(device, Ops(TorchVectorOps(), TorchMatrixOps()))
    layers = DeviceLayers(DeviceWeights(device, ops, weights, weights), "f32", 80, program)
    experts: Any = ExpertsOnTheDevice(pair.plan, pair.tensors, program, device.kind)
    family = family_of(pair.config)
    assert isinstance(family, EncoderDecoderFamily)
    return family.build(layers, experts, Profiler()), device


def num_stretches(pair: Pair) -> int:
    """Of a captured step, which ends at each of the decoder's layers of experts."""
    pair.experts.layers.clear()
    cache = pair.ours.new_cache(8)
    pair.ours.encode(SOURCE, cache)
    in_encoder = len(pair.experts.layers)
    return pair.plan.moe.num_layers - in_encoder + 1


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 5, 12])
def test_logits_are_those_of_the_cpu(pair: Pair, size: int) -> None:
    ours, _ = on_device(pair)
    chunks = [ANSWER[at : at + size] for at in range(0, len(ANSWER), size)]
    assert (logits(ours, chunks) - logits(pair.ours, [ANSWER])).abs().max() < 1e-4


@torch.inference_mode()
def test_one_captured_step_serves_sources_of_every_length(pair: Pair) -> None:
    ours, device = on_device(pair)
    caches = [model.new_cache(80) for model in (ours, pair.ours)]
    for source in (SOURCE, SOURCE[:3], SOURCE * 3):
        answers = []
        for model, cache in zip((ours, pair.ours), caches, strict=True):
            model.encode(source, cache)
            answer = [int(model.forward([pair.config["decoder_start_token_id"]], cache)[-1].argmax())]
            for _ in range(40):
                answer.append(int(model.forward(answer[-1:], cache)[-1].argmax()))
            answers.append(answer)
        assert answers[0] == answers[1]
    assert device.num_captures == num_stretches(pair), "one step, recorded once"


@torch.inference_mode()
@pytest.mark.parametrize(
    ("num_beams", "penalty", "early", "forced"),
    [
        (2, 1.0, False, [33]),
        (3, 0.3, "never", [33]),
        (4, 1.5, "never", [33]),
        (9, 1.0, False, [33]),
        (3, 1.0, True, []),
    ],
)
def test_a_beam_search_finds_what_it_finds_on_the_cpu(
    pair: Pair, num_beams: int, penalty: float, early: Any, forced: list[int]
) -> None:
    """Nine beams are more than a captured step takes. Without a forced token the first pass is a step of one beam."""
    search = BeamSearch(num_beams, frozenset([17, 9, 61]), penalty, early)
    ours, device = on_device(pair)
    on_cpu = searched(pair, search, 20, forced)
    pair_of_device: Any = type("OnDevice", (), {"ours": ours, "config": pair.config})
    assert searched(pair_of_device, search, 20, forced) == on_cpu
    assert device.num_captures == (num_stretches(pair) if num_beams < 9 else 0)


@torch.inference_mode()
def test_beams_are_moved_on_the_device(pair: Pair) -> None:
    """Any order, some named twice, others given up: the logits are those of each answer alone."""
    ours, _ = on_device(pair)
    cache = ours.new_cache(80, 3)
    ours.encode(SOURCE, cache)
    answers = [[2, 33]]
    ours.forward(answers[0], cache)
    for kept, tokens in (
        ([0, 0, 0], [5, 6, 7]),
        ([2, 0, 0], [8, 9, 10]),
        ([1, 2, 0], [11, 12, 13]),
        ([0, 1, 2], [14, 15, 16]),
        ([2, 2], [17, 18]),
        ([1, 0], [19, 20]),
    ):
        answers = [[*answers[beam], token] for beam, token in zip(kept, tokens, strict=True)]
        cache.keep(kept)
        found = ours.forward(tokens, cache)
    for row, answer in zip(found, answers, strict=True):
        alone = pair.ours.new_cache(80)
        pair.ours.encode(SOURCE, alone)
        wanted = pair.ours.forward(answer, alone)[-1]
        assert abs(row - wanted).max() < 1e-4
