"""Makes small Qwen3-MoE checkpoints with random weights."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from moeinf.models.family import family_of
from moeinf.store.library import StoredModel
from moeinf.store.manifest import model_id

CONFIG: dict[str, Any] = {
    "model_type": "qwen3_moe",
    "vocab_size": 97,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 48,
    "moe_intermediate_size": 256,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
Checkpoint = dict[str, Tensor]
TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
}
LICENSE = b"Do what you like.\n"
NUM_SHARDS = 4


def random_tensors(
    config: Mapping[str, Any] = CONFIG, seed: int = 0, layout: int = 0, *, by_name: bool = False
) -> dict[str, Tensor]:
    """Everything that the config implies, in bf16; layout: of the plan's, the first has tensors for each expert.

    Tables of experts have numbers of them. by_name: they are drawn in the order of their names, not of the plan.
    """
    plan = family_of(dict(config)).tensors
    shapes = dict(plan.dense) | {name: shape for name, (shape, _) in plan.experts[layout].items()}
    shapes = dict(sorted(shapes.items())) if by_name else shapes
    generator = torch.Generator().manual_seed(seed)
    tensors = {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in shapes.items()}
    for name, count in plan.whole.items():
        tensors[name] = torch.randint(0, count, shapes[name], generator=generator)
    return tensors


def scaled(tensors: Mapping[str, Tensor], factor: float) -> Checkpoint:
    """All numbers but whole ones, which name something."""
    return {name: tensor * factor if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def fused(tensors: Mapping[str, Tensor], config: Mapping[str, Any] = CONFIG) -> dict[str, Tensor]:
    """The same weights in the layout that has one tensor for all experts of a layer."""
    result = {name: tensor for name, tensor in tensors.items() if ".experts." not in name}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts."
        parts = {
            part: torch.stack([tensors[f"{prefix}{e}.{part}_proj.weight"] for e in range(config["num_experts"])])
            for part in ("gate", "up", "down")
        }
        result[f"{prefix}gate_up_proj"] = torch.cat((parts["gate"], parts["up"]), dim=1)
        result[f"{prefix}down_proj"] = parts["down"]
    return result


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Tensor] | None = None,
    config: Mapping[str, Any] = CONFIG,
    num_shards: int = NUM_SHARDS,
    order: Callable[[str], Any] = str,
) -> Path:
    """A checkpoint folder, its tensors sorted by `order`; num_shards 0 writes a single file, without an index."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = random_tensors(config) if tensors is None else tensors
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "LICENSE").write_bytes(LICENSE)
    (folder / "tokenizer_config.json").write_text("{}")
    write_tokenizer(folder)
    if not num_shards:
        safetensors.torch.save_file(dict(tensors), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    weight_map: dict[str, str] = {}
    for number, names in enumerate(split(sorted(tensors, key=order), num_shards)):
        file = f"model-{number + 1:05d}-of-{num_shards:05d}.safetensors"
        safetensors.torch.save_file({name: tensors[name] for name in names}, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def write_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))


def in_fp8(
    tensors: Checkpoint, block: tuple[int, int] = (128, 128), *, powers: bool = False
) -> tuple[Checkpoint, Checkpoint]:
    """A checkpoint in FP8, and the bf16 tensors that it stands for, computed tile by tile.

    powers: whether scales are powers of two.
    """
    shipped, meant = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if not re.search(r"_proj(_with_mqa)?\.weight$|\.experts\.", name):
            continue
        codes, scales = torch.empty(tensor.shape, dtype=torch.float8_e4m3fn), []
        rows, cols = tensor.shape[-2:]
        for matrix, coded in zip(tensor.float().reshape(-1, rows, cols), codes.view(-1, rows, cols), strict=True):
            for r in range(0, rows, block[0]):
                for c in range(0, cols, block[1]):
                    tile = matrix[r : r + block[0], c : c + block[1]]
                    scale = tile.abs().max() / 448
                    scales.append(scale.log2().ceil().exp2() if powers else scale)
                    coded[r : r + block[0], c : c + block[1]] = (tile / scales[-1]).to(torch.float8_e4m3fn)
        grid = (*tensor.shape[:-2], -(-rows // block[0]), -(-cols // block[1]))
        factors = torch.stack(scales).reshape(grid)
        each = factors.repeat_interleave(block[0], -2).repeat_interleave(block[1], -1)[..., :rows, :cols]
        shipped |= {name: codes, f"{name}_scale_inv": factors}
        meant[name] = (codes.float() * each).to(torch.bfloat16)
    return shipped, meant


def in_mxfp4(config: Mapping[str, Any], seed: int = 9) -> Checkpoint:
    """The matrices of the experts of gpt-oss as it is shipped, made of random bytes and scales from 2^-17 on."""
    generator = torch.Generator().manual_seed(seed)
    experts, hidden, inter = (config[name] for name in ("num_local_experts", "hidden_size", "intermediate_size"))
    found = {}
    for layer in range(config["num_hidden_layers"]):
        for name, rows, cols in (("gate_up_proj", 2 * inter, hidden), ("down_proj", hidden, inter)):
            prefix = f"model.layers.{layer}.mlp.experts.{name}"
            shape = (experts, rows, cols // 32)
            found[f"{prefix}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
            found[f"{prefix}_scales"] = torch.randint(110, 122, shape, dtype=torch.uint8, generator=generator)
    return found


def split(names: Sequence[str], parts: int) -> list[Sequence[str]]:
    return [names[len(names) * i // parts : len(names) * (i + 1) // parts] for i in range(parts)]


def content(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of a stored model that its manifest names, and of the manifest."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.name not in ("receipt.json", "eamc.npz", "hits.json")
    }


def resealed(stored: StoredModel, changed: str, *, without: str = "") -> StoredModel:
    """As if it had been pulled with these files."""

    def entry(each: Any) -> Any:
        data = (stored.path / each.file).read_bytes()
        changes = {"num_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        return replace(each, **changes) if each.file == changed else each

    manifest = stored.manifest
    files = tuple(entry(each) for each in manifest.files if each.file != without)
    data = replace(manifest, files=files).dumps()
    target = stored.path.with_name(model_id(data))
    shutil.copytree(stored.path, target)
    (target / "manifest.json").write_bytes(data)
    if without:
        (target / without).unlink()
    return StoredModel(stored.name, target.name, target)
