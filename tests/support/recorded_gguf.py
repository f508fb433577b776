"""What llama.cpp's converter makes of families whose metadata are taken from the record of its files.

Part of gguf_files.py: the tensors are made here, and the record holds them to the converter's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import gguf
import torch
from torch import Tensor

from tests.support.converter.meant import meant
from tests.support.converter.published import ARCHITECTURES, published_name
from tests.support.converter.recorded import recorded
from tests.support.tiny_models import all_configs

Config = Mapping[str, Any]
_OF_GRANITE = {
    "block_sparse_moe.router.weight": "ffn_gate_inp.weight",
    "block_sparse_moe.experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight",
    "shared_mlp.input_linear.weight": "ffn_up_shexp.weight",
    "shared_mlp.output_linear.weight": "ffn_down_shexp.weight",
}
_ROTATED = {"deepseek", "granite", "granitemoe_swa", "granitemoeshared", "llama", "minicpm", "smollm3"}
_MIXERS = {
    "attn_hyper_connection": "blk.{bid}.hc_attn",
    "mlp_hyper_connection": "blk.{bid}.hc_ffn",
    "hyper_connection_mixer": "output_hc",
}
_MIXED = {
    "hc_norm": "norm",
    "input_mix_weight_down": "down",
    "input_mix_weight_up": "up",
    "block_inject_weight": "inject",
}
_HYPER = ("fn", "base", "scale")
_NEW = {  # which the gguf package that is released does not know
    **{f"{mixer}.{ours}": f"{theirs}_{end}" for mixer, theirs in _MIXERS.items() for ours, end in _MIXED.items()},
    **{f"self_attn.indexer.{each}_layernorm": f"blk.{{bid}}.indexer.{each}_norm" for each in "qk"},
    **{f"self_attn.indexer.index_{each}_proj": f"blk.{{bid}}.indexer.{each}_proj" for each in "qk"},
    **{f"ple.{each}_proj": f"blk.{{bid}}.ple_{each}" for each in ("key", "value")},
    **{f"ple.{each}": f"blk.{{bid}}.ple_{each}" for each in ("norm_key", "norm_query", "norm_conv", "conv1d")},
    "ple.ple_embedding.ngram_embedding": "per_layer_token_embd",
    **{
        f"hc_{layer}_layer.hc_pre.hc_{each}": f"blk.{{bid}}.hc_{theirs}_{each}.weight"
        for layer, theirs in (("attn", "attn"), ("mlp", "ffn"))
        for each in _HYPER
    },
    "self_attn.linear_gate": "blk.{bid}.attn_gate",
    "self_attn.output_gate": "blk.{bid}.attn_gate",
    "self_attn.norm": "blk.{bid}.attn_norm_2",
    **{
        f"self_attn.indexer.index_kpool_compress_{each}": f"blk.{{bid}}.indexer_compressor_{each}.weight"
        for each in ("ape", "gate")
    },
    **{f"self_attn.index_{each}": f"blk.{{bid}}.indexer.{each}" for each in ("q_proj", "k_proj", "q_norm", "k_norm")},
}
_OF_DEEPSEEK_4 = {
    "attn.wq_a": "attn_q_a",
    "attn.wq_b": "attn_q_b",
    "attn.q_norm": "attn_q_a_norm",
    "attn.wkv": "attn_kv",
    "attn.kv_norm": "attn_kv_a_norm",
    "attn.wo_a": "attn_output_a",
    "attn.wo_b": "attn_output_b",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.indexer.wq_b": "indexer.attn_q_b",
    "attn.indexer.weights_proj": "indexer.proj",
    "attn_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "ffn.gate": "ffn_gate_inp",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    **{f"hc_{layer}_{each}": f"hc_{layer}_{each}.weight" for layer in ("attn", "ffn") for each in _HYPER},
    **{
        f"attn.{ours}compressor.{name}": f"{theirs}compressor_{end}"
        for ours, theirs in (("", "attn_"), ("indexer.", "indexer_"))
        for name, end in (("wkv", "kv"), ("wgate", "gate"), ("ape", "ape.weight"), ("norm", "norm"))
    },
    **{
        f"ffn.{ours}.{name}": f"ffn_{part}_{theirs}"
        for ours, theirs in (("experts", "exps"), ("shared_experts", "shexp"))
        for name, part in (("w1", "gate"), ("w2", "down"), ("w3", "up"))
    },
}
_NEW_WHOLE = {
    "embed": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    **{f"hc_head_{each}": f"output_hc_{each}.weight" for each in _HYPER},
    **{f"model.hc_head.hc_head_{each}": f"output_hc_{each}.weight" for each in _HYPER},
    **{f"layers.{{bid}}.{ours}": f"blk.{{bid}}.{theirs}" for ours, theirs in _OF_DEEPSEEK_4.items()},
    **{f"model.layers.{{bid}}.{ours}": f"blk.{{bid}}.{ours}.weight" for ours in _OF_DEEPSEEK_4 if ours[:3] == "hc_"},
}


def metadata(model_type: str, c: Config) -> dict[str, Any]:
    """By the fields' names without the architecture."""
    found = recorded()[model_type]["metadata"]
    said = {name.removeprefix(f"{ARCHITECTURES[model_type]}."): value for name, value in found.items()}
    known = all_configs()[model_type]
    inner = [each.get("text_config") or each for each in (known, meant(known))]
    if dict(c) in map(dict, inner):
        return said
    assert _but_lengths(c) in map(_but_lengths, inner), f"no file of such a {model_type} is recorded"
    lengths = {"context_length": c["max_position_embeddings"], "vocab_size": c["vocab_size"]}
    return said | {name: value for name, value in lengths.items() if name in said}


