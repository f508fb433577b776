"""The vision tower of a GGUF model, which is a file of its own (mmproj): its config, and where its tensors lie.

docs/contributing/gguf.md says what llama.cpp's converter does to a tower, which is undone here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.configs.common import refuse_unless
from moeinf.gguf.gguf_tensors import DenseSource
from moeinf.gguf.header import Gguf, GgufTensor
from moeinf.gguf.metadata import Metadata, shortest, texts_of
from moeinf.gguf.undo import Columns, Kind, Reshape, Rows, Stack, Undo, Widen, outcome
from moeinf.types import JsonObject

_OUTSIDE = ("tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id")  # said of the whole model
_READ_ELSEWHERE = ("has_audio_encoder", "vision.image_size", "vision.projector_type")  # or nowhere
_OF_SOUND = ("a.", "mm.a.")  # what tensors of a model of sound begin with, which the same file may hold


@dataclass(frozen=True, slots=True)
class Sight:
    """How the files of an architecture see."""

    family: str
    projector: str  # the kind of its mmproj
    config: Callable[[Metadata], JsonObject]  # vision_config
    text: Callable[[Gguf, JsonObject], JsonObject]  # what text_config has besides
    processor: Callable[[Metadata], JsonObject]  # preprocessor_config.json
    tokens: Mapping[str, str]  # by the field of config.json that has its id
    names: tuple[tuple[str, str], ...]  # of tensors in a checkpoint, and in the file


def may_see(gguf: Gguf) -> bool:
    """Whether an mmproj file is of use to a model."""
    return gguf.metadata.get("general.architecture") in _SIGHTS


def family_may_see(name: str) -> bool:
    return any(sight.family == name for sight in _SIGHTS.values())


def seeing_config(gguf: Gguf, text: JsonObject) -> JsonObject:
    """config.json of a model with its tower; text: that of the model's own file.

    Raises UnsupportedModelError for a file that is no tower of this model, CheckpointError for one that is damaged.
    """
    sight, m = _sight(gguf), _metadata(gguf)
    projector = m.text("projector_type", "") or m.text("vision.projector_type", "")
    if projector != sight.projector:
        raise UnsupportedModelError(
            f"{m.where} has the projector {projector!r:.50}, a model of {_architecture(gguf)!r} takes "
            f"{sight.projector!r}: it is the mmproj file of another model"
        )
    width = m.count("vision.projection_dim")
    if width != text["hidden_size"]:
        raise UnsupportedModelError(
            f"{m.where} gives the model rows of {width} numbers, which takes {text['hidden_size']}: it is the mmproj "
            "file of another model"
        )
    vision = sight.config(m)
    sight.processor(m)
    for name in _READ_ELSEWHERE:
        m.values(name)
    m.refuse_others("audio.")
    return {
        "model_type": text["model_type"],
        **{name: text[name] for name in _OUTSIDE if name in text},
        **_token_ids(gguf, sight),
        "text_config": {name: value for name, value in text.items() if name != "model_type"} | sight.text(gguf, text),
        "vision_config": vision,
    }


def processor_file(gguf: Gguf) -> dict[str, bytes]:
    """preprocessor_config.json of a model with its tower, by its name."""
    settings = _sight(gguf).processor(_metadata(gguf))
    return {"preprocessor_config.json": (json.dumps(settings, indent=2) + "\n").encode()}


def tower_places(gguf: Gguf, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, DenseSource]:
    """Where the tensors of a tower lie, by the names in `shapes`; their file is the one behind the model's own.

    Raises CheckpointError for a tensor that is missing or of another shape, UnsupportedModelError for one too many.
    """
    sight, m = _sight(gguf), _metadata(gguf)
    mmproj, deep = m.gguf, _deep_blocks(m)
    number, used, found = len(gguf.files), set[str](), dict[str, DenseSource]()
    for name, shape in shapes.items():
        sources, undo = _sources(mmproj, _file_names(sight, name, deep), shape)
        used |= {tensor.name for tensor in sources}
        kind = outcome([Kind(tensor.format, tensor.shape) for tensor in sources], undo)
        if kind is None or kind.shape != shape:
            said = " and ".join(f"{tensor.name!r} {list(tensor.shape)}" for tensor in sources)
            raise CheckpointError(
                f"{mmproj.where}: tensor {said} cannot be {name} {list(shape)}, which the metadata mean; "
                "the file is damaged"
            )
        if not kind.plain and (len(shape) != 2 or "pos_embed." in name):  # what products are not made with
            undo = (*undo, Widen())
        found[name] = DenseSource(tuple(replace(tensor, file=number) for tensor in sources), shape, undo)
    for name in mmproj.tensors:
        if name not in used and not name.startswith(_OF_SOUND):
            raise UnsupportedModelError(f"{mmproj.where}: its tensor {name!r} is none of a tower that moeinf computes")
    return found


def _sight(gguf: Gguf) -> Sight:
    sight = _SIGHTS.get(_architecture(gguf))
    if sight is None:
        raise UnsupportedModelError(
            f"{gguf.where}: moeinf runs the text of {_architecture(gguf)!r:.50} alone; leave its mmproj file out"
        )
    return sight


def _architecture(gguf: Gguf) -> str:
    return str(gguf.metadata.get("general.architecture"))


def _metadata(gguf: Gguf) -> Metadata:
    """Of the tower's file."""
    assert gguf.mmproj is not None
    m = Metadata(gguf.mmproj)
    if m.architecture != "clip":
        raise UnsupportedModelError(
            f"{m.where} is no mmproj file but a model of {m.architecture!r:.50}; name the file of the vision tower"
        )
    if not m.flag("has_vision_encoder", False):
        raise UnsupportedModelError(f"{m.where} has no vision tower (clip.has_vision_encoder)")
    return m


