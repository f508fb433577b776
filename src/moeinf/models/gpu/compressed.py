"""Attention to a window and to entries (layers/latent/compressed.py) on a GPU.

A single token, which is captured, makes the entry of its window each time, which counts when the window is whole, and
looks at all entries of the cache: those that are not behind it have no weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.models.gpu.rotary import DevicePositions, positions_of
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.compressed import FIXED, Candidates, Choice, CompressedPart, EntryState, kept_shapes
from moeinf.models.layers.latent.rounding import Rounding
from moeinf.models.layers.recurrent.state import RecurrentState


class DeviceCompressedCore:
    """A CompressedPart."""

    def __init__(self, memory: DeviceMemory, part: CompressedPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        self._heads, self._sinks, self._pools = part.heads, part.sinks, part.pools
        self._memory, self._math, self._fused = memory, memory.weights.math, memory.weights.fused
        self._layer, self._number = part.layer, part.number
        self._rows = torch.empty((0, part.heads.head_dim), device=part.sinks.device)  # of the pass, the window before
        self._rounding = Rounding[Tensor](self._math, part.heads.rounded, _fractions, torch.round)

    def new_state(self, capacity: int) -> RecurrentState[Tensor]:
        return RecurrentState(self._math, *kept_shapes(self._heads))

    def new_entries(self, capacity: int) -> EntryState[Tensor]:
        return EntryState(self._memory, self._heads, capacity)

    def store(self, rows: Tensor, raw: Tensor | None, cache: Cache, positions: DevicePositions) -> None:
        state: RecurrentState[Tensor] = cache.states[self._layer]
        where = positions_of(positions, 0, len(rows))
        turned = self._turned(rows[:, None], positions, where)[:, 0]
        self._rows = torch.cat([state.conv, self._rounding.window_rows(turned)])
        state.new_conv[...] = self._rows[len(rows) :]
        if raw is not None:
            joined = torch.cat([state.heads, raw])
            state.new_heads[...] = joined[len(raw) :]
            self._store_entries(joined, len(raw), cache, positions)

    def _store_entries(self, raw: Tensor, tokens: int, cache: Cache, positions: DevicePositions) -> None:
        h, state = self._heads, cache.states[self._number]
        assert self._pools is not None and isinstance(state, EntryState)
        if tokens == 1:
            needed, windows = raw, positions.position.long() // h.rate
        else:
            first, last = positions.start // h.rate, (positions.start + tokens) // h.rate
            if first == last:
                return
            start = (first + 1) * h.rate - 1 - positions.start  # of the first window, or of the one before it
            needed = raw[start : start + (last - first - 1) * h.rate + h.members]
            windows = torch.arange(first, last, device=raw.device)
        made = self._pools.entries(needed, windows)
        kept = ((state.entries, self._rounding.entries), (state.keys, self._rounding.index_keys))
        for (into, rounded), entries in zip(kept, made, strict=False):  # keys: where there is an indexer
            turned = self._turned(entries[:, None], positions, windows * h.rate)[:, 0]
            into.index_copy_(0, windows, rounded(turned))

    def choose(
        self, queries: Tensor, weights: Tensor, cache: Cache, positions: DevicePositions, at: int, among: object
    ) -> Choice:
        """The entries of each token, best first, [tokens, top_k], -1 for none; None: all that are behind it.

        Candidates are [tokens, entries], 0 of one and -inf of others; None: all are."""
        h, state, tokens = self._heads, cache.states[self._number], len(queries)
        assert h.index is not None
        count, allowed = self._count(tokens, cache, positions, at), among if isinstance(among, Tensor) else None
        leaves = h.candidates if h.candidates is not None and h.candidates.leaves else None
        all_left = leaves is None or count <= leaves.count * leaves.size
        if count <= h.index.top_k and allowed is None and all_left:
            return None, (among if leaves is None else None)
        where = positions_of(positions, at, tokens)
        by_head = self._turned(queries.view(tokens, h.index.num_heads, -1), positions, where)
        by_head = self._rounding.index_keys(by_head)
        size, chosen, left = max(1, FIXED // (4 * h.index.num_heads * count)), list[Tensor](), list[Tensor]()
        numbers = torch.arange(count, device=where.device)
        for i in range(0, tokens, size):
            products = torch.relu(by_head[i : i + size] @ state.keys[:count].T)  # [tokens, num_heads, count]
            scores = torch.bmm(weights[i : i + size, None], products)[:, 0]
            scores = torch.where(self._is_seen(numbers, where[i : i + size]), scores, -torch.inf)
            if leaves is not None and not all_left:
                left.append(self._in_best_blocks(scores, where[i : i + size], leaves))
            if allowed is not None:
                scores = scores + allowed[i : i + size]
            ordered = torch.sort(scores, dim=-1, descending=True, stable=True)
            there = ordered.values[:, : h.index.top_k] > -torch.inf
            chosen.append(torch.where(there, ordered.indices[:, : h.index.top_k], -1))
        return torch.cat(chosen), (among if leaves is None else torch.cat(left) if left else None)

    def _in_best_blocks(self, scores: Tensor, where: Tensor, candidates: Candidates) -> Tensor:
        """scores [tokens, entries] -> 0 of each in one of the best blocks, or in that of the newest, -inf of others."""
        size, count = candidates.size, scores.shape[1]
        padded = torch.nn.functional.pad(scores, (0, -count % size), value=-torch.inf)
        of_blocks = padded.view(len(scores), -1, size).amax(-1)
        newest = ((where + 1) // self._heads.rate - 1) // size
        blocks = torch.arange(of_blocks.shape[1], device=where.device)
        of_blocks = torch.where(blocks == newest[:, None], torch.inf, of_blocks)
        ordered = torch.sort(of_blocks, dim=-1, descending=True, stable=True)
        best = ordered.indices[:, : candidates.count]
        kept = torch.full_like(of_blocks, -torch.inf).scatter_(1, best, 0.0)
        return kept.repeat_interleave(size, 1)[:, :count]

    def attend(self, queries: Tensor, chosen: object, cache: Cache, positions: DevicePositions, at: int) -> Tensor:
        h, where = self._heads, positions_of(positions, at, len(queries))
        count = self._count(len(queries), cache, positions, at) if h.rate else 0
        picked = chosen.shape[1] if isinstance(chosen, Tensor) else 0
        turned = self._turned(queries, positions, where)
        size = max(1, FIXED // (2 * (h.window + picked) * h.head_dim + 4 * (h.window + count) * h.num_heads))
        out = [
            self._mixed(turned[i : i + size], where[i : i + size], at + i, self._entries(chosen, i, size, count, cache))
            for i in range(0, len(queries), size)
        ]
        return self._turned(torch.cat(out), positions, where, back=True)

    def _entries(self, chosen: object, at: int, size: int, count: int, cache: Cache) -> tuple[Tensor, Tensor] | None:
        """The numbers of entries and the entries, [1 or tokens, n] and [1 or tokens, n, head_dim], of some tokens."""
        if not count:
            return None
        entries = cache.states[self._number].entries
        if isinstance(chosen, Tensor):
            numbers = chosen[at : at + size]
            there = entries.index_select(0, numbers.clamp(min=0).flatten())
            return numbers, there.view(*numbers.shape, -1)
        return torch.arange(count, device=entries.device)[None], entries[None, :count]

    def _mixed(self, queries: Tensor, where: Tensor, at: int, entries: tuple[Tensor, Tensor] | None) -> Tensor:
        """queries [tokens, heads, head_dim] of the tokens from `at` of the pass."""
        h, tokens = self._heads, len(queries)
        rows = self._rows[at : at + tokens + h.window - 1].unfold(0, h.window, 1).transpose(1, 2)
        places = where[:, None] - torch.arange(h.window - 1, -1, -1, device=where.device)
        scores = [torch.where(places[:, None] >= 0, queries @ rows.transpose(1, 2) * h.scale, -torch.inf)]
        if entries is not None:
            numbers, rest = entries
            seen = self._is_seen(numbers, where)[:, None]
            scores.append(torch.where(seen, queries @ rest.transpose(1, 2) * h.scale, -torch.inf))
        scores.append(self._sinks.view(1, -1, 1).expand(tokens, -1, 1))
        shares = torch.softmax(torch.cat(scores, -1), -1)
        mixed = shares[..., : h.window] @ rows
        return mixed if entries is None else mixed + shares[..., h.window : -1] @ entries[1]

    def _is_seen(self, numbers: Tensor, where: Tensor) -> Tensor:
        """[tokens, n]: whether entries lie wholly behind the ends of the tokens at these positions; -1 is none."""
        return ((numbers + 1) * self._heads.rate <= where[:, None] + 1) & (numbers >= 0)

    def _count(self, tokens: int, cache: Cache, positions: DevicePositions, at: int) -> int:
        """The entries that tokens of a pass look at."""
        if len(self._rows) == self._heads.window:  # a single token
            return len(cache.states[self._number].entries)
        return (positions.start + at + tokens) // self._heads.rate

    def _turned(self, x: Tensor, positions: DevicePositions, where: Tensor, *, back: bool = False) -> Tensor:
        """x [tokens, heads, head_dim], rotated at the ends of heads in neighbouring pairs."""
        cos, sin = (table.index_select(0, where) for table in (positions.cos, positions.sin))
        return self._fused.turned(x, cos, -sin if back else sin, at_end=True, interleaved=True)


def _fractions(x: Tensor) -> Tensor:
    return torch.frexp(x).mantissa
