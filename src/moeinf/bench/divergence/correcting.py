"""Rounds the columns of experts so that later ones make up for what earlier ones have lost, on a text.

That is GPTQ (arXiv 2210.17323) in the form of LDLQ (arXiv 2307.13304). With X the inputs of a matrix, H = X^T X and E
what its weights lose, the outputs lose |X E^T|^2, the trace of E H E^T. With H = U D U^T, U upper with a diagonal of 1,
that is the sum over columns k of D[k] |E U[:, k]|^2. So each column aims at its weights and what the errors of those in
front of it ask of it by U, and is rounded by D.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from moeinf._native import ExpertKernel, Kernels, Matrix, quantise_in_turn
from moeinf.bench.divergence.given_states import GivenStates
from moeinf.engine.weights.expert_files import expert_parts
from moeinf.pull.importance import LEAST_TOKENS, plan_of, shares
from moeinf.store.library import StoredModel
from moeinf.store.numbers import floats, plain_dtype
from moeinf.threads import mapped
from moeinf.types import FORMAT_BLOCKS, ByteArray, ExpertLayout, Float32Array, Format, TensorSpec

_SAMPLE: Final = 256  # tokens of a layer, which stand for all of them
_DAMPING: Final = 0.01  # of the mean square, added to each square: what the text does not show is not thought to be 0
_PANEL: Final = 256  # columns that are rounded between two products with all in front of them
_CHOLESKY: Final = 128  # columns that are factorised between two such products
_AT_ONCE: Final = 512  # rows of inputs that an expert computes together
_UNCORRECTED: Final = ("q8_0", "mxfp4")  # of which the one has nothing to gain, and the other codes of its own


class Correction:
    """Of all experts of a stored model, one after the other: so memory holds the products of one matrix's inputs.

    What is made depends on neither the number of threads nor the memory at hand.
    """

    def __init__(self, stored: StoredModel, states: GivenStates, threads: int) -> None:
        self._states, self._threads = states, threads
        self._manifest, self._forms = stored.manifest, plan_of(stored).forms
        self._kernels = Kernels(threads)

    def expert(self, layer: int, expert: int, block: ByteArray, wanted: Mapping[str, Format]) -> dict[str, ByteArray]:
        """The corrected parts of an expert, by name; others are not its concern.

        block: as the model stores it; wanted: the format of each part that changes.
        """
        layout = self._manifest.layout_of(layer)
        specs = {
            s.name: s for s in layout.tensors if len(s.shape) > 1 and wanted.get(s.name) not in (None, *_UNCORRECTED)
        }
        if not specs:
            return {}
        inputs, matters = self._inputs(layer, expert)
        made: dict[str, ByteArray] = {}
        firsts = [name for name in specs if name != "down"]
        if firsts and (factors := self._factors(inputs, matters)) is not None:
            made |= {name: self._part(specs[name], block, wanted[name], *factors) for name in firsts}
        if "down" in specs:
            factors = self._factors(self._acts(layer, layout, block, inputs), matters)
            if factors is not None:
                made["down"] = self._part(specs["down"], block, wanted["down"], *factors)
        return made

    def _inputs(self, layer: int, expert: int) -> tuple[Float32Array, Float32Array]:
        """States that the expert was given, and some of all that its layer was, with what each counts for."""
        experts = self._states.experts(layer)
        own = np.flatnonzero((experts == expert).any(1))
        some = np.unique(np.linspace(0, len(experts) - 1, min(_SAMPLE, len(experts))).astype(np.int64))
        counts = np.concatenate([np.ones(len(own)), np.full(len(some), LEAST_TOKENS / len(some))]).astype(np.float32)
        return self._states.states(layer, np.concatenate([own, some])), counts

    def _acts(self, layer: int, layout: ExpertLayout, block: ByteArray, inputs: Float32Array) -> Float32Array:
        """What the expert's `down` is multiplied with."""
        form = self._forms[layer if len(self._forms) > 1 else 0]
        kernel = ExpertKernel(self._kernels, block, expert_parts(layout), [form])
        width = next(spec.shape[-1] for spec in layout.tensors if spec.name == "down")
        found = np.empty((len(inputs), width), np.float32)
        zero = np.zeros(1, np.int64)
        for start in range(0, len(inputs), _AT_ONCE):
            rows = inputs[start : start + _AT_ONCE]
            kernel.begin(rows, np.zeros((len(rows), 1), np.int64), np.ones((len(rows), 1), np.float32))
            kernel.compute(zero, zero)
            kernel.acts(found[start : start + len(rows)])
        return found

    def _factors(self, inputs: Float32Array, counts: Float32Array) -> tuple[Float32Array, Float32Array] | None:
        """U and D of the products of inputs [tokens, columns], which are spoilt; None where all are zero."""
        inputs *= np.sqrt(counts)[:, None]
        products = self._products(np.ascontiguousarray(inputs.T[::-1]))
        squares = products.diagonal()
        mean = float(squares.mean(dtype=np.float64))
        if not 0 < mean < math.inf:
            return None
        products *= np.float32(1 / mean)
        products[np.diag_indices_from(products)] += np.float32(_DAMPING)
        self._factorise(products)
        roots = products.diagonal().copy()
        products /= roots
        return products[::-1, ::-1], np.square(roots[::-1])

    def _products(self, columns: Float32Array) -> Float32Array:
        """Of each pair of rows of [columns, tokens], at and below the diagonal."""
        count = len(columns)
        found = np.zeros((count, count), np.float32)
        for start in range(0, count, _AT_ONCE):
            end = min(start + _AT_ONCE, count)
            found[start:end, :end] = self._times(columns[start:end], columns[:end])
        return found

    def _factorise(self, square: Float32Array) -> None:
        """Puts Cholesky's factor in the place of a symmetric matrix, whose half at and below the diagonal is there."""
        count = len(square)
        for start in range(0, count, _CHOLESKY):
            end = min(start + _CHOLESKY, count)
            panel = square[start:, start:end]
            if start:
                panel -= self._times(square[start:, :start], square[start:end, :start])
            lower, inverse = _small_factor(panel[: end - start])
            panel[: end - start] = lower
            if end < count:
                panel[end - start :] = self._times(panel[end - start :], inverse)
            square[start:end, end:] = 0

    def _times(self, left: Float32Array, right: Float32Array) -> Float32Array:
        """left [rows, n] times right [columns, n], transposed."""
        (rows, width), columns = left.shape, len(right)
        found = np.empty((rows, columns), np.float32)
        weights = np.ascontiguousarray(right).view(np.uint8).reshape(-1)
        self._kernels.linear(np.ascontiguousarray(left), Matrix(weights, "f32", columns, width), found)
        return found

    def _part(
        self, spec: TensorSpec, block: ByteArray, format: Format, upper: Float32Array, squares: Float32Array
    ) -> ByteArray:
        rows, cols = spec.shape
        dtype = plain_dtype(spec.dtype)
        assert dtype is not None, "check_whole has seen to it"
        weights = floats(block[spec.offset_bytes : spec.offset_bytes + spec.num_bytes].data, dtype).reshape(rows, cols)
        importance = shares(squares)
        assert importance is not None
        count, num_bytes = FORMAT_BLOCKS[format]
        out, errors = np.empty((rows, cols // count * num_bytes), np.uint8), np.empty((rows, cols), np.float32)
        step = -(-rows // self._threads)
        for start in range(0, cols, _PANEL):
            end = min(start + _PANEL, cols)
            between = np.ascontiguousarray(upper[start:end, start:end])
            asked = np.zeros((rows, end - start), np.float32)
            if start:
                asked = self._times(errors[:, :start], upper[:start, start:end].T)

            def round_rows(
                first: int,
                start: int = start,
                end: int = end,
                asked: Float32Array = asked,
                between: Float32Array = between,
            ) -> tuple[Float32Array, ByteArray]:
                some = slice(first, first + step)
                lost = np.empty_like(asked[some])
                made = np.empty((len(lost), (end - start) // count * num_bytes), np.uint8)
                part = np.ascontiguousarray(weights[some, start:end])
                quantise_in_turn(format, part, asked[some], between, importance[start:end], lost, made.reshape(-1))
                return lost, made

            firsts = range(0, rows, step)
            for first, (lost, made) in zip(firsts, mapped(round_rows, firsts, self._threads), strict=True):
                errors[first : first + step, start:end] = lost
                out[first : first + step, start // count * num_bytes : end // count * num_bytes] = made
        return out.reshape(-1)


def _small_factor(square: Float32Array) -> tuple[Float32Array, Float32Array]:
    """Cholesky's factor of a small matrix and its inverse: sums in the order of columns, in f64."""
    left, count = square.astype(np.float64), len(square)
    lower, inverse = np.zeros((count, count)), np.eye(count)
    for k in range(count):
        lower[k:, k] = left[k:, k] / math.sqrt(left[k, k])
        left[k + 1 :, k + 1 :] -= np.multiply.outer(lower[k + 1 :, k], lower[k + 1 :, k])
        inverse[k] /= lower[k, k]
        inverse[k + 1 :] -= np.multiply.outer(lower[k + 1 :, k], inverse[k])
    return lower.astype(np.float32), inverse.astype(np.float32)