def _token_ids(gguf: Gguf, sight: Sight) -> JsonObject:
    tokens = texts_of(gguf.metadata, "tokenizer.ggml.tokens", gguf.where)
    missing = [text for text in sight.tokens.values() if text not in tokens]
    if missing:
        raise UnsupportedModelError(f"{gguf.where} has no token {missing[0]!r}, which a picture needs in a prompt")
    return {field: tokens.index(text) for field, text in sight.tokens.items()}


def _file_names(sight: Sight, name: str, deep: list[int]) -> list[str]:
    """deep: the blocks behind which there are rows for layers, whose numbers files have in place of the layers'."""
    for pattern, template in sight.names:
        found = re.fullmatch(pattern, name)
        if found is not None:
            names = [found.expand(each) for each in template.split()]
            return [re.sub(r"(?<=^v\.deepstack\.)\d+", lambda at: str(deep[int(at[0])]), each) for each in names]
    raise AssertionError(f"no mmproj file has a tensor for {name}")


def _sources(mmproj: Gguf, names: list[str], shape: tuple[int, ...]) -> tuple[list[GgufTensor], Undo]:
    """The tensors that one of a checkpoint was made into, and what makes it of them."""
    missing = [name for name in names if name not in mmproj.tensors]
    if missing:
        raise CheckpointError(f"{mmproj.where} has no tensor {missing[0]!r}; take one of a newer llama.cpp")
    tensors = [mmproj.tensors[name] for name in names]
    if "v.patch_embd.weight" not in names:
        return tensors, ()
    if len(shape) == 2:  # pixels, then channels
        side = tensors[0].shape[-1]
        return tensors, (Reshape((shape[0], 3 * side * side)), Columns((3, side, side), (1, 2, 0)))
    hidden, channels, frames, *patch = shape  # a convolution over frames, as one for each
    pixels = patch[0] * patch[1]
    in_turn = Rows(0, (frames, hidden * channels), (1, 0))
    return tensors, (Stack(), Reshape((frames * hidden * channels, pixels)), in_turn, Reshape(shape))


