"""Writes a random bf16 checkpoint with the geometry of a real config.json, cut in depth, in Hugging Face form.

    python benchmarks/make_checkpoint.py CONFIG_JSON OUT --layers 4 --vocab 32000

The vocabulary is cut and tied to the head. The tokenizer is the embedded model's, so real text gives real, varied
routing. With embeddings of scale 1 the head all but repeats its input, which speed does not mind; to compare
predictions, spread them with --embedding-scale 0.04. One shard a layer; only one layer is in memory at a time.
--device cuda draws the numbers on a GPU, which is faster and gives others.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeinf.models.family import family_of
from moeinf.types import TensorPlan


def cut_config(path: Path, layers: int, vocab: int) -> dict[str, Any]:
    """With so many layers, of each list that has an element for each, and tokens."""
    config: dict[str, Any] = json.loads(path.read_text())
    config |= {"tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    text: dict[str, Any] = config.get("text_config", config)
    of_layers = {
        name: kinds[:layers]
        for name, kinds in text.items()
        if isinstance(kinds, list) and len(kinds) == text["num_hidden_layers"]
    }
    text |= of_layers
    text |= {"num_hidden_layers": layers, "vocab_size": vocab, "bos_token_id": 0, "eos_token_id": 0}
    if text is not config:
        text["tie_word_embeddings"] = True
    return config


def random_tensor(name: str, shape: tuple[int, ...], embedding_scale: float, generator: torch.Generator) -> Tensor:
    """Norms near 1; matrices scaled so that activations neither die nor explode."""
    if len(shape) == 1:
        return torch.ones(shape, dtype=torch.bfloat16)
    scale = embedding_scale if "embed" in name else shape[-1] ** -0.5
    return (torch.randn(shape, generator=generator, device=generator.device) * scale).bfloat16().cpu()


Shapes = Mapping[str, tuple[int, ...]]


def plan_shards(plan: TensorPlan) -> dict[str, Shapes]:
    """The tensors of each file: a layer's, and one with the rest."""
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in plan.experts[0].items()} | dict(plan.vision)
    groups: dict[str, dict[str, tuple[int, ...]]] = {}
    for name, shape in shapes.items():
        groups.setdefault(name.partition(".layers.")[2].partition(".")[0] or "rest", {})[name] = shape
    return {
        f"model-{number:05d}-of-{len(groups):05d}.safetensors": group
        for number, group in enumerate(groups.values(), start=1)
    }


def write_empty_shard(path: Path, shapes: Shapes) -> None:
    """A whole safetensors file whose zeros take no room on the disk."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + end)


def fill_shard(path: Path, shapes: Shapes, embedding_scale: float, generator: torch.Generator) -> None:
    """Writes random weights into what write_empty_shard has made."""
    with path.open("r+b") as file:
        file.seek(8 + int.from_bytes(file.read(8), "little"))
        for name, shape in shapes.items():
            file.write(random_tensor(name, shape, embedding_scale, generator).view(torch.uint8).numpy().data)


def write_empty_checkpoint(config: dict[str, Any], out: Path) -> dict[str, Shapes]:
    """All of a checkpoint but its weights, which are zeros that take no room. Returns plan_shards."""
    shards = plan_shards(family_of(config).tensors)
    out.mkdir(parents=True)
    for file, shapes in shards.items():
        write_empty_shard(out / file, shapes)
    total = sum(2 * math.prod(shape) for shapes in shards.values() for shape in shapes.values())
    weight_map = {name: file for file, shapes in shards.items() for name in shapes}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))
    (out / "config.json").write_text(json.dumps(config, indent=1))
    demo = resources.files("moeinf").joinpath("data/demo")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        with resources.as_file(demo.joinpath(file)) as source:
            shutil.copy(source, out / file)
    print(f"{out}: {total / 1e9:.2f} GB", flush=True)
    return shards


def geometry_parser(description: str | None) -> argparse.ArgumentParser:
    """The options that say what is made."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", type=Path)
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--embedding-scale", type=float, default=1.0)
    parser.add_argument("--device", default="cpu", help="where random numbers are drawn")
    return parser


def main() -> None:
    parser = geometry_parser(__doc__)
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    generator = torch.Generator(given.device).manual_seed(given.seed)
    shards = write_empty_checkpoint(cut_config(given.config, given.layers, given.vocab), given.out)
    for file, shapes in shards.items():
        fill_shard(given.out / file, shapes, given.embedding_scale, generator)


if __name__ == "__main__":
    main()
