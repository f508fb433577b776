"""Reads a text with a model, and gathers what each column of its matrices is multiplied with: `pull --calibrate`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from moeinf._native import Matrix
from moeinf.bench.divergence.given_states import GivenStates, Noting
from moeinf.config import RuntimeConfig
from moeinf.config.fit_options import FitOptions
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.gguf.imatrix import CHUNK, Imatrix, Sums, imatrix_pieces, read_imatrix
from moeinf.hardware import machine
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.pull.importance import DENSE, LEAST_TOKENS, Place, matrix_names, plan_of
from moeinf.sampling.sampler import require_finite
from moeinf.store.files import errors_named, make_folders, publish
from moeinf.store.library import StoredModel
from moeinf.store.model_folders import CALIBRATIONS, measured_folder
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import Float32Array, IntArray, MoeShape

_CHARACTERS: Final = 16  # of a text for each token, at most
_HEAD: Final = "output.weight"  # as GGUF files call it
_FEWEST: Final = 128  # tokens, that say something of any model
_SAVED_AFTER_S: Final = 20.0  # of reading: what an interrupted calibration loses at most


def calibrated(
    stored: StoredModel,
    text: str,
    options: FitOptions,
    config: RuntimeConfig,
    reporting: Reporting,
    states: GivenStates | None = None,
) -> Imatrix:
    """The sums of a whole text, which is read in pieces, each on its own. reporting: `step` is told how far it has got.

    states: has what experts were given afterwards, too: those of `states_of`.

    Sums are kept in the store: the same text is not read again for them, and an interrupted calibration goes on. They
    depend on neither the number of threads nor the memory that experts have, which is less by what the sums take.
    Raises UsageError for a text that is too short, DiskSpaceError for states that find no room, and as Model.
    """
    path, source = _kept_path(stored, text, options), Path(options.calibrate or "").name
    if path.exists():
        kept = read_imatrix(path)
        if states is None or states.pieces == kept.chunks:
            return kept
    begun = path.with_suffix(".part.gguf")
    known = read_imatrix(begun) if begun.exists() else Imatrix({})
    if states is not None and states.pieces != known.chunks:
        known = Imatrix({})
        states.clear()
    config = config.changed(device="cpu", workers="", context=CHUNK, speculate="off", trace="", prefix_disk=None)
    config = config.changed(draft="")
    host = machine()
    host = replace(host, available_bytes=max(0, host.available_bytes - sums_bytes(stored)))
    with Model(stored, config, reporting, on=host) as model:
        pieces = _pieces(text, model, options)
        gathered, saved = _Gathered(model.runner, stored, known, states), time.monotonic()
        total = sum(map(len, pieces))
        if states is not None:
            states.begin(total)
        for number in range(known.chunks, len(pieces)):
            done = sum(map(len, pieces[:number]))
            reporting.step(f"{model.name} reads the text that calibrates it: {done:,} of {total:,} tokens")
            gathered.read(pieces[number])
            if time.monotonic() - saved > _SAVED_AFTER_S:
                if states is not None:
                    states.save(number + 1)
                _save(begun, gathered.imatrix(source, number + 1))
                saved = time.monotonic()
        found = gathered.imatrix(source, len(pieces))
    if states is not None:
        states.save(len(pieces))
    _save(path, found)
    begun.unlink(missing_ok=True)
    return found


def sums_bytes(stored: StoredModel) -> int:
    """Of the sums of all experts, which no plan of a model's memory knows of; those of dense matrices are few."""
    manifest = stored.manifest
    return sum(
        4 * manifest.moe.experts_of(layer) * spec.shape[-1]
        for layer in range(manifest.moe.num_layers)
        for spec in manifest.layout_of(layer).tensors
        if spec.name in ("up", "down")
    )


def states_of(stored: StoredModel, text: str, options: FitOptions) -> GivenStates:
    """What a text gives to the experts, as far as an interrupted reading has kept it."""
    return GivenStates(_kept_path(stored, text, options).with_suffix(".states"), stored.manifest)


def _kept_path(stored: StoredModel, text: str, options: FitOptions) -> Path:
    key = hashlib.sha256(f"{stored.id}\n{options.calibrate_tokens}\n{text}".encode()).hexdigest()[:16]
    return measured_folder(stored.home, CALIBRATIONS, stored.id) / f"{key}.gguf"


def _save(path: Path, imatrix: Imatrix) -> None:
    with errors_named(path):
        make_folders(path.parent)
        publish(path, *imatrix_pieces(imatrix))


def _pieces(text: str, model: Model, options: FitOptions) -> list[list[int]]:
    """Of at most CHUNK tokens each, begun as the tokenizer begins a text."""
    ids, begin = _tokens(text, model.tokenizer, options.calibrate_tokens)
    least = least_tokens(model.manifest.moe)
    if len(ids) < least:
        raise UsageError(
            f"--calibrate {options.calibrate}: {len(ids)} tokens say too little of the experts of {model.name}; give a "
            f"text of {least} or more, and as many --calibrate-tokens"
        )
    room = min(CHUNK, model.manifest.info.context_length) - len(begin)
    return [[*begin, *ids[start : start + room]] for start in range(0, len(ids), room)]


