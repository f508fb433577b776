"""Vectors of texts: what the head of a model is given of their tokens, pooled and of length 1.

Nothing of a text is taken from earlier ones or kept for later ones, as every token's state is needed.
"""

from __future__ import annotations

from collections import abc
from collections.abc import Sequence
from contextlib import closing

import numpy as np

from moeinf.engine.answers.generator import Generator
from moeinf.engine.completion import GenerationStats, Hooks, Pooling
from moeinf.engine.memory.device_plan import DevicePlan
from moeinf.engine.vision.encoder import Prompt
from moeinf.errors import UsageError
from moeinf.sampling.loop import Forced
from moeinf.sampling.step_queue import Asker
from moeinf.types import Float32Array


class Pool:
    """Is told the states of a text's tokens, pass by pass, and makes one vector of them."""

    def __init__(self, how: Pooling) -> None:
        self.count = 0  # tokens that were told
        self._how, self._sum = how, np.zeros(1)

    def __call__(self, start: int, hidden: Float32Array) -> None:
        """start: tokens that there were before; 0 begins anew, as a text does whose memory others needed."""
        if start == 0:
            self.count, self._sum = 0, np.zeros(hidden.shape[-1])
        assert start == self.count, "every token is told, once"
        self.count += len(hidden)
        told = hidden if self._how == "mean" else hidden[-1:]
        before = self._sum if self._how == "mean" else 0.0
        self._sum = before + told.sum(0, dtype=np.float64)

    def vector(self) -> Float32Array:
        """Of length 1, unless it is 0."""
        length = float(np.linalg.norm(self._sum))
        return (self._sum / length if length else self._sum).astype(np.float32)


def embedding(
    generator: Generator, ids: Sequence[int], pooling: Pooling, hooks: Hooks, asker: Asker
) -> abc.Generator[None, None, tuple[Float32Array | None, GenerationStats]]:
    """Returns the vector of a text of these tokens, and what it cost; yields wherever it waits for a step. None: it was
    stopped before.

    Raises UsageError for a model that makes none, and as Generator.tokens.
    """
    if generator.kind.encoder_decoder:
        raise UsageError("encoder-decoder models make no embeddings; ask another model")
    if isinstance(generator.runner.plan, DevicePlan):
        raise UsageError("embeddings are made on the CPU alone; open the model with --device cpu")
    stats, pool = GenerationStats(), Pool(pooling)
    made = generator.measured(Prompt(list(ids)), Forced(()), 0, stats, hooks, asker=asker, on_hidden=pool)
    with closing(generator.turns.answer(made)) as steps:
        for _ in steps:
            yield
    return pool.vector() if pool.count == len(ids) else None, stats
