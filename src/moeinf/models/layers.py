"""The dense pieces that decoder families share: norm, rotary positions, attention, gated MLP."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from moeinf.errors import CheckpointError
from moeinf.models.kv_cache import KVCache

ROWS_AT_ONCE = 128  # tokens of a prefill chunk that attention takes at once: its temporaries are 40 KiB a token

Weights = Mapping[str, Tensor]
Shapes = dict[str, tuple[int, ...]]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / rms(x) * weight over the last dimension; the mean in float32, as transformers does it."""
    wide = x.float()
    wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return weight * wide.to(x.dtype)


def rotary_tables(start: int, num_tokens: int, head_dim: int, theta: float, dtype: torch.dtype
                  ) -> tuple[Tensor, Tensor]:
    """cos and sin [tokens, head_dim] of positions start..start+num_tokens; halves repeated (GPT-NeoX pairing)."""
    inverse = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim)
    angles = torch.outer(torch.arange(start, start + num_tokens).float(), inverse)
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions on x [heads, tokens, head_dim]."""
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + turned * sin


def attend(query: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """Causal attention of the last `tokens` positions over all of them, in groups that share a key/value head.

    query [heads, tokens, head_dim]; keys, values [kv_heads, positions, head_dim]; result like query.
    window: a token sees itself and the window-1 tokens before it.
    """
    heads, tokens, head_dim = query.shape
    kv_heads, positions, _ = keys.shape
    if tokens == 1:  # queries of a group become rows of one call: 17 times faster than repeating the keys
        first = max(0, positions - window) if window else 0
        folded = query.view(1, kv_heads, heads // kv_heads, head_dim)
        out = F.scaled_dot_product_attention(folded, keys[None, :, first:], values[None, :, first:])
        return out.reshape(heads, 1, head_dim)
    grouped = query.view(kv_heads, heads // kv_heads, tokens, head_dim)
    keys = keys[:, None].expand(-1, heads // kv_heads, -1, -1)  # stride 0: nothing is copied
    values = values[:, None].expand(-1, heads // kv_heads, -1, -1)
    if tokens == positions and (window is None or tokens <= window):
        out = F.scaled_dot_product_attention(grouped, keys, values, is_causal=True)
    else:
        here = torch.arange(positions - tokens, positions)[:, None]
        there = torch.arange(positions)[None, :]
        mask = there <= here if window is None else (there <= here) & (there > here - window)
        out = F.scaled_dot_product_attention(grouped, keys, values, attn_mask=mask)
    return out.reshape(heads, tokens, head_dim)


@dataclass(frozen=True, slots=True)
class AttentionConfig:
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    rope_theta: float
    bias: bool = False
    qk_norm: Literal["none", "head", "full"] = "none"  # over each head, or over all heads together
    clip_qkv: float | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.num_heads % self.num_kv_heads or self.head_dim % 2:
            raise CheckpointError(
                f"config.json: {self.num_heads} attention heads cannot share {self.num_kv_heads} key/value heads "
                f"of an even size (head_dim {self.head_dim})"
            )


class Attention:
    """Multi-head attention with grouped keys and values; weights under the prefix, in Hugging Face names."""

    def __init__(self, config: AttentionConfig, weights: Weights, prefix: str, layer: int) -> None:
        self._config = config
        self._layer = layer
        self._qkv = tuple((weights[f"{prefix}{n}_proj.weight"], weights.get(f"{prefix}{n}_proj.bias")) for n in "qkv")
        self._out = (weights[f"{prefix}o_proj.weight"], weights.get(f"{prefix}o_proj.bias"))
        self._norms = tuple(weights.get(f"{prefix}{n}_norm.weight") for n in "qk")

    def __call__(self, x: Tensor, cache: KVCache, cos: Tensor, sin: Tensor) -> Tensor:
        """x and result [tokens, hidden]; stores the tokens' keys and values."""
        if len(x) <= ROWS_AT_ONCE:
            return self._block(x, cache, cos, sin, 0)
        starts = range(0, len(x), ROWS_AT_ONCE)
        pieces = (torch.split(t, ROWS_AT_ONCE) for t in (x, cos, sin))
        return torch.cat([self._block(a, cache, b, c, at) for at, a, b, c in zip(starts, *pieces, strict=True)])

    def _block(self, x: Tensor, cache: KVCache, cos: Tensor, sin: Tensor, at: int) -> Tensor:
        """The rows of a chunk that begin at its row `at`; those before have been through."""
        c = self._config
        query, key, value = (F.linear(x, weight, bias) for weight, bias in self._qkv)
        if c.qk_norm == "full":
            query, key = self._normed(query, 0), self._normed(key, 1)
        if c.clip_qkv is not None:
            query, key, value = (t.clamp(-c.clip_qkv, c.clip_qkv) for t in (query, key, value))
        query = query.view(-1, c.num_heads, c.head_dim)
        key = key.view(-1, c.num_kv_heads, c.head_dim)
        value = value.view(-1, c.num_kv_heads, c.head_dim)
        if c.qk_norm == "head":
            query, key = self._normed(query, 0), self._normed(key, 1)
        query, key = rotate(query.transpose(0, 1), cos, sin), rotate(key.transpose(0, 1), cos, sin)
        keys, values = cache.append(self._layer, key, value.transpose(0, 1), at)
        out = attend(query.contiguous(), keys, values, c.window)
        return F.linear(out.transpose(0, 1).reshape(x.shape[0], -1), *self._out)

    def _normed(self, x: Tensor, which: int) -> Tensor:
        weight = self._norms[which]
        assert weight is not None, "the tensor plan requires it"
        return rms_norm(x, weight, self._config.norm_eps)


