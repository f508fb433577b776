"""Attention with grouped keys and values on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from moeinf.gpu.matrix import MAX_ROWS, DeviceMatrix, DeviceRouting
from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues
from moeinf.models.gpu.heads import attend_by_scores
from moeinf.models.gpu.rotary import DevicePositions, sharpened
from moeinf.models.gpu.weights import DeviceMemory
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.attention_config import Gate, NormConfig
from moeinf.models.layers.kv_cache import Cache, OneByOne
from moeinf.models.layers.soft_tokens import ends_seen


class DeviceAttention(OneByOne[Tensor, DevicePositions]):
    """An AttentionPart."""

    def __init__(self, memory: DeviceMemory, part: AttentionPart[Tensor, DevicePositions, DeviceRouting]) -> None:
        config, site, weights = part.config, part.site, memory.weights
        assert config.sight.sees != "all", "towers run on the CPU"
        assert config.norm not in ("layer", "centred") or config.head_norms is None, (
            "no family has layer norms of heads"
        )
        assert config.scores.sharpening is None or config.scores.sharpening.growth != "smooth"
        assert config.scores.cap is None or (config.sight.sees == "past" and not config.sight.chunked)
        c = self._config = config
        p, gate, norms = c.projections, c.gate, c.head_norms
        gated = gate is not None and gate.name is None
        weights = weights.with_wide_heads(config, site.prefix)
        self._memory, self._weights, self._layer, self._residual = memory, weights, site.layer, site.residual
        self._replaces = site.replaces
        prefix = site.prefix
        inputs = "qkk" if p.values_of_keys else "qkv"
        names = [f"{prefix}{n}_proj.weight" for n in inputs]
        queries, keys = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        values = c.num_kv_heads * (p.value_dim or c.head_dim)
        self._rows = [queries, keys, values]
        fused = p.fused is not None
        if fused or len({weights.format_of(name) for name in names}) == 1:  # one product of one token instead of three
            stacked = weights.matrix(f"{prefix}{p.fused}.weight") if fused else weights.stacked(names)
            if gated:
                _gates_behind(stacked.data.view(stacked.rows, -1)[: 2 * queries], c.num_heads)
            self._stacked: DeviceMatrix | None = stacked
            self._matrices = _cut(self._stacked, [queries * (2 if gated else 1), keys, values])
        else:
            self._stacked = None
            self._matrices = [weights.matrix(name) for name in names]
            if gated:
                _gates_behind(self._matrices[0].data.view(2 * queries, -1), c.num_heads)
        biases = [weights.vector(f"{prefix}{n}_proj.bias") for n in inputs] if p.bias else []
        if biases and gated:
            _gates_behind(biases[0].view(2 * queries, 1), c.num_heads)
        self._biases: Sequence[Tensor | None] = biases or [None, None, None]
        self._bias = torch.cat(biases) if biases else None
        self._output = weights.matrix(f"{prefix}{p.output}.weight")
        output_bias = weights.vector(f"{prefix}{p.output}.bias") if p.output_bias else None
        self._plain_output_bias = output_bias
        self._output_bias = None if output_bias is None else output_bias * site.residual
        front_eps = c.norm_eps if site.front_eps is None else site.front_eps
        self._norm = None if site.norm is None else weights.norm(NormConfig(site.norm, front_eps, c.norm))
        self._output_norm = (
            None if site.output_norm is None else weights.norm(NormConfig(site.output_norm, c.norm_eps, c.norm))
        )
        self._gated, self._gate, self._gate_bias = gated, None, None
        if gate is not None and gate.name is not None:
            self._gate = weights.matrix(f"{prefix}{gate.name}.weight")
        if gate is not None and gate.bias is not None:
            self._gate_bias = self._biases_of_gates(prefix + gate.bias, gate)
        self._q_norm, self._k_norm = self._head_norms(prefix)
        self._v_norm = (
            torch.ones(c.head_dim, device=weights.device.kind) if norms is not None and norms.of_values else None
        )
        self._after: Tensor | None = None
        if norms is not None and norms.over == "turned" and norms.names is not None:
            self._norms_behind_positions()
        self._sinks = None if c.scores.sinks is None else weights.vector(prefix + c.scores.sinks)

    def _head_norms(self, prefix: str) -> tuple[Tensor | None, Tensor | None]:
        c, norms = self._config, self._config.head_norms
        if norms is None:
            return None, None
        if norms.names is None:  # which no rotation changes
            ones = torch.ones(c.head_dim, device=self._weights.device.kind)
            return ones, ones
        q_norm, k_norm = (self._weights.norm_weight(f"{prefix}{name}.weight", c.norm) for name in norms.names)
        return q_norm, k_norm

    def _biases_of_gates(self, name: str, gate: Gate) -> Tensor:
        """As many as gates."""
        biases = self._weights.vector(name)
        return biases if gate.per_head else biases.repeat_interleave(self._config.head_dim)

    def _norms_behind_positions(self) -> None:
        """A rotation keeps the size of a head: norms without weights may stand in front of it. The weights of queries
        and of keys meet in each product, so that both are multiplied into the queries, behind it."""
        q_norm, k_norm, rope = self._q_norm, self._k_norm, self._config.rope
        assert q_norm is not None and k_norm is not None and (rope is None or rope.scale == 1.0)
        self._after = (q_norm * k_norm).repeat(self._config.num_heads)
        self._q_norm, self._k_norm = torch.ones_like(q_norm), torch.ones_like(k_norm)

    def new_state(self, capacity: int) -> KVState[Tensor]:
        c = self._config
        return KVState(self._memory, c.num_kv_heads, c.head_dim, capacity)

    def add_to(self, x: Tensor, cache: Cache, positions: DevicePositions) -> None:
        weights, vectors, c = self._weights, self._weights.ops.vectors, self._config
        value_dim = c.projections.value_dim
        hidden = x if self._norm is None else self._norm(x)
        q, k, v = self._projected(hidden)
        gate = q[:, self._rows[0] :] if self._gated else None
        if self._gate is not None:
            gate = weights.product(hidden, self._gate, self._gate_bias)
        q = q[:, : self._rows[0]].contiguous() if self._gated else q
        q_norm, k_norm = self._q_norm, self._k_norm
        if c.head_norms is not None and c.head_norms.over == "full":  # over all heads together, before anything else
            assert q_norm is not None and k_norm is not None
            q, k = weights.normed(q, q_norm, c.norm_eps), weights.normed(k, k_norm, c.norm_eps)
            q_norm = k_norm = None
        if self._v_norm is not None:
            v = weights.normed(v.contiguous().view(-1, c.head_dim), self._v_norm, c.norm_eps).view(v.shape)
        if value_dim is not None:
            heads = v.reshape(len(v), c.num_kv_heads, value_dim)
            v = torch.nn.functional.pad(heads, (0, c.head_dim - value_dim)).reshape(k.shape)
        state: KVState[Tensor] = cache.states[self._layer]
        turned = slice(0, None if c.rope is not None else 0)  # a layer of a model with positions may have none
        form = HeadForm(
            positions.cos[:, turned],
            positions.sin[:, turned],
            c.rope is not None and c.rope.interleaved,
            q_norm,
            k_norm,
            c.norm_eps,
            c.projections.clip or 0.0,
        )
        mixture = torch.empty_like(q)
        vectors.rope_store(q, k, v, form, positions.position, KeyValues(state.keys, state.values))
        if self._after is not None:
            q *= self._after
        if c.scores.sharpening is not None:
            q *= sharpened(c.scores.sharpening, positions, 0, len(q))
        together = c.sight.sees == "picture" and len(q) > 1  # a picture of one token sees itself
        ends = ends_seen(cache.pictures, positions.start, len(q)) if together else None
        attention = AttentionForm(
            c.scale, c.window, self._sinks, chunked=c.sight.chunked, ends=ends, cap=c.scores.cap or 0.0
        )
        self.attend(q, cache, positions, attention, mixture)
        if value_dim is not None:
            mixture = mixture.view(len(x), c.num_heads, c.head_dim)[..., :value_dim].reshape(len(x), -1)
        if gate is not None and c.gate is not None:
            gate = torch.nn.functional.softplus(gate) if c.gate.function == "softplus" else torch.sigmoid(gate)
            mixture *= gate.repeat_interleave(c.head_dim, 1) if c.gate.per_head else gate
        if self._output_norm is not None or self._replaces:
            out = weights.product(mixture, self._output, self._plain_output_bias)
            added = (out if self._output_norm is None else self._output_norm(out)) * self._residual
            x.copy_(added if self._replaces else x + added)
            return
        if self._residual != 1.0:
            mixture *= self._residual
        weights.ops.matrices.linear(mixture, self._output, x, self._output_bias, add=True)

    def attend(self, q: Tensor, cache: Cache, positions: DevicePositions, form: AttentionForm, out: Tensor) -> None:
        """q, out [tokens, heads * head_dim], of the first tokens of a pass, whose keys and values are stored."""
        state: KVState[Tensor] = cache.states[self._layer]
        keys_values = KeyValues(state.keys, state.values)
        if form.cap and len(q) > MAX_ROWS:
            attend_by_scores(q, keys_values, positions.start, self._config, out)
            return
        self._weights.ops.vectors.attend(q, keys_values, positions.position, positions.start, form, out)

    def _projected(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if len(hidden) == 1 and self._stacked is not None:
            product = self._weights.product(hidden, self._stacked, self._bias)
            q, k, v = torch.split(product, [m.rows for m in self._matrices], dim=1)
            return q, k, v
        q, k, v = (
            self._weights.product(hidden, matrix, bias)
            for matrix, bias in zip(self._matrices, self._biases, strict=True)
        )
        return q, k, v


def _gates_behind(rows: Tensor, num_heads: int) -> None:
    """Reorders rows, of a query and then a gate for each head, into all queries and then all gates. In place."""
    heads = rows.view(num_heads, 2, -1, rows.shape[1])
    rows.copy_(heads.transpose(0, 1).reshape(rows.shape))


def _cut(matrix: DeviceMatrix, rows: Sequence[int]) -> list[DeviceMatrix]:
    """The matrices that were stacked, without copying."""
    parts = torch.split(matrix.data, [len(matrix.data) // matrix.rows * count for count in rows])
    return [DeviceMatrix(part, matrix.format, count, matrix.cols) for part, count in zip(parts, rows, strict=True)]
