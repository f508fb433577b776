"""bitsandbytes: codes of 4 bits into a table of 16 values (NF4, FP4), and a scale for each block of weights."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.scheme import Decoded, Pool, Scheme, Shape, member
from moeinf.types import Float32Array

_STATE = ".quant_state.bitsandbytes__"
_KINDS = ("nf4", "fp4")
_BLOCKS = (32, 64, 128, 256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class Table(Scheme):
    """Codes of two weights to a byte, the first in the high half; blocks run on from one row to the next.

    Where the scales are nested, they are bytes into a table of 256 values, times a scale for each 256 of them, plus an
    offset.
    """

    kind: str
    block: int
    nested: bool

    def decode(self, codes: memoryview, others: Sequence[memoryview], rows: range) -> Decoded:
        table = np.frombuffer(others[0], np.float32)
        scales = self._scales(others)
        first, last = rows.start * self.cols, rows.stop * self.cols
        pairs = np.frombuffer(codes, np.uint8)[first // 2 : -(-last // 2)]
        flat = np.stack([table[pairs >> 4], table[pairs & 15]], axis=-1).reshape(-1)[first % 2 :][: last - first]
        each = scales[np.arange(first, last) // self.block]
        return Decoded(flat.reshape(-1, self.cols), each.reshape(-1, self.cols))

    def _scales(self, others: Sequence[memoryview]) -> Float32Array:
        state = self._state(bytes(others[1]))
        if not self.nested:
            return np.frombuffer(others[2], np.float32)
        size, offset = state.get("nested_blocksize"), state.get("nested_offset")
        if size != 256 or state.get("nested_dtype") != "float32" or not isinstance(offset, float):
            raise ValueError("quant_state has nested scales that are not read: blocks of 256 in float32 are")
        outer = np.frombuffer(others[3], np.float32)
        values = np.frombuffer(others[4], np.float32)[np.frombuffer(others[2], np.uint8)]
        scales: Float32Array = values * np.repeat(outer, size)[: len(values)] + np.float32(offset)
        return scales

    def _state(self, data: bytes) -> dict[str, object]:
        try:
            state = json.loads(data)
        except (ValueError, RecursionError):
            state = None
        wanted = {"quant_type": self.kind, "blocksize": self.block, "shape": list(self.shape)}
        if not isinstance(state, dict) or any(state.get(key) != value for key, value in wanted.items()):
            raise ValueError(f"quant_state is {data[:100]!r}; {wanted} was to be read there")
        return state


def table(pool: Pool, name: str, shape: Shape, declared: Declared) -> Scheme:
    if len(shape) != 2:
        raise UnsupportedModelError(f"tensor {name!r} holds no single matrix; pull the unquantised original")
    count = math.prod(shape)
    member(pool, name, name, ("U8",), (-(-count // 2), 1), (1, -(-count // 2)))
    kind = next((each for each in _KINDS if pool.found(name + _STATE + each)), _KINDS[0])
    state = name + _STATE + kind
    place = pool.found(state)
    member(pool, name, state, ("U8",), *([place[1].shape] if place and len(place[1].shape) == 1 else [(0,)]))
    if place and place[1].num_bytes > 10_000:
        raise CheckpointError(f"{place[0]}: tensor {state!r} has {place[1].num_bytes} bytes, which is no quant_state")
    member(pool, name, f"{name}.quant_map", ("F32",), (16,))
    scales = f"{name}.absmax"
    member(pool, name, scales, ("U8", "F32"), *((-(-count // block),) for block in _BLOCKS))
    entry = pool.found(scales)
    assert entry is not None
    block = next(block for block in _BLOCKS if entry[1].shape == (-(-count // block),))
    others = [f"{name}.quant_map", state, scales]
    nested = entry[1].dtype == "U8"
    if nested:
        blocks = -(-count // block)
        member(pool, name, f"{name}.nested_absmax", ("F32",), (-(-blocks // 256),))
        member(pool, name, f"{name}.nested_quant_map", ("F32",), (256,))
        others += [f"{name}.nested_absmax", f"{name}.nested_quant_map"]
    return Table(name, shape, name, tuple(others), kind.upper(), "q8_0", False, "bf16", kind, block, nested)