# ---- Qwen3.5 and its kin


def _merging(m: Metadata) -> JsonObject:
    m.number("vision.attention.layer_norm_epsilon", 0.0)  # the language model's, which is not the tower's
    refuse_unless(m, m.flag("use_gelu", False), "use_gelu")
    return {
        "depth": m.count("vision.block_count"),
        "hidden_size": m.count("vision.embedding_length"),
        "intermediate_size": m.count("vision.feed_forward_length"),
        "num_heads": m.count("vision.attention.head_count"),
        "out_hidden_size": m.count("vision.projection_dim"),
        "num_position_embeddings": m.rows("v.position_embd.weight"),
        "patch_size": m.count("vision.patch_size"),
        "spatial_merge_size": m.count("vision.spatial_merge_size", 2),
        "temporal_patch_size": 2,
        "deepstack_visual_indexes": _deep_blocks(m),
    }


def _deep_blocks(m: Metadata) -> list[int]:
    return [i for i, each in enumerate(m.values("vision.is_deepstack_layers") or []) if each]


def _three_positions(gguf: Gguf, text: JsonObject) -> JsonObject:
    """Which frequencies turn by time, rows and columns."""
    name = f"{_architecture(gguf)}.rope.dimension_sections"
    sections = gguf.metadata.get(name)
    if isinstance(sections, int | float | bool | str | None) or len(sections) < 3:
        raise CheckpointError(f"{gguf.where}: {name} is {sections!r:.50}; must be three numbers")
    found = {"mrope_section": [sections[i] for i in range(3)], "mrope_interleaved": True}
    if text.get("rope_scaling"):
        return {"rope_scaling": text["rope_scaling"] | found}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": text["rope_theta"]} | found}


def _merged_pictures(m: Metadata) -> JsonObject:
    bounds = {name: m.count(f"vision.image_{name}", 0) for name in ("min_pixels", "max_pixels")}
    return _normalised(m) | {name: count for name, count in bounds.items() if count}


def _normalised(m: Metadata) -> JsonObject:
    found = {name: m.values(f"vision.{name}") for name in ("image_mean", "image_std")}
    for name, numbers in found.items():
        if numbers is None or len(numbers) != 3 or not all(type(each) in (int, float) for each in numbers):
            raise CheckpointError(f"{m.where}: clip.vision.{name} is {numbers!r:.50}; must be three numbers")
    return {name: [shortest(float(each)) for each in numbers or ()] for name, numbers in found.items()}


_OF_MERGING = (
    (r"model\.visual\.patch_embed\.proj\.weight", "v.patch_embd.weight v.patch_embd.weight.1"),
    (r"model\.visual\.patch_embed\.proj\.bias", "v.patch_embd.bias"),
    (r"model\.visual\.pos_embed\.weight", "v.position_embd.weight"),
    (r"model\.visual\.blocks\.(\d+)\.attn\.qkv\.(\w+)", r"v.blk.\1.attn_qkv.\2"),
    (r"model\.visual\.blocks\.(\d+)\.attn\.proj\.(\w+)", r"v.blk.\1.attn_out.\2"),
    (r"model\.visual\.blocks\.(\d+)\.norm([12])\.(\w+)", r"v.blk.\1.ln\2.\3"),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.linear_fc1\.(\w+)", r"v.blk.\1.ffn_up.\2"),
    (r"model\.visual\.blocks\.(\d+)\.mlp\.linear_fc2\.(\w+)", r"v.blk.\1.ffn_down.\2"),
    (r"model\.visual\.deepstack_merger_list\.(\d+)\.norm\.(\w+)", r"v.deepstack.\1.norm.\2"),
    (r"model\.visual\.deepstack_merger_list\.(\d+)\.linear_(\w+)\.(\w+)", r"v.deepstack.\1.\2.\3"),
    (r"model\.visual\.merger\.norm\.(\w+)", r"v.post_ln.\1"),
    (r"model\.visual\.merger\.linear_fc1\.(\w+)", r"mm.0.\1"),
    (r"model\.visual\.merger\.linear_fc2\.(\w+)", r"mm.2.\1"),
)
_OF_QWEN = {
    "image_token_id": "<|image_pad|>",
    "vision_start_token_id": "<|vision_start|>",
    "vision_end_token_id": "<|vision_end|>",
}


