"""Distributions of the next token, by the logarithms of their probabilities, and how far one is from another."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

from moeinf.types import Float32Array, FloatArray

F = TypeVar("F", Float32Array, FloatArray)


def log_softmax(logits: F) -> F:
    """Logarithms of the probabilities [..., vocab], in the precision of the logits; their sum is made in float64."""
    shifted = logits - logits.max(-1, keepdims=True)
    total = np.exp(shifted).sum(-1, keepdims=True, dtype=np.float64)
    logs: F = shifted - np.log(total).astype(logits.dtype)
    return logs


def divergence(exact: Float32Array | FloatArray, other: Float32Array | FloatArray) -> FloatArray:
    """KL(exact || other) [...] of distributions [..., vocab], of which the logarithms are given; in nats. A token that
    the exact one excludes adds nothing."""
    likely = np.exp(exact, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # of two tokens that both exclude
        terms = np.where(likely > 0, likely * (exact.astype(np.float64) - other), 0.0)
    total: FloatArray = terms.sum(-1)
    return total
