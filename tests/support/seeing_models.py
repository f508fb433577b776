"""Stored models that see: tiny, with random weights, a tokenizer of bytes and a template that places pictures."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import safetensors.torch
import torch

from moeinf.config.pull_options import PullOptions
from moeinf.models.family import family_of
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from moeinf.types import JsonMapping
from tests.support.gguf_files import tokenizer_fields, write_gguf
from tests.support.mmproj_gguf import write_mmproj
from tests.support.text_models import SPECIALS, byte_level_tokenizer, write_text_model
from tests.support.tiny_models import all_configs

_BOUNDS = {"size": {"shortest_edge": 256, "longest_edge": 8192}}


@dataclass(frozen=True)
class Marks:
    """The tokens of a picture, each with the field of config.json that has its id."""

    picture: tuple[str, str]
    before: tuple[str, str] | None = None
    behind: tuple[str, str] | None = None
    in_template: bool = True
    unnamed: tuple[str, ...] = ()  # further ones, of which config.json has no ids
    placeholder: str | None = None  # what a template writes, where it is something else
    settings: JsonMapping = field(default_factory=lambda: _BOUNDS)

    @property
    def fields(self) -> dict[str, str]:
        """Token by field."""
        return {field: token for token, field in filter(None, (self.picture, self.before, self.behind))}

    @property
    def tokens(self) -> list[str]:
        return [*self.fields.values(), *self.unnamed]

    @property
    def written(self) -> str:
        """What a template writes for a picture."""
        if self.placeholder is not None:
            return self.placeholder
        marks = (self.before, self.picture, self.behind) if self.in_template else (self.picture,)
        return "".join(token for token, _ in filter(None, marks))


_OF_QWEN = Marks(
    ("<|image_pad|>", "image_token_id"),
    ("<|vision_start|>", "vision_start_token_id"),
    ("<|vision_end|>", "vision_end_token_id"),
)
_OF_GLM = Marks(
    ("<|image|>", "image_token_id"),
    ("<|begin_of_image|>", "image_start_token_id"),
    ("<|end_of_image|>", "image_end_token_id"),
    settings={**_BOUNDS, "image_mean": [0.5] * 3, "image_std": [0.5] * 3},
)
_ENLARGED = {"rescale_image_frac": 2.0, "rescale_image_max_upscaled_long_edge": 130}
MARKS = {
    "qwen3_5_moe": _OF_QWEN,
    "qwen3_vl_moe": _OF_QWEN,
    "qwen4_exp": _OF_QWEN,
    "gemma4": Marks(
        ("<|image|>", "image_token_id"),
        ("<|image>", "boi_token_id"),
        ("<image|>", "eoi_token_id"),
        in_template=False,
        settings={"max_soft_tokens": 30},
    ),
    "llama4": Marks(
        ("<|patch|>", "image_token_index"),
        ("<|image_start|>", "boi_token_index"),
        ("<|image_end|>", "eoi_token_index"),
        unnamed=("<|image|>", "<|tile_x_separator|>", "<|tile_y_separator|>"),
        placeholder="<|image|>",
        settings={"max_patches": 6, "resample": 2},
    ),
    "step3p7": Marks(
        ("<im_patch>", "image_token_id"),
        unnamed=("<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
        settings={"size": {"height": 64, "width": 64}, "patch_size": 32, "max_image_size": 320},
    ),
    "step3p7 in files": Marks(
        ("<im_patch>", "image_token_id"),
        unnamed=("<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>"),
        settings={"size": {"height": 112, "width": 112}},
    ),
    "minimax_m3_vl": Marks(
        ("]<]image[>[", "image_token_index"),
        unnamed=("]<]start of image[>[", "]<]end of image[>["),
        settings={"size": [672, 672]},
    ),
    "mistral4": Marks(
        ("[IMG]", "image_token_index"), unnamed=("[IMG_BREAK]", "[IMG_END]"), settings={"size": {"longest_edge": 48}}
    ),
    "cohere2_vision": Marks(
        ("<|IMG_PATCH|>", "image_token_id"),
        unnamed=("<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_LINE_BREAK|>"),
        settings={"size": {"height": 16, "width": 16}, "patch_size": 2},
    ),
    "nemotron_h_omni": Marks(
        ("<image>", "image_token_id"),
        unnamed=("<img>", "</img>"),
        settings={"min_num_patches": 4, "max_num_patches": 120},
    ),
    "muse_spark": Marks(
        ("<|patch|>", "image_token_id"), unnamed=("<|image_start|>", "<|image_end|>"), settings={"resample": 1}
    ),
    "hy_v4_vl": Marks(("<|image_pad|>", "image_token_id")),
    "mimo_v2": _OF_QWEN,
    "mimo_v2_flash": _OF_QWEN,
    "inkling_mm_model": Marks(("<|unused_200054|>", "image_token_id"), settings=_ENLARGED),
    "deepseek_v41": Marks(("<｜deepseek_image｜>", "image_token_id"), settings={}),
    "kimi_k25": Marks(
        ("<|media_pad|>", "media_placeholder_token_id"),
        ("<|media_begin|>", "vision_start_token_id"),
        ("<|media_end|>", "vision_end_token_id"),
        unnamed=("image", "<|media_content|>"),
        settings={"media_proc_cfg": {"in_patch_limit": 256}},
    ),
    "kimi_k3": Marks(
        ("<|media_pad|>", "media_placeholder_token_id"),
        unnamed=("<|media_begin|>", "<|media_content|>", "<|media_end|>"),
        placeholder="{{ image_prompts[0] }}",
        settings={"media_proc_cfg": {"in_patch_limit": 256}},
    ),
    "glm4v_moe": _OF_GLM,
    "glm5v": Marks(
        ("<|image|>", "media_placeholder_token_id"),
        unnamed=("<|begin_of_image|>", "<|end_of_image|>"),
        placeholder="<|begin_of_image|><|image|><|end_of_image|>",
        settings={"media_proc_cfg": {"in_patch_limit": 256}},
    ),
    "glm5_next": replace(_OF_GLM, settings={"max_image_tokens": 30}),
}
_AS_CONVERTED = ("gemma4", "minimax_m3_vl", "step3p7 in files")  # whose experts the converter knows in the first layout
FAMILIES = ("qwen3_5_moe", "gemma4")
_TEMPLATE = """{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}
{%- if part.type == 'image' %}PICTURE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}<|im_start|>assistant
"""


def seeing_config(family: str) -> dict[str, Any]:
    """With a vocabulary that has room for the tokenizer."""
    config, marks = (all_configs("SEEING") | all_configs("SEEING_FILES"))[family], MARKS[family]
    tokenizer = byte_level_tokenizer([*SPECIALS, *marks.tokens])
    text = {"vocab_size": 400, "max_position_embeddings": 1024}
    if "text_config" in config:
        text = {"text_config": config["text_config"] | text}
    return config | text | {name: tokenizer.token_to_id(token) for name, token in marks.fields.items()}


def write_seeing(
    folder: Path,
    family: str,
    *,
    sighted: bool = True,
    template: str | None = _TEMPLATE,
    dtype: torch.dtype = torch.bfloat16,
) -> Path:
    """A checkpoint; sighted: with the tower's tensors."""
    config, marks = seeing_config(family), MARKS[family]
    plan = family_of(config).tensors
    shapes = dict(plan.dense) | {
        name: shape for name, (shape, _) in plan.experts[0 if family in _AS_CONVERTED else -1].items()
    }
    shapes |= plan.vision if sighted else {}
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: (torch.randn(shape, generator=generator) * (0.15 if len(shape) > 1 else 0.5)).to(dtype)
        for name, shape in shapes.items()
    }
    folder.mkdir(parents=True)
    tokenizer = byte_level_tokenizer([*SPECIALS, *marks.tokens])
    placing = None if template is None else template.replace("PICTURE", marks.written)
    write_text_model(folder, placing, tokenizer, config=config)
    safetensors.torch.save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    if family != "gemma4":
        (folder / "preprocessor_config.json").write_text(json.dumps(marks.settings))
    else:
        (folder / "processor_config.json").write_text(json.dumps({"image_processor": marks.settings}))
    return folder