def _but_lengths(c: Config) -> dict[str, Any]:
    return {name: value for name, value in c.items() if name not in ("vocab_size", "max_position_embeddings")}


@cache
def _names() -> Mapping[str, tuple[str, ...]]:
    """What a file may call a tensor, by the names that checkpoints give to it; layers are {bid}."""
    found: dict[str, tuple[str, ...]] = {}
    for table in (gguf.TensorNameMap.mappings_cfg, gguf.TensorNameMap.block_mappings_cfg):
        for tensor, sources in table.items():
            for source in sources:
                found[source] = (*found.get(source, ()), gguf.TENSOR_NAMES[tensor])
    for source, theirs in _NEW.items():
        found["model.layers.{bid}." * ("mixer" not in source) + "model." * ("mixer" in source) + source] = (theirs,)
    for source, theirs in _NEW_WHOLE.items():
        found[source] = (*found.get(source, ()), theirs)
    return found


def name_of(model_type: str, name: str) -> str:
    """Of a tensor of a checkpoint, what its file calls it: of several, the one that the record has."""
    if name.startswith("blk."):
        return name
    bare, dot, end = name.rpartition(".")
    if end != "weight" and (end != "bias" or name.endswith("ffn.gate.bias")):
        bare, dot, end = name, "", ""
    layer = re.search(r"(?:layers|blocks)\.(\d+)\.", bare)
    number = layer[1] if layer else ""
    candidates = _names()[re.sub(r"(layers|blocks)\.\d+\.", r"\1.{bid}.", bare)]
    made = {f"{each.format(bid=number)}{dot}{end}" for each in candidates}
    found = made & recorded()[model_type]["tensors"].keys()
    assert len(found) == 1, f"{name} of {model_type} is one of {made}, of which {found} are recorded"
    return str(found.pop())


