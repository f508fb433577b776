"""What is said of how the files of an architecture see: a `Sight` of each, in the file of its kind of tower."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from moeinf.errors import CheckpointError
from moeinf.gguf.header import Gguf, GgufTensor
from moeinf.gguf.metadata import Metadata, shortest
from moeinf.gguf.undo import Undo
from moeinf.types import JsonObject


def as_it_lies(name: str, shape: tuple[int, ...], sources: list[GgufTensor], m: Metadata) -> Undo:
    return ()


@dataclass(frozen=True, slots=True)
class Sight:
    """How the files of an architecture see. m: metadata of the tower's file."""

    family: str  # of the whole model
    projector: str  # the kind of its mmproj
    config: Callable[[Metadata], JsonObject]  # vision_config
    processor: Callable[[Metadata], JsonObject]  # preprocessor_config.json
    tokens: Mapping[str, str]  # by the field of config.json that has its id
    names: tuple[tuple[str, str], ...]  # of tensors in a checkpoint, and in the file: the first that it has
    # Name and shape of a checkpoint's tensor, and those of the file that it was made into, to what makes it of them:
    undo: Callable[[str, tuple[int, ...], list[GgufTensor], Metadata], Undo] = as_it_lies
    text: Callable[[Gguf, JsonObject], JsonObject] = lambda gguf, text: {}  # what text_config has besides
    whole: Callable[[Metadata], JsonObject] = lambda m: {}  # what the whole model's config has besides
    unused: tuple[str, ...] = ()  # further tensors that files may have
    nested: bool = True  # whether a whole model's config has that of its text in text_config, or in itself
    of_text: str = ""  # the family that the model's own file is of by itself, where that is another


def sizes(
    m: Metadata, *, depth: str = "num_hidden_layers", heads: str = "num_attention_heads", prefix: str = ""
) -> JsonObject:
    """Of any tower. depth, heads: what its config calls them; prefix: what names begin with there."""
    counts = {
        depth: "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        heads: "attention.head_count",
    }
    found = {f"{prefix}{name}": m.count(f"vision.{field}") for name, field in counts.items()}
    return found | {"patch_size": m.count("vision.patch_size")}


def merged_sizes(m: Metadata) -> JsonObject:
    """Of towers that see a picture as two frames and merge patches in squares, of which Qwen's were the first."""
    merged = {"spatial_merge_size": m.count("vision.spatial_merge_size", 2), "temporal_patch_size": 2}
    return sizes(m, depth="depth", heads="num_heads") | merged | {"out_hidden_size": m.count("vision.projection_dim")}


def normalised(m: Metadata) -> JsonObject:
    """Means and deviations of pixels."""
    found = {name: m.values(f"vision.{name}") for name in ("image_mean", "image_std")}
    for name, numbers in found.items():
        if numbers is None or len(numbers) != 3 or not all(type(each) in (int, float) for each in numbers):
            raise CheckpointError(f"{m.where}: clip.vision.{name} is {numbers!r:.50}; must be three numbers")
    return {name: [shortest(float(each)) for each in numbers or ()] for name, numbers in found.items()}


def three_positions(gguf: Gguf, text: JsonObject, *, interleaved: bool) -> JsonObject:
    """Which frequencies turn by time, rows and columns; interleaved: one in three."""
    name = f"{gguf.metadata.get('general.architecture')}.rope.dimension_sections"
    sections = gguf.metadata.get(name)
    if isinstance(sections, int | float | bool | str | None) or len(sections) < 3:
        raise CheckpointError(f"{gguf.where}: {name} is {sections!r:.50}; must be three numbers")
    found: JsonObject = {"mrope_section": [sections[i] for i in range(3)]}
    found |= {"mrope_interleaved": True} if interleaved else {}
    if text.get("rope_scaling"):
        return {"rope_scaling": text["rope_scaling"] | found}
    return {"rope_parameters": {"rope_type": "default", "rope_theta": text["rope_theta"]} | found}