def seeing_model(folder: Path, family: str, **options: Any) -> StoredModel:
    source = write_seeing(folder / "source", family, **options)
    return pull(str(source), PullOptions(), home=folder / "home")


def write_seeing_gguf(folder: Path, family: str, tower: str = "mmproj-F32.gguf", **how: Any) -> tuple[Path, Path]:
    """What `write_seeing` writes, in f32, as a GGUF file and the file of its tower; how: of the latter."""
    source = write_seeing(folder / "checkpoint", family, dtype=torch.float32)
    config = json.loads((source / "config.json").read_text())
    tensors = safetensors.torch.load_file(source / "model.safetensors")
    seen_by = family_of(config).seen_by
    fields = tokenizer_fields(json.loads((source / "tokenizer.json").read_text()), size=400, bos=0, eos=1)
    fields["tokenizer.chat_template"] = (source / "chat_template.jinja").read_text()
    text = {name: tensor for name, tensor in tensors.items() if name not in seen_by}
    if family not in _AS_CONVERTED:
        text = dict(each for item in text.items() for each in _experts_apart(*item))
    [model] = write_gguf(folder / "model.gguf", config, text, kinds=lambda name: "F32", metadata=fields)
    mmproj = write_mmproj(
        folder / tower, config, {name: tensors[name] for name in seen_by}, **({"kinds": lambda name: "F32"} | how)
    )
    return model, mmproj


def _experts_apart(name: str, tensor: torch.Tensor) -> list[tuple[str, torch.Tensor]]:
    """Gate and up as two tensors, as files have them."""
    if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return [(name, tensor)]
    parts = tensor.chunk(2, 1) if "gate_up" in name else [tensor]
    names = ("gate", "up") if "gate_up" in name else ("down",)
    layer = name.rpartition(".")[0]
    return [(f"{layer}.{part}_proj.weight", each.contiguous()) for part, each in zip(names, parts, strict=True)]


def png(seed: int, height: int = 70, width: int = 90) -> bytes:
    """A picture file, which differs with the seed."""
    coarse = np.random.default_rng(seed).integers(0, 256, (-(-height // 10), -(-width // 10), 3)).astype(np.uint8)
    into = io.BytesIO()
    PIL.Image.fromarray(coarse.repeat(10, 0).repeat(10, 1)[:height, :width]).save(into, "PNG")
    return into.getvalue()


def asking(text: str, *pictures: bytes) -> list[dict[str, Any]]:
    """One user turn, pictures first."""
    parts = [{"type": "image", "image": data} for data in pictures]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
