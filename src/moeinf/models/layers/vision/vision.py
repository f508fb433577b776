"""What a family tells of how it sees: its tower, its image processor, and where pictures stand in a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.fields import Fields
from moeinf.models.layers.array_math import Array
from moeinf.models.layers.attention.grouped import AttentionPart
from moeinf.models.layers.attention_config import AttentionConfig, AttentionSite, Shapes
from moeinf.models.layers.kv_cache import Cache, Span
from moeinf.models.layers.protocol import Attention, Layers
from moeinf.models.layers.rope import plain_rope
from moeinf.models.layers.vision.image_processor import ImageProcessor, Patches
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array, IntArray

MLP_ROWS = 512  # patches that go through an MLP together: bounds what it holds of them

Part = Callable[[str], Layers]  # layers over those tensors of the tower whose names begin so


class Tower(ABC):
    """The model that turns patches into rows for the language model. It is dense, and runs once for a picture."""

    shapes: Shapes  # of its tensors, by their names in the checkpoint
    attention: AttentionConfig
    patch_numbers: int  # that a patch is made of
    deep: int = 0  # how many of the language model's layers, the first ones, are given rows besides

    @abstractmethod
    def rows(self, part: Part, patches: Patches) -> Float32Array:
        """[soft tokens, hidden of the language model * (1 + deep)]: the rows that stand for embeddings, then those that
        are added behind each of its first layers. Each part is asked for once, and may be dropped afterwards."""

    def prepared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Some of the checkpoint's tensors as `rows` wants them."""
        return dict(tensors)


@dataclass(frozen=True, slots=True)
class Vision:
    tower: Tower
    form: Callable[[Fields, int | None], ImageProcessor]  # of the image processor's settings, and --picture-tokens
    token_id: int  # which stands for a picture in what a chat template writes
    patches_of_token: int
    brackets: tuple[int, ...] = ()  # ids in front of and behind a picture
    in_template: bool = True  # the template writes these


def seeing(parse: Callable[[], Vision | None]) -> tuple[Vision | None, str]:
    """The vision of a checkpoint, or why there is none: its text can be run even where its tower cannot."""
    try:
        vision = parse()
    except (CheckpointError, UnsupportedModelError) as error:
        return None, str(error)
    return vision, "" if vision else "its config.json describes no vision"


def attend_all(
    part: Layers, config: AttentionConfig, site: AttentionSite, x: Array, cache: Cache, turned: object
) -> None:
    """x += attention(norm(x)), in which each patch sees every other."""
    attention: Attention = part.make(AttentionPart(config, site))
    if not cache.states:
        cache.states.append(attention.new_state(cache.capacity))
    attention.add_rows(x, [Span(slice(0, len(x)), cache, turned)])


def by_blocks(x: Array, block: Callable[[Array], Array]) -> None:
    """x += block(x), so many rows at a time."""
    for start in range(0, len(x), MLP_ROWS):
        piece = x[start : start + MLP_ROWS]
        piece += block(piece)


def axial_frequencies(head_dim: int, theta: float) -> Float32Array:
    """[head_dim / 4]: those by which the row, and likewise the column, of a patch turns its pairs."""
    return plain_rope(head_dim // 2, theta).frequencies


def turned_by(
    part: Layers, frequencies: Float32Array, first: IntArray, second: IntArray, *, by_turns: bool = False
) -> object:
    """What attention takes of patches whose pairs turn by one of their coordinates, then by the other; or by turns."""
    both = [axis[:, None].astype(np.float32) * frequencies for axis in (first, second)]
    angles = np.stack(both, 2).reshape(len(first), -1) if by_turns else np.concatenate(both, 1)
    return part.angles(np.cos(angles), np.sin(angles))
