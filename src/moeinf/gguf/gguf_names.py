"""What plans of families call tensors, and what GGUF files call the same."""

from __future__ import annotations

import re

# What the plans call them -> what GGUF files do. Of a layer both begin with its number.
_OUTER = {
    "embed_tokens.weight": ("token_embd.weight",),
    "norm.weight": ("output_norm.weight",),
    "norm.bias": ("output_norm.bias",),
    "word_embeddings.weight": ("token_embd.weight",),
    "embeddings.weight": ("token_embd.weight",),
    "wte.weight": ("token_embd.weight",),
    "norm_f.weight": ("output_norm.weight",),
    "final_layernorm.weight": ("output_norm.weight",),
    "embedding_norm.weight": ("token_embd_norm.weight", "output_norm.weight"),
    "hyper_connection_mixer.hc_norm.weight": ("output_hc_norm.weight",),
    "hyper_connection_mixer.input_mix_weight_down.weight": ("output_hc_down.weight",),
    "hyper_connection_mixer.input_mix_weight_up.weight": ("output_hc_up.weight",),
    "embed.weight": ("token_embd.weight",),
    "hc_head_fn": ("output_hc_fn.weight",),
    "hc_head_base": ("output_hc_base.weight",),
    "hc_head_scale": ("output_hc_scale.weight",),
    "hc_head.hc_head_fn": ("output_hc_fn.weight",),
    "hc_head.hc_head_base": ("output_hc_base.weight",),
    "hc_head.hc_head_scale": ("output_hc_scale.weight",),
    "lm_head.weight": ("output.weight",),
    "lm_head.bias": ("output.bias",),
    "output_attn_res_norm.weight": ("output_res_score.weight",),
    "output_attn_res_proj.weight": ("output_res_score.weight",),
    "mtp.eh_proj.weight": ("nextn.eh_proj.weight",),  # as mtp_view.py has them
    "mtp.enorm.weight": ("nextn.enorm.weight",),
    "mtp.hnorm.weight": ("nextn.hnorm.weight",),
}
_ROUTERS = (
    r"(mlp|moe|block_sparse_moe|mixer|feed_forward)\.(gate|router|router\.layer|router\.gate|gate\.wg|primary_router)"
)
_SHARED = r"(?:mlp|mixer|feed_forward|block_sparse_moe)\.shared_(?:experts?|mlp)\."
ATTENTION = r"(?:self_attn|attention|mixer)\."
MAMBA = r"(?:mamba|mixer|linear_attn|self_attn|attention)\."
_ROUTING_BIAS = ("exp_probs_b.bias", "exp_probs_b")  # converters have written either
_OF_GEMMA = (
    (r"(pre|post)_feedforward_layernorm_([12])\.weight", (r"\1_ffw_norm_\2.weight",)),
    (r"pre_feedforward_layernorm\.weight", ("ffn_norm.weight",)),
    (r"post_feedforward_layernorm\.weight", ("post_ffw_norm.weight",)),
    (r"router\.proj\.weight", ("ffn_gate_inp.weight",)),
    (r"router\.scale", ("ffn_gate_inp.scale",)),
    (r"layer_scalar", ("layer_output_scale.weight",)),
)
_OF_INDEXERS = (
    (r"self_attn\.indexer\.index_qk_proj\.weight", ("indexer.q_proj.weight", "indexer.k_proj.weight")),
    (r"self_attn\.indexer\.wk\.weight", ("indexer.attn_k.weight",)),
    (r"self_attn\.indexer\.wq_b\.weight", ("indexer.attn_q_b.weight",)),
    (r"self_attn\.indexer\.weights_proj\.weight", ("indexer.proj.weight",)),
    (r"self_attn\.indexer\.index_kpool_compress_(ape|gate)", (r"indexer_compressor_\1.weight",)),
    (r"self_attn\.indexer\.k_norm\.(weight|bias)", (r"indexer.k_norm.\1",)),
    (r"self_attn\.index_([qk])_(proj|norm)\.weight", (r"indexer.\1_\2.weight",)),
    (r"self_attn\.indexer\.([qk])_layernorm\.weight", (r"indexer.\1_norm.weight",)),
)
_OF_STREAMS = (
    (r"attn_hyper_connection\.hc_norm\.weight", ("hc_attn_norm.weight",)),
    (r"attn_hyper_connection\.input_mix_weight_(down|up)\.weight", (r"hc_attn_\1.weight",)),
    (r"attn_hyper_connection\.block_inject_weight\.weight", ("hc_attn_inject.weight",)),
    (r"mlp_hyper_connection\.hc_norm\.weight", ("hc_ffn_norm.weight",)),
    (r"mlp_hyper_connection\.input_mix_weight_(down|up)\.weight", (r"hc_ffn_\1.weight",)),
    (r"mlp_hyper_connection\.block_inject_weight\.weight", ("hc_ffn_inject.weight",)),
    (r"hc_attn_layer\.hc_pre\.hc_(fn|base|scale)", (r"hc_attn_\1.weight",)),
    (r"hc_mlp_layer\.hc_pre\.hc_(fn|base|scale)", (r"hc_ffn_\1.weight",)),
    (r"ple\.(key|value)_proj\.weight", (r"ple_\1.weight",)),
    (r"ple\.(norm_key|norm_query|norm_conv|conv1d)\.weight", (r"ple_\1.weight",)),
)
_OF_GROK = (
    (r"pre_attn_norm\.weight", ("attn_norm.weight",)),
    (r"post_attn_norm\.weight", ("attn_output_norm.weight",)),
    (r"pre_moe_norm\.weight", ("ffn_norm.weight",)),
    (r"post_moe_norm\.weight", ("layer_output_norm.weight", "post_ffw_norm.weight")),
)
_OF_DBRX = (
    (r"norm_attn_norm\.norm_1\.weight", ("attn_norm.weight",)),
    (r"norm_attn_norm\.norm_2\.weight", ("attn_output_norm.weight",)),
    (r"norm_attn_norm\.attn\.Wqkv\.weight", ("attn_qkv.weight",)),
    (r"norm_attn_norm\.attn\.out_proj\.weight", ("attn_output.weight",)),
    (r"ffn\.router\.layer\.weight", ("ffn_gate_inp.weight",)),
)
_OF_DEEPSEEK_4 = (
    (r"attn_norm\.weight", ("attn_norm.weight",)),
    (r"attn\.wq_([ab])\.weight", (r"attn_q_\1.weight",)),
    (r"attn\.q_norm\.weight", ("attn_q_a_norm.weight",)),
    (r"attn\.wkv\.weight", ("attn_kv.weight",)),
    (r"attn\.kv_norm\.weight", ("attn_kv_a_norm.weight",)),
    (r"attn\.wo_([ab])\.weight", (r"attn_output_\1.weight",)),
    (r"attn\.attn_sink", ("attn_sinks.weight",)),
    (r"attn\.compressor\.w(kv|gate)\.weight", (r"attn_compressor_\1.weight",)),
    (r"attn\.compressor\.(ape|norm)(?:\.weight)?", (r"attn_compressor_\1.weight",)),
    (r"attn\.indexer\.compressor\.w(kv|gate)\.weight", (r"indexer_compressor_\1.weight",)),
    (r"attn\.indexer\.compressor\.(ape|norm)(?:\.weight)?", (r"indexer_compressor_\1.weight",)),
    (r"attn\.indexer\.wq_b\.weight", ("indexer.attn_q_b.weight",)),
    (r"attn\.indexer\.weights_proj\.weight", ("indexer.proj.weight",)),
    (r"attn\.indexer\.wk\.weight", ("indexer.attn_k.weight",)),
    (r"attn\.indexer\.k_norm\.weight", ("indexer.k_norm.weight",)),
    (r"engram\.embed\.weight", ("engram_embd.weight",)),
    (r"engram\.wkv\.weight", ("engram_wkv.weight",)),
    (r"engram\.([qk])_weight", (r"engram_\1.weight",)),
    (r"ffn\.gate\.weight", ("ffn_gate_inp.weight",)),
    (r"ffn\.gate\.bias", _ROUTING_BIAS),
    (r"ffn\.gate\.tid2eid", ("ffn_gate_tid2eid.weight",)),
    (r"ffn\.shared_experts\.w1\.weight", ("ffn_gate_shexp.weight",)),
    (r"ffn\.shared_experts\.w2\.weight", ("ffn_down_shexp.weight",)),
    (r"ffn\.shared_experts\.w3\.weight", ("ffn_up_shexp.weight",)),
    (r"hc_(attn|ffn)_(fn|base|scale)", (r"hc_\1_\2.weight",)),
)
_OF_KDA = (
    (ATTENTION + r"([qkv])_conv1d\.weight", (r"ssm_conv1d_\1.weight",)),
    (ATTENTION + r"([fg]_[ab])_proj\.weight", (r"ssm_\1.weight",)),
    (r"attention\.f_proj\.weight", ("ssm_f_a.weight",)),
    (r"attention\.g_proj\.weight", ("ssm_g_a.weight", "attn_gate.weight")),  # of KDA, and of latent attention
    (ATTENTION + r"b_proj\.weight", ("ssm_beta.weight",)),
    (ATTENTION + r"o_norm\.weight", ("ssm_norm.weight",)),
)
ROUTING_BIASES = (
    r"(mlp|block_sparse_moe|mixer|feed_forward)\.(gate\.|moe_statics\.|experts\.)?(e_score_correction|expert)_bias"
)
_OF_LAYERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(?:input_layernorm|operator_norm|norm)\.(weight|bias)", (r"attn_norm.\1",)),
    (r"residual_layernorm\.weight", ("ffn_norm.weight",)),  # of Arctic, whose experts have a norm of their own
    (r"(?:pre_ff_layernorm|pre_mlp_layernorm|ffn_norm)\.weight", ("ffn_norm.weight",)),
    (r"post_self_attn_layernorm\.weight", ("post_attention_norm.weight",)),
    (r"post_mlp_layernorm\.weight", ("post_ffw_norm.weight",)),
    (ATTENTION + r"([qkv])_proj\.(weight|bias)", (r"attn_\1.\2",)),
    (ATTENTION + r"(?:query_key_value|qkv_proj)\.weight", ("attn_qkv.weight",)),
    (r"(?:(?:self_attn|mixer)\.o_proj|self_attn\.out_proj|attention\.dense)\.(weight|bias)", (r"attn_output.\1",)),
    (r"self_attn\.(?:gate_proj|g_proj|linear_gate|output_gate)\.weight", ("attn_gate.weight", "ssm_g.weight")),
    (r"self_attn\.([qk])_(?:norm|layernorm)\.weight", (r"attn_\1_norm.weight",)),
    (r"self_attn\.k_rope_only_layernorm\.weight", ("attn_k_norm.weight",)),
    (ATTENTION + r"([qk])(?:uery|ey)_layernorm\.weight", (r"attn_\1_norm.weight",)),
    (r"self_attn\.(?:sinks|attention_sink_bias|learnable_sink_param)", ("attn_sinks.weight",)),
    (ATTENTION + r"(q_a|q_b|kv_b)_proj\.(weight|bias)", (r"attn_\1.\2",)),
    (ATTENTION + r"kv_a_proj_with_mqa\.(weight|bias)", (r"attn_kv_a_mqa.\1",)),
    (ATTENTION + r"(q_a|kv_a)_layernorm\.weight", (r"attn_\1_norm.weight",)),
    (_ROUTERS + r"\.(weight|bias)", (r"ffn_gate_inp.\3",)),
    (r"moe\.router_bias", _ROUTING_BIAS),
    (r"share_expert\.(gate|up|down)_proj\.weight", (r"ffn_\1_shexp.weight",)),
    (ROUTING_BIASES, _ROUTING_BIAS),
    (r"mlp\.shared_expert_gate\.weight", ("ffn_gate_inp_shexp.weight",)),
    (_SHARED + r"(gate|up|down)_proj\.weight", (r"ffn_\1_shexp.weight",)),
    (r"shared_mlp\.input_linear\.weight", ("ffn_up_shexp.weight",)),
    (r"shared_mlp\.output_linear\.weight", ("ffn_down_shexp.weight",)),
    (r"mlp\.chunk_experts\.(gate|up|down)_proj\.weight", (r"ffn_\1_chexps.weight",)),
    (r"(?:mlp|mixer|feed_forward)\.(gate|up|down)_proj\.weight", (r"ffn_\1.weight",)),
    (r"mlp\.routed_expert_(down|up)_proj\.weight", (r"ffn_routed_\1.weight",)),
    (r"mlp\.routed_expert_norm\.weight", ("ffn_routed_norm.weight",)),
    (r"self_attention_res_(?:norm|proj)\.weight", ("attn_res_score.weight",)),
    (r"mlp_res_(?:norm|proj)\.weight", ("ffn_res_score.weight",)),
    (r"mixer\.fc1_latent_proj\.weight", ("ffn_latent_down.weight",)),
    (r"mixer\.fc2_latent_proj\.weight", ("ffn_latent_up.weight",)),
    (r"conv\.conv\.(weight|bias)", (r"shortconv.conv.\1",)),
    (r"conv\.(in|out)_proj\.(weight|bias)", (r"shortconv.\1_proj.\2",)),
    (r"(?:residual_mlp|feed_forward)\.w1\.weight", ("ffn_gate.weight",)),
    (r"(?:residual_mlp|feed_forward)\.w3\.weight", ("ffn_up.weight",)),
    (r"(?:residual_mlp|feed_forward)\.w2\.weight", ("ffn_down.weight",)),
    (r"linear_attn\.in_proj_qkvz\.weight", ("ssm_in.weight",)),
    (r"linear_attn\.in_proj_qkv\.weight", ("attn_qkv.weight",)),
    (r"linear_attn\.in_proj_z\.weight", ("attn_gate.weight",)),
    (r"linear_attn\.in_proj_ba\.weight", ("ssm_ba.weight",)),
    (r"linear_attn\.in_proj_b\.weight", ("ssm_beta.weight", "ssm_ba.weight")),
    (r"linear_attn\.in_proj_a\.weight", ("ssm_alpha.weight", "ssm_ba.weight")),
    (MAMBA + r"A_log", ("ssm_a",)),
    (MAMBA + r"D", ("ssm_d",)),
    (MAMBA + r"dt_bias", ("ssm_dt.bias",)),
    (MAMBA + r"conv1d\.(weight|bias)", (r"ssm_conv1d.\1",)),
    (MAMBA + r"norm\.weight", ("ssm_norm.weight", "attn_norm_2.weight")),
    (MAMBA + r"in_proj\.weight", ("ssm_in.weight",)),
    (MAMBA + r"out_proj\.weight", ("ssm_out.weight",)),
    (r"mamba\.x_proj\.weight", ("ssm_x.weight",)),
    (r"mamba\.dt_proj\.(weight|bias)", (r"ssm_dt.\1",)),
    (r"mamba\.(dt|b|c)_layernorm\.weight", (r"ssm_\1_norm.weight",)),
    *_OF_GROK,
    *_OF_INDEXERS,
    *_OF_KDA,
    *_OF_STREAMS,
    *_OF_GEMMA,
    *_OF_DBRX,
    *_OF_DEEPSEEK_4,
)
_BEHIND = r"post_attention_layernorm\.(weight|bias)"
# What files call the norm that stands before a block of experts; elsewhere that is ffn_norm.
_BEHIND_ATTENTION = {"arctic": "ffn_norm_exps"} | dict.fromkeys(
    ("afmoe", "gemma2", "gemma3", "gemma4", "glm4moe", "gpt-oss", "olmo2", "qwen35moe", "qwen3next"),
    "post_attention_norm",
)
_PREFIX = r"(?:(?:language_model\.)?model\.(?:language_model\.)?|language_model\.|backbone\.|transformer\.)"
_LAYER = re.compile(rf"{_PREFIX}?(?:layers|blocks)\.(\d+)\.(.*)")


