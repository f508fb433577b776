"""MiniCPM, with experts and without: Llama or Mixtral with Granite's multipliers under other names.

As vLLM's minicpm.py reads and computes openbmb/MiniCPM-MoE-8x2B (arXiv 2404.06395, table 7; MiniCPMForCausalLM).
"""

from __future__ import annotations

from moeinf.models.families.llama.dense_mlps import dense_mlps
from moeinf.models.families.mixtral.granitemoe import granite_decoder
from moeinf.models.fields import MOST_LAYERS, Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.moe import BlockNames, all_routed
from moeinf.models.layers.routers import softmax_router


def _parse(f: Fields) -> Spec:
    f.only("sparse_config", None)
    layers = f.count("num_hidden_layers", maximum=MOST_LAYERS)
    decoder = granite_decoder(
        f.replaced(
            tie_word_embeddings=f.flag("tie_word_embeddings", True),
            attention_multiplier=None,
            embedding_multiplier=f.number("scale_emb", 1.0),
            residual_multiplier=f.number("scale_depth", 1.0) / layers**0.5,
            logits_scaling=f.count("hidden_size") / f.number("dim_model_base", 1.0),
        )
    )
    if f.get("num_experts") in (None, 0):
        return Spec(decoder, dense_mlps(f, decoder))
    moe = routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), layers)
    names = BlockNames(experts=("w1", "w3", "w2"))
    return Spec(decoder, all_routed(moe, f.count("intermediate_size"), softmax_router, names))


class Family(DecoderFamily):
    name = "minicpm"
    parse = staticmethod(_parse)
