"""How Kimi K3 sees, in plain torch: its tower and projector in front of the language model of kimi_k3.py.

Written from what SGLang (srt/models/kimi_k3_vl.py) computes of one picture; nothing of moeinf is used.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.kimi_k3 import KimiK3Reference


def turned(x: Tensor, grid: tuple[int, int]) -> Tensor:
    """x [patches, heads, size], row by row: a pair of neighbours turns by the column, the next one by the row."""
    size, (rows, cols) = x.shape[2], grid
    speeds = 1e4 ** (-torch.arange(0, size, 4).float() / size)
    row, col = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    by_col, by_row = (each.reshape(-1, 1).float() * speeds for each in (col, row))
    angles = torch.stack([by_col, by_row], 2).reshape(rows * cols, 1, size // 2)
    pairs = torch.view_as_complex(x.reshape(*x.shape[:2], -1, 2).contiguous())
    return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(2)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.fc0, self.fc1 = nn.Linear(hidden, inner, bias=False), nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.fc1(F.gelu(self.fc0(x), approximate="tanh"))
        return found


class Block(nn.Module):
    def __init__(self, v: dict[str, Any]) -> None:
        super().__init__()
        hidden, wide = v["vt_hidden_size"], v["qkv_hidden_size"]
        self.heads = v["vt_num_attention_heads"]
        self.norm0, self.norm1 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.wqkv, self.wo = nn.Linear(hidden, 3 * wide, bias=False), nn.Linear(wide, hidden, bias=False)
        self.mlp = Mlp(hidden, v["vt_intermediate_size"])

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        queries, keys, values = self.wqkv(self.norm0(x)).reshape(len(x), 3, self.heads, -1).unbind(1)
        queries, keys = turned(queries, grid), turned(keys, grid)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[2] ** 0.5
        x = x + self.wo(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1))
        found: Tensor = x + self.mlp(self.norm1(x))
        return found


class Positions(nn.Module):
    def __init__(self, v: dict[str, Any]) -> None:
        super().__init__()
        side = v["init_pos_emb_height"]
        self.weight = nn.Parameter(torch.randn(side, side, v["vt_hidden_size"]))

    def forward(self, grid: tuple[int, int]) -> Tensor:
        table = self.weight.permute(2, 0, 1)[None]
        return F.interpolate(table, size=grid, mode="bilinear")[0].permute(1, 2, 0).flatten(0, 1)


class Tower(nn.Module):
    def __init__(self, v: dict[str, Any]) -> None:
        super().__init__()
        patch, hidden = v["patch_size"], v["vt_hidden_size"]
        self.patch_embed, self.encoder = nn.Module(), nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, hidden, patch, patch, bias=False)
        self.patch_embed.pos_emb = Positions(v)
        self.encoder.blocks = nn.ModuleList(Block(v) for _ in range(v["vt_num_hidden_layers"]))
        self.encoder.final_layernorm = nn.RMSNorm(hidden)

    def forward(self, patches: Tensor, grid: tuple[int, int], merge: int) -> Tensor:
        """patches [count, 3, patch, patch], row by row -> [tokens, merge * merge * hidden]"""
        x: Any = self.patch_embed.proj(patches).flatten(1) + self.patch_embed.pos_emb(grid)  # type: ignore[operator]
        for block in self.encoder.blocks:  # type: ignore[union-attr]
            x = block(x, grid)
        x = self.encoder.final_layernorm(x)  # type: ignore[operator]
        rows, cols = (side // merge for side in grid)
        found: Tensor = x.reshape(rows, merge, cols, merge, -1).transpose(1, 2).reshape(rows * cols, -1)
        return found


class Projector(nn.Module):
    def __init__(self, v: dict[str, Any], out: int) -> None:
        super().__init__()
        wide = v["vt_hidden_size"] * v["merge_kernel_size"][0] ** 2
        self.proj = nn.Sequential(nn.Linear(wide, wide, bias=False), nn.GELU(), nn.Linear(wide, out, bias=False))
        self.post_norm = nn.RMSNorm(out, eps=v["projector_ln_eps"])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.post_norm(self.proj(x))
        return found


class KimiK3Seeing(KimiK3Reference):
    """With as much of transformers' interface as the tests of pictures use."""

    def __init__(self, whole: dict[str, Any]) -> None:
        super().__init__(whole)
        v = whole["vision_config"]
        self.merge = v["merge_kernel_size"][0]
        self.vision_tower, self.mm_projector = Tower(v), Projector(v, whole["text_config"]["hidden_size"])

    def rows(self, pixel_values: Tensor, image_grid_thw: Tensor) -> Tensor:
        found, start = list[Tensor](), 0
        for _, rows, cols in image_grid_thw.tolist():
            patches = pixel_values[start : start + rows * cols]
            found.append(self.mm_projector(self.vision_tower(patches, (rows, cols), self.merge)))
            start += rows * cols
        return torch.cat(found)

    def forward(self, input_ids: Tensor, **pictures: Tensor) -> SimpleNamespace:  # type: ignore[override]
        rows = self.rows(**pictures) if pictures else None
        return SimpleNamespace(logits=self.logits(input_ids, rows, input_ids.shape[1]))

    def logits(self, ids: Tensor, rows: Tensor | None, end: int) -> Tensor:
        """rows: of the pictures, which stand in front of `end`."""
        text = self.language_model.model.embed_tokens(ids[0])
        if rows is not None:
            text = text.clone()
            text[:end][ids[0, :end] == self.config["media_placeholder_token_id"]] = rows
        found: Tensor = self.language_model.lm_head(self.language_model.model.of_rows(text))[None]
        return found

    def generate(self, input_ids: Tensor, max_new_tokens: int, **options: Any) -> Tensor:  # type: ignore[override]
        rows, end = self.rows(options["pixel_values"], options["image_grid_thw"]), input_ids.shape[1]
        for _ in range(max_new_tokens):
            input_ids = torch.cat([input_ids, self.logits(input_ids, rows, end)[:, -1:].argmax(-1)], 1)
        return input_ids
