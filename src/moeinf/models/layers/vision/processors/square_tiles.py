"""What image processors share that cut pictures into square tiles, beside which there is the whole as one tile."""

from __future__ import annotations

from dataclasses import dataclass

from moeinf.errors import UnsupportedModelError, UsageError
from moeinf.models.fields import Fields
from moeinf.models.layers.vision.image_processor import MOST_TOKENS, Merging


@dataclass(frozen=True, slots=True)
class SquareTiles(Merging):
    tile: int  # pixels of a side
    most_tiles: int

    @property
    def most_tokens(self) -> int:
        return (self.most_tiles + (self.most_tiles > 1)) * (self.tile // self.unit) ** 2


def tiles_within(f: Fields, tile: int, unit: int, tokens: int | None) -> int:
    """How many tiles there may be beside the whole. f: preprocessor_config.json; unit: pixels of a side of a token.
    tokens: the most that the user wants of a picture; None: MOST_TOKENS. Raises UsageError where that is less than
    those of a tile."""
    for name in ("height", "width"):
        f.within("size").only(name, tile, None)
    if tile % unit:
        raise UnsupportedModelError(f"{f.where}: tiles of {tile} pixels are not cut into whole tokens")
    of_tile = (tile // unit) ** 2
    if tokens is not None and tokens < of_tile:
        raise UsageError(f"--picture-tokens {tokens} is too few: a picture of this model has at least {of_tile}")
    return max(1, (tokens or MOST_TOKENS) // of_tile - 1)
