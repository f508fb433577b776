"""What an error in each column of a stored model's matrices costs, by what they were multiplied with on a text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import numpy as np

from moeinf.errors import UsageError
from moeinf.gguf.gguf_names import layer_names, of_layer, outer_names
from moeinf.gguf.imatrix import Imatrix, Sums
from moeinf.models.family import family_of
from moeinf.store.files import parse_json_object, read_small
from moeinf.store.library import StoredModel
from moeinf.types import Float32Array, JsonObject, TensorPlan

Place = tuple[int, str]  # an MoE layer and a part of its experts, or -1 and the name of a dense tensor
DENSE: Final = -1
LEAST_TOKENS: Final = 32  # of an expert; with fewer, it is rounded more by what its layer's experts are given
_LEAST_SHARE: Final = 1e-3  # of the mean: what a text does not use may be used by another


def plan_of(stored: StoredModel) -> TensorPlan:
    return family_of(config_of(stored)).tensors


def config_of(stored: StoredModel) -> JsonObject:
    return parse_json_object(read_small(stored.path / "config.json"), "config.json", UsageError)


def matrix_names(plan: TensorPlan) -> dict[Place, str]:
    """What GGUF files call the matrices that are multiplied with states: parts of experts, and dense ones.

    One for which they have no name keeps that of the checkpoint.
    """
    of_decoder = {
        piece.layer: found[0]
        for name, (_, pieces) in plan.experts[0].items()
        for piece in pieces
        if (found := of_layer(name)) is not None
    }
    kind = "" if plan.moe.dense else "_exps"
    names: dict[Place, str] = {
        (layer, part): f"blk.{of_decoder.get(layer, layer)}.ffn_{part}{kind}.weight"
        for layer in range(plan.moe.num_layers)
        for part, shape in plan.parts.items()
        if len(shape) > 1
    }
    return names | {(DENSE, name): _dense_name(name) for name in sorted(plan.matrices - plan.lookups)} | _head(plan)


def _head(plan: TensorPlan) -> dict[Place, str]:
    return {} if plan.head is None else {(DENSE, plan.head[1]): "output.weight"}


def _dense_name(name: str) -> str:
    found = of_layer(name)
    try:
        return outer_names(name)[0] if found is None else layer_names(*found, "")[0]
    except (AssertionError, KeyError):
        return name


class Importance:
    """Of each column of each matrix, by its inputs on a text. Raises UsageError for sums of another model."""

    def __init__(self, stored: StoredModel, imatrix: Imatrix, where: str) -> None:
        """where: what errors call the sums."""
        self._sums: dict[Place, Sums] = {}
        self._layers: dict[Place, Float32Array] = {}  # the mean of all experts of a layer
        manifest = stored.manifest
        for place, name in matrix_names(plan_of(stored)).items():
            layer, part = place
            if layer == DENSE:
                if name in imatrix.sums:
                    self._sums[place] = imatrix.sums[name]
                continue
            cols = next(spec.shape[-1] for spec in manifest.layout_of(layer).tensors if spec.name == part)
            self._sums[place] = found = _of_experts(imatrix.sums, name, manifest.moe.experts_of(layer), cols, where)
            total = found.counts.sum()
            self._layers[place] = found.squares.sum(0) / total if total else found.squares[0]

    def of_expert(self, layer: int, part: str, expert: int) -> Float32Array | None:
        """[columns]; None where nothing was seen, or nothing but zeros: then all columns matter as much."""
        place = (layer, part)
        if place not in self._sums:
            return None
        sums, mean = self._sums[place], self._layers[place]
        known = sums.squares[expert] + LEAST_TOKENS * mean
        return shares(known / (sums.counts[expert] + LEAST_TOKENS))

    def of_dense(self, name: str, cols: int) -> Float32Array | None:
        """The same of a matrix beside the experts."""
        sums = self._sums.get((DENSE, name))
        return None if sums is None or sums.squares.shape != (1, cols) else shares(sums.squares[0])

    @property
    def rare(self) -> tuple[int, int]:
        """How many experts had fewer tokens than LEAST_TOKENS, and how many there are."""
        counts = [self._sums[place].counts for place in self._layers if place[1] == "down"]
        few = sum(int((each < LEAST_TOKENS).sum()) for each in counts)
        return few, sum(map(len, counts))


def _of_experts(found: Mapping[str, Sums], name: str, experts: int, cols: int, where: str) -> Sums:
    """Of all experts of a layer. In the older form they lie in one row; gate and up may be one matrix."""
    sums = found.get(name) or found.get(re.sub(r"ffn_(gate|up)_exps", "ffn_gate_up_exps", name))
    if sums is None:
        raise UsageError(f"{where} has nothing of {name}: it is of another model")
    if sums.squares.shape == (1, experts * cols) and experts > 1:
        squares = sums.squares.reshape(experts, cols)
        return Sums(squares, np.where(squares.any(1), sums.counts[0], 0).astype(np.float32))
    if sums.squares.shape != (experts, cols):
        rows, width = sums.squares.shape
        raise UsageError(
            f"{where} is of another model: {name} has {rows} matrices of {width} columns, not {experts} of {cols}"
        )
    return sums


def shares(squares: Float32Array) -> Float32Array | None:
    """As shares of their mean, as the quantisers take them."""
    mean = float(squares.mean(dtype=np.float64))
    return None if mean <= 0 else np.clip(squares / np.float32(mean), _LEAST_SHARE, 65504).astype(np.float32)
