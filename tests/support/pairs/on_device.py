"""Our half of a pair on a device: an emulated one with the kernels' twins, or a GPU."""

from __future__ import annotations

from typing import Any

from torch import Tensor, device

from moeinf.gpu.device import Device
from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.family import family_of
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.decoder import Decoder
from moeinf.types import Profiler, Routing, TensorPlan
from tests.oracles.torch_matrix import TorchMatrixOps, activated
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.pairs.decoders import Pair
from tests.support.pairs.experts import parts_of_experts, stored


class ExpertsOnTheDevice:
    """Every expert as plain tensors; what a router chose is computed outside of captured stretches."""

    wants_expectations = False

    def __init__(self, plan: TensorPlan, tensors: dict[str, Tensor], program: DecodeProgram, kind: device) -> None:
        self._program, self._form, self._forms = program, plan.form, plan.forms
        self._parts = {key: part.to(kind) for key, part in parts_of_experts(plan, tensors).items()}
        self._norms: dict[int, tuple[Tensor, float]] = {}

    def norm_outputs(self, layer: int, scale: Tensor, eps: float) -> None:
        self._norms[layer] = scale, eps

    def run(self, layer: int, hidden: Tensor, routing: Routing, out: Tensor) -> None:
        self._program.outside(lambda: self._compute(layer, hidden, routing, out))

    def _compute(self, layer: int, hidden: Tensor, routing: Routing, out: Tensor) -> None:
        for token, (ids, weights) in enumerate(zip(routing.ids.tolist(), routing.weights, strict=True)):
            for expert, weight in zip(ids, weights, strict=True):
                gate = self._product(layer, expert, "gate", hidden[token]) if self._form.gated else None
                act = activated(
                    self._forms[layer % len(self._forms)], gate, self._product(layer, expert, "up", hidden[token])
                )
                output = self._product(layer, expert, "down", act)
                if layer in self._norms:
                    scale, eps = self._norms[layer]
                    output = output / ((output * scale) ** 2).mean().add(eps).sqrt()
                out[token] += weight * output

    def _product(self, layer: int, expert: int, part: str, x: Tensor) -> Tensor:
        product = self._parts[layer, expert, part] @ x
        return product + self._parts[layer, expert, f"{part}_bias"] if self._form.biased else product

    def expect(self, layer: int, guess: Routing) -> None:
        pass


def on_device(pair: Pair) -> tuple[Decoder, EmulatedDevice]:
    """On an emulated one, with the kernels' twins."""
    emulated = EmulatedDevice()
    return built(pair, emulated, recorded(emulated, Ops(TorchVectorOps(), TorchMatrixOps()))), emulated


def built(pair: Pair, on: Device, ops: Ops) -> Decoder:
    program = DecodeProgram(on)
    weights = {name: stored(tensor) for name, tensor in pair.tensors.items()}
    layers = DeviceLayers(DeviceWeights(on, ops, weights, weights), "f32", 256, program)
    experts: Any = ExpertsOnTheDevice(pair.plan, pair.tensors, program, on.kind)
    config = pair.config
    family = family_of(config)
    assert isinstance(family, DecoderFamily)
    return family.build(layers, experts, Profiler())