# ---- Gemma 4


def _pooling(m: Metadata) -> JsonObject:
    head_dim = m.rows("v.blk.0.attn_q_norm.weight")
    table = m.tensor("v.position_embd.weight")
    m.flag("use_gelu", True)
    limits = re.compile(r"v\..*\.(input|output)_(min|max)")
    return {
        "num_hidden_layers": m.count("vision.block_count"),
        "hidden_size": m.count("vision.embedding_length"),
        "intermediate_size": m.count("vision.feed_forward_length"),
        "num_attention_heads": m.count("vision.attention.head_count"),
        "num_key_value_heads": m.rows("v.blk.0.attn_k.weight") // head_dim,
        "head_dim": head_dim,
        "rms_norm_eps": m.number("vision.attention.layer_norm_epsilon", 1e-6),
        "patch_size": m.count("vision.patch_size"),
        "pooling_kernel_size": m.count("vision.projector.scale_factor", 3),
        "position_embedding_size": table.shape[1] if table is not None and len(table.shape) == 3 else 1,
        "standardize": m.tensor("v.std_bias") is not None,
        "use_clipped_linears": any(map(limits.fullmatch, m.gguf.tensors)),
    }


def _pooled_pictures(m: Metadata) -> JsonObject:
    plain: JsonObject = {"image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    if (found := _normalised(m)) != plain:
        raise UnsupportedModelError(f"{m.where}: pictures that are normalised ({found}) are not supported")
    return {}


_OF_POOLING = (
    (r"model\.vision_tower\.patch_embedder\.input_proj\.weight", "v.patch_embd.weight"),
    (r"model\.vision_tower\.patch_embedder\.position_embedding_table", "v.position_embd.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qkv])_proj\..*", r"v.blk.\1.attn_\2.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.self_attn\.o_proj\..*", r"v.blk.\1.attn_out.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.self_attn\.([qk])_norm\.weight", r"v.blk.\1.attn_\2_norm.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.mlp\.(\w+)_proj\..*", r"v.blk.\1.ffn_\2.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.input_layernorm\.weight", r"v.blk.\1.ln1.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.pre_feedforward_layernorm\.weight", r"v.blk.\1.ln2.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.post_attention_\w+\.weight", r"v.blk.\1.attn_post_norm.weight"),
    (r"model\.vision_tower\.encoder\.layers\.(\d+)\.post_feedforward_\w+\.weight", r"v.blk.\1.ffn_post_norm.weight"),
    (r"model\.vision_tower\.std_(bias|scale)", r"v.std_\1"),
    (r"model\.embed_vision\.embedding_projection\.weight", "mm.input_projection.weight"),
)
_OF_GEMMA = {"image_token_id": "<|image|>", "boi_token_id": "<|image>", "eoi_token_id": "<image|>"}


_SIGHTS: Mapping[str, Sight] = {
    "qwen35moe": Sight(
        "qwen3_5_moe", "qwen3vl_merger", _merging, _three_positions, _merged_pictures, _OF_QWEN, _OF_MERGING
    ),
    "qwen3vlmoe": Sight(
        "qwen3_vl_moe", "qwen3vl_merger", _merging, _three_positions, _merged_pictures, _OF_QWEN, _OF_MERGING
    ),
    "gemma4": Sight(
        "gemma4",
        "gemma4v",
        _pooling,
        lambda gguf, text: {"use_bidirectional_attention": "vision"},  # as published: no file says
        _pooled_pictures,
        _OF_GEMMA,
        _OF_POOLING,
    ),
}
