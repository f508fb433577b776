"""Writes a GGUF of random blocks in the geometry of a real config.json of any family that llama.cpp's converter knows.

    python benchmarks/peers/gguf_files/family_gguf.py LLAMA_CPP CONFIG_JSON OUT.gguf --layers 4 [--vocab 32000]
        [--recipe MXFP4] [--set hidden_size=7168 ...]

LLAMA_CPP is a folder of llama.cpp, whose converter says which tensors and metadata a file of the family has. It reads a
checkpoint that is a hole on the disk; every matrix it makes is replaced by random blocks of the mixture Q4_K_M, or of
another that random_gguf.py knows, and where rows are no multiple of 256 by those that llama.cpp's quantiser takes then.
Numbers that it leaves as F32 stay: norms are ones, routers and convolutions random, what else there is comes from
zeros. --set changes the config: head tied to the embedding (tie_word_embeddings=true; else it is not), fewer experts.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

# The converter and its own gguf package are where the first argument says.
sys.path.insert(0, sys.argv[1])
sys.path.insert(0, f"{sys.argv[1]}/gguf-py")
sys.path.insert(0, str(Path(__file__).parents[3]))

import gguf
import torch
from random_gguf import Blocks, type_of
from to_gguf import add_vocabulary

from moeinf.models.family import family_of
from tests.support.converter.record import converter_of

TYPES = gguf.GGMLQuantizationType
COUNTS = ("num_hidden_layers", "n_layers")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
# What llama.cpp's quantiser takes where a row is no multiple of 256.
NARROW = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "Q3_K": "IQ4_NL", "Q2_K": "IQ4_NL"}
LISTED = ("layers_block_type", "layer_types", "mlp_layer_types", "moe_layers", "hybrid_override_pattern")


def cut(config: dict[str, Any], layers: int, changed: dict[str, Any]) -> dict[str, Any]:
    """The config with its first layers only, in every list that has one entry a layer, and with what is changed."""
    if "text_config" in config:
        return config | {"text_config": cut(config["text_config"], layers, changed), "tie_word_embeddings": False}
    count = next(name for name in (*COUNTS, LISTED[0]) if config.get(name))
    whole = len(config[count]) if count == LISTED[0] else config[count]
    said = {name: layers for name in COUNTS if name in config} or {COUNTS[0]: layers}
    return _first(config, whole, layers) | said | {"tie_word_embeddings": False} | changed


def _first(config: dict[str, Any], whole: int, layers: int) -> dict[str, Any]:
    def of(name: str, value: Any) -> Any:
        if isinstance(value, dict):
            return _first(value, whole, layers)
        return value[:layers] if name in LISTED or (isinstance(value, list) and len(value) == whole) else value

    return {name: of(name, value) for name, value in config.items()}


def write_hole(config: dict[str, Any], folder: Path) -> None:
    """A checkpoint of zeros in bf16 that takes no place on the disk."""
    plan = family_of(config).tensors
    plain = next(layout for layout in plan.experts if not any(name.endswith("_blocks") for name in layout))
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in plain.items()}
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + 2 * math.prod(shape)]}
        end += 2 * math.prod(shape)
    said = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(said).to_bytes(8, "little") + said)
        file.truncate(8 + len(said) + end)


class Replaced:
    """Stands where the converter adds tensors to its file, and adds random ones."""

    def __init__(self, writer: Any, recipe: str, seed: int, experts: int, tied: bool) -> None:
        self._add, self._recipe, self._experts, self._tied = writer.add_tensor, recipe, experts, tied
        self._blocks, self._rng = Blocks(seed), np.random.default_rng(seed + 1)

    def add(self, name: str, data: Any, raw_shape: Any = None, raw_dtype: Any = None) -> None:
        kind = TYPES.F32 if raw_dtype is None else raw_dtype
        if kind == TYPES.F32:
            self._add(name, self._floats(name, data))
            return
        *rest, row_bytes = data.shape
        self._matrix(name, rest, row_bytes // 2)  # of bf16

    def _floats(self, name: str, data: Any) -> Any:
        if "norm" in name and name.endswith(".weight"):
            return np.ones(data.shape, np.float32)
        if len(data.shape) > 1 and name.split(".")[2] not in ("ssm_a", "ssm_d"):  # decays are below zero
            return self._rng.standard_normal(data.shape, np.float32) * data.shape[-1] ** -0.5
        return np.asarray(gguf.LazyNumpyTensor.to_eager(data), np.float32)

    def _matrix(self, name: str, rest: list[int], cols: int) -> None:
        parts = name.split(".")
        layer, base = (int(parts[1]), parts[2]) if parts[0] == "blk" else (-1, parts[0])
        head = base == "token_embd" and self._tied
        wanted = type_of("output" if head else base, layer, self._recipe, self._experts)
        fitting = (wanted, NARROW.get(wanted, "Q8_0"), "BF16")
        kind = next(each for each in fitting if cols % gguf.GGML_QUANT_SIZES[TYPES[each]][0] == 0)
        if kind == "BF16":
            wide = self._rng.standard_normal((*rest, cols), np.float32) * cols**-0.5
            drawn = (wide.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        else:
            drawn = self._blocks.draw(kind, math.prod(rest), cols)
        shape = (*rest, drawn.shape[-1])
        self._add(name, drawn.reshape(shape), raw_dtype=TYPES[kind])


def convert(config: dict[str, Any], out: Path, recipe: str, seed: int) -> None:
    hf = config["architectures"][0]
    text = config.get("text_config") or config
    vocab, experts = text["vocab_size"], next(text[name] for name in EXPERTS if text.get(name))
    tokenizer = {"added_tokens": [], "model": {"vocab": {str(number): number for number in range(vocab)}}}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        (Path(folder) / "tokenizer.json").write_text(json.dumps(tokenizer))
        write_hole(config, Path(folder))
        kind = converter_of(hf)
        kind.set_vocab = lambda self: add_vocabulary(self.gguf_writer, vocab)
        kind.no_mtp = True
        with torch.inference_mode():
            made = kind(Path(folder), gguf.LlamaFileType.MOSTLY_BF16, out, model_name=out.stem, use_temp_file=True)
            made.gguf_writer.add_tensor = Replaced(
                made.gguf_writer, recipe, seed, experts, bool(config["tie_word_embeddings"])
            ).add
            made.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("llama_cpp", type=Path)
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, help="[default: all of it]")
    parser.add_argument("--recipe", default="Q4_K_M")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=JSON", help="another entry of the config")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    changed = {name: json.loads(value) for name, value in (each.split("=", 1) for each in given.set)}
    if given.vocab:
        changed["vocab_size"] = given.vocab
    config = cut(json.loads(given.config.read_text()), given.layers, changed)
    config.pop("quantization_config", None)
    convert(config, given.out, given.recipe, given.seed)
    print(f"{given.out}: {given.out.stat().st_size / 1e9:.3f} GB")


if __name__ == "__main__":
    main()
