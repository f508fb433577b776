"""Writes a random bf16 checkpoint with the geometry of a real config.json, cut in depth, in Hugging Face form.

    python benchmarks/make_checkpoint.py CONFIG_JSON OUT --layers 4 --vocab 32000

The vocabulary is cut and tied to the head. The tokenizer is the embedded model's, so real text gives real, varied
routing. With embeddings of scale 1 the head all but repeats its input, which speed does not mind; to compare
predictions, spread them with --embedding-scale 0.04. One shard a layer; only one layer is in memory at a time.
"""

from __future__ import annotations

import argparse
import json
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from moeinf.models import architecture
from moeinf.types import TensorPlan


def cut_config(path: Path, layers: int, vocab: int) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(path.read_text())
    config |= {"num_hidden_layers": layers, "vocab_size": vocab, "tie_word_embeddings": True,
               "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 0}
    return config


def random_tensor(name: str, shape: tuple[int, ...], embedding_scale: float, generator: torch.Generator
                  ) -> Tensor:
    """Norms near 1; matrices scaled so that activations neither die nor explode."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    scale = embedding_scale if "embed" in name else shape[-1] ** -0.5
    return (torch.randn(shape, generator=generator) * scale).bfloat16()


def write_checkpoint(config: dict[str, Any], out: Path, seed: int, embedding_scale: float) -> None:
    plan: TensorPlan = architecture(config).tensor_plan(config)
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in plan.experts[0].items()}
    generator = torch.Generator().manual_seed(seed)
    out.mkdir(parents=True)
    groups: dict[str, list[str]] = {}
    for name in shapes:
        groups.setdefault(name.split(".")[2] if ".layers." in name else "rest", []).append(name)
    weight_map: dict[str, str] = {}
    for number, names in enumerate(groups.values(), start=1):
        file = f"model-{number:05d}-of-{len(groups):05d}.safetensors"
        tensors = {name: random_tensor(name, shapes[name], embedding_scale, generator) for name in names}
        save_file(tensors, out / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    total = sum(2 * torch.Size(shape).numel() for shape in shapes.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (out / "config.json").write_text(json.dumps(config, indent=1))
    demo = resources.files("moeinf").joinpath("data/demo")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        with resources.as_file(demo.joinpath(file)) as source:
            shutil.copy(source, out / file)
    print(f"{out}: {total / 1e9:.2f} GB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedding-scale", type=float, default=1.0)
    given = parser.parse_args()
    write_checkpoint(cut_config(given.config, given.layers, given.vocab), given.out, given.seed,
                     given.embedding_scale)


if __name__ == "__main__":
    main()
