"""The form in which a GPU computes with stored weights, and how they come into it where they are stored in another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np

from moeinf._native import dequantise, quantise
from moeinf.engine.weights.dense_file import Kinds
from moeinf.models.layers.weights import TensorBytes
from moeinf.store.format import expert_layout
from moeinf.store.manifest import Manifest
from moeinf.text.quantities import size_text
from moeinf.types import (
    BLOCK_ALIGN_BYTES,
    DEVICE_FORMATS,
    FORMAT_BLOCKS,
    ByteArray,
    ExpertLayout,
    Format,
    TensorSpec,
    device_format,
    format_bytes,
)

_WEIGHTS_AT_ONCE: Final = 1 << 15  # widened between two formats: few enough for a core's own cache
_NO_NUMBER: Final = 0xFF  # as every byte of a block: its scale is NaN


class HeldDense(Protocol):
    """What is known of dense weights before they are read: DenseFile, PlacedDense, DenseSizes, PlacedSizes."""

    @property
    def memory_bytes(self) -> int: ...

    @property
    def kinds(self) -> Kinds: ...


def _form(format: Format, *, scaled: bool) -> Format:
    """What weights are on a GPU. Scales beside blocks are multiplied into the weights, since kernels know none."""
    if not scaled:
        return device_format(format)
    return "f32" if FORMAT_BLOCKS[format][0] == 1 else "q8_0"


def _scales(manifest: Manifest) -> Sequence[Mapping[str, Sequence[float]]]:
    """Of each layer, by part, those of each expert."""
    return manifest.scales.experts or [{}] * manifest.moe.num_layers


def by_layer(manifest: Manifest) -> Manifest:
    """With a layout of each layer where all have one, and the kernels lack a format of it: layers are converted."""
    if manifest.layers or all(t.dtype in DEVICE_FORMATS for t in manifest.layout.tensors):
        return manifest
    return replace(manifest, layers=(manifest.layout,) * manifest.moe.num_layers)


def device_layouts(manifest: Manifest) -> tuple[ExpertLayout, ...]:
    """Returns the block from which a GPU computes an expert of each layer.

    Its memory also has room for what is read of an expert's file, which is converted there.
    """
    manifest = by_layer(manifest)
    if not manifest.layers:
        return (manifest.layout,) * manifest.moe.num_layers
    made = (
        expert_layout([(t.name, _form(t.dtype, scaled=t.name in scales), t.shape) for t in layout.tensors])
        for layout, scales in zip(manifest.layers, _scales(manifest), strict=True)
    )
    return tuple(
        replace(layout, stride_bytes=max(layout.stride_bytes, read.stride_bytes))
        for layout, read in zip(made, manifest.layers, strict=True)
    )


def device_bytes(manifest: Manifest, dense: HeldDense) -> dict[str, int]:
    """What each dense tensor takes of a GPU's memory."""
    scales = manifest.scales.dense
    return {
        name: format_bytes(_form(format, scaled=name in scales), shape) for name, (format, shape) in dense.kinds.items()
    }


def conversion_notice(manifest: Manifest, dense: HeldDense, experts_bytes: int, dense_bytes: int) -> str:
    """Returns a line for the user, with the sizes on the GPU, where weights are converted; else "".

    experts_bytes, dense_bytes: what all experts, and the dense weights, take there.
    """
    moe, scales = manifest.moe, manifest.scales.dense
    changes = {(kind[0], _form(kind[0], scaled=name in scales)) for name, kind in dense.kinds.items()}
    stored_bytes = 0
    for layer, layout in enumerate(device_layouts(manifest)):
        for read, made in zip(manifest.layout_of(layer).tensors, layout.tensors, strict=True):
            stored_bytes += moe.experts_of(layer) * read.num_bytes
            changes.add((read.dtype, made.dtype))
    changes = {(format, made) for format, made in changes if format != made}
    if not changes:
        return ""
    named = {format if format not in DEVICE_FORMATS else f"{format} with scales" for format, _ in changes}
    return (
        f"the GPU has no kernels for {', '.join(sorted(named))} and computes these weights as "
        f"{', '.join(sorted({made for _, made in changes}))}: all experts take "
        f"{size_text(experts_bytes)} there instead of {size_text(stored_bytes)}, "
        f"dense weights {size_text(dense_bytes)} instead of {size_text(dense.memory_bytes)}"
    )


