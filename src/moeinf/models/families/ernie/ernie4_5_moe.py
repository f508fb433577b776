"""ERNIE 4.5: softmax routing with a correction bias, shared experts, rotary pairs side by side (Ernie4_5_Moe)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from moeinf.errors import CheckpointError
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import Shapes
from moeinf.models.layers.decoder import DecoderConfig, Logits, parse_decoder
from moeinf.models.layers.moe import BlockNames, MakeRouter, MlpForm, Moe, Scoring, Shared
from moeinf.models.layers.rope import rope_of, whole_heads
from moeinf.models.layers.routers import SigmoidRouter

_NAMES = BlockNames(bias="moe_statics.e_score_correction_bias")
_MTP = r"model\.mtp_.*"  # further layers that guess tokens ahead: kept, and not used


def _parse(f: Fields) -> Spec:
    spec = parse_with(f, moe_layers(f, f.count("num_hidden_layers", maximum=MOST_LAYERS)))
    return replace(spec, decoder=replace(spec.decoder, logits=Logits(bias=f.flag("use_bias", False))))


def parse_with(f: Fields, layers: tuple[int, ...], router: MakeRouter | None = None) -> Spec:
    """layers: those with experts; router: instead of SoftmaxRouter."""
    f.only("moe_gate", "topk", None)
    f.only("moe_use_aux_free", True, None)  # without it there is no bias
    f.present("tie_word_embeddings")
    decoder = ernie_decoder(f)
    top_k = f.count_of("moe_k", "num_experts_per_tok")
    f.present("moe_num_shared_experts")
    blocks = BiasRowMoe(
        routed_shape(f, ("moe_num_experts", "num_experts"), top_k, decoder.num_layers, layers),
        layers,
        f.count("intermediate_size"),
        f.count("moe_intermediate_size"),
        router or SoftmaxRouter,
        scoring=Scoring(least_sum=f.number("moe_norm_min", 1e-12, zero=True)),
        shared=Shared(f.count("moe_num_shared_experts", 0, minimum=0)),
        form=MlpForm(f.flag("use_bias", False)),
        names=_NAMES,
    )
    return Spec(decoder, blocks)


def ernie_decoder(f: Fields) -> DecoderConfig:
    f.only("attention_bias", False, None)  # its name here is use_bias
    biased = f.flag("use_bias", False)
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    head_dim = f.count("head_dim", hidden // heads, minimum=2)
    context_length = f.count("max_position_embeddings")
    whole_heads(f)
    rope = rope_of(f, head_dim, 5e5, context_length, interleaved=True)
    return parse_decoder(f, norm_eps=1e-5, theta=5e5, rope=rope, bias=biased, output_bias=biased)


def moe_layers(f: Fields, num_layers: int) -> tuple[int, ...]:
    """Every moe_layer_interval-th from moe_layer_start_index to moe_layer_end_index, where -1 is the last."""
    first, step = f.count("moe_layer_start_index", 1, minimum=0), f.count("moe_layer_interval", 1)
    end = f.count("moe_layer_end_index", -1, minimum=-1)
    end = num_layers - 1 if end == -1 else min(end, num_layers - 1)
    layers = tuple(i for i in range(first, end + 1) if (i + 1) % step == 0)
    if not layers:
        raise CheckpointError("config.json: moe_layer_start_index and its kin leave no layer with experts")
    return layers


@dataclass(frozen=True, slots=True)
class BiasRowMoe(Moe):
    """The correction bias is a matrix of one row."""

    def shapes(self, decoder: DecoderConfig) -> Shapes:
        shapes = Moe.shapes(self, decoder)
        return {name: (1, *shape) if name.endswith("_bias") else shape for name, shape in shapes.items()}


class SoftmaxRouter(SigmoidRouter):
    def _scores(self, logits: Array) -> Array:
        return self._math.softmax(logits)

    def _total(self, weights: Array) -> Array:
        math = self._math
        return math.clip(math.sum(weights, -1, True), self._scoring.least_sum, float("inf"))


class Family(DecoderFamily):
    name = "ernie4_5_moe"
    parse = staticmethod(_parse)
    ahead = (_MTP,)
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ((r"\.gate\.moe_statics\.", ".moe_statics."),)
