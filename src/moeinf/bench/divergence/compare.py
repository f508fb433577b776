"""Compares stored models with a reference, one after the other: each has all of the memory while it computes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from moeinf.bench.divergence.distance import Distance, LayerErrors, surprise_of
from moeinf.bench.divergence.outputs import Output, outputs
from moeinf.bench.divergence.text_windows import Windows, windows_of
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.engine.approximate.distributions import divergence
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import ContextLengthError, DiskSpaceError, UsageError
from moeinf.models.family import check_writer
from moeinf.pull.importance import config_of
from moeinf.store.library import StoredModel
from moeinf.text.quantities import shortage_text
from moeinf.types import Float32Array, FloatArray


class Compared(NamedTuple):
    """A model beside the reference."""

    stored: StoredModel
    distance: Distance


@dataclass(frozen=True, slots=True)
class Comparison:
    """Models beside a reference, on one text."""

    reference: StoredModel
    windows: Windows
    surprise: FloatArray  # of the reference: see Distance
    models: list[Compared]


def compare(
    reference: StoredModel,
    others: Sequence[StoredModel],
    text: str,
    options: CompareOptions,
    config: RuntimeConfig,
    reporting: Reporting,
) -> Comparison:
    """What the models say of a text beside what the reference says. reporting: `step` is told how far each has read.

    The reference's distributions wait in a file of the store's disk that has no name, so that nothing is left of it.
    Raises UsageError for a text that is too short, for models of other tokens, and for those that do more than write;
    DiskSpaceError; and as Model.
    """
    config = config.changed(
        device="cpu", workers="", context=options.window, speculate="off", draft="", trace="", prefix_disk=None
    )
    for stored in (reference, *others):
        check_writer(stored.name, config_of(stored), "compare")
        _check_context(stored, options)
    with tempfile.TemporaryFile(dir=reference.path.parent) as kept:
        with Model(reference, config, reporting) as model:
            windows = windows_of(text, model.tokenizer, options)
            _check_space(reference, windows, model.manifest.info.vocab_size)
            exact = _Reference(kept, windows)
            for number, output in _numbered(model, windows, reporting):
                exact.keep(number, output.logs, output.states)
        compared = [Compared(each, _distance(each, exact, text, options, config, reporting)) for each in others]
        return Comparison(reference, windows, exact.surprise, compared)


class _Reference:
    """What the reference computes for each window, in a file."""

    def __init__(self, file: IO[bytes], windows: Windows) -> None:
        self.windows, self._file = windows, file
        self.surprise: FloatArray = np.zeros((len(windows.ids), windows.scored))
        self._starts: list[int] = []
        self.states: list[Float32Array] = []
        self._vocab = 0

    def keep(self, window: int, logs: Iterator[Float32Array], states: Float32Array) -> None:
        """Takes a window's output; windows come in order."""
        self._starts.append(self._file.tell())
        following, done = self.windows.following(window), 0
        for rows in logs:
            self._vocab = rows.shape[1]
            self.surprise[window, done : done + len(rows)] = surprise_of(rows, following[done : done + len(rows)])
            self._file.write(rows.tobytes())
            done += len(rows)
        self.states.append(states)

    def rewind(self, window: int) -> None:
        """`rows` begins with the first of this window."""
        self._file.seek(self._starts[window])

    def rows(self, count: int) -> Float32Array:
        """The next logarithms of probabilities, [count, vocab]."""
        data = self._file.read(4 * count * self._vocab)
        return np.frombuffer(data, np.float32).reshape(count, self._vocab)


def _distance(
    stored: StoredModel,
    exact: _Reference,
    text: str,
    options: CompareOptions,
    config: RuntimeConfig,
    reporting: Reporting,
) -> Distance:
    windows, shape = exact.windows, exact.surprise.shape
    surprise, away, same, errors = np.zeros(shape), np.zeros(shape), np.zeros(shape), LayerErrors()
    with Model(stored, config, reporting) as model:
        if windows_of(text, model.tokenizer, options) != windows:
            raise UsageError(f"{stored.name} cuts the text into other tokens; compare models of one tokenizer")
        for number, output in _numbered(model, windows, reporting):
            exact.rewind(number)
            following, done = windows.following(number), 0
            for logs in output.logs:
                rows = slice(done, done + len(logs))
                wanted = exact.rows(len(logs))
                common = min(wanted.shape[1], logs.shape[1])  # further rows of an embedding are padding
                away[number, rows] = np.maximum(0, divergence(wanted[:, :common], logs[:, :common]))
                same[number, rows] = wanted.argmax(1) == logs.argmax(1)
                surprise[number, rows] = surprise_of(logs, following[rows])
                done = rows.stop
            errors.add(exact.states[number], output.states)
    return Distance(surprise, exact.surprise, away, same, errors.shares())


def _numbered(model: Model, windows: Windows, reporting: Reporting) -> Iterator[tuple[int, Output]]:
    total = windows.length * len(windows.ids)
    for number, output in enumerate(outputs(model, windows)):
        reporting.step(f"{model.name} reads the text: {number * windows.length:,} of {total:,} tokens")
        yield number, output


def _check_context(stored: StoredModel, options: CompareOptions) -> None:
    longest = stored.manifest.info.context_length
    if options.window > longest:
        raise ContextLengthError(
            f"--window {options.window} is more than the {longest} tokens that {stored.name} reads"
        )


def _check_space(stored: StoredModel, windows: Windows, vocab: int) -> None:
    """Raises DiskSpaceError where the reference's distributions have no room."""
    folder: Path = stored.path.parent
    needed, free = 4 * vocab * windows.scored * len(windows.ids), shutil.disk_usage(folder).free
    if needed > free:
        raise DiskSpaceError(
            f"{folder}: not enough space for what {stored.name} says of the text: {shortage_text(needed, free)}; read "
            "less of it by --tokens"
        )
