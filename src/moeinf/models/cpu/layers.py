"""Layers on the CPU: numpy arrays in, the native kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.attention import Angles, NativeAttention
from moeinf.models.cpu.beams import HostBeams
from moeinf.models.cpu.compressed import NativeCompressedCore
from moeinf.models.cpu.delta import NativeChannelDelta, NativeDeltaNet
from moeinf.models.cpu.heads import ChosenValueExperts, NativeHeadsCore, NativeMixedHeads
from moeinf.models.cpu.indexed import NativeIndexedCore
from moeinf.models.cpu.latent import NativeLatentCore
from moeinf.models.cpu.mamba import NativeChannelScan, NativeMamba2, NativeScan
from moeinf.models.cpu.paged_rows import SequencePages
from moeinf.models.cpu.pooled import NativePooledCore
from moeinf.models.cpu.router import SoftmaxRouter
from moeinf.models.cpu.sparse import NativeBlockSparse, NativeGroupSparse
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention.block_sparse import BlockSparsePart
from moeinf.models.layers.attention.group_sparse import GroupSparsePart
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention.routed_values import ValueExpertsPart
from moeinf.models.layers.encoder_decoder import BeamsPart
from moeinf.models.layers.kv_cache import Cache, SharedRows, Span
from moeinf.models.layers.latent.compressed import CompressedPart
from moeinf.models.layers.latent.indexed import IndexedPart, PooledPart
from moeinf.models.layers.latent.mla import LatentPart
from moeinf.models.layers.protocol import M, Part, Table
from moeinf.models.layers.recurrent.channel_delta import ChannelDeltaPart
from moeinf.models.layers.recurrent.compressed_heads import MixedHeadsPart
from moeinf.models.layers.recurrent.delta_net import DeltaNetPart
from moeinf.models.layers.recurrent.mamba1 import ChannelScanPart
from moeinf.models.layers.recurrent.mamba2 import Mamba2Part, ScanPart
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.routers import SoftmaxRouterPart
from moeinf.models.layers.weights import Embedding, StoredTensor
from moeinf.types import Float32Array, KVFormat, Routing

PARTS = Table[HostMemory](
    AttentionPart[Float32Array, Angles, Routing].made_by(NativeAttention),
    HeadsPart[Float32Array, Angles, Routing].made_by(NativeHeadsCore),
    ValueExpertsPart[Float32Array, Angles, Routing].made_by(ChosenValueExperts),
    BlockSparsePart[Float32Array, Angles, Routing].made_by(NativeBlockSparse),
    GroupSparsePart[Float32Array, Angles, Routing].made_by(NativeGroupSparse),
    LatentPart[Float32Array, Angles, Routing].made_by(NativeLatentCore),
    IndexedPart[Float32Array, Angles, Routing].made_by(NativeIndexedCore),
    PooledPart[Float32Array, Angles, Routing].made_by(NativePooledCore),
    CompressedPart[Float32Array, Angles, Routing].made_by(NativeCompressedCore),
    DeltaNetPart[Float32Array, Angles, Routing].made_by(NativeDeltaNet),
    ChannelDeltaPart[Float32Array, Angles, Routing].made_by(NativeChannelDelta),
    Mamba2Part[Float32Array, Angles, Routing].made_by(NativeMamba2),
    ScanPart[Float32Array, Angles, Routing].made_by(NativeScan),
    ChannelScanPart[Float32Array, Angles, Routing].made_by(NativeChannelScan),
    MixedHeadsPart[Float32Array, Angles, Routing].made_by(NativeMixedHeads),
    BeamsPart[Float32Array, Angles, Routing].made_by(HostBeams),
    SoftmaxRouterPart[Float32Array, Angles, Routing].made_by(SoftmaxRouter),
)


class NativeLayers:
    """moeinf.models.layers.protocol.Layers over the native kernels, which multiply by a matrix as it is stored."""

    def __init__(
        self,
        kernels: _native.Kernels,
        tensors: Mapping[str, StoredTensor],
        kept: KVFormat,
        pages: SequencePages | None = None,
        spares: int = 0,
    ) -> None:
        """kept: the format of keys and values. pages: where sequences share theirs. spares: experts that routers are
        to name behind those that they choose."""
        self.weights = NativeWeights(kernels, tensors, spares)
        self.memory = HostMemory(self.weights, kept, pages)

    def rows_of_sequence(self) -> AbstractContextManager[SharedRows | None]:
        return nullcontext() if self.memory.pages is None else self.memory.pages.sequence()

    def begin_pass(self, num_tokens: int) -> None:
        self.weights.kernels.begin_pass(num_tokens)

    def carried(self, x: Float32Array) -> Float32Array:
        return x

    def embedding(self, name: str) -> Embedding:
        return Embedding(self.weights.tensors[name])

    def lookup(self, name: str) -> Embedding:
        return Embedding(self.weights.tensors[name])

    def upload(self, rows: Float32Array) -> Float32Array:
        return rows

    def rotary(self, rope: Rope | None, context_length: int) -> Callable[[int, int, Cache], Angles]:
        if rope is None:
            return lambda start, num_tokens, cache: (_NOTHING, _NOTHING)
        if rope.learned is not None:
            rope = replace(rope, frequencies=rope.frequencies * np.exp(self.weights.vector(rope.learned)))
        return lambda start, num_tokens, cache: rope.within(cache.capacity, cache.reach).tables(
            start, num_tokens, cache.pictures
        )

    def angles(self, cos: Float32Array, sin: Float32Array) -> Angles:
        return cos, sin

    def make(self, part: Part[Float32Array, Angles, Routing, M]) -> M:
        return PARTS.make(self.memory, part)

    def run_or_replay(
        self,
        compute: Callable[[Float32Array, Sequence[Span[Angles]]], Float32Array],
        x: Float32Array,
        spans: Sequence[Span[Angles]],
    ) -> Float32Array:
        return compute(x, spans)


_NOTHING: Float32Array = np.empty((0, 0), np.float32)
