"""What a family tells of how it sees: its tower, its image processor, and where pictures stand in a prompt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Protocol, TypeVar

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
    attention: AttentionConfig | None  # None: patches do not see each other
    patch_numbers: int  # that a patch is made of
    held: int = 0  # numbers that are computed with at once beside those of attention, where there is none
    deep: int = 0  # how many of the language model's layers, the first ones, are given rows besides

    @abstractmethod
    def rows(self, part: Part, views: Sequence[Patches]) -> Float32Array:
        """[soft tokens, hidden of the language model * (1 + deep)]: the rows that stand for embeddings, then those that
        are added behind each of its first layers. views: of one picture, which do not see each other; their tokens
        follow one another. Each part is asked for once, and may be dropped afterwards."""

    def prepared(self, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
        """Some of the checkpoint's tensors as `rows` wants them."""
        return dict(tensors)


Grid = tuple[int, int]  # rows and columns of tokens that follow one another
Mark = int | str  # a token of the vocabulary: its id, or its text where config.json has no id
Title = Callable[[int, int], str]  # a text that is told the height and width of a picture, as it was given
Item = Grid | Mark | Title  # of what stands for a picture in a prompt
T = TypeVar("T")


class Layout(Protocol):
    """What stands for a picture in a prompt."""

    def items(self, views: Sequence[Sequence[Grid]]) -> Sequence[Item]:
        """Soft tokens, and tokens in front of, between and behind them. views: the rows of views of one picture."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """The tokens of a picture that is shown as a whole."""

    before: tuple[Mark, ...] = ()
    behind: tuple[Mark, ...] = ()

    def items(self, views: Sequence[Sequence[Grid]]) -> Sequence[Item]:
        [[grid]] = views
        return [*self.before, grid, *self.behind]


@dataclass(frozen=True, slots=True)
class Titled:
    """The tokens of a picture that is shown as a whole, behind a text that tells of what size it is."""

    start: Mark
    title: Title
    content: Mark
    end: Mark

    def items(self, views: Sequence[Sequence[Grid]]) -> Sequence[Item]:
        [[grid]] = views
        return [self.start, self.title, self.content, grid, self.end]


@dataclass(frozen=True, slots=True)
class RowByRow:
    """The tokens of a picture that is shown as a whole, with a token behind each row of them."""

    newline: Mark
    end: Mark  # in the place of the last newline

    def items(self, views: Sequence[Sequence[Grid]]) -> Sequence[Item]:
        [[(rows, cols)]] = views
        return [*((1, cols), self.newline) * (rows - 1), (1, cols), self.end]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tokens of a picture that is shown in tiles and then as a whole; or as a whole alone."""

    whole: tuple[tuple[Mark, ...], tuple[Mark, ...]]  # in front of its tokens, and behind them
    first: tuple[Mark, ...] = ()  # of all
    tile: tuple[tuple[Mark, ...], tuple[Mark, ...]] = ((), ())
    between: tuple[Mark, ...] = ()  # tiles of a row
    below: tuple[Mark, ...] = ()  # a row of tiles
    below_last: bool = True

    def items(self, views: Sequence[Sequence[Grid]]) -> Sequence[Item]:
        *rows, [whole] = views
        found: list[Item] = [*self.first]
        for number, row in enumerate(rows, 1):
            for col, tile in enumerate(row):
                found += [*(self.between if col else ()), *self.tile[0], tile, *self.tile[1]]
            found += self.below if number < len(rows) or self.below_last else ()
        return [*found, *self.whole[0], whole, *self.whole[1]]


@dataclass(frozen=True, slots=True)
class Vision:
    tower: Tower
    form: Callable[[Fields, int | None], ImageProcessor]  # of the image processor's settings, and --picture-tokens
    token: Mark  # which stands for a picture in what a chat template writes
    patches_of_token: int
    brackets: tuple[Mark, ...] = ()  # what a template writes in front of that, and behind it the last
    layout: Layout = Whole()  # what is put in its place
    variable: str | None = None  # of a template that writes whatever this lists for each picture; None: it has none


def told_of(vision: Vision, token: str, count: int) -> dict[str, list[str]]:
    """The variables of a template that shall write the token, by its text, for each of so many pictures."""
    return {} if vision.variable is None else {vision.variable: [token] * count}


def written(items: Sequence[Item], size: tuple[int, int], ids_of: Callable[[str], Sequence[int]]) -> list[Grid | Mark]:
    """With the tokens of texts in their place. size: height and width of the picture."""
    found = list[Grid | Mark]()
    for item in items:
        found += ids_of(item(*size)) if callable(item) else [item]
    return found


def with_ids(value: T, id_of: Callable[[str], int]) -> T:
    """A mark, or what contains marks, with ids for their texts."""
    found: Any = value
    if isinstance(value, str):
        found = id_of(value)
    elif isinstance(value, tuple):
        found = tuple(with_ids(each, id_of) for each in value)
    elif is_dataclass(value) and not isinstance(value, type):
        found = replace(value, **{each.name: with_ids(getattr(value, each.name), id_of) for each in fields(value)})
    return found  # type: ignore[no-any-return]


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


def merged_places(grid: tuple[int, int], merge: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each patch: those of a square of merge * merge follow one another."""
    rows, cols = (np.arange(count).reshape(-1, merge) for count in grid)
    shape = (len(rows), len(cols), merge, merge)
    row = np.broadcast_to(rows[:, None, :, None], shape).reshape(-1)
    return row, np.broadcast_to(cols[None, :, None, :], shape).reshape(-1)


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
