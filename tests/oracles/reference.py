"""What the references in plain torch have of a model of transformers: greedy tokens, and a checkpoint of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn


class Reference(nn.Module):
    config: dict[str, Any]  # as it is saved

    def generate(self, ids: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        for _ in range(max_new_tokens):
            ids = torch.cat([ids, self(ids).logits[:, -1:].argmax(-1)], 1)
        return ids

    def save_pretrained(self, folder: Path) -> None:
        save_file(self.state_dict(), folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(self.config))
