"""GLM-5.3-Flash: Kimi Linear's layers with an indexer, between DeepSeek-V4's streams, and a tower that sees pictures.

Neither kind of layer has positions; the indexer chooses pools of tokens.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from moeinf.errors import CheckpointError
from moeinf.models.families.deepseek import deepseek_v2
from moeinf.models.fields import Fields
from moeinf.models.layers.assemble import Spec
from moeinf.models.layers.latent.indexed import INDEX_MATRICES, NO_INDEX_MATRICES, IndexConfig, IndexedLatent
from moeinf.models.layers.latent.mla import LATENT_MATRICES, NO_LATENT_MATRICES, LatentConfig, parse_latent
from moeinf.models.layers.moe import MlpForm, sparse_layers
from moeinf.models.layers.recurrent.kda import KdaConfig, below_zero, kda_mixer
from moeinf.models.layers.routers import sigmoid_moe
from moeinf.models.layers.streams.mixed_decoder import MixedConnections, StreamNames
from moeinf.models.layers.streams.mixed_residual import MixedStreams
from moeinf.models.layers.vision.of_families.glm_vision import glm_vision
from moeinf.models.layers.vision.vision import seeing
from moeinf.models.text_part import VISION, TextIn
from moeinf.types import ExpertForm, JsonObject

_LINEAR = "linear_attention"
_STREAMS = StreamNames("hc_attn_", "hc_ffn_", None)
_OWN = {  # what linear_attn_config of published checkpoints calls these fields
    "head_dim": "linear_head_dim",
    "num_heads": "linear_num_heads",
    "short_conv_kernel_size": "linear_conv_kernel_dim",
}


def _parse(f: Fields) -> Spec:
    f.fixed(index_kpool_always_select_tail=True, index_topk_pattern=None)
    f.only("index_topk_freq", 1, 0, None)
    f.fixed(scoring_func="sigmoid", topk_method="noaux_tc")
    heads = [f.get(name) for name in ("num_attention_heads", "num_key_value_heads")]
    if heads[1] not in (heads[0], None):
        raise CheckpointError(f"{f.where}: num_attention_heads and num_key_value_heads are {heads}; must be the same")
    f.present("q_lora_rank", "routed_scaling_factor", "swiglu_limit")
    plain = f.replaced(rope_scaling=None, rope_parameters=None)
    decoder, latent = parse_latent(plain, interleaved=True, norm_eps=1e-5, rotated=False)
    num_layers, a = decoder.num_layers, decoder.attention
    kinds = f.kinds("layer_types", num_layers, _LINEAR, "indexed_attention", "full_attention")
    kinds = kinds or tuple("indexed_attention" if i % 4 == 3 else _LINEAR for i in range(num_layers))
    linear = frozenset(i for i, kind in enumerate(kinds) if kind == _LINEAR)
    f.kinds("indexer_types", num_layers, "full")
    layers = sparse_layers(f, num_layers, first_dense=min(3, num_layers))
    blocks = sigmoid_moe(f, num_layers, num_future_layers=1, moe_layers=layers)
    limit = f.number("swiglu_limit")
    streams = MixedStreams(
        f.count("hc_mult", 4, minimum=2, maximum=64),
        a.hidden_size,
        a.norm_eps,
        f.number("hc_eps", 1e-6),
        f.count("hc_sinkhorn_iters", 20, maximum=1000),
    )
    kda, latent = kda_mixer(_kda(f, a.hidden_size, a.norm_eps)), replace(latent, eps=a.norm_eps)
    indexed = IndexedLatent(latent, _index(f, latent))
    return Spec(
        replace(decoder, replaces=True),
        replace(blocks, form=MlpForm(limit=limit), expert_form=ExpertForm("silu_clamped", limit=limit)),
        {i: kda if i in linear else indexed for i in range(num_layers)},
        MixedConnections(streams, _STREAMS),
    )


def _kda(f: Fields, hidden_size: int, norm_eps: float) -> KdaConfig:
    own = f.within("linear_attn_config")
    own.refuse_others(*_OWN, "gate_lower_bound", "safe_gate", "kda_layers", "full_attn_layers")
    own.only("safe_gate", True, None)
    f = f.replaced(**{name: own.get(theirs) for theirs, name in _OWN.items() if own.get(theirs) is not None})
    f.present("linear_num_heads", "linear_head_dim")
    bound = own.get("gate_lower_bound") if "gate_lower_bound" in own else f.get("linear_lower_bound")
    if "gate_lower_bound" not in own and "linear_lower_bound" not in f:
        raise CheckpointError(f"{f.where}: linear_lower_bound is missing")
    if bound is None and own.names:
        bound = -5.0
    if bound is not None:
        bound = below_zero(f, "linear_lower_bound", bound)
    kda = KdaConfig.parse(f, hidden_size, norm_eps)
    return replace(kda, lower_bound=bound, decay_numbers=kda.num_heads)


def _index(f: Fields, latent: LatentConfig) -> IndexConfig:
    pool = f.count("index_kpool", 16, minimum=2, maximum=1 << 16)
    index = IndexConfig.parse(f, latent, (True,), interleaved=True)
    if index.heads.top_k % pool:
        raise CheckpointError(f"{f.where}: index_topk {index.heads.top_k} is no multiple of index_kpool {pool}")
    return replace(index, heads=replace(index.heads, pool=pool))


class Family(deepseek_v2.Family):
    name = "glm5_next"
    divisible = False
    matrices: ClassVar[tuple[str, ...]] = (*LATENT_MATRICES, *INDEX_MATRICES)
    no_matrices: ClassVar[tuple[str, ...]] = (*NO_LATENT_MATRICES, *NO_INDEX_MATRICES, ".b_proj.weight")
    ignored = (VISION,)
    parse = staticmethod(_parse)
    text = TextIn()

    def __init__(self, config: JsonObject) -> None:
        super().__init__(config)
        self.vision, self.no_vision = seeing(lambda: glm_vision(config, self.decoder.attention.hidden_size))
