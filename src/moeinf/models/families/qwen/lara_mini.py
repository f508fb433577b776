"""Lara 4 Mini: gated DeltaNet beside layers with windows, and few that see all tokens and have no positions (LaraMini).

Attention and experts are qwen3_moe's; a shared expert is added in full. DeltaNet's projections are one matrix.
"""

from __future__ import annotations

from dataclasses import replace

from moeinf.models.families.ernie.ernie4_5_moe import SoftmaxRouter
from moeinf.models.fields import Fields, routed_shape
from moeinf.models.layers.assemble import DecoderFamily, Spec
from moeinf.models.layers.attention_config import HeadNorms
from moeinf.models.layers.decoder import parse_decoder
from moeinf.models.layers.moe import BlockNames, Moe, Scoring, Shared
from moeinf.models.layers.recurrent.delta_config import DeltaConfig
from moeinf.models.layers.recurrent.delta_net import delta_mixer
from moeinf.models.layers.rope import whole_heads

_LINEAR, _WINDOW, _ALL = "linear_attention", "sliding_attention", "full_attention"
_PATTERN = (_LINEAR, _WINDOW, _LINEAR, _ALL, _WINDOW)  # of layers, where they are not listed


def _parse(f: Fields) -> Spec:
    f.present("head_dim", "tie_word_embeddings", "linear_num_key_heads", "linear_num_value_heads")
    whole_heads(f)
    d = parse_decoder(f, norm_eps=1e-6, theta=1e4, head_norms=HeadNorms())
    layers, window = range(d.num_layers), f.count("sliding_window", 512)
    kinds = f.kinds("layer_types", len(layers), _LINEAR, _WINDOW, _ALL)
    kinds = kinds or tuple(_PATTERN[i % len(_PATTERN)] for i in layers)
    d = d.with_windows([kind == _WINDOW for kind in kinds], window)
    d = d.without_positions({i for i in layers if kinds[i] == _ALL})
    size, shared = f.count("moe_intermediate_size"), f.count("shared_expert_intermediate_size")
    blocks = Moe(
        routed_shape(f, ("num_experts",), f.count("num_experts_per_tok"), len(layers)),
        tuple(layers),
        0,
        size,
        SoftmaxRouter,
        scoring=Scoring(f.flag("norm_topk_prob", True), corrected=False),
        shared=Shared(1, shared),
        names=BlockNames(shared="shared_expert."),
    )
    delta = DeltaConfig.parse(f, d.attention.hidden_size, d.attention.norm_eps, stacked=False)
    mixer = delta_mixer(replace(delta, joined=True, norm="rms"))
    return Spec(d, blocks, {i: mixer for i in layers if kinds[i] == _LINEAR})


class Family(DecoderFamily):
    name = "lara_mini"
    parse = staticmethod(_parse)
    matrices = (".in_proj.weight",)
    renamed = ((r"\.linear_attn\.out_norm\.", ".linear_attn.norm."),)