def changed(model_type: str, c: Config, name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What the converter does before it asks for a tensor's name."""
    name = re.sub(r"model\.language_model\.|language_model\.model\.", "model.", name)
    name = published_name({"model_type": model_type}, name.removeprefix("language_model."))
    if model_type == "bailing_hybrid":
        name = name.replace(".attention.dense.", ".attention.o_proj.").replace(".attention.", ".self_attn.")
    block, _, rest = name.removeprefix("model.layers.").partition(".")
    if model_type in _ROTATED and re.search(r"\.[qk]_proj\.", name):
        heads = c["num_attention_heads" if ".q_proj." in name else "num_key_value_heads"]
        halves = tensor.view(heads, 2, tensor.shape[0] // heads // 2, -1)
        yield name, halves.transpose(1, 2).reshape(tensor.shape)
    elif model_type == "granitemoeshared" and "input_linear" in name:
        kind = "shexp" if "shared_mlp" in name else "exps"
        gate, up = tensor.chunk(2, -2)
        yield f"blk.{block}.ffn_gate_{kind}.weight", gate.contiguous()
        yield f"blk.{block}.ffn_up_{kind}.weight", up.contiguous()
    elif model_type == "granitemoeshared" and "output_linear" in name:
        yield f"blk.{block}.ffn_down_{'shexp' if 'shared_mlp' in name else 'exps'}.weight", tensor
    elif model_type == "granitemoe_swa" and rest in _OF_GRANITE:
        yield f"blk.{block}.{_OF_GRANITE[rest]}", tensor
    elif name.endswith("kv_b_proj.weight"):
        both = tensor.view(c["num_attention_heads"], c["qk_nope_head_dim"] + c["v_head_dim"], -1)
        keys, values = both.split([c["qk_nope_head_dim"], c["v_head_dim"]], 1)
        yield f"blk.{block}.attn_k_b.weight", keys.transpose(1, 2).contiguous()
        yield f"blk.{block}.attn_v_b.weight", values.contiguous()
    elif model_type == "llama4" and "experts." in rest and "shared" not in rest:
        turned = tensor.transpose(1, 2)
        parts = dict(zip(("gate", "up"), turned.chunk(2, 1), strict=True)) if "gate_up" in rest else {"down": turned}
        for part, values in parts.items():
            yield f"blk.{block}.ffn_{part}_exps.weight", values.contiguous()
    elif rest == "self_attn.f_proj.weight":
        yield f"blk.{block}.ssm_f_a.weight", tensor
    elif rest == "self_attn.g_proj.weight":
        latent = model_type in ("laguna", "step3p7") or tensor.shape[0] == c["num_attention_heads"]
        yield f"blk.{block}.{'attn_gate' if latent else 'ssm_g_a'}.weight", tensor
    elif model_type == "step3p7" and name.endswith("norm.weight") and name != "model.norm.weight":
        kinds = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
        attention = {f"self_attn.{each}_norm": f"attn_{each}_norm" for each in "qk"}
        yield f"blk.{block}.{(kinds | attention)[rest.removesuffix('.weight')]}.weight", tensor + 1
    elif model_type == "step3p7" and name == "model.norm.weight":
        yield name, tensor + 1
    elif model_type.startswith("gemma") and name.endswith("norm.weight"):
        behind = rest == "post_attention_layernorm.weight" and model_type in ("gemma2", "gemma3_text")
        yield f"blk.{block}.post_attention_norm.weight" if behind else name, tensor + 1
    elif model_type == "minimax_m3_vl" and name.endswith("norm.weight"):
        ffn = name.endswith(".post_attention_layernorm.weight")
        yield f"blk.{block}.ffn_norm.weight" if ffn else name, tensor + 1
    elif model_type == "step3p7" and re.match(r"(moe|share_expert)\.", rest):
        end = rest.split(".", 1)[1]
        made = {"gate.weight": "ffn_gate_inp.weight", "router_bias": "exp_probs_b.bias"}.get(end)
        kind = "exps" if rest.startswith("moe.") else "shexp"
        yield f"blk.{block}.{made or end.replace('_proj', '_' + kind).join(('ffn_', ''))}", tensor
    elif "_conv1d." in name:
        yield name, tensor.reshape(1, -1, 1, tensor.shape[-1])
    elif name.endswith("A_log"):
        yield name, torch.exp(tensor).reshape(-1, 1) if model_type == "bailing_hybrid" else -torch.exp(tensor)
    elif name.endswith(("expert_bias", "e_score_correction_bias")):
        yield f"blk.{block}.exp_probs_b{'' if model_type == 'hy_v3' else '.bias'}", tensor
    elif name.endswith(("sinks", "attention_sink_bias", "learnable_sink_param")):
        yield f"blk.{block}.attn_sinks.weight", tensor
    elif name.endswith(".post_attention_layernorm.weight"):
        behind = model_type in ("afmoe", "olmo2", "solar_open")
        yield f"blk.{block}.{'post_attention_norm' if behind else 'ffn_norm'}.weight", tensor
    elif model_type == "dbrx" and ".experts.mlp." in name:
        part = {"w1": "gate", "v1": "up", "w2": "down"}[name[-2:]]
        experts = tensor.view(c["ffn_config"]["moe_num_experts"], -1, tensor.shape[1])
        values = experts.transpose(1, 2).contiguous() if part == "down" else experts
        yield f"blk.{name.split('.')[2]}.ffn_{part}_exps.weight", values
    elif model_type == "hy_v4" and rest == "mlp.experts.gate_up_proj":
        for part, values in zip(("gate", "up"), tensor.chunk(2, 1), strict=True):
            yield f"blk.{block}.ffn_{part}_exps.weight", values.contiguous()
    elif model_type in ("hy_v4", "mistral4") and name.endswith(("gate_up_proj", "down_proj")):
        yield f"{name}.weight", tensor
    else:
        yield name.replace(".dt_bias", ".dt_proj.bias"), tensor
