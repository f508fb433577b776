"""How MiMo-V2.5 sees, in plain torch: its tower in front of a language model of transformers.

Written from what vLLM (model_executor/models/mimo_v2_omni.py) and llama.cpp (tools/mtmd/models/mimovl.cpp) compute of
one picture. They differ in two things: the norm of the merger is a layer norm, as in llama.cpp, and sinks are added to
the scores of the first patch, as in vLLM; so it is in the published code. Nothing of moeinf is used.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn


def angles_of(rows: int, cols: int, merge: int, size: int) -> Tensor:
    """[patches, size / 2], those of a token behind one another."""
    speeds = 1e4 ** (-torch.arange(0, size // 2, 2).float() / (size // 2))
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    places = torch.stack([row, col], -1).reshape(rows // merge, merge, cols // merge, merge, 2).transpose(1, 2)
    return (places.reshape(-1, 2, 1).float() * speeds).flatten(1)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Attention(nn.Module):
    def __init__(self, v: dict[str, Any], windowed: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = v["num_heads"], v["num_key_value_heads"], v["qk_channels"]
        self.window = v["visual_token_window_size"] if windowed else None
        self.qkv = nn.Linear(v["hidden_size"], (self.heads + 2 * self.kv_heads) * self.size)
        self.proj = nn.Linear(self.heads * self.size, v["hidden_size"])
        if windowed:
            self.sinks = nn.Parameter(torch.randn(self.heads))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        all_heads = self.qkv(x).unflatten(1, (-1, self.size))
        q, k, v = all_heads.split([self.heads, self.kv_heads, self.kv_heads], 1)
        q, k = turned(q, angles), turned(k, angles)
        k, v = (each.repeat_interleave(self.heads // self.kv_heads, 1) for each in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * self.size**-0.5
        if self.window is not None:
            scores[..., 0] += self.sinks[:, None]
            places = torch.arange(len(x))
            scores = scores.masked_fill((places[:, None] - places).abs() > self.window, float("-inf"))
        found: Tensor = self.proj(torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1))
        return found


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(hidden, inner), nn.Linear(hidden, inner)
        self.down_proj = nn.Linear(inner, hidden)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return found


class Block(nn.Module):
    def __init__(self, v: dict[str, Any], windowed: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(v["hidden_size"], 1e-6) for _ in range(2))
        self.attn, self.mlp = Attention(v, windowed), Mlp(v["hidden_size"], v["intermediate_size"])

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x), angles)
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class Tower(nn.Module):
    def __init__(self, v: dict[str, Any]) -> None:
        super().__init__()
        hidden, self.merge, self.size, self.kinds = (
            v["hidden_size"],
            v["spatial_merge_size"],
            v["qk_channels"],
            v["vit_window_attn_types"],
        )
        self.patch_embed, self.merger = nn.Module(), nn.Module()
        side = (v["temporal_patch_size"], v["patch_size"], v["patch_size"])
        self.patch_embed.proj = nn.Conv3d(3, hidden, side, side, bias=False)
        self.side = side
        self.blocks = nn.ModuleList(Block(v, i not in v["fullatt_block_indexes"]) for i in range(v["depth"]))
        wide = hidden * self.merge**2
        self.merger.ln_q = nn.LayerNorm(hidden, 1e-6, bias=False)
        self.merger.mlp = nn.Sequential(
            nn.Linear(wide, wide, bias=False), nn.GELU(), nn.Linear(wide, v["out_hidden_size"], bias=False)
        )

    def forward(self, patches: Tensor, rows: int, cols: int) -> Tensor:
        embed: Any = self.patch_embed.proj
        x: Tensor = embed(patches.view(-1, 3, *self.side)).flatten(1)
        angles, units = angles_of(rows, cols, self.merge, self.size), self.merge**2
        tokens = torch.arange(len(x) // units).view(rows // self.merge, cols // self.merge)
        by_columns = (tokens.T.reshape(-1, 1) * units + torch.arange(units)).flatten()
        for kind, block in zip(self.kinds, self.blocks, strict=True):
            order = by_columns if kind == 1 else torch.arange(len(x))
            x = block(x[order], angles[order])[order.argsort()]
        merger: Any = self.merger
        found: Tensor = merger.mlp(merger.ln_q(x).view(len(x) // units, -1))
        return found


class MimoSeeing(nn.Module):
    """With as much of transformers' interface as the tests of pictures use."""

    def __init__(self, config: dict[str, Any], text: Any) -> None:
        """text: the language model."""
        super().__init__()
        self.config, self.text, self.visual = config, text, Tower(config["vision_config"])

    def save_pretrained(self, folder: Path) -> None:
        self.text.save_pretrained(folder)
        file = folder / "model.safetensors"
        tower = {f"visual.{name}": tensor for name, tensor in self.visual.state_dict().items()}
        safetensors.torch.save_file(safetensors.torch.load_file(file) | tower, file, metadata={"format": "pt"})

    def rows(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        found, start = list[Tensor](), 0
        for _, rows, cols in image_grid_thw.tolist():
            found.append(self.visual(pixel_values[start : start + rows * cols], rows, cols))
            start += rows * cols
        return torch.cat(found)

    def forward(self, input_ids: Tensor, **pictures: Tensor) -> SimpleNamespace:
        rows = self.rows(**pictures) if pictures else None
        return SimpleNamespace(logits=self.logits(input_ids, rows, input_ids.shape[1]))

    def logits(self, ids: Tensor, rows: Tensor | None, end: int) -> Tensor:
        """rows: of the pictures, which stand in front of `end`."""
        x = self.text.model.embed_tokens(ids)
        if rows is not None:
            x = x.clone()
            x[0, :end][ids[0, :end] == self.config["image_token_id"]] = rows
        found: Tensor = self.text(inputs_embeds=x).logits
        return found

    def generate(self, input_ids: Tensor, max_new_tokens: int, **options: Any) -> Tensor:
        rows, end = self.rows(options["pixel_values"], options["image_grid_thw"]), input_ids.shape[1]
        for _ in range(max_new_tokens):
            input_ids = torch.cat([input_ids, self.logits(input_ids, rows, end)[:, -1:].argmax(-1)], 1)
        return input_ids