def least_tokens(moe: MoeShape) -> int:
    """Of a text that calibrates: enough for the experts of a layer, in the mean."""
    return max(_FEWEST, LEAST_TOKENS * moe.num_experts // moe.top_k)


def _tokens(text: str, tokenizer: Tokenizer, most: int) -> tuple[list[int], list[int]]:
    """Those of a text, and what stands in front of any."""
    text = text[: _CHARACTERS * most]
    begun, ids = list(tokenizer.encode(text, added=False)), list(tokenizer.encode(text, bos=False, added=False))
    return ids[:most], begun[: len(begun) - len(ids)]


class _Gathered:
    """What a model's matrices have been multiplied with so far."""

    def __init__(self, runner: Any, stored: StoredModel, known: Imatrix, states: GivenStates | None) -> None:
        """known: what was gathered before. states: is told what experts are given."""
        assert isinstance(runner, CpuRunner) and isinstance(runner.network, Decoder), "fit_pull has seen to it"
        self._runner, self._names = runner, matrix_names(plan_of(stored))
        self._dense: dict[Place, Float32Array] = {}
        self._inputs: list[Float32Array] = []  # of gate and up, of each layer
        self._acts: list[Float32Array] = []  # of down
        self._counts: list[IntArray] = []  # of tokens, by expert
        self._tokens = max((int(each.counts[0]) for each in known.sums.values() if len(each.counts) == 1), default=0)
        if states is not None:
            runner.streamed.kernel = Noting(runner.streamed.kernel, states)
        self._watch_experts(stored, known)
        self._watch_dense(known)

    def _watch_experts(self, stored: StoredModel, known: Imatrix) -> None:
        manifest = stored.manifest
        for layer in range(manifest.moe.num_layers):
            experts = manifest.moe.experts_of(layer)
            cols = {spec.name: spec.shape[-1] for spec in manifest.layout_of(layer).tensors if len(spec.shape) > 1}
            up, down = (known.sums.get(self._names[layer, part]) for part in ("up", "down"))
            self._inputs.append(_begun(up, (experts, cols["up"])))
            self._acts.append(_begun(down, (experts, cols["down"])))
            counts = np.zeros(experts, np.int64) if up is None else up.counts.astype(np.int64)
            self._counts.append(counts)
            self._runner.kernel.watch(layer, self._inputs[-1], self._acts[-1], counts)

    def _watch_dense(self, known: Imatrix) -> None:
        weights = self._runner.weights
        for place, name in self._names.items():
            tensor = weights.tensors.get(place[1]) if place[0] == DENSE else None
            before = known.sums.get(name)
            if name == _HEAD:
                self._dense[place] = _begun(before, (1, self._network.config.attention.hidden_size))
            elif tensor is not None and len(tensor.shape) == 2 and len(tensor.data):
                rows, cols = tensor.shape
                self._dense[place] = _begun(before, (1, cols))
                matrix = Matrix(tensor.data, tensor.held_as, rows, cols, tensor.scale)
                weights.kernels.watch(matrix, self._dense[place][0])

    @property
    def _network(self) -> Decoder:
        assert isinstance(self._runner.network, Decoder)
        return self._runner.network

    def read(self, ids: Sequence[int]) -> None:
        """Adds a piece of text. Raises as ModelRunner.step."""
        runner, cache = self._runner, self._runner.cache
        with self._head_seen():
            cache.truncate(0)
            for observer in runner.observers:
                observer.begin("prefill")
            while cache.length < len(ids):
                piece = ids[cache.length : cache.length + runner.plan.most_at_once]
                require_finite(runner.step([NewTokens(piece, cache, len(ids))], lambda: None))
        runner.tier.end_request()
        self._tokens += len(ids)

    @contextmanager
    def _head_seen(self) -> Iterator[None]:
        """The head is given the states behind the last layer, of which a prompt computes logits of the last alone."""
        heads = [sums for place, sums in self._dense.items() if self._names[place] == _HEAD]

        def told(start: int, rows: Any) -> None:
            for row in np.asarray(rows, np.float32):
                for sums in heads:
                    sums[0] += row * row

        self._runner.cache.on_hidden = told
        try:
            yield
        finally:
            self._runner.cache.on_hidden = None

    def imatrix(self, text: str, chunks: int) -> Imatrix:
        """What is there so far, which later pieces are added to. A matrix that was multiplied with nothing is left
        out."""
        sums: dict[str, Sums] = {}
        for place, name in self._names.items():
            layer, part = place
            if layer != DENSE:
                squares = self._acts[layer] if part == "down" else self._inputs[layer]
                sums[name] = Sums(squares, self._counts[layer].astype(np.float32))
            elif place in self._dense and self._dense[place].any():
                sums[name] = Sums(self._dense[place], np.full(1, self._tokens, np.float32))
        return Imatrix(sums, (text,), chunks)


def _begun(known: Sums | None, shape: tuple[int, int]) -> Float32Array:
    return np.zeros(shape, np.float32) if known is None else np.array(known.squares.reshape(shape))
