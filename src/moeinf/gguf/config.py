"""config.json out of the metadata of a GGUF file."""

from __future__ import annotations

from moeinf.errors import UnsupportedModelError
from moeinf.gguf.architectures import ARCHITECTURES
from moeinf.gguf.common import Config, has_experts, kv_heads_of, num_layers_of, positions_of
from moeinf.gguf.header import Gguf
from moeinf.gguf.hybrids import HYBRIDS
from moeinf.gguf.latent import LATENT
from moeinf.gguf.metadata import Metadata
from moeinf.gguf.qwen import QWEN
from moeinf.gguf.vision import seeing_config
from moeinf.gguf.windows import WINDOWED

# Architectures that tell themselves how many heads there are, and how many of keys and values.
_HEADS_BY_LAYER, _KEYS_BY_LAYER = {"laguna", "step35"}, {"gemma4", "mimo2", "step35"}

_CENTRED = {"cohere2moe", "dbrx"}  # whose norms are layer norms, which they tell themselves


def config_of(gguf: Gguf) -> Config:
    """The config.json from which the model was converted, as far as it changes the mathematics.

    With a vision tower it is that of the whole model. Reads the factors of positions, where there are such tensors,
    from the file. Raises UnsupportedModelError for an architecture that moeinf does not run, CheckpointError for
    metadata that are missing or damaged.
    """
    kind = gguf.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModelError(f"{gguf.where} is no model but of type {kind!r:.50}; name the model's own file")
    m = Metadata(gguf)
    architectures = ARCHITECTURES | HYBRIDS | LATENT | QWEN | WINDOWED
    make = architectures.get(m.architecture)
    if make is None or not has_experts(m):
        fault = "is not a Mixture-of-Experts model" if make is not None else "is not one that moeinf runs from a GGUF"
        known = ", ".join(sorted(architectures))
        raise UnsupportedModelError(f"{gguf.where}: {m.architecture!r:.50} {fault} (those are {known}, with experts)")
    config = _common(m) | _ids(gguf) | make(m)
    m.refuse_others()
    return config if gguf.mmproj is None else seeing_config(gguf, config)


def _common(m: Metadata) -> Config:
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
        "num_experts_per_tok": m.count("expert_used_count"),
    }
    return found | positions_of(m)


def _ids(gguf: Gguf) -> Config:
    found = {}
    for name, field in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")):
        value = gguf.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if type(value) is int:
            found[field] = value
    return found
