"""config.json out of the metadata of a GGUF file."""

from __future__ import annotations

from typing import Final

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.configs.common import has_experts, kv_heads_of, num_layers_of, positions_of
from moeinf.gguf.configs.hybrids import HYBRIDS
from moeinf.gguf.configs.latent_config import LATENT
from moeinf.gguf.configs.plain import ARCHITECTURES
from moeinf.gguf.configs.qwen import QWEN
from moeinf.gguf.configs.windows import WINDOWED
from moeinf.gguf.configs.without_experts import DENSE
from moeinf.gguf.gguf_vision import seeing_config
from moeinf.gguf.header import Gguf
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.unread_tensors import refuse_unread_positions
from moeinf.types import JsonObject

# Architectures that tell themselves how many heads there are, and how many of keys and values.
_HEADS_BY_LAYER = {"dots3note", "laguna", "step35"}
_KEYS_BY_LAYER = {"dots3note", "gemma4", "mimo2", "step35"}
_CENTRED = {"cohere2moe", "dbrx", "starcoder2"}  # whose norms are layer norms, which they tell themselves
# Architectures whose attention may have a bias of its output without others, as in llama.cpp.
_OUTPUT_BIASED = {
    "llama",
    "granite",
    "smollm3",
    "granitemoe",
    "granite_swa",
    "granitehybrid",
    "ernie4_5-moe",
    "nemotron_h_moe",
}
_POOLINGS: Final = {0: "", 1: "mean", 3: "last"}  # as llama.cpp numbers them
_DIFFUSION: Final = "generation of text by diffusion"
_NO_LANGUAGE: Final = "nothing: it generates no text"
REFUSED: Final = {  # other architectures with experts in llama.cpp, and what each would need
    "deci": "layers of different widths, some without attention",
    "dflash": "the model for which it drafts tokens",
    "k2horizon": "values that experts make (MoVA), norms of groups of numbers",
    "llada-moe": _DIFFUSION,
    "llama-embed": _NO_LANGUAGE,
    "mistral3": "queries that are scaled by their position, under Mixtral's experts",
    "nomic-bert-moe": _NO_LANGUAGE,
    "rnd1": _DIFFUSION,
}


def config_of(gguf: Gguf) -> JsonObject:
    """The config.json from which the model was converted, as far as it changes the mathematics.

    With a vision tower it is that of the whole model. Reads the factors of positions, where there are such tensors,
    from the file. Raises UnsupportedModelError for an architecture that moeinf does not run, CheckpointError for
    metadata that are missing or damaged.
    """
    kind = gguf.metadata.get("general.type", "model")
    if kind == "adapter":
        raise UnsupportedModelError(f"{gguf.where} is an adapter: run its model with it, `--lora {gguf.where}`")
    if kind != "model":
        raise UnsupportedModelError(f"{gguf.where} is no model but of type {kind!r:.50}; name the model's own file")
    m = Metadata(gguf)
    experts = has_experts(m)
    make = (ARCHITECTURES | HYBRIDS | LATENT | QWEN | WINDOWED if experts else DENSE).get(m.architecture)
    if make is None:
        fault = "is an architecture without experts (the file names none) that this version does not run"
        if experts:
            needs = f": it needs {REFUSED[m.architecture]}" if m.architecture in REFUSED else ""
            fault = f"is an architecture with experts that this version does not run{needs}"
        raise UnsupportedModelError(f"{gguf.where}: {m.architecture!r:.50} {fault}; docs/models.md has those that run")
    config = _common(m) | _ids(m) | make(m)
    m.refuse_others()
    refuse_unread_positions(m, config)
    return config if gguf.mmproj is None else seeing_config(gguf, config)


def _common(m: Metadata) -> JsonObject:
    if not m.flag("attention.causal", True):
        raise UnsupportedModelError(f"{m.where}: attention in both directions (attention.causal) is not supported")
    found = {
        "vocab_size": m.rows("token_embd.weight"),
        "hidden_size": m.count("embedding_length"),
        "num_hidden_layers": num_layers_of(m),
        "num_attention_heads": None if m.architecture in _HEADS_BY_LAYER else m.count("attention.head_count"),
        "num_key_value_heads": None if m.architecture in _KEYS_BY_LAYER else kv_heads_of(m),
        "max_position_embeddings": m.count("context_length"),
        "rms_norm_eps": None if m.architecture in _CENTRED else m.number("attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "attention_bias": m.has_in_a_layer("attn_q.bias"),
        "tie_word_embeddings": m.tensor("output.weight") is None,
        "num_experts_per_tok": m.count("expert_used_count") if has_experts(m) else None,
    }
    out_biased = m.has_in_a_layer("attn_output.bias")
    if out_biased != found["attention_bias"] and (m.architecture in _OUTPUT_BIASED or not out_biased):
        found["attention_out_bias"] = out_biased
    return found | positions_of(m) | _pooling(m)


def _pooling(m: Metadata) -> JsonObject:
    """How the states of a text's tokens become its vector, where the file says so."""
    kind = m.count("pooling_type", 0)
    if kind not in _POOLINGS:
        raise UnsupportedModelError(f"{m.where}: {m.architecture}.pooling_type = {kind} is not supported")
    return {"pooling": _POOLINGS[kind]} if kind else {}


def _ids(m: Metadata) -> JsonObject:
    found, rows = {}, m.rows("token_embd.weight")
    for name, field in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        value = m.gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(value) is int and 0 <= value < rows:
            found[field] = value
    return found
