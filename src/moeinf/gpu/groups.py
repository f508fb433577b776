"""Which rows of a prefill each program multiplies: token-expert pairs, sorted by expert and cut into tiles."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch

from moeinf.gpu.device import pinned_copy
from moeinf.gpu.matrix import Groups
from moeinf.types import IntArray

# The same for every call, since the order of a sum may follow from the tile's shape. 64 rows fill a tensor core's
# largest instruction; few tokens leave rows empty, but are bound by memory then; more rows would need more registers.
TILE_ROWS: Final = 64


def make_groups(ids: IntArray, experts: IntArray, addresses: IntArray, device: torch.device) -> Groups:
    """Tiles of the pairs whose expert is in `experts` (no id twice), whose blocks lie at `addresses`.

    ids [tokens, top_k]; experts that no token chose have no tile. One upload, which does not wait for the device.
    """
    flat = np.asarray(ids).reshape(-1)
    turn = np.full(int(max(flat.max(initial=-1), experts.max(initial=-1))) + 1, -1, np.int16)  # of each expert
    turn[experts] = np.arange(len(experts))
    turns = turn[flat]
    (chosen,) = np.nonzero(turns >= 0)
    pairs = chosen[np.argsort(turns[chosen], kind="stable")]
    rows = np.bincount(turns[chosen], minlength=len(experts))  # of each expert
    tiles = -(-rows // TILE_ROWS)
    owner = np.repeat(np.arange(len(experts)), tiles)
    within = np.arange(len(owner)) - np.repeat(np.cumsum(tiles) - tiles, tiles)  # number of the tile in its expert
    starts = (np.cumsum(rows) - rows)[owner] + within * TILE_ROWS
    counts = np.minimum(rows[owner] - within * TILE_ROWS, TILE_ROWS)

    # Addresses, starts, counts, pairs, each on a 16-byte border: kernels are compiled apart for pointers on others.
    padded = -(-len(owner) // 4) * 4
    packed = np.zeros(2 * padded + len(pairs) // 2 + 1, np.int64)
    packed[: len(owner)] = np.asarray(addresses)[owner]
    words = packed[padded:].view(np.int32)
    words[: len(owner)], words[padded : padded + len(owner)] = starts, counts
    words[2 * padded : 2 * padded + len(pairs)] = pairs
    staged = torch.from_numpy(packed)
    if device.type == "cuda":
        staged = pinned_copy(staged)  # which torch keeps until the upload is done
    there = staged.to(device, non_blocking=True)
    words_there = there[padded:].view(torch.int32)
    return Groups(
        pairs=words_there[2 * padded : 2 * padded + len(pairs)],
        starts=words_there[: len(owner)],
        counts=words_there[padded : padded + len(owner)],
        addresses=there[: len(owner)],
        tile_rows=TILE_ROWS,
        top_k=ids.shape[1],
    )
