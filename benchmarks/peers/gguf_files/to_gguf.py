"""Writes a tied bf16 checkpoint, as of make_checkpoint.py, as bf16 GGUF, for llama.cpp to run the same weights.

    pip install gguf
    python benchmarks/peers/gguf_files/to_gguf.py CHECKPOINT OUT.gguf  # CHECKPOINT may be src/moeinf/data/demo

llama.cpp's own converter knows tokenizers by a list of hashes and refuses the embedded one, which is written here under
the name of the pre-tokenizer that it has, and filled up where the model's vocabulary is larger.
"""

from __future__ import annotations

import argparse
import json
from importlib import resources
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import torch
from safetensors import safe_open
from torch import Tensor

ARCHITECTURES = {"qwen3_moe": "qwen3moe", "mixtral": "llama"}
LAYER_NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERT_NAMES = {
    "qwen3_moe": ("mlp", {"ffn_gate_exps": "gate_proj", "ffn_up_exps": "up_proj", "ffn_down_exps": "down_proj"}),
    "mixtral": ("block_sparse_moe", {"ffn_gate_exps": "w1", "ffn_up_exps": "w3", "ffn_down_exps": "w2"}),
}


class Checkpoint:
    """Tensors by name, of one file or of several with an index."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        index = folder / "model.safetensors.index.json"
        if index.exists():
            self._files: dict[str, str] = json.loads(index.read_text())["weight_map"]
        else:
            with safe_open(folder / "model.safetensors", "pt") as file:
                self._files = dict.fromkeys(file.keys(), "model.safetensors")

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def tensor(self, name: str) -> Tensor:
        with safe_open(self._folder / self._files[name], "pt") as file:
            tensor: Tensor = file.get_tensor(name)
        return tensor


def add_bf16(writer: Any, name: str, tensor: Tensor) -> None:
    raw: npt.NDArray[np.uint8] = tensor.contiguous().view(torch.uint8).numpy()
    writer.add_tensor(name, raw, raw_dtype=gguf.GGMLQuantizationType.BF16)


def permuted(weight: Tensor, heads: int) -> Tensor:
    """Rows in the order of llama.cpp's `llama` architecture, which pairs neighbours in rotary positions."""
    return weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)


def write_header(writer: Any, config: dict[str, Any]) -> None:
    heads = config["num_attention_heads"]
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    add_vocabulary(writer, config["vocab_size"])


def add_vocabulary(writer: Any, vocab_size: int) -> None:
    """The embedded model's tokenizer, in a vocabulary of that size."""
    tokenizer = json.loads(resources.files("moeinf").joinpath("data/demo/tokenizer.json").read_text())
    special = {token["id"] for token in tokenizer["added_tokens"]}
    known = {number: token for token, number in tokenizer["model"]["vocab"].items()}
    known |= {token["id"]: token["content"] for token in tokenizer["added_tokens"]}
    kinds = {number: gguf.TokenType.CONTROL if number in special else gguf.TokenType.NORMAL for number in known}
    writer.add_vocab_size(vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([known.get(number, f"[PAD{number}]") for number in range(vocab_size)])
    writer.add_token_types([kinds.get(number, gguf.TokenType.NORMAL) for number in range(vocab_size)])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_add_bos_token(False)


def convert(folder: Path, out: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    kind, checkpoint = config["model_type"], Checkpoint(folder)
    writer = gguf.GGUFWriter(out, ARCHITECTURES[kind], use_temp_file=True)
    write_header(writer, config)
    add_bf16(writer, "token_embd.weight", checkpoint.tensor("model.embed_tokens.weight"))
    writer.add_tensor("output_norm.weight", checkpoint.tensor("model.norm.weight").float().numpy())
    block, parts = EXPERT_NAMES[kind]
    experts = config.get("num_experts") or config["num_local_experts"]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for theirs, ours in LAYER_NAMES.items():
            if f"{prefix}{theirs}.weight" not in checkpoint:
                continue
            weight = checkpoint.tensor(f"{prefix}{theirs}.weight")
            if kind == "mixtral" and ours in ("attn_q", "attn_k"):
                weight = permuted(weight, config["num_attention_heads" if ours == "attn_q" else "num_key_value_heads"])
            if weight.ndim == 1 or ours == "ffn_gate_inp":
                writer.add_tensor(f"blk.{layer}.{ours}.weight", weight.float().numpy())
            else:
                add_bf16(writer, f"blk.{layer}.{ours}.weight", weight)
        for ours, theirs in parts.items():
            names = [f"{prefix}{block}.experts.{e}.{theirs}.weight" for e in range(experts)]
            add_bf16(writer, f"blk.{layer}.{ours}.weight", torch.stack([checkpoint.tensor(n) for n in names]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    convert(given.checkpoint, given.out)


if __name__ == "__main__":
    main()
