"""Layers on a GPU: float32 torch tensors in, the device's kernels inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from moeinf.gpu.matrix import MAX_ROWS, DeviceRouting
from moeinf.gpu.program import DecodeProgram
from moeinf.models.gpu.attention import DeviceAttention
from moeinf.models.gpu.beams import DeviceBeams
from moeinf.models.gpu.compressed import DeviceCompressedCore
from moeinf.models.gpu.heads import DeviceHeadsCore
from moeinf.models.gpu.indexed import DeviceIndexedCore
from moeinf.models.gpu.latent import DeviceLatentCore
from moeinf.models.gpu.pooled import DevicePooledCore
from moeinf.models.gpu.rotary import DevicePositions, DeviceRotary
from moeinf.models.gpu.router import DeviceSoftmaxRouter
from moeinf.models.gpu.sparse import DeviceBlockSparse, DeviceGroupSparse
from moeinf.models.gpu.staging import Staging
from moeinf.models.gpu.weights import TORCH_DTYPES, DeviceMemory, DeviceWeights
from moeinf.models.layers.attention.block_sparse import BlockSparsePart
from moeinf.models.layers.attention.group_sparse import GroupSparsePart
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention.routed_values import AllValueExperts, ValueExpertsPart
from moeinf.models.layers.encoder_decoder import BeamsPart
from moeinf.models.layers.kv_cache import SharedRows, Span
from moeinf.models.layers.latent.compressed import CompressedPart
from moeinf.models.layers.latent.indexed import IndexedPart, PooledPart
from moeinf.models.layers.latent.mla import LatentPart
from moeinf.models.layers.protocol import M, Part, Table
from moeinf.models.layers.recurrent.channel_delta import ChannelDeltaPart, ChannelDeltaRule
from moeinf.models.layers.recurrent.compressed_heads import MixedHeads, MixedHeadsPart
from moeinf.models.layers.recurrent.delta_net import DeltaNet, DeltaNetPart
from moeinf.models.layers.recurrent.mamba1 import ChannelScan, ChannelScanPart
from moeinf.models.layers.recurrent.mamba2 import Mamba2, Mamba2Part, Scan, ScanPart
from moeinf.models.layers.rope import Rope
from moeinf.models.layers.routers import SoftmaxRouterPart
from moeinf.models.layers.soft_tokens import any_within
from moeinf.models.layers.weights import Embedding
from moeinf.types import DType, Float32Array

PARTS = Table[DeviceMemory](
    AttentionPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceAttention),
    HeadsPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceHeadsCore),
    ValueExpertsPart[Tensor, DevicePositions, DeviceRouting].made_by(AllValueExperts),
    BlockSparsePart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceBlockSparse),
    GroupSparsePart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceGroupSparse),
    LatentPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceLatentCore),
    IndexedPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceIndexedCore),
    PooledPart[Tensor, DevicePositions, DeviceRouting].made_by(DevicePooledCore),
    CompressedPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceCompressedCore),
    DeltaNetPart[Tensor, DevicePositions, DeviceRouting].made_by(DeltaNet),
    ChannelDeltaPart[Tensor, DevicePositions, DeviceRouting].made_by(
        lambda memory, part: ChannelDeltaRule(memory.weights.math)
    ),
    Mamba2Part[Tensor, DevicePositions, DeviceRouting].made_by(Mamba2),
    ScanPart[Tensor, DevicePositions, DeviceRouting].made_by(lambda memory, part: Scan(memory.weights.math)),
    ChannelScanPart[Tensor, DevicePositions, DeviceRouting].made_by(
        lambda memory, part: ChannelScan(memory.weights, part)
    ),
    MixedHeadsPart[Tensor, DevicePositions, DeviceRouting].made_by(
        lambda memory, part: MixedHeads(memory.weights, part)
    ),
    BeamsPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceBeams),
    SoftmaxRouterPart[Tensor, DevicePositions, DeviceRouting].made_by(DeviceSoftmaxRouter),
)


class DeviceLayers:
    """moeinf.models.layers.protocol.Layers over the kernels of a device. Embeddings are looked up in host memory."""

    def __init__(self, weights: DeviceWeights, dtype: DType, context: int, program: DecodeProgram | None) -> None:
        """dtype: of keys and values; context: tokens of a sequence at most; program: None where no step is recorded."""
        self.weights = weights
        self.staging = Staging(weights.device)
        self.memory = DeviceMemory(weights, TORCH_DTYPES[dtype])
        self._context, self._program = context, program
        self._input: Tensor | None = None

    def rows_of_sequence(self) -> AbstractContextManager[SharedRows | None]:
        return nullcontext()

    def begin_pass(self, num_tokens: int) -> None:
        pass  # kernels and cuBLAS go by the rows of each call

    def embedding(self, name: str) -> Callable[[Sequence[int]], Tensor]:
        rows = self.lookup(name)
        return lambda ids: self.upload(rows(ids))

    def lookup(self, name: str) -> Embedding:
        return self.weights.rows(name)

    def upload(self, rows: Float32Array) -> Tensor:
        return self.staging.upload(rows)

    def rotary(self, rope: Rope | None, context_length: int) -> DeviceRotary:
        factors = None if rope is None or rope.learned is None else self.weights.vector(rope.learned)
        return DeviceRotary(self.weights.device.kind, rope, min(context_length, self._context), factors)

    def angles(self, cos: Float32Array, sin: Float32Array) -> DevicePositions:
        position = torch.zeros(1, dtype=torch.int32, device=self.weights.device.kind)
        return DevicePositions(self.weights.math.of_host(cos), self.weights.math.of_host(sin), position, 0)

    def make(self, part: Part[Tensor, DevicePositions, DeviceRouting, M]) -> M:
        return PARTS.make(self.memory, part)

    def carried(self, x: Tensor) -> Tensor:
        self.weights.device.make_current()
        return x.to(self.weights.device.kind, non_blocking=True)  # torch orders the streams of both devices

    def run_or_replay(
        self,
        compute: Callable[[Tensor, Sequence[Span[DevicePositions]]], Tensor],
        x: Tensor,
        spans: Sequence[Span[DevicePositions]],
    ) -> Float32Array:
        """Waits for the device; a decode step, of one token of each beam, becomes a captured program.

        But one of a picture's tokens, to which layers may add what another token's do not.
        """
        cache = spans[0].cache
        few = len(x) <= min(cache.beams, MAX_ROWS) and not any_within(cache.pictures, cache.length, len(x))
        if self._program is None or not few or len(spans) > 1:
            return self.staging.to_host(compute(x, spans))
        if self._input is None or self._input.shape != x.shape:
            self._input = torch.empty_like(x)
        given, owner = self._input.copy_(x), (cache, len(x), cache.positions)
        return self.staging.to_host(self._program.run(lambda: compute(given, spans), owner, lambda: cache.advance(1)))
