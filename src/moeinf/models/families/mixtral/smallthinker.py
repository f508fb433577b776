"""SmallThinker: routers see what attention is given, so that experts are known before it (SmallThinkerForCausalLM).

Follows modeling_smallthinker.py of PowerInfer/SmallThinker-4BA0.6B-Instruct: gates with relu, layers with a window or
without positions as two lists say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.decoder import DecoderConfig, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, Scoring
from moeinf.models.layers.moe_block import Routed
from moeinf.models.layers.protocol import Block, Experts, Layers
from moeinf.models.layers.routers import SigmoidRouter, softmax_router
from moeinf.types import Profiler

_NAMES = BlockNames("block_sparse_moe.", "primary_router.weight", experts=("gate", "up", "down"))


def _parse(f: Fields) -> Spec:
    f.fixed(
        hidden_act="relu",
        norm_topk_prob=True,
        attention_bias=False,
        use_qk_norm=False,
        moe_enable_early_router=True,
        moe_enable_secondary_experts=False,
        moe_shared_primary_experts=0,
    )
    f.present("head_dim", "tie_word_embeddings")
    decoder = parse_decoder(f, norm_eps=1e-6, theta=1e6)
    layers = range(decoder.num_layers)
    f.only("moe_layer_layout", [1] * len(layers), None)
    slides, turned = _layout(f, "sliding_window_layout", layers, 0), _layout(f, "rope_layout", layers, 1)
    decoder = decoder.with_windows(slides, f.count("sliding_window_size", 4096))
    decoder = decoder.without_positions({i for i in layers if not turned[i]})
    blocks = BeforeAttention(
        routed_shape(f, ("moe_num_primary_experts",), f.count("moe_num_active_primary_experts"), len(layers)),
        tuple(layers),
        0,
        f.count("moe_ffn_hidden_size"),
        softmax_router if f.flag("moe_primary_router_apply_softmax", False) else SigmoidRouter,
        scoring=Scoring(corrected=False),
        names=_NAMES,
    )
    return Spec(replace(decoder, activation="relu"), blocks)


def _layout(f: Fields, name: str, layers: range, otherwise: int) -> list[bool]:
    """Of each layer, what a list of 0 and 1 says."""
    found = [otherwise] * len(layers) if f.get(name) is None else f.counts(name, len(layers), maximum=1)
    return [each == 1 for each in found]


@dataclass(frozen=True, slots=True)
class BeforeAttention(Moe):
    """Experts are chosen by the state in front of attention, without its norm, and given the state behind it."""

    def routed(
        self, decoder: DecoderConfig, layers: Layers, experts: Experts, profiler: Profiler, site: BlockSite
    ) -> Block:
        router = self.router(layers, self, replace(site, norm=None))
        return Routed(site.moe_layer, router, experts, profiler, norm=layers.weights.norm(site.norm))


class Family(DecoderFamily):
    name = "smallthinker"
    parse = staticmethod(_parse)
