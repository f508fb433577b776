"""LoRA adapters of random numbers, as PEFT and as llama.cpp's converter save them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor

Floats = npt.NDArray[np.float32]

Q = "model.layers.0.self_attn.q_proj"
PREFIX = "base_model.model."


def factors(module: str = Q, out: int = 64, into: int = 64, rank: int = 2) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(module))
    a, b = torch.randn(rank, into, generator=generator), torch.randn(out, rank, generator=generator)
    return {f"{PREFIX}{module}.lora_A.weight": a, f"{PREFIX}{module}.lora_B.weight": b}


def write_adapter(folder: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "base_model_name_or_path": "org/Tiny", **config}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    tensors = factors() if tensors is None else tensors
    safetensors.torch.save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def write_gguf_adapter(
    path: Path, architecture: str, pairs: Mapping[str, tuple[Floats, Floats]], alpha: float = 0.0, **fields: Any
) -> Path:
    """A file as llama.cpp's convert_lora_to_gguf.py writes it. pairs: A and B by the name of a model's tensor."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, value in fields.items():
        (writer.add_string if isinstance(value, str) else writer.add_array)(name.replace("__", "."), value)
    for name, factors in pairs.items():
        for end, values in zip("ab", factors, strict=True):
            writer.add_tensor(f"{name}.lora_{end}", np.ascontiguousarray(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def factored(difference: Floats) -> tuple[Floats, Floats]:
    """A and B [.., rank, columns] and [.., rows, rank] whose product is a matrix of low rank, or a stack of these."""
    left, lengths, right = np.linalg.svd(difference.astype(np.float64), full_matrices=False)
    rank = int((lengths > 1e-5 * lengths.max()).sum(axis=-1).max())
    roots = np.sqrt(lengths[..., :rank])
    return (roots[..., None] * right[..., :rank, :]).astype(np.float32), (
        left[..., :rank] * roots[..., None, :]
    ).astype(np.float32)
