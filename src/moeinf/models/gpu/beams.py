"""Attention of an answer to its source and to itself, of several beams side by side, on a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from moeinf.gpu.matrix import MAX_ROWS, DeviceRouting
from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues
from moeinf.models.gpu.rotary import DevicePositions
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.encoder_decoder import BeamsPart
from moeinf.models.layers.kv_cache import Cache


class DeviceBeams:
    """A BeamsPart. Lengths are read on the device, so that a step can be captured.

    To the kernels a step is one token: the heads of all beams side by side, each with keys of its own, over what was
    decoded; and over the source, whose keys they share, queries of one group.
    """

    rewinds = True

    def __init__(self, memory: DeviceMemory, part: BeamsPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        heads, kind = part.heads, memory.weights.device.kind
        self._vectors, self._num_heads, self._scale = memory.weights.ops.vectors, heads.num_heads, heads.scale
        self._bias = None if part.bias is None else part.bias.contiguous()
        shape = (2, part.num_beams, heads.num_heads, part.capacity, heads.head_dim)  # keys, then values
        if part.num_beams > 1 and (memory.spare is None or memory.spare.shape != shape):
            memory.spare = torch.zeros(shape, device=kind)
        self._past, self._spare = torch.zeros(shape, device=kind), memory.spare
        self._source = self._past.new_zeros((2, heads.num_heads, part.capacity, heads.head_dim))
        self._last_of_source = torch.zeros(1, dtype=torch.int32, device=kind)

    def truncate(self, length: int) -> None:
        pass  # what lies behind the cache's length is never read

    def read_source(self, keys: Tensor, values: Tensor) -> None:
        for kept, given in zip(self._source, (keys, values), strict=True):
            kept[:, : len(given)] = given.view(len(given), self._num_heads, -1).transpose(0, 1)
        self._last_of_source.fill_(len(keys) - 1)

    def keep(self, beams: Tensor, length: int) -> None:
        """Takes no memory: it cannot end half-way."""
        assert self._spare is not None, "there is one beam"
        past, spare = (memory[:, :, :, :length] for memory in (self._past, self._spare))
        torch.index_select(past, 1, beams, out=spare[:, : len(beams)])
        past[:, : len(beams)] = spare[:, : len(beams)]

    def over_source(self, q: Tensor) -> Tensor:
        rows = len(q)
        groups = q.view(rows, self._num_heads, -1).transpose(0, 1).reshape(1, -1)  # heads, of each its rows
        out, source = torch.empty_like(groups), KeyValues(*self._source)
        self._vectors.attend(groups, source, self._last_of_source, 0, AttentionForm(self._scale), out)
        return out.view(self._num_heads, rows, -1).transpose(0, 1).reshape(q.shape)

    def over_past(self, q: Tensor, k: Tensor, v: Tensor, cache: Cache, positions: DevicePositions) -> Tensor:
        tokens = len(q) // cache.beams
        queries, k, v = (part.view(tokens, -1) for part in (q, k, v))
        past = KeyValues(*(kept[: cache.beams].flatten(0, 1) for kept in self._past))
        form = AttentionForm(self._scale, bias=self._bias)
        self._vectors.rope_store(queries, k, v, HeadForm(positions.cos, positions.sin), positions.position, past)
        out = torch.empty_like(queries)
        for at in range(0, tokens, MAX_ROWS):
            few = slice(at, at + MAX_ROWS)
            position = positions.position + at if at else positions.position
            self._vectors.attend(queries[few], past, position, positions.start + at, form, out[few])
        return out.view(q.shape)
