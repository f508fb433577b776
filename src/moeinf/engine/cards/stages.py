"""Which card computes which layers, where one card does not hold the dense weights of all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from moeinf.engine.build_context import BuildContext
from moeinf.engine.memory.device_plan import DEVICE_OVERHEAD_BYTES, device_room
from moeinf.engine.memory.footprint import Footprint, sequence_bytes
from moeinf.engine.memory.plan import wanted_context
from moeinf.engine.weights.device_form import device_bytes
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.models.layers.assemble import DecoderFamily

_LAYER: Final = re.compile(r"\.(\d+)\.")  # of tensors: the first number in their names


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers in a row, and the sizes of a model that has no others. The first also has what is outside of layers."""

    layers: range
    footprint: Footprint

    def text(self) -> str:
        return f"layers {self.layers.start}-{self.layers.stop - 1}"

    def lacks(self, name: str) -> bool:
        """Whether a tensor is another stage's."""
        layer = layer_of(name)
        return self.layers.start > 0 if layer is None else layer not in self.layers


def layer_of(name: str) -> int | None:
    """The layer that a tensor belongs to; None for one outside of them."""
    found = _LAYER.search(name)
    return None if found is None else int(found[1])


def stages_of(context: BuildContext, gpus: Sequence[OpenGpu]) -> list[Stage]:
    """Divides the layers among cards in proportion to their memory; each gets one at least.

    What is kept of a sequence is taken to be alike in all layers: slots, which are taken last, make up for it.
    """
    footprint, config, family = context.device_footprint, context.host.config, context.weights.family
    assert isinstance(family, DecoderFamily) and family.divisible
    info, num_layers = footprint.info, family.decoder.num_layers
    dense = [0] * num_layers
    for name, num_bytes in device_bytes(context.manifest, context.weights.dense).items():
        layer = layer_of(name)
        if layer is not None:
            dense[layer] += num_bytes
    outside = footprint.dense_bytes - sum(dense)
    rooms = [
        max(1, device_room(config, gpu.free_bytes, gpu.total_bytes, gpu.has_display)[1] - DEVICE_OVERHEAD_BYTES)
        for gpu in gpus
    ]
    kept = sequence_bytes(info, (config.parallel or 1) * wanted_context(info, config)) / num_layers
    starts = first_layers([each + kept for each in dense], outside, rooms)
    stages = []
    for start, stop in zip(starts, [*starts[1:], num_layers], strict=True):
        part = replace(
            info,
            kv_bytes_per_token=-(-info.kv_bytes_per_token * (stop - start) // num_layers),
            state_bytes=-(-info.state_bytes * (stop - start) // num_layers),
        )
        dense_bytes = sum(dense[start:stop]) + (outside if start == 0 else 0)
        stages.append(Stage(range(start, stop), replace(footprint, info=part, dense_bytes=dense_bytes)))
    return stages


def first_layers(costs: Sequence[float], outside: float, rooms: Sequence[int]) -> list[int]:
    """The first layer of each card, so that its layers take about as large a share of all as its room is of all room.

    costs: of each layer; outside: of what the first card has besides.
    """
    whole, starts, room, taken = sum(costs) + outside, [0], 0.0, float(outside)
    layer = 0
    for card, each in enumerate(rooms[:-1]):
        room += each
        most = len(costs) - (len(rooms) - 1 - card)  # the others get one each
        layer, taken = layer + 1, taken + costs[layer]
        while layer < most and taken + costs[layer] / 2 <= whole * room / sum(rooms):
            layer, taken = layer + 1, taken + costs[layer]
        starts.append(layer)
    return starts
