"""An adapter merged into a GGUF model: the tensors that it changes, plain, in a file beside those of the model."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from moeinf._native import dequantise
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.header import Gguf, GgufFile, GgufTensor
from moeinf.gguf.metadata import numbers_of
from moeinf.gguf.placement import DenseSource, ExpertSource, stack_name
from moeinf.gguf.undo import Kind, Stored, Widen, outcome, undone
from moeinf.models.family import family_of
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.coded.declared import Declared
from moeinf.pull.events import PullProgress
from moeinf.pull.gguf.weight_file import WeightFile
from moeinf.pull.lora.adapter_origin import OpenAdapter, adapter_for
from moeinf.pull.lora.expert_layouts import with_own_layouts
from moeinf.pull.lora.merging import Weights, merge, stored_numbers
from moeinf.pull.lora.placed import placed
from moeinf.pull.source import Shards
from moeinf.store.files import errors_named, make_folders, write_fully
from moeinf.store.format import MERGED_FILE, STORE_DTYPES, TensorEntry, dense_header, is_quantised, read_header
from moeinf.store.numbers import plain_dtype, rounded
from moeinf.types import DType, Float32Array, Format

_SPELT = {dtype: spelt for spelt, dtype in STORE_DTYPES.items()}
# Formats whose scales may be smaller than f16 has them. The scales of all others are in f16.
_WIDE = ("mxfp4", "nvfp4")
Advance = Callable[[int], None]


class MergedTensors:
    """What one adapter changes in one GGUF model, none of which is read yet."""

    def __init__(self, gguf: Gguf, opened: OpenAdapter) -> None:
        """Raises UnsupportedModelError for what the model has no place for, and as `adapter_for` and `places_of`."""
        config = config_of(gguf)
        self._gguf, self._adapter = gguf, adapter_for(opened, config, gguf.metadata)
        plan = family_of(config).tensors
        own, found = with_own_layouts(plan), places_of(gguf, plan)
        stacks = {
            stack_name(layer, part): source for layer, of in enumerate(found.experts) for part, source in of.items()
        }
        self._sources: dict[str, DenseSource | ExpertSource] = {**found.dense, **stacks}
        self._kinds = {name: _plain_kind(source) for name, source in found.dense.items()}
        for name, source in stacks.items():
            self._kinds[name] = Kind(_plain(source.format), own.experts[-1][name][0])
        header = {
            name: TensorEntry(name, _SPELT[_dtype(kind)], kind.shape, 0, kind.num_bytes)
            for name, kind in self._kinds.items()
        }
        tensors = Tensors(Shards((MERGED_FILE,), None), {MERGED_FILE: header}, own, Declared())
        self._placed = placed(self._adapter, tensors, own)
        changed = {name: self._kinds[name] for name in self._kinds if name in self._placed}
        self._head, self._specs = dense_header({name: (kind.format, kind.shape) for name, kind in changed.items()})

    @property
    def num_bytes(self) -> int:
        return len(self._head) + sum(spec.num_bytes for spec in self._specs)

    def lines(self) -> list[str]:
        """What a user is told of a model that the adapter is in."""
        decoded = Counter(
            (lies, spec.dtype) for spec in self._specs if is_quantised(lies := _lies_in(self._sources[spec.name]))
        )
        kinds = ", ".join(f"{count} from {lies} to {dtype}" for (lies, dtype), count in sorted(decoded.items()))
        return [self._adapter.line(), *([f"tensors decoded for the adapter: {kinds}"] if kinds else [])]

    def write(self, folder: Path, downloads: Path, advance: Advance) -> Gguf:
        """Writes the file into a folder, and returns the model with it.

        downloads: the folder for what the adapter has to fetch. advance: is given the bytes that were written. Raises
        CheckpointError, StoreError, DiskSpaceError.
        """
        path = folder / MERGED_FILE
        with errors_named(path):
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        files = [WeightFile(file.path) for file in self._gguf.files]
        try:
            write_fully(fd, self._head, 0, path)
            for spec in self._specs:
                end, dtype = spec.offset_bytes, _dtype(self._kinds[spec.name])
                for numbers in self._numbers(self._sources[spec.name], spec.name, files):
                    data = stored_numbers(rounded(numbers, dtype), dtype)
                    write_fully(fd, data, end, path)
                    end += len(data)
                    advance(len(data))
        finally:
            os.close(fd)
            for file in files:
                file.close()
        with closing(Weights(self._adapter.files.weights(downloads))) as weights:
            merge(path, read_header(path), self._placed, weights)
        number = len(self._gguf.files)
        merged = {
            spec.name: GgufTensor(spec.name, spec.dtype, spec.shape, number, spec.offset_bytes, spec.num_bytes)
            for spec in self._specs
        }
        own = GgufFile(path, self.num_bytes, len(self._head))
        return replace(self._gguf, files=(*self._gguf.files, own), merged=merged)

    def _numbers(
        self, source: DenseSource | ExpertSource, name: str, files: Sequence[WeightFile]
    ) -> Iterator[Float32Array]:
        """Of a dense tensor all at once, of experts one by one: a flat array each."""
        factors = numbers_of(self._gguf, source.own_scale) if source.own_scale else []
        if isinstance(source, DenseSource):
            given = [
                Stored(Kind(each.format, each.shape), files[each.file].read(each.offset_bytes, each.num_bytes))
                for each in source.tensors
            ]
            made = undone(given, (*source.undo, Widen()), name)
            yield _scaled(made.data.view(np.float32), factors[0] if factors else 1.0)
            return
        rows, cols = math.prod(source.shape[:-1]), source.shape[-1]
        for expert in range(self._kinds[name].shape[0]):
            data = files[source.tensor.file].read(source.offset_bytes + expert * source.stride_bytes, source.num_bytes)
            values = np.empty((rows, cols), np.float32)
            dequantise(source.format, data, rows, cols, values)
            yield _scaled(values.reshape(-1), factors[expert] if factors else 1.0)


def merged_told(
    gguf: Gguf, opened: OpenAdapter, folder: Path, downloads: Path, name: str, progress: PullProgress
) -> tuple[Gguf, list[str]]:
    """`MergedTensors.write` of the model `name`, with its progress; and the lines that the model keeps."""
    tensors = MergedTensors(gguf, opened)
    for line in tensors.lines():
        progress.note(line)
    make_folders(folder)
    progress.total("converting", tensors.num_bytes, 0)
    progress.start("converting", name, tensors.num_bytes, 0)
    made = tensors.write(folder, downloads, progress.advance)
    progress.finish()
    return made, tensors.lines()


def _scaled(values: Float32Array, factor: float) -> Float32Array:
    return values if factor == 1.0 else values * np.float32(factor)


def _plain_kind(source: DenseSource) -> Kind:
    kind = outcome([Kind(each.format, each.shape) for each in source.tensors], source.undo)
    assert kind is not None, "places_of has asked"
    return Kind(_plain(kind.format), kind.shape)


def _plain(format: Format) -> DType:
    """The type in which the numbers of a format are kept, changed."""
    return plain_dtype(format) or ("bf16" if format in _WIDE else "f16")


def _dtype(kind: Kind) -> DType:
    dtype = plain_dtype(kind.format)
    assert dtype is not None, "what _plain has made"
    return dtype


def _lies_in(source: DenseSource | ExpertSource) -> Format:
    return source.format if isinstance(source, ExpertSource) else source.tensors[0].format
