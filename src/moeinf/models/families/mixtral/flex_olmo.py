"""FlexOlmo: OLMoE with its norms behind attention and experts instead of in front of them (arXiv 2507.07024)."""

from __future__ import annotations

from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.array_math import Hidden
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import LayerNorms, parse_decoder
from moeinf.models.layers.moe import BlockNames, BlockSite, Moe, all_routed
from moeinf.models.layers.protocol import Layers

NORMS = LayerNorms(attention=None, behind_attention="post_attention_layernorm", block=None)
NAMES = BlockNames(behind="post_feedforward_layernorm")


class Router:
    """Softmax over all experts of x as it is, and of these the best k."""

    def __init__(self, layers: Layers, moe: Moe, site: BlockSite) -> None:
        self._weights, self._gate = layers.weights, layers.weights.linear(site.block + moe.names.gate)
        self._top_k, self._normalise = moe.moe.top_k, moe.scoring.normalise

    def __call__(self, x: Hidden) -> tuple[Hidden, object]:
        math = self._weights.math
        scores = math.softmax(self._gate(x))
        ids = math.top_k(scores, self._top_k)
        chosen = math.take(scores, ids)
        if self._normalise:
            chosen = chosen / math.sum(chosen, -1, True)
        return x, self._weights.routing(ids, chosen)


class Family(DecoderFamily):
    name = "flex_olmo"

    @staticmethod
    def parse(f: Fields) -> Spec:
        decoder = parse_decoder(f, norm_eps=1e-6, theta=5e5, head_norms=HeadNorms("full")).named(norms=NORMS)
        moe = routed_shape(f, ("num_experts", "num_local_experts"), f.count("num_experts_per_tok"), decoder.num_layers)
        normalise = f.flag("norm_topk_prob", False)
        return Spec(decoder, all_routed(moe, f.count("intermediate_size"), Router, NAMES, normalise=normalise))
