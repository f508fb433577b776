"""The delta rule with a decay for each channel of the keys, as KDA has it (arXiv 2510.26692, section 3).

Of a head with keys k and queries q of length 1, values v, decays a [key_dim] and rate b in (0, 1):
    S <- diag(a) S + b k (v - (diag(a) S)^T k)^T        S [key_dim, value_dim]
    out = S^T q
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic

import numpy as np

from moeinf.models.layers.array_math import A, ArrayMathOf, joined
from moeinf.models.layers.protocol import P, Part, R

CHUNK = 16  # tokens of one triangular system: pairs of them have a number for each channel


@dataclass(frozen=True, slots=True)
class ChannelDeltaPart(Part[A, P, R, Callable[[A, A, A, A, A, A, A], A]]):
    """(q, k, v, decay, rate, state, new_state) -> out.

    q, k, v, out and decay (the logarithm of a) [tokens, heads, dim]; rate [tokens, heads]; fills new_state, which may
    be state [heads, dim, dim]."""


class ChannelDeltaRule(Generic[A]):
    """A ChannelDeltaPart for a GPU, and as the twin of the native one. As DeltaRule, CHUNK tokens at once."""

    def __init__(self, math: ArrayMathOf[A]) -> None:
        self._math = math
        ones = np.ones((CHUNK, CHUNK), np.float32)
        self._seen, self._before = math.of_host(np.tril(ones)), math.of_host(np.tril(ones, -1))  # of a token: which

    def __call__(self, q: A, k: A, v: A, decay: A, rate: A, state: A, new_state: A) -> A:
        tokens, by_head = len(q), [part.swapaxes(0, 1) for part in (q, k, v, decay)]  # [heads, tokens, dim]
        rates, old, outputs = rate.T[:, :, None], state, []
        for start in range(0, tokens, CHUNK):
            parts = [whole[:, start : start + CHUNK] for whole in (*by_head, rates)]
            outputs.append(self._chunk(parts, old, new_state))
            old = new_state
        out = joined(self._math, outputs, 1)
        return out.swapaxes(0, 1)

    def _chunk(self, parts: list[A], old: A, new: A) -> A:
        """parts: as given, but [heads, tokens, ...]."""
        q, k, v, decay, rate = parts
        math, tokens, decay = self._math, q.shape[1], decay.cumsum(1)
        passed = math.exp(decay)  # what is left at a token of the state before the chunk
        corrections = (v - (k * passed) @ old) * rate  # if there were no other tokens
        seen, before = self._seen[:tokens, :tokens], self._before[:tokens, :tokens]
        between = math.exp((decay[:, :, None] - decay[:, None]) * seen[:, :, None])  # from the second to the first
        found = math.einsum("htk,hsk,htsk->hts", k, k, between) * rate * before
        corrections = math.solve_unit_lower(found, corrections)
        mixing = math.einsum("htk,hsk,htsk->hts", q, k, between) * seen
        out = (q * passed) @ old + mixing @ corrections
        left = math.exp(decay[:, -1:] - decay)  # of a token's correction at the end of the chunk
        written = (k * left).swapaxes(1, 2) @ corrections
        new[...] = old * passed[:, -1].reshape(*old.shape[:2], 1) + written
        return out
