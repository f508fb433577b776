"""Multi-head latent attention the long way: the keys and values of every head are made, all in float64."""

from __future__ import annotations

import numpy as np

Angles = tuple[np.ndarray, np.ndarray]  # cos and sin [tokens, rotary_dim / 2]


def latent_attention(
    queries: np.ndarray,
    rows: np.ndarray,
    keys_values: np.ndarray,
    angles: Angles,
    scale: float,
    interleaved: bool,
    sinks: np.ndarray | None = None,
    window: int = 0,
) -> np.ndarray:
    """queries [n, heads, plain + rotary] of the last n tokens, rows [tokens, rank + rotary], both not turned yet;
    keys_values [heads, plain + value, rank]; sinks [heads]: of a further score each; window: 0 where
    a token sees all before it -> [n, heads, value]."""
    queries, rows, keys_values = queries.astype(np.float64), rows.astype(np.float64), keys_values.astype(np.float64)
    first, rank = len(rows) - len(queries), keys_values.shape[2]
    plain = queries.shape[2] - (rows.shape[1] - rank)
    turns = angles[0].astype(np.float64) + 1j * angles[1]  # [tokens, pairs]
    shared = _pairs(rows[:, rank:], interleaved) * turns
    asked = _pairs(queries[..., plain:], interleaved) * turns[first:, None]
    made = np.einsum("hkr,sr->hsk", keys_values, rows[:, :rank])
    scores = np.einsum("nhk,hsk->nhs", queries[..., :plain], made[..., :plain])
    scores += np.einsum("nhp,sp->nhs", asked, shared.conj()).real
    sees = np.tri(len(queries), len(rows), first, bool)
    if window:
        sees &= ~np.tri(len(queries), len(rows), first - window, bool)
    scores = np.where(sees[:, None], scores * scale, -np.inf)
    others = np.full(scores.shape[:2], -np.inf) if sinks is None else np.broadcast_to(sinks, scores.shape[:2])
    scores = np.concatenate([scores, others[..., None]], -1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    mixed: np.ndarray = np.einsum("nhs,hsv->nhv", weights[..., :-1], made[..., plain:])
    return mixed


def _pairs(x: np.ndarray, interleaved: bool) -> np.ndarray:
    """What is turned together, as complex numbers."""
    half = x.shape[-1] // 2
    pairs: np.ndarray = x[..., ::2] + 1j * x[..., 1::2] if interleaved else x[..., :half] + 1j * x[..., half:]
    return pairs
