"""The layers of a GPU give what the layers of the CPU give; here with the kernels' twins on an emulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf.device.matrix_twins import TorchMatrixOps
from moeinf.device.ops import Ops
from moeinf.device.program import DecodeProgram
from moeinf.device.vector_twins import TorchVectorOps
from moeinf.laps import Laps
from moeinf.models import architecture
from moeinf.models.decoder import Decoder
from moeinf.models.device_layers import DeviceLayers
from moeinf.types import Routing, TensorPlan
from tests.emulated_device import EmulatedDevice, recorded
from tests.models.test_parity import CONFIGS, PROMPT, Pair, logits, stored


class ExpertsOnTheDevice:
    """Every expert as two plain tensors; what a router chose is computed outside of captured stretches."""

    wants_expectations = False

    def __init__(self, plan: TensorPlan, tensors: dict[str, Tensor], program: DecodeProgram) -> None:
        self._program = program
        self._parts: dict[tuple[int, int, str], Tensor] = {}
        layout = next(layout for layout in plan.experts if layout.keys() <= tensors.keys())
        for name, (_, pieces) in layout.items():
            for piece in pieces:
                rows, cols = plan.parts[piece.part]
                flat = tensors[name].flatten()[piece.start_element : piece.start_element + rows * cols]
                self._parts[piece.layer, piece.expert, piece.part] = flat.view(rows, cols)
        self._names = list(plan.parts)

    def run(self, layer: int, hidden: Tensor, routing: Routing, out: Tensor) -> None:
        self._program.outside(lambda: self._compute(layer, hidden, routing, out))

    def _compute(self, layer: int, hidden: Tensor, routing: Routing, out: Tensor) -> None:
        for token, (ids, weights) in enumerate(zip(routing.ids.tolist(), routing.weights, strict=True)):
            for expert, weight in zip(ids, weights, strict=True):
                gate, up, down = (self._parts[layer, expert, name] for name in self._names)
                x = hidden[token]
                out[token] += weight * (down @ (torch.nn.functional.silu(gate @ x) * (up @ x)))

    def expect(self, layer: int, guess: Routing) -> None:
        pass


@pytest.fixture(scope="module", params=CONFIGS, ids=lambda name: name.replace(" ", "-"))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return Pair(CONFIGS[request.param], tmp_path_factory.mktemp("checkpoint"))


def on_device(pair: Pair) -> tuple[Decoder, EmulatedDevice]:
    device = EmulatedDevice()
    program = DecodeProgram(device)
    weights = {name: stored(tensor) for name, tensor in pair.tensors.items()}
    ops = recorded(device, Ops(TorchVectorOps(), TorchMatrixOps()))
    layers = DeviceLayers(device, ops, weights, weights, "f32", 256, program)
    experts: Any = ExpertsOnTheDevice(pair.plan, pair.tensors, program)
    config = pair.config
    return architecture(config).build(config, layers, experts, Laps()), device


@torch.inference_mode()
@pytest.mark.parametrize("size", [1, 2, 5, 17])
def test_logits_are_those_of_the_cpu(pair: Pair, size: int) -> None:
    ours, _ = on_device(pair)
    chunks = [PROMPT[at : at + size] for at in range(0, len(PROMPT), size)]
    assert (logits(ours, chunks) - logits(pair.ours, [PROMPT])).abs().max() < 1e-4


@torch.inference_mode()
def test_64_greedy_tokens_from_a_captured_program_are_those_of_the_cpu(pair: Pair) -> None:
    ours, device = on_device(pair)
    caches = [model.new_cache(256) for model in (ours, pair.ours)]
    answers: list[list[int]] = []
    for model, cache in zip((ours, pair.ours), caches, strict=True):
        answer = [int(model.forward(PROMPT, cache)[-1].argmax())]
        for _ in range(63):
            answer.append(int(model.forward(answer[-1:], cache)[-1].argmax()))
        answers.append(answer)
    assert answers[0] == answers[1]
    assert device.num_captures == pair.plan.moe.num_layers + 1, "one step, in stretches between experts"


@torch.inference_mode()
def test_a_second_cache_has_its_own_program(pair: Pair) -> None:
    ours, _ = on_device(pair)
    caches = [ours.new_cache(256), ours.new_cache(256)]
    results = []
    for cache in caches:
        ours.forward(PROMPT, cache)
        results.append([ours.forward([token], cache)[-1] for token in (3, 9, 27, 81)])
    assert np.array_equal(results[0], results[1])
