"""How DeepSeek-V4.1 sees, in plain torch: its tower and aligner in front of the language model of deepseek_v41.py.

Written from what SGLang (srt/models/deepseek_v41_vit.py, srt/models/deepseek_v4.py) and vLLM (models/deepseek_v41)
compute of one picture; nothing of moeinf is used.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL.Image
import PIL.ImageOps
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.deepseek_v41 import DeepseekV41Reference


def grid_of(height: int, width: int, v: dict[str, Any]) -> tuple[int, int]:
    """The pixels of the canvas on which a picture lies."""
    patch, ratio, most = v["patch_size"], v["downsample_ratio"], v["max_image_tokens"]
    if v["max_wh_ratio"] is not None and width > height * v["max_wh_ratio"]:
        width = height * v["max_wh_ratio"]
    if width * height < v["min_pixels"]:
        scale = (v["min_pixels"] / (width * height)) ** 0.5
        width, height = int(width * scale), int(height * scale)
    tall, wide = (math.ceil(side / patch) * patch for side in (height, width))
    rows, cols = (math.ceil(side // patch / ratio) for side in (tall, wide))
    if rows * (cols + 1) + 2 <= most:
        return tall, wide
    shape, cell = height / width, patch * ratio
    cols_within = math.sqrt((most - 2) / shape + 0.25) - 0.5
    if cols_within < 1.0:
        return (most - 2) // 2 * cell, cell
    if cols_within * shape < 1.0:
        return cell, (most - 3) * cell
    scale = min(math.floor(cols_within) * cell / width, math.floor(cols_within * shape) * cell / height)
    return math.floor(height * scale / patch) * patch, math.floor(width * scale / patch) * patch


def patches_of(image: Any, v: dict[str, Any]) -> tuple[Tensor, tuple[int, int]]:
    """Of a Pillow image: [count, 3, patch, patch], row by row, and how many rows and columns there are."""
    tall, wide = grid_of(image.height, image.width, v)
    if v["max_wh_ratio"] is not None and image.width >= v["max_wh_ratio"] * image.height:
        image = image.resize((wide, tall))
    else:
        image = PIL.ImageOps.pad(image, (wide, tall), color=(127, 127, 127))
    patch = v["patch_size"]
    x = (torch.from_numpy(np.asarray(image, np.float32)) / 255 - 0.5) / 0.5
    cut = x.unfold(0, patch, patch).unfold(1, patch, patch)
    return cut.flatten(0, 1), (tall // patch, wide // patch)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [patches, heads, size]; the two halves of a head are pairs."""
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos()[:, None], angles.sin()[:, None]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.w1, self.w2 = nn.Linear(hidden, 2 * inner, bias=False), nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.w1(x).chunk(2, -1)
        found: Tensor = self.w2(F.silu(gate) * up)
        return found


class Block(nn.Module):
    def __init__(self, v: dict[str, Any]) -> None:
        super().__init__()
        hidden, self.heads = v["hidden_size"], v["num_attention_heads"]
        self.norm1, self.norm2 = nn.RMSNorm(hidden, 1e-6), nn.RMSNorm(hidden, 1e-6)
        self.attn = nn.Module()
        self.attn.wqkv, self.attn.wo = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.mlp = Mlp(hidden, v["intermediate_size"])

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        attn: Any = self.attn
        queries, keys, values = attn.wqkv(self.norm1(x)).unflatten(1, (3, self.heads, -1)).unbind(1)
        queries, keys = turned(queries, angles), turned(keys, angles)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / queries.shape[2] ** 0.5
        x = x + attn.wo(torch.einsum("hqk,khd->qhd", scores.softmax(-1), values).flatten(1))
        found: Tensor = x + self.mlp(self.norm2(x))
        return found


