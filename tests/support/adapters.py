"""LoRA adapters of random numbers, as PEFT saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

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
