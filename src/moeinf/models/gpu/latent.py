"""What multi-head latent attention (mla.py) needs of a GPU: the state of a sequence, and the core."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from moeinf.gpu.matrix import DeviceRouting
from moeinf.gpu.vector_ops import AttentionForm, KeyValues
from moeinf.models.gpu.rotary import DevicePositions, positions_of, sharpened
from moeinf.models.gpu.weights import TORCH_DTYPES, DeviceMemory, DeviceWeights
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.latent.mla import Growth, LatentPart, LatentState

_NUMBERS = 1 << 22  # of queries that exist at once: 16 MiB


class DeviceLatentCore:
    """A LatentPart. Positions are read on the device, so that a step can be captured."""

    def __init__(self, memory: DeviceMemory, part: LatentPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        weights, heads, layer = memory.weights, part.heads, part.layer
        matrix = weights.matrix(part.keys_values)
        assert matrix.format in TORCH_DTYPES, "the plan leaves out of `matrices` what is multiplied by head"
        # [heads, nope_dim + value_dim, rank] in f32, f16 or bf16, which is what products are made in
        keys_values = matrix.data.view(TORCH_DTYPES[matrix.format]).view(heads.num_heads, -1, matrix.cols)
        self._memory, self._vectors, self._dtype, self._layer = memory, weights.ops.vectors, memory.kept, layer
        self._source = layer if heads.source is None else heads.source
        nope_dim = heads.qk_nope_head_dim
        self._into = keys_values[:, :nope_dim]  # W_UK
        self._out_of = keys_values[:, nope_dim:].transpose(1, 2)  # W_UV
        self._num_heads, self._nope_dim, self._rank = len(keys_values), nope_dim, keys_values.shape[2]
        self._width = self._rank + heads.rope.rotary_dim if heads.source is None else 0  # of the rows that it keeps
        sinks = None if heads.sinks is None else weights.vector(heads.sinks)
        self._rope, self._form, self._sharpening = heads.rope, AttentionForm(heads.scale, sinks=sinks), heads.sharpening
        self._growth, self._window = growth_in(weights, heads.growth), heads.window
        assert sinks is None or not self._window, "no family has both"

    def new_state(self, capacity: int) -> LatentState[Tensor]:
        return LatentState(self._memory, self._width, capacity)

    def store(self, rows: Tensor, cache: Cache, positions: DevicePositions) -> None:
        state: LatentState[Tensor] = cache.states[self._layer]
        where = positions_of(positions, 0, len(rows))
        rotated = self._rotated(rows[:, None], positions, where)[:, 0]
        state.rows[0].index_copy_(0, where, rotated.to(self._dtype))

    def at_once(self, tokens: int) -> int:
        return tokens  # so that weights are read once; `attend` goes piece by piece through what takes most memory

    def attend(self, queries: Tensor, cache: Cache, positions: DevicePositions, at: int) -> Tensor:
        size = max(1, _NUMBERS // (self._num_heads * (self._rank + self._rope.rotary_dim)))
        pieces = [self._attended(queries[i : i + size], cache, positions, at + i) for i in range(0, len(queries), size)]
        return torch.cat(pieces)

    def _attended(self, queries: Tensor, cache: Cache, positions: DevicePositions, at: int) -> Tensor:
        state: LatentState[Tensor] = cache.states[self._source]
        position = positions.position + at if at else positions.position
        rows = KeyValues(state.rows, state.rows)
        return self._mixed(queries, rows, position, positions.start + at, positions, at)

    def _mixed(
        self, queries: Tensor, rows: KeyValues, position: Tensor, start: int, positions: DevicePositions, at: int
    ) -> Tensor:
        """Of the tokens from `at` of the pass, the first of which sees the rows up to number `position`."""
        tokens, heads = len(queries), self._num_heads
        if self._sharpening is not None:
            queries = queries * sharpened(self._sharpening, positions, at, tokens)
        if self._growth is not None:
            queries = self._growth(queries, positions_of(positions, at, tokens))
        plain, end = torch.split(queries.view(tokens, heads, -1), [self._nope_dim, self._rope.rotary_dim], -1)
        inside = torch.cat([_by_head(plain, self._into), end], -1)
        rotated = self._rotated(inside, positions, positions_of(positions, at, tokens))
        if self._window:
            mixed = self._mixed_in_window(rotated, rows.keys[0], position)
        else:
            flat = rotated.reshape(tokens, -1)
            out = torch.empty_like(flat)
            self._vectors.attend(flat, rows, position, start, self._form, out)
            mixed = out.view(tokens, heads, -1)[..., : self._rank]
        return _by_head(mixed, self._out_of).reshape(tokens, -1)

    def _mixed_in_window(self, queries: Tensor, rows: Tensor, position: Tensor) -> Tensor:
        """queries [tokens, heads, width], the first at `position` -> mixtures of latents, [tokens, heads, rank].

        Rows may be wider than what the kernels have room for; of those in a window there are few.
        """
        tokens, window, form = len(queries), self._window, self._form
        first = position - (window - 1)  # that the first of the tokens sees
        numbers = torch.arange(window - 1 + tokens, device=rows.device)
        seen = rows.index_select(0, torch.clamp(first + numbers, min=0)).float()
        ages = torch.arange(tokens, device=rows.device)[:, None] + (window - 1) - numbers  # [tokens, rows]
        sees = (ages >= 0) & (ages < window) & (first + numbers >= 0)
        scores = (queries @ seen.T * form.scale).masked_fill(~sees[:, None], -torch.inf)
        return torch.softmax(scores, -1) @ seen[:, : self._rank]

    def _rotated(self, x: Tensor, positions: DevicePositions, where: Tensor) -> Tensor:
        """x [tokens, heads, rank + rotary_dim], the last rotary_dim of each head rotated."""
        cos, sin = (table.index_select(0, where)[:, None] for table in (positions.cos, positions.sin))
        rest, end = torch.split(x, [self._rank, self._rope.rotary_dim], -1)
        left, right = (end[..., ::2], end[..., 1::2]) if self._rope.interleaved else end.chunk(2, -1)
        return torch.cat([rest, left * cos - right * sin, right * cos + left * sin], -1)


def growth_in(weights: DeviceWeights, growth: Growth | None) -> Callable[[Tensor, Tensor], Tensor] | None:
    """What multiplies queries [tokens, heads * head_dim] at positions [tokens]."""
    if growth is None:
        return None
    scale, bias = weights.vector(growth.scale), weights.vector(growth.bias)

    def grown(queries: Tensor, where: Tensor) -> Tensor:
        factors = torch.log((where + 1).float())[:, None] * scale + bias
        return (queries.view(len(queries), len(scale), -1) * factors[..., None]).view(queries.shape)

    return grown


def _by_head(x: Tensor, weights: Tensor) -> Tensor:
    """x [tokens, heads, cols] times weights [heads, cols, rows] -> [tokens, heads, rows], in the weights' type."""
    return torch.bmm(x.transpose(0, 1).to(weights.dtype), weights).float().transpose(0, 1)