@dataclass(frozen=True, slots=True)
class _Move:
    """A part of the experts of a layer, as it is read into a slot and as a GPU computes from it."""

    read: TensorSpec
    made: TensorSpec
    start_bytes: int  # of expert 0 in the file: a part is read with the rest of its first block
    step_bytes: int  # to the next expert
    scales: Sequence[float]  # of each expert; none where there are none


class ExpertConversion:
    """Makes the block that a GPU computes from, in the slot into which an expert was read as it is stored."""

    def __init__(self, manifest: Manifest, layouts: Sequence[ExpertLayout]) -> None:
        """layouts: see device_layouts."""
        self._num_experts = manifest.moe.num_experts
        self._read_bytes = [manifest.layout_of(layer).stride_bytes for layer in range(len(layouts))]
        self._moves = [_moves(manifest, layer, layout) for layer, layout in enumerate(layouts)]

    def __call__(self, key: int, slot: ByteArray) -> None:
        layer, expert = divmod(key, self._num_experts)
        read = slot[: self._read_bytes[layer]].copy()  # parts are made where others were read to
        for move in self._moves[layer]:
            shift = (move.start_bytes + expert * move.step_bytes) % BLOCK_ALIGN_BYTES
            source = read[move.read.offset_bytes + shift :][: move.read.num_bytes]
            made = slot[move.made.offset_bytes :][: move.made.num_bytes]
            convert(move.read.dtype, source, move.made.dtype, made, move.scales[expert] if move.scales else 1.0)


def _moves(manifest: Manifest, layer: int, layout: ExpertLayout) -> list[_Move]:
    specs = manifest.layout_of(layer).tensors
    places = [(0, 0)] * len(specs)
    if manifest.in_place is not None:
        places = [(place.offset_bytes, place.step_bytes) for place in manifest.in_place.experts[layer]]
    scales = _scales(manifest)[layer]
    return [
        _Move(read, made, *place, scales.get(read.name, ()))
        for read, made, place in zip(specs, layout.tensors, places, strict=True)
    ]


def convert(source: Format, data: ByteArray, target: Format, out: ByteArray, scale: float = 1.0) -> None:
    """Writes weights times `scale` into `out` in another format, or as they are where it is the same.

    Weights that `target` cannot hold become no numbers, which the router's check finds (runtime/routing_check.py).
    """
    if source == target and scale == 1.0:
        out[:] = data
        return
    (weights, num_bytes), (made_weights, made_bytes) = FORMAT_BLOCKS[source], FORMAT_BLOCKS[target]
    count = len(data) // num_bytes * weights
    wide = np.empty(_WEIGHTS_AT_ONCE, np.float32)
    for first in range(0, count, _WEIGHTS_AT_ONCE):
        part = wide[: count - first]
        blocks = data[first // weights * num_bytes :][: len(part) // weights * num_bytes]
        made = out[first // made_weights * made_bytes :][: len(part) // made_weights * made_bytes]
        dequantise(source, blocks, 1, len(part), part.reshape(1, -1))
        part *= np.float32(scale)
        if target == "f32":
            made[:] = part.view(np.uint8)
            continue
        try:
            quantise(target, part.view(np.uint8), "f32", 1, len(part), made)
        except ValueError:
            made[:] = _NO_NUMBER


def for_device(tensors: Mapping[str, TensorBytes], scales: Mapping[str, float]) -> dict[str, TensorBytes]:
    """Returns dense weights in formats that a GPU's kernels read. scales: of the matrices that have one."""
    return {
        name: tensor if tensor.format in DEVICE_FORMATS and name not in scales else _Converted(tensor, scales.get(name))
        for name, tensor in tensors.items()
    }


class _Converted:
    """moeinf.models.layers.weights.TensorBytes, of a tensor that is stored in another form than kernels read."""

    def __init__(self, tensor: TensorBytes, scale: float | None) -> None:
        self.format, self.shape = _form(tensor.format, scaled=scale is not None), tensor.shape
        self.num_bytes = format_bytes(self.format, self.shape)
        self._tensor, self._scale = tensor, 1.0 if scale is None else scale

    def pieces(self) -> Iterator[ByteArray]:
        weights, num_bytes = FORMAT_BLOCKS[self._tensor.format]
        for piece in self._tensor.pieces():
            made = np.empty(format_bytes(self.format, (len(piece) // num_bytes * weights,)), np.uint8)
            convert(self._tensor.format, piece, self.format, made, self._scale)
            yield made
