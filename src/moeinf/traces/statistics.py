"""What a trace tells of its model: how evenly experts are used, how soon again, and how alike requests are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from moeinf.runtime.policy.eamc import normalise_rows
from moeinf.traces.trace import Trace
from moeinf.types import FloatArray, IntArray

WINDOWS: Final = (1, 4, 16, 64, 256)  # tokens
DISTANCES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)  # tokens
MOST_REQUESTS: Final = 200  # that are compared with each other: evenly spaced ones where there are more


@dataclass(frozen=True, slots=True)
class Reuse:
    """How many tokens lie between two uses of an expert."""

    first_uses: int  # activations whose expert was not used before
    within: tuple[float, ...]  # [DISTANCES] share of activations whose expert was used at most so many tokens before
    median: float  # of those that were used before
    by_next: float  # share of a token's experts that the next token of its request uses too
    chance: float  # the same, were experts drawn evenly


@dataclass(frozen=True, slots=True)
class Overlap:
    """How alike the matrices of two requests are, on average over pairs."""

    cosine: float  # of their rows, each divided by its sum
    top_shared: float  # share of a request's top_k most used experts of a layer that are among the other's
    chance: float  # the same, were experts drawn evenly


@dataclass(frozen=True, slots=True)
class Statistics:
    activations: int
    prefill_tokens: int | None  # None: the trace does not tell
    entropy: FloatArray  # [layers] bits
    working_set: tuple[float | None, ...]  # [WINDOWS] share of all experts that so many tokens in a row use, on average
    reuse: Reuse
    overlap: Overlap | None  # None: of one request alone


def statistics_of(trace: Trace) -> Statistics:
    matrix = activations(trace)
    return Statistics(
        int(matrix.sum()),
        None if trace.prompt_tokens is None else int(trace.prompt_tokens.sum()),
        entropy(matrix),
        tuple(working_set(trace, window) for window in WINDOWS),
        reuse_of(trace),
        overlap_of(trace),
    )


def activations(trace: Trace, start: int = 0, end: int | None = None) -> IntArray:
    """The activation matrix [layers, experts] of the tokens from start to end."""
    experts = trace.experts[start:end]
    first_keys = np.arange(trace.shape.num_layers)[:, None] * trace.shape.num_experts
    keys = (experts + first_keys)[experts >= 0] if (experts < 0).any() else (experts + first_keys).ravel()
    matrix: IntArray = np.bincount(keys, minlength=trace.shape.num_keys).reshape(trace.shape.num_layers, -1)
    return matrix


def request_matrices(trace: Trace, requests: Sequence[int] | None = None) -> IntArray:
    """[requests, layers, experts]: the activation matrix of each request, or of those named."""
    chosen = range(trace.num_requests) if requests is None else requests
    return np.stack([activations(trace, *trace.offsets[number : number + 2].tolist()) for number in chosen])


def entropy(matrix: IntArray) -> FloatArray:
    """Bits of each layer's choice [layers]; at most log2 of its experts, which all would be used evenly then."""
    shares = normalise_rows(matrix)
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    bits: FloatArray = -(shares * logs).sum(axis=1) + 0.0
    return bits


def working_set(trace: Trace, window: int) -> float | None:
    """The share of all experts that `window` tokens in a row use, on average; None where there are fewer tokens."""
    windows = trace.num_tokens // window
    if not windows:
        return None
    used = 0
    numbers = np.repeat(np.arange(windows), window)[:, None]
    for layer in range(trace.shape.num_layers):
        seen = np.zeros((windows, trace.shape.num_experts + 1), bool)
        seen[numbers, trace.experts[: windows * window, layer]] = True  # what is absent, -1, is the last column
        used += int(seen[:, :-1].sum())
    return used / windows / trace.shape.total_experts


def reuse_of(trace: Trace) -> Reuse:
    """Distances over the whole trace, as a cache that outlives requests sees them."""
    distances, firsts = [], 0
    for layer in range(trace.shape.num_layers):
        ids = trace.experts[:, layer]
        tokens = np.flatnonzero(ids[:, 0] >= 0)
        flat = ids[tokens].astype(np.int16).ravel()
        order = np.argsort(flat, kind="stable")  # of each expert the tokens, ascending
        again = flat[order][1:] == flat[order][:-1]
        firsts += len(flat) - int(again.sum())
        distances.append(np.diff(tokens[order // trace.shape.top_k])[again])
    every = np.concatenate(distances)
    total = len(every) + firsts
    by_next, chance = _by_next(trace)
    return Reuse(
        firsts,
        tuple(int((every <= most).sum()) / total for most in DISTANCES),
        float(np.median(every)) if len(every) else 0.0,
        by_next,
        chance,
    )


def _by_next(trace: Trace) -> tuple[float, float]:
    """The share of a token's experts that the next token of its request uses in the same layer, and that by chance."""
    shared = expected = pairs = 0.0
    follows = np.ones(trace.num_tokens, bool)
    follows[trace.offsets[:-1]] = False
    for layer in range(trace.shape.num_layers):
        ids = trace.experts[:, layer]
        seconds = np.flatnonzero(follows & (ids[:, 0] >= 0) & (np.roll(ids[:, 0], 1) >= 0))
        shared += int((ids[seconds - 1, :, None] == ids[seconds, None, :]).sum())
        expected += len(seconds) * trace.shape.top_k**2 / trace.shape.experts_of(layer)
        pairs += len(seconds) * trace.shape.top_k
    return (shared / pairs, expected / pairs) if pairs else (0.0, 0.0)


def overlap_of(trace: Trace) -> Overlap | None:
    """Over all pairs of requests, or of MOST_REQUESTS of them."""
    if trace.num_requests < 2:
        return None
    number = min(trace.num_requests, MOST_REQUESTS)
    chosen = np.linspace(0, trace.num_requests - 1, number).astype(np.int64).tolist()
    matrices = request_matrices(trace, chosen)
    flat = normalise_rows(matrices).reshape(number, -1)
    flat /= np.sqrt((flat * flat).sum(axis=1, keepdims=True))
    pairs = number * (number - 1)
    top = np.argsort(-matrices, axis=2, kind="stable")[:, :, : trace.shape.top_k]
    chosen_top = np.zeros(matrices.shape, np.float32)
    np.put_along_axis(chosen_top, top, 1.0, axis=2)
    chosen_top *= matrices > 0  # of a layer that was not visited, none
    tops = chosen_top.reshape(number, -1)
    shared, size = tops @ tops.T, tops.sum(axis=1)
    counts = np.array([trace.shape.experts_of(layer) for layer in range(trace.shape.num_layers)])
    return Overlap(
        float(((flat @ flat.T).sum() - number) / pairs),
        float((shared / size[:, None])[~np.eye(number, dtype=bool)].mean()),
        float((trace.shape.top_k / counts).mean()),
    )
