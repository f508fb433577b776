"""A decoder whose layers are on two emulated devices, beside the same on one."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from moeinf.engine.cards.stages import Stage
from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.assemble import DecoderFamily
from moeinf.models.layers.decoder import Decoder
from moeinf.types import Float32Array, Profiler
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.checkpoints import random_tensors
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.pairs.experts import stored
from tests.support.pairs.on_device import ExpertsOnTheDevice

PASSES = [5, 9, 3, 7, 11], [4], [8], [6, 6, 2]


class OnDevices:
    """One model, of random weights, built on as many devices as it is asked to be."""

    def __init__(self, family: DecoderFamily, config: dict[str, Any]) -> None:
        self._family = family
        tensors = {name: tensor.float() for name, tensor in random_tensors(config, layout=-1).items()}
        self._stored = {name: stored(tensor) for name, tensor in tensors.items()}
        device = EmulatedDevice()
        self._experts: Any = ExpertsOnTheDevice(family.tensors, tensors, DecodeProgram(device), device.kind)

    def built(self, layers: range) -> tuple[Decoder, EmulatedDevice]:
        """With weights of these layers alone, and its device, on which no kernel of another runs."""
        device, footprint = EmulatedDevice(), cast(Any, None)
        ops = recorded(device, Ops(TorchVectorOps(), TorchMatrixOps()))
        lacks = Stage(layers, footprint).lacks
        weights = DeviceWeights(device, ops, self._stored, self._stored, lacks)
        return self._family.build(DeviceLayers(weights, "f32", 64, None), self._experts, Profiler()), device


def _logits(model: Decoder, device: EmulatedDevice) -> list[Float32Array]:
    cache = model.new_cache(48)
    with device.computing():
        return [model.forward(ids, cache) for ids in PASSES]


def same_logits(family: DecoderFamily, config: dict[str, Any]) -> bool:
    """Whether the layers give the same, bit for bit, wherever they are divided."""
    on, num_layers = OnDevices(family, config), family.decoder.num_layers
    wanted = _logits(*on.built(range(num_layers)))
    for border in range(1, num_layers):
        first, device = on.built(range(border))
        rest = range(border, num_layers)
        first.divide([(on.built(rest)[0], rest)])
        if not all(map(np.array_equal, _logits(first, device), wanted)):
            return False
    return True
