"""Factors that another program keeps beside its blocks: one of a dense matrix, one of each expert's part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from moeinf.store.checked_json import CheckedObject
from moeinf.types import ExpertLayout, JsonObject, MoeShape


@dataclass(frozen=True, slots=True)
class Scales:
    """Every product with the matrix is multiplied by its factor; matrices that are not named have none."""

    dense: Mapping[str, float] = field(default_factory=dict)  # by the names that the family knows
    experts: tuple[Mapping[str, tuple[float, ...]], ...] = ()  # of each MoE layer, by part, of each expert

    def __bool__(self) -> bool:
        return bool(self.dense or any(self.experts))

    def to_json(self) -> JsonObject:
        return {"dense": dict(self.dense), "experts": [dict(layer) for layer in self.experts]}


NO_SCALES = Scales()


def parse_scales(item: CheckedObject, moe: MoeShape, layouts: tuple[ExpertLayout, ...]) -> Scales:
    """Raises StoreError for what is no number, or of no expert."""
    dense = item.child("dense")
    layers = item.children("experts")
    if len(layers) != moe.num_layers:
        raise item.error("experts", f"are {len(layers)}, not {moe.num_layers}")
    found = []
    for number, (layer, layout) in enumerate(zip(layers, layouts, strict=True)):
        parts = {spec.name for spec in layout.tensors if len(spec.shape) > 1}
        if not parts.issuperset(layer.names()):
            raise item.error("experts", f"of layer {number} scale what is no matrix of its layout")
        values = {name: tuple(_number(layer, name, each) for each in layer.take(name, list)) for name in layer.names()}
        if any(len(each) != moe.experts_of(number) for each in values.values()):
            raise item.error("experts", f"of layer {number} are not {moe.experts_of(number)} numbers each")
        found.append(values)
    scales = Scales({name: _number(dense, name, dense.take(name, float)) for name in dense.names()}, tuple(found))
    item.nothing_else()
    return scales


def _number(item: CheckedObject, name: str, value: object) -> float:
    if type(value) is not float or not math.isfinite(value):
        raise item.error(name, "is no number")
    return value
