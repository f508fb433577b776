"""What a model computes for windows of text: the distribution of each next token, and the state behind each layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from moeinf.bench.divergence.text_windows import Windows
from moeinf.engine.approximate.distributions import log_softmax
from moeinf.engine.model import Model
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.sampling.sampler import require_finite
from moeinf.types import Float32Array

ROWS: Final = 64  # whose logits are made at once


@dataclass(frozen=True, slots=True)
class Output:
    """Of one window."""

    logs: Iterator[Float32Array]  # logarithms of probabilities, [up to ROWS, vocab]: of the scored positions, in order
    states: Float32Array  # [layers, sampled, width]: behind each layer, at the sampled positions


@dataclass(slots=True)
class _Told:
    """What a pass tells of a window's tokens, piece by piece."""

    windows: Windows
    hidden: list[Float32Array] = field(default_factory=list)  # what the head is given of the scored positions
    states: defaultdict[int, list[Float32Array]] = field(default_factory=lambda: defaultdict(list))

    def on_hidden(self, start: int, rows: Any) -> None:
        first, end = self.windows.first, self.windows.first + self.windows.scored
        self.hidden.append(np.array(rows[max(0, first - start) : max(0, end - start)], np.float32))

    def on_layer(self, layer: int, start: int, rows: Any) -> None:
        sampled = self.windows.sampled - start
        within = sampled[(sampled >= 0) & (sampled < len(rows))]
        self.states[layer].append(np.array(rows[within], np.float32))


def outputs(model: Model, windows: Windows) -> Iterator[Output]:
    """What the model computes for each window, one after the other; an output is used before the next is asked for.

    Raises as ModelRunner.step.
    """
    runner = model.runner
    network, cache = runner.network, runner.cache
    assert isinstance(network, Decoder), "check_writer has seen to it"
    for ids in windows.ids:
        told = _Told(windows)
        cache.truncate(0)
        cache.on_hidden, cache.on_layer = told.on_hidden, told.on_layer
        try:
            for observer in runner.observers:
                observer.begin("prefill")
            while cache.length < len(ids) - 1:
                piece = ids[cache.length : min(len(ids) - 1, cache.length + runner.plan.most_at_once)]
                runner.step([NewTokens(piece, cache, len(ids) - 1)], lambda: None)
        finally:
            cache.on_hidden = cache.on_layer = None
        states = np.stack([np.concatenate(pieces) for _, pieces in sorted(told.states.items())])
        yield Output(_logs(network, np.concatenate(told.hidden)), states)
    cache.truncate(0)
    runner.tier.end_request()


def _logs(network: Decoder, hidden: Float32Array) -> Iterator[Float32Array]:
    for start in range(0, len(hidden), ROWS):
        logits = np.asarray(network.ends.head(hidden[start : start + ROWS]))
        require_finite(logits)
        yield log_softmax(logits)
