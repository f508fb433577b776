"""Adds the products of an adapter to the numbers of a shard."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from moeinf.errors import CheckpointError
from moeinf.pull.checkpoint.layout import View
from moeinf.pull.lora.placed import Placed, Update
from moeinf.store.files import errors_named, open_regular, read_fully, write_fully
from moeinf.store.format import STORE_DTYPES, TensorEntry
from moeinf.store.numbers import floats, rounded
from moeinf.types import DTYPE_BYTES, DType, Float32Array

_PIECE_ELEMENTS = 4 << 20  # of a tensor, that are changed at once


class Weights:
    """The tensors of an adapter, read as they are needed. Those of one module are kept, as experts share them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kept: dict[str, Float32Array] = {}
        with errors_named(path, CheckpointError):
            self._fd = open_regular(path)

    def close(self) -> None:
        os.close(self._fd)

    def bytes_of(self, entry: TensorEntry) -> memoryview:
        data = memoryview(bytearray(entry.num_bytes))
        with errors_named(self.path, CheckpointError):
            read_fully(self._fd, data, entry.offset_bytes, self.path)
        return data

    def matrix(self, entry: TensorEntry) -> Float32Array:
        return floats(self.bytes_of(entry), STORE_DTYPES[entry.dtype]).reshape(entry.shape)

    def factors(self, update: Update) -> tuple[Float32Array, Float32Array]:
        """Left [rows, rank] and right [rank, cols]: their product is what is added to the view, but for its scale."""
        change, experts = update.change, update.experts
        if change.a.name not in self._kept:
            self._kept = {entry.name: self.matrix(entry) for entry in (change.a, change.b)}
        a, b = self._kept[change.a.name], self._kept[change.b.name]
        a = a.reshape(experts, -1, a.shape[1])[update.expert]
        by_rank = b.reshape(len(b), experts, -1).swapaxes(1, 2) if change.by_expert else b.reshape(len(b), -1, experts)
        b = by_rank[:, :, update.expert]
        left, right = (a.T, b.T) if update.inputs_first else (b, a)
        if update.turned:
            left, right = right.T, left.T
        return left[update.rows or slice(None)], right[:, update.cols or slice(None)]


def merge(path: Path, entries: Mapping[str, TensorEntry], placed: Placed, weights: Weights) -> None:
    """Changes those tensors of a shard, a copy of the checkpoint's, that an adapter changes. entries: by their names.

    Each number is that of PEFT's merge_and_unload, computed in f32 and rounded once to the type of the shard. Raises
    CheckpointError, StoreError, DiskSpaceError.
    """
    with errors_named(path):
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for name, entry in entries.items():
            if name in placed.replaced:
                _replace(fd, path, entry, placed.replaced[name], weights)
            for update in placed.updates.get(name, ()):
                _update(fd, path, entry, update, weights)
        with errors_named(path):
            os.fsync(fd)
    finally:
        os.close(fd)


def _replace(fd: int, path: Path, entry: TensorEntry, by: TensorEntry, weights: Weights) -> None:
    data = weights.bytes_of(by)
    if by.dtype != entry.dtype:
        dtype = STORE_DTYPES[entry.dtype]
        data = stored_numbers(rounded(floats(data, STORE_DTYPES[by.dtype]), dtype), dtype)
    with errors_named(path):
        write_fully(fd, data, entry.offset_bytes, path)


def _update(fd: int, path: Path, entry: TensorEntry, update: Update, weights: Weights) -> None:
    dtype = STORE_DTYPES[entry.dtype]
    width = DTYPE_BYTES[dtype]
    left, right = weights.factors(update)
    length = None if update.change.magnitude is None else weights.matrix(update.change.magnitude).reshape(-1)
    for rows, view in _pieces(update.view):
        start, count = view.start, view.end - view.start
        data = memoryview(bytearray(count * width))
        with errors_named(path):
            read_fully(fd, data, entry.offset_bytes + start * width, path)
        numbers = floats(data, dtype).copy()
        seen = np.lib.stride_tricks.as_strided(numbers, view.shape, [4 * step for step in view.strides])
        with np.errstate(all="ignore"):  # what is no number is told below
            if update.view.strides[0] < update.view.strides[1]:  # the columns of the view lie behind each other
                seen += (right.T[rows] @ left.T) * np.float32(update.scale)
            else:
                seen += (left[rows] @ right) * np.float32(update.scale)
            if length is not None:
                seen *= (length[rows] / np.linalg.norm(seen, axis=1))[:, None]
            kept = rounded(numbers, dtype)
        if not np.isfinite(kept).all():
            raise CheckpointError(
                f"tensor {entry.name!r} has NaN or infinite numbers with {update.change.module!r} of {weights.path}: "
                "fetch the adapter and the checkpoint again, or take another adapter"
            )
        with errors_named(path):
            write_fully(fd, stored_numbers(kept, dtype), entry.offset_bytes + start * width, path)


def _pieces(view: View) -> Iterator[tuple[slice, View]]:
    """Rows of a view, or columns where these lie behind each other, that are changed at once."""
    shape, strides = view.shape, view.strides
    if strides[0] < strides[1]:
        shape, strides = shape[::-1], strides[::-1]
    step = max(1, _PIECE_ELEMENTS // max(strides[0], 1))
    for first in range(0, shape[0], step):
        rows = slice(first, min(first + step, shape[0]))
        yield (
            rows,
            replace(view, start=view.start + first * strides[0], shape=(rows.stop - first, shape[1]), strides=strides),
        )


def stored_numbers(numbers: Float32Array, dtype: DType) -> memoryview:
    """The bytes of numbers that the type holds."""
    if dtype == "bf16":
        return (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).data
    return numbers.astype(np.float16 if dtype == "f16" else np.float32).view(np.uint8).data
