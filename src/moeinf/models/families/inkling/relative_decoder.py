"""Decoders whose scores are biased by distance, in two kinds of layers with short convolutions (Inkling's).

Attention has no positions: each token adds to its scores by how far back a place lies. Keys, values and what attention
and blocks add go through short convolutions. Layers have a window, or see all tokens and have other sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError
from moeinf.models.activations import silu_alone
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import CommonAttention, Connections
from moeinf.models.layers.attention.own_heads import heads_workspace
from moeinf.models.layers.attention_config import NormConfig, Scores, Shapes, Sharpening, Sight
from moeinf.models.layers.decoder import DecoderConfig, Logits, parse_decoder
from moeinf.models.layers.moe import Moe
from moeinf.models.layers.moe_plan import interleaved
from moeinf.models.layers.recurrent.beside import convolutions_bytes
from moeinf.models.text_part import text_part
from moeinf.types import JsonObject, TensorPlan, Workspace

KEYS, VALUES, ATTENTION, BLOCK = range(4)  # the convolutions of a layer
PROJECTIONS = ("wq_du", "wk_dv", "wv_dv", "wr_du", "wo_ud")
_CONVOLUTIONS = ("attn.k_sconv", "attn.v_sconv", "attn_sconv", "mlp_sconv")
_PREFIX = "model.llm."


@dataclass(frozen=True, slots=True)
class RelativeAttention(CommonAttention):
    """What the attention of Inkling's generations shares, whose tensors have the same names.

    Shapes are without norms, and without the convolutions of keys and values.
    """

    kernel: int  # tokens that convolutions see
    d_rel: int  # numbers of a head's state
    whole_extent: int  # distances that layers without a window know

    @property
    def widths(self) -> tuple[int, ...]:
        """The channels of its convolutions, in their order."""
        keys = self.config.num_kv_heads * self.config.head_dim
        return keys, keys, self.config.hidden_size, self.config.hidden_size

    @property
    def state_bytes(self) -> int:
        return convolutions_bytes(self.kernel, sum(self.widths))

    def convolutions(self, decoder: DecoderConfig, layer: int) -> list[str]:
        """What the names of their tensors begin with."""
        return [f"{decoder.module(layer, name)}." for name in _CONVOLUTIONS]

    def shapes(self, decoder: DecoderConfig, layer: int) -> Shapes:
        a, prefix = self.config, decoder.attention_site(layer).prefix
        queries, keys = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
        rows = zip(PROJECTIONS, (queries, keys, keys, a.num_heads * self.d_rel), strict=False)
        shapes: Shapes = {f"{prefix}{name}.weight": (count, a.hidden_size) for name, count in rows}
        shapes[f"{prefix}wo_ud.weight"] = (a.hidden_size, queries)
        shapes[f"{prefix}rel_logits_proj.proj"] = (self.d_rel, a.window or self.whole_extent)
        for name in self.convolutions(decoder, layer)[ATTENTION:]:
            shapes[f"{name}weight"] = (a.hidden_size, 1, self.kernel)
        return shapes

    def workspace(self, decoder: DecoderConfig) -> Workspace:
        return heads_workspace(self.config, 2 * self.config.num_heads * (self.d_rel + 1) + 4 * sum(self.widths))


def parse_relative(
    f: Fields, num_layers: int, *, scale: Callable[[int], float]
) -> tuple[DecoderConfig, dict[int, RelativeAttention]]:
    """The decoder, and what each of its layers has. scale: of the scores, by the size of heads."""
    silu_alone(f)
    f.only("attention_bias", False, None)
    f.present("num_attention_heads", "num_key_value_heads", "head_dim", "d_rel", "rel_extent")
    f.present("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim")
    f = f.replaced(max_position_embeddings=f.count_of("max_position_embeddings", "model_max_length"))
    kernel = f.count_of("conv_kernel_size", "sconv_kernel_size")
    decoder, sizes = _decoder(f, num_layers, scale), (f.count("d_rel"), f.count("rel_extent"))
    return decoder, {i: RelativeAttention(decoder.attention_of(i), kernel, *sizes) for i in range(num_layers)}


@dataclass(frozen=True, slots=True)
class NormedConnections(Connections):
    """With a norm of the embedding."""

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        return {self.norm(decoder).name: (decoder.attention.hidden_size,)}

    def norm(self, decoder: DecoderConfig) -> NormConfig:
        return NormConfig(f"{decoder.prefix}embed_norm.weight", decoder.attention.norm_eps)


@dataclass(frozen=True, slots=True)
class InterleavedMoe(Moe):
    """Experts of which one tensor has the rows of gate and up in turn."""

    def plan(self, decoder: DecoderConfig, dense: Shapes) -> TensorPlan:
        prefixes = [f"{decoder.layer(i)}{self.names.block}experts." for i in self.moe_layers]
        layout = interleaved(prefixes, self.moe, decoder.attention.hidden_size, self.moe_intermediate_size)
        return replace(Moe.plan(self, decoder, dense), experts=(layout,))


def text_fields(config: JsonObject) -> Fields:
    """Of the language model, of a whole checkpoint or alone."""
    return text_part(config, prefix=_PREFIX).fields


def _decoder(f: Fields, num_layers: int, scale: Callable[[int], float]) -> DecoderConfig:
    floor = f.count("log_scaling_n_floor", 0)
    sharpening = Sharpening(f.number("log_scaling_alpha", 0.1), floor, 1, growth="smooth") if floor else None
    kinds = f.kinds("layer_types", num_layers, "hybrid_sliding", "hybrid")
    if kinds is None:
        local = f.get("local_layer_ids")
        sliding = [i for i in range(num_layers) if (i + 1) % 6] if local is None else f.layers("local_layer_ids")
    else:
        sliding = [i for i, kind in enumerate(kinds) if kind == "hybrid_sliding"]
    head_dim, swa_dim = _even(f, "head_dim"), _even(f, "swa_head_dim")
    decoder = parse_decoder(
        f, norm_eps=1e-6, theta=1e4, rope=None, scores=Scores(scale(head_dim), sharpening=sharpening)
    )
    special = replace(
        decoder.attention,
        num_heads=f.count("swa_num_attention_heads"),
        num_kv_heads=f.count("swa_num_key_value_heads"),
        head_dim=swa_dim,
        scores=Scores(scale(swa_dim)),
        sight=Sight(f.count_of("sliding_window_size", "sliding_window")),
    )
    unpadded = f.count("unpadded_vocab_size", decoder.vocab_size, maximum=decoder.vocab_size)
    return replace(
        decoder.named(prefix=_PREFIX, head_prefix=_PREFIX, embedding="embed", head="unembed.weight", attention="attn"),
        special={i: special for i in sliding if i < num_layers},
        logits=Logits(count=unpadded),
    )


def _even(f: Fields, name: str) -> int:
    size = f.count(name, minimum=2)
    if size % 2:
        raise CheckpointError(f"{f.said(name)} is {size}; moeinf computes heads of an even size")
    return size
