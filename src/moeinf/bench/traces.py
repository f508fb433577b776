"""Recorded routing: what a trace holds, and in which order a model would run through it."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from moeinf.errors import UsageError
from moeinf.types import IntArray, MoeShape, Phase


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded routing: experts [tokens, layers, top_k]; request r has the tokens offsets[r] .. offsets[r + 1]."""

    name: str
    shape: MoeShape
    experts: IntArray
    offsets: IntArray

    @property
    def num_tokens(self) -> int:
        return len(self.experts)


def load_trace(folder: Path, max_tokens: int | None = None) -> Trace:
    """Reads the first `max_tokens` tokens of `folder`/routing.npz. Raises UsageError when that is no trace."""
    path = folder / "routing.npz"
    try:
        with np.load(path, allow_pickle=False) as archive:
            experts, offsets = archive["experts"][:max_tokens].astype(np.int64), archive["offsets"].astype(np.int64)
            shape = _shape(experts.shape[1], archive["n_experts"], int(archive["top_k"]))
    except FileNotFoundError:
        raise UsageError(f"no trace in {folder}: it has no routing.npz") from None
    except (ValueError, KeyError, IndexError, TypeError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UsageError(f"{path} is not a routing trace ({error})") from error
    fits = experts.ndim == 3 and experts.shape[2] == shape.top_k and experts.size
    counts = np.array([shape.experts_of(layer) for layer in range(shape.num_layers)])
    if not fits or experts.min() < 0 or (experts.max(axis=(0, 2)) >= counts).any():
        raise UsageError(f"{path} is not a routing trace (experts do not fit n_experts and top_k)")
    if offsets.ndim != 1 or len(offsets) < 2 or offsets[0] != 0 or (np.diff(offsets) < 0).any():
        raise UsageError(f"{path} is not a routing trace (offsets do not ascend from 0)")
    return Trace(folder.name, shape, experts, np.unique(np.minimum(offsets, len(experts))))


def _shape(num_layers: int, experts: IntArray, top_k: int) -> MoeShape:
    """experts: how many each layer has, in one number or one for each."""
    counts = tuple(np.broadcast_to(experts, num_layers).tolist())
    return MoeShape(num_layers, max(counts), top_k, counts if len(set(counts)) > 1 else ())


def visits(trace: Trace, prefill_tokens: int = 0) -> Iterator[tuple[Phase | None, int, IntArray]]:
    """(phase that begins now or None, layer, ids [tokens, top_k]) in the order in which a model would run.

    The first `prefill_tokens` of a request go through together, the others one by one.
    """
    for start, end in zip(trace.offsets[:-1].tolist(), trace.offsets[1:].tolist(), strict=True):
        passes = [(start, min(start + prefill_tokens, end))] if prefill_tokens else []
        passes += [(token, token + 1) for token in range(start + prefill_tokens, end)]
        for number, (first, last) in enumerate(passes):
            for layer in range(trace.shape.num_layers):
                begins: Phase | None = None
                if layer == 0 and number < 2:
                    begins = "prefill" if number == 0 else "decode"
                yield begins, layer, trace.experts[first:last, layer]
