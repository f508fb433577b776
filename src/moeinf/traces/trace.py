"""Recorded routing: what a trace holds, how its files are read, and in which order a model would run through it."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from moeinf.errors import UsageError, in_a_line
from moeinf.runtime.policy.eamc import DAMAGE
from moeinf.store.files import errors_named, open_regular
from moeinf.traces.folder import WHOLE_FILE, read_facts, request_files, shape_of
from moeinf.types import Float32Array, IntArray, MoeShape, Phase

ABSENT: Final = -1  # in place of an expert, or of a guess, of a layer that a token did not visit


@dataclass(frozen=True, slots=True)
class Trace:
    """Recorded routing: experts [tokens, layers, top_k]; request r has the tokens offsets[r] .. offsets[r + 1].

    Where a token did not visit a layer, as a decoder's token those of the encoder, all its experts there are -1.
    """

    name: str  # of its folder
    shape: MoeShape
    experts: IntArray
    offsets: IntArray  # [requests + 1]
    passes: IntArray | None = None  # [passes + 1]: pass p ran the tokens passes[p] .. passes[p + 1]; None: not known
    prompt_tokens: IntArray | None = None  # [requests]: how many of its tokens, the first ones, were prefill
    weights: Float32Array | None = None  # [tokens, layers, top_k], by which the outputs were summed
    guesses: IntArray | None = None  # [tokens, layers, top_k]: look-ahead's, as told before the layer ran; -1: none
    guess_weights: Float32Array | None = None
    model: str = ""  # its name; "" where the files do not say it
    expert_bytes: tuple[int, ...] = ()  # of an expert of each layer, where they are known to differ

    @property
    def num_tokens(self) -> int:
        return len(self.experts)

    @property
    def num_requests(self) -> int:
        return len(self.offsets) - 1


def load_trace(folder: Path, max_tokens: int | None = None) -> Trace:
    """Reads the first `max_tokens` tokens of a recorded trace, or of one in routing.npz.

    Raises UsageError when that is no trace, or a part of it is damaged or of another model.
    """
    facts = read_facts(folder)
    whole = folder / WHOLE_FILE
    if facts is None or whole.exists():
        if not whole.exists():
            raise UsageError(f"no trace in {folder}: it has no {WHOLE_FILE}, and no trace.json of a recording")
        trace = read_trace(whole, max_tokens)
    else:
        trace = _load_requests(folder, max_tokens)
    if facts is not None and trace.shape != facts.shape:
        raise UsageError(f"{folder} has a trace of another model than its trace.json says ({facts.model})")
    return replace(
        trace,
        name=folder.resolve().name,
        model="" if facts is None else facts.model,
        expert_bytes=() if facts is None else facts.expert_bytes,
    )


def _load_requests(folder: Path, max_tokens: int | None) -> Trace:
    parts: list[Trace] = []
    left = max_tokens
    for path in request_files(folder):
        if left == 0:
            break
        part = read_trace(path, left)
        if parts and part.shape != parts[0].shape:
            raise UsageError(f"{path} is of another model than the requests before it; move it elsewhere")
        parts.append(part)
        left = None if left is None else left - part.num_tokens
    if not parts:
        raise UsageError(f"{folder} holds no finished request yet: record one with --trace {folder}")
    return joined(parts)


def joined(parts: Sequence[Trace]) -> Trace:
    """Traces of one model, one behind the other. What some of them lack, the result has not, but for guesses."""
    starts = np.cumsum([0, *(part.num_tokens for part in parts)])

    def rows(arrays: Sequence[Any]) -> Any:
        return None if any(array is None for array in arrays) else np.concatenate(arrays)

    def borders(arrays: Sequence[IntArray | None]) -> Any:
        moved = [None if array is None else array[:-1] + start for array, start in zip(arrays, starts, strict=False)]
        return rows([*moved, starts[-1:]])

    guesses = guess_weights = None
    if any(part.guesses is not None for part in parts):
        guesses = rows([np.full(p.experts.shape, ABSENT) if p.guesses is None else p.guesses for p in parts])
        nothing = np.float32(0)
        guess_weights = rows(
            [np.full(p.experts.shape, nothing) if p.guess_weights is None else p.guess_weights for p in parts]
        )
    return Trace(
        parts[0].name,
        parts[0].shape,
        rows([part.experts for part in parts]),
        borders([part.offsets for part in parts]),
        borders([part.passes for part in parts]),
        rows([part.prompt_tokens for part in parts]),
        rows([part.weights for part in parts]),
        guesses,
        guess_weights,
        parts[0].model,
    )


def cut(trace: Trace, num_tokens: int) -> Trace:
    """The first tokens alone, without requests that have none of them."""
    if num_tokens >= trace.num_tokens and (np.diff(trace.offsets) > 0).all():
        return trace
    kept = slice(None, num_tokens)
    offsets = np.minimum(trace.offsets, num_tokens)
    lengths = np.diff(offsets)
    offsets = np.concatenate([[0], np.cumsum(lengths[lengths > 0])])
    prompts = trace.prompt_tokens
    return replace(
        trace,
        experts=trace.experts[kept],
        offsets=offsets,
        passes=None if trace.passes is None else np.unique(np.minimum(trace.passes, offsets[-1])),
        prompt_tokens=None if prompts is None else np.minimum(prompts, lengths)[lengths > 0],
        weights=None if trace.weights is None else trace.weights[kept],
        guesses=None if trace.guesses is None else trace.guesses[kept],
        guess_weights=None if trace.guess_weights is None else trace.guess_weights[kept],
    )


def without_first(trace: Trace, num_requests: int) -> Trace:
    """The requests behind the first ones."""
    start = int(trace.offsets[num_requests])
    prompts, passes = trace.prompt_tokens, trace.passes
    return replace(
        trace,
        experts=trace.experts[start:],
        offsets=trace.offsets[num_requests:] - start,
        passes=None if passes is None else passes[passes >= start] - start,
        prompt_tokens=None if prompts is None else prompts[num_requests:],
        weights=None if trace.weights is None else trace.weights[start:],
        guesses=None if trace.guesses is None else trace.guesses[start:],
        guess_weights=None if trace.guess_weights is None else trace.guess_weights[start:],
    )


def dumps(trace: Trace) -> bytes:
    """An npz file of the trace, as read_trace reads it; experts and guesses take a byte each where that holds them."""
    shape, small = trace.shape, np.int8 if trace.shape.num_experts <= 128 else np.int16
    arrays: dict[str, Any] = {
        "experts": trace.experts.astype(small),
        "offsets": trace.offsets,
        "n_experts": np.array(shape.counts or shape.num_experts, np.int64),
        "top_k": np.array(shape.top_k, np.int64),
        "passes": trace.passes,
        "prompt_tokens": trace.prompt_tokens,
        "weights": trace.weights,
        "guesses": None if trace.guesses is None else trace.guesses.astype(small),
        "guess_weights": trace.guess_weights,
    }
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: array for name, array in arrays.items() if array is not None})
    return buffer.getvalue()


def read_trace(path: Path, max_tokens: int | None = None) -> Trace:
    """Reads the first `max_tokens` tokens of an npz file. Raises UsageError for one that is no trace, or damaged."""
    try:
        with (
            errors_named(path, UsageError),
            os.fdopen(open_regular(path), "rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files if name in _ARRAYS}
            trace = _of_arrays(path.stem, arrays)
    except DAMAGE as error:
        raise UsageError(f"{path} is not a routing trace ({in_a_line(error)})") from error
    return cut(trace, trace.num_tokens if max_tokens is None else max_tokens)


_ARRAYS: Final = frozenset(
    ("experts", "offsets", "n_experts", "top_k", "passes", "prompt_tokens", "weights", "guesses", "guess_weights")
)


def _of_arrays(name: str, arrays: Mapping[str, npt.NDArray[np.generic]]) -> Trace:
    """Raises ValueError, KeyError, IndexError or TypeError for arrays that are no trace."""

    def optional(name: str, read: Callable[[Any], Any]) -> Any:
        return read(arrays[name]) if name in arrays else None

    experts = _whole_numbers(arrays["experts"])
    n_experts = np.broadcast_to(_whole_numbers(arrays["n_experts"]), experts.shape[1]).tolist()
    trace = Trace(
        name,
        shape_of(experts.shape[1], n_experts, _whole_numbers(arrays["top_k"]).item()),
        experts,
        _whole_numbers(arrays["offsets"]),
        optional("passes", _whole_numbers),
        optional("prompt_tokens", _whole_numbers),
        optional("weights", _numbers),
        optional("guesses", _whole_numbers),
        optional("guess_weights", _numbers),
    )
    check(trace)
    return trace


def _whole_numbers(array: npt.NDArray[np.generic]) -> IntArray:
    """Raises TypeError for an array of anything else."""
    if array.dtype.kind not in "iu":
        raise TypeError(f"numbers of type {array.dtype} where whole ones belong")
    whole: IntArray = array.astype(np.int64)
    return whole


def _numbers(array: npt.NDArray[np.generic]) -> Float32Array:
    """Raises TypeError for an array of anything but floating-point numbers."""
    if array.dtype.kind != "f":
        raise TypeError(f"numbers of type {array.dtype} where floating-point ones belong")
    numbers: Float32Array = array.astype(np.float32)
    return numbers


def check(trace: Trace) -> None:
    """Raises ValueError for a trace whose arrays do not fit each other."""
    experts, shape, tokens = trace.experts, trace.shape, trace.num_tokens
    counts = np.array([shape.experts_of(layer) for layer in range(shape.num_layers)])

    def require(fits: object, fault: str) -> None:
        if not fits:
            raise ValueError(fault)

    def ids_fit(ids: IntArray) -> bool:
        return ids.shape == (tokens, *fits) and ids.min() >= ABSENT and bool((ids.max(axis=(0, 2)) < counts).all())

    fits = (shape.num_layers, shape.top_k)
    require(experts.size and ids_fit(experts), "experts do not fit n_experts and top_k")
    visited = experts[:, :, 0] >= 0
    require(((experts >= 0) == visited[:, :, None]).all(), "a token has only some of its experts of a layer")
    require(visited.any(axis=1).all(), "a token visits no layer")
    twice = np.diff(np.sort(experts, axis=2), axis=2) == 0
    require(not (twice & visited[:, :, None]).any(), "a token has an expert twice in a layer")
    _check_borders(trace.offsets, tokens, "offsets")
    if trace.passes is not None:
        _check_borders(trace.passes, tokens, "passes")
        require((np.diff(trace.passes) > 0).all(), "a pass has no tokens")
        require(np.isin(trace.offsets, trace.passes).all(), "a pass runs tokens of two requests")
        firsts = visited[trace.passes[:-1]].repeat(np.diff(trace.passes), axis=0)
        require((visited == firsts).all(), "the tokens of a pass visit different layers")
    if (prompts := trace.prompt_tokens) is not None:
        sizes = np.diff(trace.offsets)
        require(prompts.shape == sizes.shape and (prompts >= 0).all(), "prompt_tokens are not one for each request")
        require((prompts <= sizes).all(), "a prompt is longer than its request")
    require(trace.weights is None or trace.weights.shape == experts.shape, "weights do not fit experts")
    if trace.guesses is not None or trace.guess_weights is not None:
        require(trace.guesses is not None and ids_fit(trace.guesses), "guesses do not fit n_experts and top_k")
        given = trace.guess_weights is not None and trace.guess_weights.shape == experts.shape
        require(given, "guess_weights do not fit guesses")


def _check_borders(borders: IntArray, tokens: int, name: str) -> None:
    """Raises ValueError unless they ascend from 0 to the number of tokens."""
    ascend = borders.ndim == 1 and len(borders) > 1 and borders[0] == 0 and (np.diff(borders) >= 0).all()
    if not ascend or borders[-1] != tokens:
        raise ValueError(f"{name} do not ascend from 0 to the {tokens} tokens")


def visits(trace: Trace, prefill_tokens: int = 0) -> Iterator[tuple[Phase | None, int, IntArray]]:
    """(phase that begins now or None, layer, ids [tokens, top_k]) in the order in which a model would run.

    prefill_tokens: see passes_of.
    """
    for begins, first, last in passes_of(trace, prefill_tokens):
        for layer in np.flatnonzero(trace.experts[first, :, 0] >= 0).tolist():
            yield begins, layer, trace.experts[first:last, layer]
            begins = None


def passes_of(trace: Trace, prefill_tokens: int = 0) -> Iterator[tuple[Phase | None, int, int]]:
    """(phase that begins now or None, first token, the token behind the last) of every pass.

    The passes are those that ran live, where the trace knows them. Else the first `prefill_tokens` of a request go
    through together, the others one by one; its first pass counts as prefill, the others as decode. Where no
    token visits both the first and the last layer, a pass that does not reach the last one is an encoder's.
    """
    encodes = (trace.experts[:, (0, -1), 0] < 0).any(axis=1).all()
    for request, (start, end) in enumerate(pairwise(trace.offsets.tolist())):
        if trace.passes is None:
            borders = [start, *range(start + max(prefill_tokens, 1), end), end]
        else:
            low, high = np.searchsorted(trace.passes, (start, end)).tolist()
            borders = trace.passes[low : high + 1].tolist()
        prompt_end = borders[1] if trace.prompt_tokens is None else start + int(trace.prompt_tokens[request])
        phase: Phase | None = None
        for first, last in pairwise(borders):
            now: Phase = "decode" if start < first >= prompt_end else "prefill"
            if encodes and trace.experts[first, -1, 0] < 0:
                now = "encode"
            yield (None if now == phase else now), first, last
            phase = now
