"""Attention with grouped keys and values on the CPU, in one native call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

import moeinf._native as _native
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, Sharpening
from moeinf.models.layers.decoder import FEW_ROWS
from moeinf.models.layers.kv_cache import Cache, OneByOne, Span
from moeinf.models.layers.soft_tokens import ends_seen
from moeinf.types import ByteArray, Float32Array, IntArray, KVFormat, Routing

Angles = tuple[Float32Array, Float32Array]  # cos and sin [tokens, rotary_dim / 2]
MOST_BESIDE: Final = 64  # rows of several sequences that the native layer takes


class NativeAttention(OneByOne[Float32Array, Angles]):
    """An AttentionPart. Keys and values are kept in the cache's format."""

    def __init__(self, memory: HostMemory, part: AttentionPart[Float32Array, Angles, Routing]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        assert config.norm not in ("layer", "centred") or config.head_norms is None, (
            "no family has layer norms of heads"
        )
        s = config.scores.sharpening or Sharpening(0.0, 1)
        assert s.growth != "smooth"
        self._memory, self._layer, self._config = memory, site.layer, config
        rope, gate, norms = config.rope, config.gate, config.head_norms
        shape = _native.AttentionShape(
            head_dim=config.head_dim,
            norm_eps=config.norm_eps,
            head_norm="none" if norms is None else norms.over,
            clip=config.projections.clip or 0.0,
            window=config.window,
            rotary_dim=0 if rope is None else rope.rotary_dim,
            interleaved=rope is not None and rope.interleaved,
            scale=config.scores.scale,
            residual=site.residual,
            gated=gate is not None and gate.name is None,
            chunked=config.sight.chunked,
            sharpness=s.sharpness,
            sharp_length=s.length,
            sharp_offset=s.offset,
            replaces=site.replaces,
            softplus_gates=gate is not None and gate.function == "softplus",
            sharp_power=s.growth == "power",
            front_eps=site.front_eps,
            cap=config.scores.cap or 0.0,
            sees_all=config.sight.sees == "all",
        )
        weights = weights.with_wide_heads(config, site.prefix)
        self._native = _native.AttentionLayer(weights.kernels, attention_tensors(weights, config, site), shape)

    def new_state(self, capacity: int) -> KVState[ByteArray]:
        return KVState(self._memory, self._config.num_kv_heads, self._config.head_dim, capacity)

    def add_rows(self, x: Float32Array, spans: Sequence[Span[Angles]]) -> None:
        if len(spans) == 1:
            self._run(x, spans[0].cache, spans[0].positions, None)
            return
        prompts = self._memory.weights.kernels.pass_tokens > FEW_ROWS
        if prompts or len(x) > MOST_BESIDE or self._sees_ahead(spans):
            super().add_rows(x, spans)
            return
        kept = [self._kept(span.cache) for span in spans]
        cos, sin = (np.concatenate([span.positions[i] for span in spans]) for i in range(2))
        self._native.run_beside(x, kept, [span.num_rows for span in spans], cos, sin)

    def _sees_ahead(self, spans: Sequence[Span[Angles]]) -> bool:
        """Whether any row sees one behind its own."""
        return any(self._ends(span.num_rows, span.cache) is not None for span in spans)

    def _kept(self, cache: Cache) -> tuple[ByteArray, ByteArray, KVFormat, int, int]:
        """What the native layer takes of a sequence."""
        state: KVState[ByteArray] = cache.states[self._layer]
        return state.keys, state.values, self._memory.kept, state.room, cache.length

    def add_to(self, x: Float32Array, cache: Cache, positions: Angles) -> None:
        self._run(x, cache, positions, None)

    def _run(self, x: Float32Array, cache: Cache, positions: Angles, chosen: IntArray | None) -> None:
        """chosen: the positions that the last tokens attend to, as the native layer takes them."""
        cos, sin = positions
        self._native.run(x, *self._kept(cache), cos, sin, self._ends(len(x), cache), chosen)

    def _ends(self, num_tokens: int, cache: Cache) -> IntArray | None:
        """Where what each token sees ends; None: with itself."""
        if self._config.sight.sees == "all":
            return np.full(num_tokens, cache.length + num_tokens, np.int64)
        return ends_seen(cache.pictures, cache.length, num_tokens) if self._config.sight.sees == "picture" else None


def attention_tensors(weights: NativeWeights, config: AttentionConfig, site: AttentionSite) -> _native.AttentionTensors:
    def matrix(name: str) -> _native.Matrix:
        return weights.linear(f"{site.prefix}{name}.weight").native

    p, gate, norms = config.projections, config.gate, config.head_norms
    values = "k" if p.values_of_keys else "v"

    def projections() -> list[_native.Matrix]:
        if p.fused is None:
            return [matrix(f"{n}_proj") for n in ("q", "k", values)]
        keys = config.num_kv_heads * config.head_dim
        rows = (config.num_heads * config.head_dim, keys, keys)
        return weights.stacked(f"{site.prefix}{p.fused}.weight", rows)

    def bias(name: str, present: bool) -> Float32Array | None:
        return weights.vector(f"{site.prefix}{name}.bias") if present else None

    def biases() -> list[Float32Array | None]:
        if p.fused is None:
            return [bias(f"{n}_proj", p.bias) for n in ("q", "k", values)]
        whole = bias(p.fused, p.bias)
        if whole is None:
            return [None] * 3
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        return [np.ascontiguousarray(part) for part in np.split(whole, [queries, queries + keys])]

    def head_norm(number: int) -> Float32Array | None:
        if norms is None:
            return None
        if norms.names is None:
            return np.ones(config.head_dim, np.float32)
        return weights.norm_vectors(f"{site.prefix}{norms.names[number]}.weight", config.norm)[0]

    weight, norm_bias = (None, None) if site.norm is None else weights.norm_vectors(site.norm, config.norm)
    query, key, value = projections()
    query_bias, key_bias, value_bias = biases()
    return _native.AttentionTensors(
        query=query,
        key=key,
        value=value,
        output=matrix(p.output),
        norm=weight,
        norm_bias=norm_bias,
        query_norm=head_norm(0),
        key_norm=head_norm(1),
        query_bias=query_bias,
        key_bias=key_bias,
        value_bias=value_bias,
        output_bias=bias(p.output, p.output_bias),
        sinks=None if config.scores.sinks is None else weights.vector(site.prefix + config.scores.sinks),
        output_norm=None if site.output_norm is None else weights.norm_vectors(site.output_norm, config.norm)[0],
        value_norm=np.ones(config.head_dim, np.float32) if norms is not None and norms.of_values else None,
        gate=None if gate is None or gate.name is None else matrix(gate.name),
        gate_bias=None if gate is None or gate.bias is None else weights.vector(site.prefix + gate.bias),
    )
