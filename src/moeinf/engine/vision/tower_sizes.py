"""What pictures take of the memory of a run."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import moeinf._native as _native
from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint
from moeinf.engine.stored.facts import config as config_of
from moeinf.engine.stored.facts import json_file
from moeinf.engine.vision.parts import GivenPicture
from moeinf.errors import CheckpointError, UsageError
from moeinf.models.family import family_of
from moeinf.models.layers.attention.grouped import attention_workspace
from moeinf.models.layers.vision.image_processor import FILES, ImageProcessor, settings_of
from moeinf.models.layers.vision.vision import MLP_ROWS, Grid, Vision, told_of, written
from moeinf.pictures.decode import decode
from moeinf.store.library import StoredModel
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import AttentionSizes, ByteArray, LayerSizes, PassShape, PictureViews

_ROWS = 6  # times the hidden states of the tower that are held at once: positions, norms, merged ones
_COPIES = 2  # times a part of the tower: read, and in another order


def processor_of(stored: StoredModel, vision: Vision, config: RuntimeConfig) -> ImageProcessor:
    """What the stored image processor does. Raises CheckpointError for settings that are not followed."""
    return vision.form(settings_of({name: json_file(stored, name) for name in FILES}), config.memory.picture_tokens)


def vision_of(stored: StoredModel) -> Vision:
    """Raises UsageError for a model that does not see."""
    vision = family_of(config_of(stored)).vision
    if vision is None or not stored.manifest.vision_bytes:
        raise UsageError(f"{stored.name} takes text alone: leave out images")
    return vision


def picture_variables(vision: Vision, tokenizer: Tokenizer, pictures: int) -> dict[str, list[str]]:
    """Of a template, for it to place so many pictures."""
    token = vision.token if isinstance(vision.token, str) else tokenizer.decode([vision.token], skip_special=False)
    return told_of(vision, token, pictures)


def text_ids(tokenizer: Tokenizer) -> Callable[[str], list[int]]:
    """Of a text, without what a tokenizer puts in front of prompts."""
    return lambda text: tokenizer.encode(text, added=False)


def seen_of(given: GivenPicture, form: ImageProcessor) -> tuple[list[list[ByteArray]], tuple[int, int]]:
    """The pixels of a picture's views, and the height and width that it was given with.

    Raises UsageError for a picture that cannot be decoded or is out of bounds.
    """
    sizes = list[tuple[int, int]]()

    def views(height: int, width: int) -> PictureViews:
        sizes.append((height, width))
        return form.views(height, width)

    return decode(given.data, given.name, views), sizes[-1]


def added_tokens(
    vision: Vision, tokenizer: Tokenizer, stored: StoredModel, given: Sequence[GivenPicture], config: RuntimeConfig
) -> int:
    """How many more tokens the pictures of a prompt take than a template writes for them, by themselves.

    Raises UsageError for a picture that cannot be decoded.
    """
    form, added = processor_of(stored, vision, config), 0
    for each in given:
        pixels, size = seen_of(each, form)
        items = written(vision.layout.items(grids_of(pixels, form)), size, text_ids(tokenizer))
        added += sum(math.prod(item) if isinstance(item, tuple) else 1 for item in items) - 1
    return added


def grids_of(views: Sequence[Sequence[ByteArray]], form: ImageProcessor) -> list[list[Grid]]:
    """Of the pixels of a picture's views, of which the last tokens of a row or column may be less than whole."""
    return [[(-(-each.shape[0] // form.unit), -(-each.shape[1] // form.unit)) for each in row] for row in views]


def seeing_footprint(
    footprint: Footprint, stored: StoredModel, vision: Vision | None, config: RuntimeConfig, num_threads: int
) -> Footprint:
    """The sizes of a stored model as the configuration runs it: with pictures, where it sees any and some may come."""
    if vision is None or not stored.manifest.vision_bytes or not config.pictures:
        return footprint
    try:
        form = processor_of(stored, vision, config)
    except CheckpointError:  # which whoever gives a picture is told
        return footprint
    return with_pictures(footprint, vision, form, num_threads)


def with_pictures(footprint: Footprint, vision: Vision, form: ImageProcessor, num_threads: int) -> Footprint:
    """The sizes of a model that is given pictures, which are seen one after the other."""
    layers = frozenset(_seeing(each, form.most_tokens) for each in footprint.workspace.layers)
    whole = form.most_tokens if layers != footprint.workspace.layers else 0
    workspace = replace(footprint.workspace, layers=layers)
    num_bytes = tower_bytes(vision, form, footprint.info.hidden_size, num_threads)
    return replace(footprint, workspace=workspace, tower_bytes=num_bytes, whole_tokens=whole)


def _seeing(sizes: LayerSizes, ahead: int) -> LayerSizes:
    """Layers with a window may be those in which the tokens of a picture see each other."""
    return replace(sizes, ahead=ahead) if isinstance(sizes, AttentionSizes) and sizes.window else sizes


def tower_bytes(vision: Vision, form: ImageProcessor, hidden_size: int, num_threads: int) -> int:
    """From above, what the tower takes for the largest picture: one part of its weights, and all that it computes.

    hidden_size: of the language model.
    """
    tower, config = vision.tower, vision.tower.attention
    patches = form.most_tokens * vision.patches_of_token
    rows, widest = 2 * tower.patch_numbers, max(shape[0] for shape in tower.shapes.values())
    numbers = tower.held + 4 * MLP_ROWS * widest + form.most_tokens * hidden_size * (1 + 2 * tower.deep)
    if config is None:
        return 4 * (numbers + patches * rows) + _COPIES * 4 * _largest_part(vision)
    heads = (2 * config.num_kv_heads + 1) * config.head_dim  # keys, values, and how they are turned
    numbers += patches * (rows + _ROWS * config.hidden_size + heads)
    (sizes,) = attention_workspace(config).layers
    assert isinstance(sizes, AttentionSizes)
    shape = PassShape("f32", "f32", patches, patches, num_threads)
    native = _native.AttentionLayer.workspace_bytes(sizes, shape) + _native.Kernels.linear_workspace_bytes(
        widest, shape
    )
    return 4 * numbers + native + _COPIES * 4 * _largest_part(vision)


def _largest_part(vision: Vision) -> int:
    """Weights of the largest part that a tower asks for: what lies apart from the numbered layers, or one of these."""
    parts: dict[str, int] = {}
    for name, shape in vision.tower.shapes.items():
        fields = name.split(".")
        at = next((i for i, field in enumerate(fields) if field.isdecimal()), 2)
        prefix = ".".join(fields[: at + 1])
        parts[prefix] = parts.get(prefix, 0) + math.prod(shape)
    return max(parts.values())
