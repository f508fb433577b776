"""Measures what each part of a model may lose: the divergence when it alone is rounded, all else as it was.

A part is gate, up or down of the experts of a few neighbouring layers, or an embedding that is no head. Each is
rounded to one format and measured; what other formats would cost follows from that: for small errors the divergence
grows with the square of the error that the weights get, which is computed for each format on a sample of them.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from moeinf._native import dequantise, quantise
from moeinf.bench.divergence.compare import compare
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.engine.reporting import Reporting
from moeinf.errors import MALFORMED
from moeinf.pull.importance import DENSE, Importance, Place, plan_of
from moeinf.pull.refit import ALIKE, Weighing, recipe_of, trial
from moeinf.store.dense import dense_tensors
from moeinf.store.files import errors_named, make_folders, publish, read_small
from moeinf.store.library import StoredModel
from moeinf.store.model_folders import SENSITIVITIES, measured_folder
from moeinf.store.numbers import floats, plain_dtype
from moeinf.store.processes.partials import partial_folder
from moeinf.store.quantisation import FormatPlan, Quantisation, bits_of
from moeinf.types import FORMAT_BLOCKS, Float32Array, Format, TensorSpec

_BANDS: Final = 8  # of layers, so that a deep model takes no more than 25 readings of the text
_ROWS: Final = 32  # of one expert of each layer, on which the error of formats is computed
_SUPER: Final[tuple[Format, ...]] = (
    "iq2_xxs", "iq2_xs", "iq2_s", "q2_k", "iq3_xxs", "iq3_s", "q3_k", "iq4_xs", "q4_k", "q5_k", "q6_k", "q8_0",
)  # fmt: skip
_SMALL: Final[tuple[Format, ...]] = ("iq4_nl", "q4_1", "q5_0", "q5_1", "q8_0")
_TOGETHER: Final = 6  # parts that are measured for one reading of the model as it is; each takes a few layers of disk
_LEAST: Final = 1e-7  # nats: what is measured as less is noise


Sample = tuple[Float32Array, Float32Array | None]  # rows of a matrix, and how much each column matters


@dataclass(frozen=True, slots=True)
class Part:
    """Weights that get one format between them, the formats that they may have, and the bytes of each."""

    name: str  # "layers 0-2: down", or that of a tensor
    places: tuple[Place, ...]
    formats: tuple[Format, ...]  # by falling error; none that takes as many bytes as a nearer one, or more
    num_bytes: Mapping[Format, int]
    errors: Mapping[Format, float]  # mean square error as a part of the mean square of the weights, both weighed

    @property
    def tried(self) -> Format:
        """The one that is measured: of about 3.5 or 4.5 bits."""
        return "q3_k" if "q3_k" in self.errors else self.formats[0]

    def recipe(self, format: Format) -> dict[Place, Format]:
        return dict.fromkeys(self.places, format)


def parts_of(stored: StoredModel, importance: Importance | None = None) -> list[Part]:
    """The parts of a model whose weights are in a plain type. Each has one format of each row length.

    importance: by which columns are weighed.
    """
    manifest = stored.manifest
    count = manifest.moe.num_layers
    step = math.ceil(count / _BANDS)
    found = []
    for start in range(0, count, step):
        layers = range(start, min(start + step, count))
        for spec in manifest.layout_of(start).tensors:
            formats = _formats(spec.shape)
            if len(spec.shape) < 2 or not formats:
                continue
            experts = sum(manifest.moe.experts_of(layer) for layer in layers)
            weights = experts * math.prod(spec.shape)
            samples = [_sample(stored, layer, spec.name, importance) for layer in layers]
            where = f"layer {start}" if len(layers) == 1 else f"layers {start}-{layers[-1]}"
            places = [(layer, spec.name) for layer in layers]
            found.append(_part(f"{where}: {spec.name}", places, formats, weights, samples))
    return [*found, *_tables(stored)]


def _tables(stored: StoredModel) -> list[Part]:
    """Embeddings, of which a token reads one row: where rows are short, a good part of what is beside the experts."""
    plan, found = plan_of(stored), []
    head = plan.head[0] if plan.head is not None else ""
    for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense):
        formats = _formats(spec.shape) if len(spec.shape) == 2 else ()
        if spec.name in plan.lookups and spec.name != head and formats:
            sample = _rows_of(stored.dense_path, spec)
            found.append(_part(spec.name, [(DENSE, spec.name)], formats, math.prod(spec.shape), [(sample, None)]))
    return found


def ends_of(stored: StoredModel) -> dict[Place, Format]:
    """What is in 8 bits where no part has it: attention, shared experts and head, few bytes among experts."""
    return recipe_of(stored, Quantisation("keep", "more"), FormatPlan())


def measured(
    stored: StoredModel,
    parts: Sequence[Part],
    text: str,
    options: CompareOptions,
    config: RuntimeConfig,
    reporting: Reporting,
    weighing: Weighing = ALIKE,
) -> list[float]:
    """The divergence of the model with each part alone in its `tried` format, in nats.

    What was measured of this model on this text before is not measured again, so that an interrupted run goes on, and
    the same command makes the same model.
    """
    record = _Record(stored, text, options, weighing)
    left = [part for part in parts if part.name not in record.known]
    silent = replace(reporting, notify=lambda line: None)  # nobody needs to know what trials lack
    for start in range(0, len(left), _TOGETHER):
        batch = left[start : start + _TOGETHER]
        reporting.notify(
            f"measuring {', '.join(part.name for part in batch)} ({len(parts) - len(left) + start} of "
            f"{len(parts)} parts are done)"
        )
        folders = [partial_folder(stored.home, f"trial {number} of {stored.id}") for number in range(len(batch))]
        try:
            made = [
                trial(stored, part.recipe(part.tried), folder, weighing.importance)
                for part, folder in zip(batch, folders, strict=True)
            ]
            found = compare(stored, made, text, options, config, silent)
            for part, (_, distance) in zip(batch, found.models, strict=True):
                record.add(part.name, max(_LEAST, distance.kl.value))
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)
    return [record.known[part.name] for part in parts]


class _Record:
    """What was measured of a model on a text, in a file of the store."""

    def __init__(self, stored: StoredModel, text: str, options: CompareOptions, weighing: Weighing) -> None:
        measured_on = f"{stored.id}\n{options.tokens}\n{options.window}\n{text}{weighing.sha256}"
        key = hashlib.sha256(measured_on.encode()).hexdigest()[:16]
        self._path = measured_folder(stored.home, SENSITIVITIES, stored.id) / f"{key}.json"
        self.known: dict[str, float] = {}
        with suppress(OSError, *MALFORMED):
            value = json.loads(read_small(self._path))
            self.known = {str(name): float(each) for name, each in value.items() if math.isfinite(each)}

    def add(self, name: str, divergence: float) -> None:
        self.known[name] = divergence
        with errors_named(self._path):
            make_folders(self._path.parent)
            publish(self._path, (json.dumps(self.known, indent=1, sort_keys=True) + "\n").encode())


def _formats(shape: tuple[int, ...]) -> tuple[Format, ...]:
    return _SUPER if shape[-1] % 256 == 0 else _SMALL if shape[-1] % 32 == 0 else ()


def _part(
    name: str, places: Sequence[Place], formats: Sequence[Format], weights: int, samples: Sequence[Sample]
) -> Part:
    errors = {format: _error(samples, format) for format in formats}
    num_bytes = {format: int(weights * bits_of(format)) // 8 for format in formats}
    nearest, kept = math.inf, []
    for format in sorted(formats, key=lambda each: (num_bytes[each], errors[each])):
        if errors[format] < nearest:
            nearest = errors[format]
            kept.append(format)
    return Part(name, tuple(places), tuple(kept), num_bytes, errors)


def _error(samples: Sequence[Sample], format: Format) -> float:
    """The mean square error as a part of the mean square; 0 of weights that are all zero."""
    error, energy = 0.0, 0.0
    for sample, importance in samples:
        rows, cols = sample.shape
        weights, num_bytes = FORMAT_BLOCKS[format]
        blocks = np.empty(rows * cols // weights * num_bytes, np.uint8)
        quantise(format, sample.view(np.uint8).reshape(-1), "f32", rows, cols, blocks, importance)
        out = np.empty_like(sample)
        dequantise(format, blocks, rows, cols, out)
        matters = np.float32(1) if importance is None else importance
        error += float((np.square(out - sample) * matters).sum())
        energy += float((np.square(sample) * matters).sum())
    return error / energy if energy else 0.0


def _sample(stored: StoredModel, layer: int, part: str, importance: Importance | None) -> Sample:
    """Rows of the layer's first expert, at equal distances."""
    spec = next(each for each in stored.manifest.layout_of(layer).tensors if each.name == part)
    weights = None if importance is None else importance.of_expert(layer, part, 0)
    return _rows_of(stored.shard_paths[layer], spec), weights


def _rows_of(path: Path, spec: TensorSpec) -> Float32Array:
    rows = np.unique(np.linspace(0, spec.shape[0] - 1, _ROWS).astype(np.int64))
    with errors_named(path):
        block = np.memmap(path, np.uint8, "r", spec.offset_bytes, (spec.shape[0], spec.num_bytes // spec.shape[0]))
        data = np.ascontiguousarray(block[rows])
    dtype = plain_dtype(spec.dtype)
    assert dtype is not None, "check_whole has seen to it"
    return np.ascontiguousarray(floats(data.reshape(-1).data, dtype).reshape(len(rows), -1), np.float32)