def attention_shapes(config: AttentionConfig, prefix: str) -> Shapes:
    """Names and shapes of the tensors that Attention takes."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: Shapes = {
        f"{prefix}q_proj.weight": (queries, config.hidden_size),
        f"{prefix}k_proj.weight": (keys, config.hidden_size),
        f"{prefix}v_proj.weight": (keys, config.hidden_size),
        f"{prefix}o_proj.weight": (config.hidden_size, queries),
    }
    if config.bias:
        shapes |= {f"{prefix}{n}_proj.bias": (shapes[f"{prefix}{n}_proj.weight"][0],) for n in "qkvo"}
    if config.qk_norm != "none":
        whole = config.qk_norm == "full"
        shapes[f"{prefix}q_norm.weight"] = (queries if whole else config.head_dim,)
        shapes[f"{prefix}k_norm.weight"] = (keys if whole else config.head_dim,)
    return shapes


class GatedMLP:
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self._gate, self._up, self._down = (weights[f"{prefix}{n}_proj.weight"] for n in ("gate", "up", "down"))

    def __call__(self, x: Tensor) -> Tensor:
        return gated_mlp(x, self._gate, self._up, self._down)


def gated_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """x [tokens, hidden]; gate, up [intermediate, hidden]; down [hidden, intermediate]; result like x."""
    return F.linear(F.silu(F.linear(x, gate)).mul_(F.linear(x, up)), down)


def expert_mlp(x: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    """gated_mlp over rows padded to a few sizes.

    In a prefill every expert has another number of tokens, and oneDNN compiles and keeps a kernel for each: 100 MB
    after 512 tokens, and the time of compiling them.
    """
    rows = len(x)
    padded = 1 << (rows - 1).bit_length() if rows <= 64 else -(-rows // 64) * 64
    if padded == rows:
        return gated_mlp(x, gate, up, down)
    return gated_mlp(F.pad(x, (0, 0, 0, padded - rows)), gate, up, down)[:rows]


def mlp_shapes(hidden: int, intermediate: int, prefix: str) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (intermediate, hidden),
        f"{prefix}up_proj.weight": (intermediate, hidden),
        f"{prefix}down_proj.weight": (hidden, intermediate),
    }
