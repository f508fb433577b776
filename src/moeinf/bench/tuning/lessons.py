"""What a network learns from: a trace as the classes that run live see it, pass by pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from moeinf._native import UseEvidence
from moeinf.traces.trace import Trace, passes_of
from moeinf.types import IntArray, MoeShape

HORIZON: Final = 4  # tokens, of the second label
RESTART: Final = 4096  # passes after which the evidence begins anew, as it does with every process
MOST_BYTES: Final = 1_000_000_000  # of evidence that is kept

HalfArray = npt.NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class Lessons:
    """One row for each pass: its last token, what was known then, and whether single tokens came next."""

    shape: MoeShape
    ids: IntArray  # [passes, L, top_k]
    evidence: HalfArray  # [passes, L, rows, E]: of UseEvidence, after each visit
    counts: npt.NDArray[np.bool_]  # [passes]: the next HORIZON passes are of one token, so the labels say something

    def used(self) -> npt.NDArray[np.float32]:
        """[passes, L, E]: 1 where the pass's last token used the expert."""
        used = np.zeros((*self.ids.shape[:2], self.shape.num_experts), np.float32)
        np.put_along_axis(used, self.ids, 1, axis=2)
        return used


def lessons_of(trace: Trace, progress: Callable[[int, int], None]) -> Lessons:
    """progress(done, all) in passes. Of a long trace, the last passes alone are kept."""
    shape = trace.shape
    row_bytes = shape.num_layers * shape.num_experts * 4 * 2
    passes = [(first, last) for _, first, last in passes_of(trace)][-(MOST_BYTES // row_bytes) :]
    ids = trace.experts[[last - 1 for _, last in passes]]
    evidence: Any = np.empty((len(passes), shape.num_layers, 4, shape.num_experts), np.float16)
    for number, (first, last) in enumerate(passes):
        if number % RESTART == 0:
            known = UseEvidence(shape.num_layers, shape.num_experts, shape.top_k)
            rows = known.rows
        for layer in range(shape.num_layers):
            known.observe(layer, np.ascontiguousarray(trace.experts[first:last, layer]))
            evidence[number, layer] = rows
        if number % 256 == 0:
            progress(number, len(passes))
    single = np.array([last - first == 1 for first, last in passes])
    counts = np.zeros(len(passes), bool)
    if len(passes) > HORIZON:
        counts[:-HORIZON] = np.lib.stride_tricks.sliding_window_view(single[1:], HORIZON).all(axis=1)
    return Lessons(shape, ids, evidence, counts)
