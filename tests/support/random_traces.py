"""Traces of random routing, with all that a recording tells or without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from moeinf.traces.trace import Trace
from moeinf.types import IntArray, MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=6, top_k=2, counts=(6, 5, 4))


def a_trace(
    seed: int, lengths: tuple[int, ...] = (5, 3), *, encoder_layers: int = 0, guessed: bool = True, whole: bool = True
) -> Trace:
    """Random requests of these lengths: a prompt, of an encoder-decoder first an encoder's pass, then single tokens."""
    rng = np.random.default_rng(seed)
    tokens, passes, prompts = sum(lengths), [0], []
    experts: IntArray = np.stack(
        [rng.random((tokens, count)).argsort(axis=1)[:, : SHAPE.top_k] for count in SHAPE.counts], axis=1
    )
    for length in lengths:
        start, encoded = passes[-1], int(rng.integers(1, length)) if encoder_layers and length > 1 else 0
        prompt = encoded + (int(rng.integers(1, length - encoded + 1)) if length > encoded else 0)
        experts[start : start + encoded, encoder_layers:] = -1
        experts[start + encoded : start + length, :encoder_layers] = -1
        passes += [start + end for end in sorted({encoded, prompt, *range(prompt, length + 1)} - {0})]
        prompts.append(prompt)
    guesses = np.where(rng.random((tokens, 3, 1)) < 0.5, experts[::-1], -1)
    trace = Trace("t", SHAPE, experts, np.cumsum([0, *lengths]))
    if not whole:
        return trace
    return replace(
        trace,
        passes=np.array(passes),
        prompt_tokens=np.array(prompts),
        weights=rng.random(experts.shape, np.float32),
        guesses=guesses if guessed else None,
        guess_weights=rng.random(experts.shape, np.float32) if guessed else None,
    )