class Tower(nn.Module):
    def __init__(self, v: dict[str, Any]) -> None:
        super().__init__()
        hidden = v["hidden_size"]
        self.size, self.theta = hidden // v["num_attention_heads"] // 2, v["rope_theta"]
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Linear(3 * v["patch_size"] ** 2, hidden)
        self.blocks = nn.ModuleList(Block(v) for _ in range(v["num_hidden_layers"]))
        self.norm = nn.RMSNorm(hidden, 1e-6)

    def forward(self, patches: Tensor, grid: tuple[int, int]) -> Tensor:
        speeds = 1 / self.theta ** (torch.arange(0, self.size, 2).float() / self.size)
        places = torch.cartesian_prod(*(torch.arange(side).float() for side in grid)).view(-1, 2)
        angles = (places[:, :, None] * speeds).flatten(1)
        x: Tensor = self.patch_embed.proj(patches.flatten(1))  # type: ignore[operator]
        for block in self.blocks:
            x = block(x, angles)
        found: Tensor = self.norm(x)
        return found


class Aligner(nn.Module):
    def __init__(self, v: dict[str, Any], out: int) -> None:
        super().__init__()
        self.ratio = v["downsample_ratio"]
        self.w1, self.w2 = nn.Linear(v["hidden_size"] * self.ratio**2, out), nn.Linear(out, out)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        """[rows, cols, out] of tokens."""
        (rows, cols), ratio = grid, self.ratio
        image = F.pad(x.T.unflatten(1, grid), (0, -cols % ratio, 0, -rows % ratio))
        tokens = F.unfold(image[None], ratio, stride=ratio)[0].T
        found: Tensor = self.w2(F.gelu(self.w1(tokens))).unflatten(0, (-(-rows // ratio), -(-cols // ratio)))
        return found


class DeepseekV41Seeing(DeepseekV41Reference):
    """With as much of transformers' interface as the tests of pictures use."""

    def __init__(self, whole: dict[str, Any]) -> None:
        super().__init__(whole | {"text_config": whole["text_config"] | {"sees": True}})
        self.config, v, hidden = whole, whole["vision_config"], whole["text_config"]["hidden_size"]
        self.vision, self.aligner = Tower(v), Aligner(v, hidden)
        for name in ("image_start", "image_newline", "image_end"):
            self.register_parameter(name, nn.Parameter(torch.randn(hidden)))
        for layer in self.layers:
            nn.init.normal_(layer.ffn.gate.bias_vl)  # type: ignore[union-attr, arg-type]

    def rows(self, pixel_values: list[Tensor], grids: list[tuple[int, int]]) -> Tensor:
        found = list[Tensor]()
        for patches, grid in zip(pixel_values, grids, strict=True):
            tokens: Tensor = self.aligner(self.vision(patches, grid), grid)
            lines = torch.cat([tokens, self.image_newline.expand(len(tokens), 1, -1)], 1)  # type: ignore[operator]
            found.append(torch.cat([self.image_start[None], lines.flatten(0, 1), self.image_end[None]]))  # type: ignore[index]
        return torch.cat(found)

    def forward(self, input_ids: Tensor, **pictures: Any) -> SimpleNamespace:  # type: ignore[override]
        rows = self.rows(**pictures) if pictures else None
        return SimpleNamespace(logits=self.logits(input_ids, rows, input_ids.shape[1]))

    def logits(self, ids: Tensor, rows: Tensor | None, end: int) -> Tensor:
        """rows: of the pictures, which stand in front of `end`."""
        text, told = self.embed(ids[0]), ids[0] == self.config["image_token_id"]
        if rows is not None:
            text = text.clone()
            text[:end][told[:end]] = rows
        return self.of_rows(ids, text, told)

    def generate(self, input_ids: Tensor, max_new_tokens: int, **options: Any) -> Tensor:  # type: ignore[override]
        rows, end = self.rows(options["pixel_values"], options["grids"]), input_ids.shape[1]
        for _ in range(max_new_tokens):
            input_ids = torch.cat([input_ids, self.logits(input_ids, rows, end)[:, -1:].argmax(-1)], 1)
        return input_ids
