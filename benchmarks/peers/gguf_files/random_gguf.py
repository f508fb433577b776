"""Writes a GGUF of random blocks in the geometry of a real config.json, cut in depth: any type, no quantiser.

Models of qwen3_moe and mixtral are known.

    pip install gguf
    python benchmarks/peers/gguf_files/random_gguf.py CONFIG_JSON OUT.gguf Q4_K_M --layers 4 --vocab 32000

A type is that of all matrices, with Q6_K for attention's values and the head (but for Q8_0, which is that of all);
Q4_K_M has the mixture of llama.cpp's quantiser: Q6_K for every other layer's values and down projections, and where a
layer has eight experts Q8_0 for keys and values and Q5_K for the output of attention; BY_LAYER has it but for experts,
whose bits differ by layer: the first has Q4_K with Q6_K for down, the second Q3_K with Q4_K, all others Q2_K with Q3_K.
MXFP4 is that of experts, and Q8_0 of all else, as gpt-oss is published. Blocks are drawn
from a pool whose scales give weights the spread of a trained matrix, so that activations neither die nor explode. The
tokenizer is the embedded model's, so that real text gives varied routing.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
import numpy.typing as npt
from to_gguf import ARCHITECTURES, write_header

sys.path.insert(0, str(Path(__file__).parents[3]))  # the tests' random blocks

from moeinf.types import FORMAT_BLOCKS, Format
from tests.support.blocks import even_blocks, halves_of

POOL = 4096  # blocks
# Minima as multiples of scales, so that weights are as often negative as not: else all tokens would be routed alike.
MINIMA = {"Q4_K": 7.5, "Q5_K": 15.5, "Q2_K": 1.5, "Q4_1": -7.5, "Q5_1": -15.5}

EIGHT, FOR_EIGHT = 8, {"attn_k": "Q8_0", "attn_v": "Q8_0", "attn_output": "Q5_K"}  # what the quantiser makes of Mixtral


class Blocks:
    """Random blocks of a type whose weights have a standard deviation of 1 / sqrt(cols)."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self._pools: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}

    def draw(self, kind: str, rows: int, cols: int) -> npt.NDArray[np.uint8]:
        """[rows, bytes of a row]"""
        weights, num_bytes = FORMAT_BLOCKS[_format(kind)]
        pool = self._pool(kind, cols)
        picked = pool[self._rng.integers(0, len(pool), rows * cols // weights)]
        return picked.reshape(rows, cols // weights * num_bytes)

    def _pool(self, kind: str, cols: int) -> npt.NDArray[np.uint8]:
        if (kind, cols) not in self._pools:
            self._pools[kind, cols] = self._scaled(kind, cols)
        return self._pools[kind, cols]

    def _scaled(self, kind: str, cols: int) -> npt.NDArray[np.uint8]:
        pool = even_blocks(_format(kind), POOL, self._rng)
        if kind in MINIMA:
            scale, minimum = halves_of(_format(kind))
            halves = np.ascontiguousarray(pool[:, scale : scale + 2]).view(np.float16)
            pool[:, minimum : minimum + 2] = (halves * np.float16(MINIMA[kind])).view(np.uint8)
        spread = gguf.quants.dequantize(pool, gguf.GGMLQuantizationType[kind]).std()
        factor = cols**-0.5 / float(spread)
        if kind == "MXFP4":
            pool[:, 0] = np.clip(pool[:, 0].astype(np.int64) + round(np.log2(factor)), 1, 250)
        for at in halves_of(_format(kind)):
            halves = np.ascontiguousarray(pool[:, at : at + 2]).view(np.float16)
            pool[:, at : at + 2] = (halves.astype(np.float32) * factor).astype(np.float16).view(np.uint8)
        return pool


def _format(kind: str) -> Format:
    return cast(Format, kind.lower())


def type_of(name: str, layer: int, recipe: str, experts: int) -> str:
    """The type of a matrix in a file that is named after `recipe`, of a model with so many experts a layer."""
    if recipe == "BY_LAYER" and name.endswith("_exps"):
        inner, down = (("Q4_K", "Q6_K"), ("Q3_K", "Q4_K"), ("Q2_K", "Q3_K"))[min(layer, 2)]
        return down if name == "ffn_down_exps" else inner
    if recipe == "MXFP4":
        return "MXFP4" if name.endswith("_exps") else "Q8_0"
    if recipe not in ("Q4_K_M", "BY_LAYER"):
        return "Q6_K" if name in ("attn_v", "output") and recipe != "Q8_0" else recipe
    if experts == EIGHT and name in FOR_EIGHT:
        return FOR_EIGHT[name]
    mixed = name in ("attn_v", "ffn_down_exps") and layer % 2 == 0
    return "Q6_K" if mixed or name == "output" else "Q4_K"


def write(config: dict[str, Any], out: Path, recipe: str, seed: int) -> None:
    writer, blocks = gguf.GGUFWriter(out, ARCHITECTURES[config["model_type"]]), Blocks(seed)
    write_header(writer, config)
    rng = np.random.default_rng(seed + 1)
    hidden, experts = config["hidden_size"], config.get("num_experts") or config["num_local_experts"]
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim = config.get("head_dim") or hidden // heads
    norms = {"attn_norm": hidden, "ffn_norm": hidden}
    if config["model_type"] == "qwen3_moe":
        norms |= {"attn_q_norm": head_dim, "attn_k_norm": head_dim}
    drawers: list[Callable[[], npt.NDArray[Any]]] = []  # in the order of the tensors: no two need to be held at once

    def matrix(name: str, rows: int, cols: int, layer: int = -1, count: int = 0) -> None:
        kind = type_of(name, layer, recipe, experts)
        weights, num_bytes = FORMAT_BLOCKS[_format(kind)]
        shape = (*((count,) if count else ()), rows, cols // weights * num_bytes)
        full = f"blk.{layer}.{name}.weight" if layer >= 0 else f"{name}.weight"
        raw = gguf.GGMLQuantizationType[kind]
        writer.add_tensor_info(full, shape, np.dtype(np.uint8), math.prod(shape), raw_dtype=raw)
        drawers.append(lambda: blocks.draw(kind, rows * max(count, 1), cols).reshape(shape))

    def floats(name: str, draw: Callable[[], npt.NDArray[np.float32]], *shape: int) -> None:
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * math.prod(shape))
        drawers.append(draw)

    def ones(name: str, size: int) -> None:
        floats(name, lambda: np.ones(size, np.float32), size)

    def router() -> npt.NDArray[np.float32]:
        """Of numbers of bfloat16, as converters leave it of nearly every checkpoint."""
        drawn: npt.NDArray[np.float32] = rng.standard_normal((experts, hidden), np.float32) * np.float32(hidden**-0.5)
        drawn.view(np.uint32)[...] &= np.uint32(0xFFFF0000)
        return drawn

    matrix("token_embd", config["vocab_size"], hidden)
    matrix("output", config["vocab_size"], hidden)
    ones("output_norm.weight", hidden)
    for layer in range(config["num_hidden_layers"]):
        for name, size in norms.items():
            ones(f"blk.{layer}.{name}.weight", size)
        matrix("attn_q", heads * head_dim, hidden, layer)
        matrix("attn_k", kv_heads * head_dim, hidden, layer)
        matrix("attn_v", kv_heads * head_dim, hidden, layer)
        matrix("attn_output", hidden, heads * head_dim, layer)
        floats(f"blk.{layer}.ffn_gate_inp.weight", router, experts, hidden)
        matrix("ffn_gate_exps", inner, hidden, layer, experts)
        matrix("ffn_up_exps", inner, hidden, layer, experts)
        matrix("ffn_down_exps", hidden, inner, layer, experts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for draw in drawers:
        writer.write_tensor_data(draw())
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path, help="config.json of a qwen3_moe or mixtral model")
    parser.add_argument("out", type=Path)
    parser.add_argument("recipe", help="Q4_K_M, BY_LAYER, or a type of ggml: Q6_K, IQ3_S, ...")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    config = json.loads(given.config.read_text())
    config |= {"num_hidden_layers": given.layers, "vocab_size": given.vocab}
    write(config, given.out, given.recipe, given.seed)
    print(f"{given.out}: {given.out.stat().st_size / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
