"""The decoder that MoE families share: embedding, layers of attention and block, norm, head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from moeinf.laps import Laps
from moeinf.models.fields import Fields, rope_theta
from moeinf.models.kv_cache import KVCache
from moeinf.models.layers import (
    Attention,
    AttentionConfig,
    Shapes,
    Weights,
    attention_shapes,
    rms_norm,
    rotary_tables,
)
from moeinf.types import Experts, Routing


@dataclass(frozen=True, slots=True)
class DecoderConfig:
    attention: AttentionConfig
    num_layers: int
    vocab_size: int
    context_length: int
    tied_embeddings: bool


def parse_decoder(f: Fields, *, norm_eps: float, theta: float, **features: Any) -> DecoderConfig:
    """The fields that decoder families share, under the names they share; `features` are AttentionConfig's own.

    norm_eps, theta: the family's defaults. Refuses what the shared code does not compute.
    """
    f.only("hidden_act", "silu", None)
    f.only("quantization_config", None)
    heads, hidden = f.count("num_attention_heads"), f.count("hidden_size")
    attention = AttentionConfig(
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=f.count("num_key_value_heads", heads),
        head_dim=f.count("head_dim", hidden // heads, minimum=2),
        norm_eps=f.number("rms_norm_eps", norm_eps),
        rope_theta=rope_theta(f, theta),
        bias=f.flag("attention_bias", False),
        **features,
    )
    return DecoderConfig(attention, f.count("num_hidden_layers"), f.count("vocab_size"),
                         f.count("max_position_embeddings"), f.flag("tie_word_embeddings", False))


class Router(Protocol):
    def __call__(self, hidden: Tensor) -> Routing: ...


class MoeBlock:
    """Router, then the experts: the one call in which a model meets offloading."""

    def __init__(self, moe_layer: int, router: Router, experts: Experts, laps: Laps) -> None:
        self.moe_layer = moe_layer
        self.router = router
        self._experts = experts
        self._laps = laps

    def __call__(self, hidden: Tensor) -> Tensor:
        routing = self.router(hidden)
        self._laps.lap("router")
        return self._experts.run(self.moe_layer, hidden, routing)


Block = Callable[[Tensor], Tensor]  # [tokens, hidden] -> the same; a MoeBlock or a dense MLP


class Decoder:
    """A whole model of one sequence at a time."""

    def __init__(self, config: DecoderConfig, weights: Weights, blocks: Sequence[Block], experts: Experts,
                 laps: Laps) -> None:
        self.config = config
        self._embedding = weights["model.embed_tokens.weight"]
        self._head = self._embedding if config.tied_embeddings else weights["lm_head.weight"]
        self._norm = weights["model.norm.weight"]
        self._attention = [Attention(config.attention, weights, f"model.layers.{i}.self_attn.", i)
                           for i in range(config.num_layers)]
        self._norms = [tuple(weights[f"model.layers.{i}.{n}_layernorm.weight"] for n in ("input", "post_attention"))
                       for i in range(config.num_layers)]
        self._blocks = blocks
        self._experts = experts
        self._laps = laps
        self.dtype = self._embedding.dtype

    def new_cache(self, capacity: int) -> KVCache:
        a = self.config.attention
        return KVCache(self.config.num_layers, a.num_kv_heads, a.head_dim, capacity, self.dtype)

    @torch.inference_mode()
    def forward(self, ids: Tensor, cache: KVCache, between_layers: Callable[[], None] | None = None, *,
                last_only: bool = True) -> Tensor:
        """Logits, float32 [1 or tokens, vocab], of ids int64 [tokens], which follow what the cache holds.

        between_layers may raise to give the pass up; the cache is then as it was before.
        """
        self._laps.lap("other")
        a, eps = self.config.attention, self.config.attention.norm_eps
        x = F.embedding(ids, self._embedding)
        cos, sin = rotary_tables(cache.length, len(ids), a.head_dim, a.rope_theta, self.dtype)
        for layer, (attention, (before, after), block) in enumerate(
            zip(self._attention, self._norms, self._blocks, strict=True)
        ):
            if between_layers is not None:
                between_layers()
            x = x + attention(rms_norm(x, before, eps), cache, cos, sin)
            self._laps.lap("attention")
            self._look_ahead(layer, x)
            x = x + block(rms_norm(x, after, eps))
            self._laps.lap("experts")
        cache.advance(len(ids))
        x = rms_norm(x[-1:] if last_only else x, self._norm, eps)
        logits = F.linear(x, self._head).float()
        self._laps.lap("head")
        return logits

    def _look_ahead(self, layer: int, x: Tensor) -> None:
        """Guesses the next layer's routing by its own router on the state before this layer's experts."""
        if not self._experts.wants_expectations or layer + 1 == len(self._blocks):
            return
        block = self._blocks[layer + 1]
        if isinstance(block, MoeBlock):
            guess = block.router(rms_norm(x, self._norms[layer + 1][1], self.config.attention.norm_eps))
            self._experts.expect(block.moe_layer, guess)
            self._laps.lap("router")


def decoder_shapes(config: DecoderConfig) -> Shapes:
    """Names and shapes of every dense tensor outside the blocks."""
    hidden = config.attention.hidden_size
    shapes: Shapes = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        shapes |= attention_shapes(config.attention, f"model.layers.{i}.self_attn.")
        shapes |= {f"model.layers.{i}.{n}_layernorm.weight": (hidden,) for n in ("input", "post_attention")}
    return shapes


def ignored_tensors(config: DecoderConfig) -> tuple[str, ...]:
    """Tensors that some exporters write although they follow from the rest."""
    tied = (r"lm_head\.weight",) if config.tied_embeddings else ()
    return (r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq", *tied)
