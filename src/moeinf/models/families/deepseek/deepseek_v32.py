"""DeepSeek-V3.2: DeepSeek-V3, whose tokens attend to the positions that an indexer chooses (arXiv 2512.02556)."""

from __future__ import annotations

from typing import ClassVar

from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.fields import MOST_LAYERS, Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.indexed import INDEX_MATRICES, NO_INDEX_MATRICES, IndexConfig, indexed_layers
from moeinf.models.layers.latent.mla import LATENT_MATRICES, NO_LATENT_MATRICES, parse_latent
from moeinf.models.layers.moe import sparse_layers
from moeinf.models.layers.routers import sigmoid_moe


def parse_indexed(
    f: Fields, choosing: tuple[bool, ...], *, norm_eps: float, interleaved: bool, first_dense: int = 3
) -> Spec:
    """choosing: layers with an indexer; interleaved: how its rotary pairs lie. norm_eps, first_dense: the family's
    defaults."""
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc", mlp_bias=False, moe_layer_freq=1, rope_interleave=True)
    f.only(
        "head_dim", f.get("qk_rope_head_dim"), f.get("qk_nope_head_dim"), None
    )  # of no effect: GLM-5 and GLM-5.2 differ
    f.present("n_group", "topk_group", "routed_scaling_factor", "n_shared_experts")
    decoder, latent = parse_latent(f, interleaved=True, norm_eps=norm_eps)
    f.kinds("layer_types", decoder.num_layers, "indexed_attention")
    layers = sparse_layers(f, decoder.num_layers, first_dense=f.count("first_k_dense_replace", first_dense, minimum=0))
    blocks = sigmoid_moe(f, decoder.num_layers, num_future_layers=1, moe_layers=layers)
    index = IndexConfig.parse(f, latent, choosing, interleaved=interleaved)
    return Spec(decoder, blocks, indexed_layers(latent, index, choosing))


def _parse(f: Fields) -> Spec:
    return parse_indexed(
        f, (True,) * f.count("num_hidden_layers", maximum=MOST_LAYERS), norm_eps=1e-6, interleaved=False
    )


class Family(deepseek_v2.Family):
    name = "deepseek_v32"
    parse = staticmethod(_parse)
    matrices: ClassVar[tuple[str, ...]] = (*LATENT_MATRICES, *INDEX_MATRICES)
    no_matrices: ClassVar[tuple[str, ...]] = (*NO_LATENT_MATRICES, *NO_INDEX_MATRICES)
