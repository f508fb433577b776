"""Answers that are made side by side, read by a test between two steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from moeinf.engine.answers.generator import Answer
from moeinf.engine.model import Model
from moeinf.models.layers.decoder import Decoder
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.types import Float32Array

LENGTHS = (3, 20, 9)  # of prompts
ROWS = ((1, 1, 1), (1, 3, 0), (0, 1, 2))  # of each sequence in each step


def advance(answers: Sequence[Answer]) -> list[Answer]:
    """Reads each as far as it goes without a step; gives those that go on."""
    return [answer for answer in answers if any(piece is None for piece in answer.pieces)]


def drive(model: Model, answers: Sequence[Answer], between: Callable[[int], None] = lambda step: None) -> None:
    waiting, step = advance(answers), 0
    while waiting:
        model.generator.step()
        between(step)
        waiting, step = advance(waiting), step + 1


def logits_beside(model: Model) -> Float32Array:
    """Of three sequences of a decoder, behind their prompts and in steps that each takes rows of several."""
    network = model.runner.network
    assert isinstance(network, Decoder)
    rng, caches = np.random.default_rng(6), [network.new_cache(40) for _ in LENGTHS]
    found = [
        network.forward(rng.integers(3, 90, length).tolist(), cache)
        for length, cache in zip(LENGTHS, caches, strict=True)
    ]
    for rows in ROWS:
        parts = [
            NewTokens(rng.integers(3, 90, count).tolist(), cache)
            for count, cache in zip(rows, caches, strict=True)
            if count
        ]
        found.append(network.step(parts))
    return np.concatenate(found)
