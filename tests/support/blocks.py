"""Random blocks of every stored format: any bytes are weights, once their scales are numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gguf
import numpy as np

from moeinf.types import FORMAT_BLOCKS, Format

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

QUANTISED: list[Format] = [format for format, (weights, _) in FORMAT_BLOCKS.items() if weights > 1]
# What `quantise` makes; the others are only read.
WRITTEN: list[Format] = [
    "q8_0", "q5_0", "q5_1", "q4_0", "q4_1", "q4_k", "iq4_nl", "mxfp4", "q2_k", "q3_k", "q5_k", "q6_k", "iq4_xs",
    "iq3_s", "iq3_xxs", "iq2_s", "iq2_xs", "iq2_xxs",
]  # fmt: skip
# Where the float16 scales (and minima) of a block lie. Those of MXFP4 and NVFP4 are single bytes, and that of IQ1_M is
# cut into the top nibbles of its last four words.
HALVES: Mapping[Format, tuple[int, ...]] = {
    "q4_k": (0, 2), "q4_1": (0, 2), "q5_1": (0, 2), "q5_k": (0, 2), "q2_k": (80, 82), "q3_k": (108,), "q6_k": (208,),
    "tq1_0": (52,), "tq2_0": (64,), "mxfp4": (), "nvfp4": (), "iq1_m": (),
}  # fmt: skip


# Weights of a point, of the formats of grids that are written.
DIMS: Mapping[Format, int] = {"iq3_s": 4, "iq3_xxs": 4, "iq2_s": 8, "iq2_xs": 8, "iq2_xxs": 8}
# Of these, those in which of each eight weights an even number are negative.
EVEN: tuple[Format, ...] = ("iq3_xxs", "iq2_xs", "iq2_xxs")


def every_point(format: Format, block: Bytes) -> np.ndarray[Any, np.dtype[np.float32]]:
    """[points of the grid, 256]: what the magnitudes of each weight become by the scales of the block."""
    count = {"iq3_s": 512, "iq3_xxs": 256, "iq2_s": 1024, "iq2_xs": 512, "iq2_xxs": 256}[format]
    blocks, index = np.repeat(block[None], count, 0), np.arange(count)[:, None]
    if format == "iq3_s":
        blocks[:, 2:66] = index & 255
        blocks[:, 66:74] = (index >> 8) * 255
    elif format == "iq3_xxs":
        blocks[:, 2:66] = index
    elif format == "iq2_s":
        blocks[:, 2:34] = index & 255
        blocks[:, 66:74] = (index >> 8) * 0x55
    elif format == "iq2_xs":
        blocks[:, 2:66:2] = index & 255
        blocks[:, 3:66:2] = index >> 8  # without signs
    else:
        for word in range(2, 66, 8):
            blocks[:, word : word + 4] = index
    found: np.ndarray[Any, np.dtype[np.float32]] = gguf.dequantize(blocks, gguf.GGMLQuantizationType[format.upper()])
    np.abs(found, out=found)  # whatever signs the block has
    return found


def halves_of(format: Format) -> tuple[int, ...]:
    return HALVES.get(format, (0,))


def any_blocks(format: Format, count: int, rng: np.random.Generator) -> Bytes:
    """[count, bytes of a block], of all sizes whose weights are finite numbers."""
    blocks = rng.integers(0, 256, (count, FORMAT_BLOCKS[format][1]), np.uint8)
    if format == "mxfp4":
        blocks[:, 0] %= 250  # 12 times 2^126 overflows
    for high_byte in (55,) if format == "iq1_m" else [at + 1 for at in halves_of(format)]:
        blocks[:, high_byte] &= 0xBF  # an exponent that is not all ones
    return blocks


def even_blocks(format: Format, count: int, rng: np.random.Generator) -> Bytes:
    """[count, bytes of a block], with scales so close to each other that no block drowns in another."""
    blocks = rng.integers(0, 256, (count, FORMAT_BLOCKS[format][1]), np.uint8)
    scales = rng.uniform(0.0005, 0.002, (count, 2)).astype(np.float16)
    if format == "mxfp4":
        blocks[:, 0] = 118 + blocks[:, 0] % 4
    elif format == "nvfp4":
        blocks[:, :4] = 8 + blocks[:, :4] % 16
    elif format == "iq1_m":
        bits = scales[:, :1].view(np.uint16)
        nibbles = (bits >> np.array([0, 4, 8, 12], np.uint16) & 15).astype(np.uint8)
        blocks[:, 49::2] = blocks[:, 49::2] & 15 | nibbles << 4
    for column, at in enumerate(halves_of(format)):
        blocks[:, at : at + 2] = scales[:, column : column + 1].view(np.uint8)
    return blocks
