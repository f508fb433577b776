"""Attention to a window and to entries (layers/latent/compressed.py) on the CPU: native, but for the choice of entries.

Each token is scored and attends on its own, over what it sees: so it does not depend on the tokens of its call.
"""

from __future__ import annotations

import numpy as np

from moeinf import _native
from moeinf.models.cpu.attention import Angles
from moeinf.models.cpu.indexed import best_keys
from moeinf.models.cpu.weights import HostMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.compressed import Candidates, Choice, CompressedPart, EntryState, kept_shapes
from moeinf.models.layers.latent.rounding import Rounding
from moeinf.models.layers.recurrent.state import RecurrentState
from moeinf.types import Float32Array, IntArray, Routing


class NativeCompressedCore:
    """A CompressedPart."""

    def __init__(self, memory: HostMemory, part: CompressedPart[Float32Array, Angles, Routing]) -> None:
        self._heads, self._sinks, self._pools = part.heads, part.sinks, part.pools
        self._memory, self._math, self._fused = memory, memory.weights.math, memory.weights.fused
        self._layer, self._number = part.layer, part.number
        self._rows: Float32Array = np.empty((0, part.heads.head_dim), np.float32)  # of the pass, the window before it
        self._rounding = Rounding[Float32Array](self._math, part.heads.rounded, lambda x: np.frexp(x)[0], np.rint)

    def new_state(self, capacity: int) -> RecurrentState[Float32Array]:
        return RecurrentState(self._math, *kept_shapes(self._heads), rows_alone=True)

    def new_entries(self, capacity: int) -> EntryState[Float32Array]:
        return EntryState(self._memory, self._heads, capacity)

    def store(self, rows: Float32Array, raw: Float32Array | None, cache: Cache, positions: Angles) -> None:
        state: RecurrentState[Float32Array] = cache.states[self._layer]
        turned = self._fused.turned(rows[:, None], *positions, at_end=True, interleaved=True)[:, 0]
        self._rows = np.concatenate([state.conv, self._rounding.window_rows(turned)])
        state.new_conv[...] = self._rows[len(self._rows) - len(state.new_conv) :]
        if raw is not None:
            joined = np.concatenate([state.heads, raw])
            state.new_heads[...] = joined[len(joined) - len(state.new_heads) :]
            self._store_entries(joined, len(raw), cache)

    def _store_entries(self, raw: Float32Array, tokens: int, cache: Cache) -> None:
        h, state = self._heads, cache.states[self._number]
        first, last = cache.length // h.rate, (cache.length + tokens) // h.rate
        if first == last:
            return
        assert self._pools is not None and isinstance(state, EntryState)
        start = (first + 1) * h.rate - 1 - cache.length  # of the first window, or of the one before it
        needed = raw[start : start + (last - first - 1) * h.rate + h.members]
        tables = h.rope.within(cache.capacity, cache.reach).tables(first * h.rate, (last - first) * h.rate)
        angles = [table[:: h.rate] for table in tables]
        made = self._pools.entries(needed, np.arange(first, last, dtype=np.float32))
        kept = ((state.entries, self._rounding.entries), (state.keys, self._rounding.index_keys))
        for (into, rounded), entries in zip(kept, made, strict=False):  # keys: where there is an indexer
            turned = self._fused.turned(entries[:, None], *angles, at_end=True, interleaved=True)[:, 0]
            into[first:last] = rounded(turned)

    def choose(
        self, queries: Float32Array, weights: Float32Array, cache: Cache, positions: Angles, at: int, among: object
    ) -> Choice:
        """The entries of each token, and candidates; None: all that are behind it."""
        h, state, tokens = self._heads, cache.states[self._number], len(queries)
        assert h.index is not None
        by_head = queries.reshape(tokens, h.index.num_heads, -1)
        cos, sin = (table[at : at + tokens] for table in positions)
        turned = self._rounding.index_keys(self._fused.turned(by_head, cos, sin, at_end=True, interleaved=True))
        leaves = h.candidates if h.candidates is not None and h.candidates.leaves else None
        seen = self._seen(cache.length + at, tokens)
        if leaves is None and not isinstance(among, list):
            return self._chosen(turned, weights, state.keys, seen), among
        allowed: list[IntArray | None] = among if isinstance(among, list) else [None] * tokens
        chosen, left = list[IntArray | None](), list[IntArray | None]()
        for i, count in enumerate(seen):
            own = allowed[i]
            all_seen = (count if own is None else len(own)) <= h.index.top_k
            all_left = leaves is None or count <= leaves.count * leaves.size
            if all_seen and all_left:
                chosen.append(own)
                left.append(None)
                continue
            scores: Float32Array = np.empty((1, count), np.float32)
            keys, one = state.keys[:count], np.full(1, count)
            _native.score_keys(
                self._memory.weights.kernels, turned[i].reshape(1, -1), weights[i : i + 1], keys, one, scores
            )
            left.append(None if leaves is None or all_left else self._in_best_blocks(scores[0], leaves))
            if all_seen:
                chosen.append(own)
            elif own is None:
                chosen.append(self._best(scores[0], h.index.top_k))
            else:
                chosen.append(own[self._best(scores[0][own], h.index.top_k)])
        return chosen, (among if leaves is None else left)

    def _chosen(
        self, heads: Float32Array, weights: Float32Array, keys: Float32Array, seen: list[int]
    ) -> list[IntArray | None]:
        """The entries of each token, heads [tokens, num_heads, head_dim]; None: all that are behind it."""
        assert self._heads.index is not None
        top_k = self._heads.index.top_k
        sees_all = sum(count <= top_k for count in seen)  # the first ones
        if sees_all == len(seen):
            return [None] * sees_all
        kernels = self._memory.weights.kernels
        counts = np.array(seen[sees_all:])
        found = best_keys(kernels, heads[sees_all:], weights[sees_all:], keys[: seen[-1]], counts, top_k)
        return [None] * sees_all + list(found)

    def _best(self, scores: Float32Array, count: int) -> IntArray:
        """The numbers of the largest, ascending; there are more than `count`."""
        found: IntArray = np.empty((1, count), np.int64)
        _native.choose_best(self._memory.weights.kernels, scores[None], np.full(1, len(scores)), found)
        return found.reshape(-1)

    def _in_best_blocks(self, scores: Float32Array, candidates: Candidates) -> IntArray:
        """The numbers of the entries in the blocks with the best scores, and in that of the newest, ascending."""
        size, seen = candidates.size, len(scores)
        padded = np.concatenate([scores, np.full(-seen % size, -np.inf, np.float32)])
        of_blocks = padded.reshape(-1, size).max(1)
        of_blocks[-1] = np.inf
        numbers = self._best(of_blocks, candidates.count)[:, None] * size + np.arange(size)
        found: IntArray = numbers.reshape(-1)
        return found[found < seen]

    def attend(self, queries: Float32Array, chosen: object, cache: Cache, positions: Angles, at: int) -> Float32Array:
        h, tokens, start = self._heads, len(queries), cache.length + at
        cos, sin = (table[at : at + tokens] for table in positions)
        turned = self._fused.turned(queries, cos, sin, at_end=True, interleaved=True)
        out = np.empty(queries.shape, np.float32)
        seen, picked, so_far = np.empty((tokens, 4), np.int64), [np.empty(0, np.int64)], 0
        for i, behind in enumerate(self._seen(start, tokens)):
            hidden = max(h.window - 1 - start - i, 0)  # rows of the window in front of the first token
            numbers = chosen[i] if isinstance(chosen, list) and behind else None
            seen[i] = at + i + hidden, h.window - hidden, -1, behind
            if numbers is not None:
                seen[i, 2:] = so_far, len(numbers)
                so_far += len(numbers)
                picked.append(numbers)
        entries = cache.states[self._number].whole if h.rate else self._rows[:0]
        _native.attend_shared_rows(
            self._memory.weights.kernels, turned.reshape(tokens, -1), self._rows, entries, seen,
            np.concatenate(picked), h.scale, self._sinks, out.reshape(tokens, -1),
        )  # fmt: skip
        return self._fused.turned(out, cos, -sin, at_end=True, interleaved=True)

    def _seen(self, start: int, tokens: int) -> list[int]:
        """How many entries lie wholly behind the end of each of the tokens from position `start`."""
        rate = self._heads.rate
        return [(start + i + 1) // rate if rate else 0 for i in range(tokens)]