def of_layer(name: str) -> tuple[int, str] | None:
    """The layer whose tensor it is, and what the tensor is called there; None of one outside of layers."""
    found = _LAYER.fullmatch(name)
    return (int(found[1]), found[2]) if found else None


def is_named(name: str) -> bool:
    """Whether files of some architecture have a name for a tensor of a plan."""
    layer = of_layer(name)
    if layer is None:
        return re.sub(f"^{_PREFIX}", "", name) in _OUTER
    return any(re.fullmatch(pattern, layer[1]) for pattern, _ in (*_OF_LAYERS, (_BEHIND, ())))


def outer_names(name: str) -> list[str]:
    """What a file may call a tensor outside of layers."""
    return list(_OUTER[re.sub(f"^{_PREFIX}", "", name)])


def layer_names(layer: int, rest: str, architecture: str) -> list[str]:
    """What a file of an architecture may call a tensor of a layer, which the plan calls `rest` there."""
    found = re.fullmatch(_BEHIND, rest)
    if found is not None:
        return [f"blk.{layer}.{_BEHIND_ATTENTION.get(architecture, 'ffn_norm')}.{found[1]}"]
    for pattern, templates in _OF_LAYERS:
        found = re.fullmatch(pattern, rest)
        if found is not None:
            return [f"blk.{layer}.{found.expand(each)}" for each in templates]
    raise AssertionError(f"no GGUF file has a tensor for {rest}")  # of a family without a config in config.py
