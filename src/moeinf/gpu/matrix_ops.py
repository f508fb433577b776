"""Products of hidden states and weights in their stored formats: of the dense part, and of experts given by address.

Precision follows from the format of the weights. f32: IEEE, no TF32. f16, bf16: activations are rounded to that type.
Quantised: activations are rounded to bf16, and so are weights in tiles of many rows; in decode they are exact. Sums are
f32.
"""

from __future__ import annotations

from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from moeinf.gpu.groups import make_groups
from moeinf.gpu.matrix import LANE_BYTES, LAUNCH, MAX_ROWS, PLAIN_DTYPES, DeviceMatrix, ExpertPart, ExpertParts, Groups
from moeinf.types import Format, IntArray, format_bytes


class MatrixOps(Protocol):
    """Has two implementations: TritonMatrixOps, and tests/oracles/torch_matrix.py to compare it with.

    Everything is contiguous and on the device; every operation writes into what it is given. What a row becomes does
    not depend on the other rows of a call, nor on which pairs share a batch. A pair is a token and one of the experts
    that it was routed to; its number is token * top_k + choice. (But a `linear` of more than MAX_ROWS
    rows is torch's, whose order of sums may follow from their number.)
    """

    def linear(self, x: Tensor, w: DeviceMatrix, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        """out = (or +=, if `add`) x @ w.T + bias. x f32 [tokens, cols], out f32 [tokens, rows], bias f32 [rows]."""
        ...

    def gate_up(self, x: Tensor, addresses: Tensor, parts: ExpertParts, out: Tensor) -> None:
        """out = silu(gate(x)) * up(x), or what else parts.form says, for at most MAX_ROWS tokens.

        x f32 [tokens, hidden], out f32 [tokens * top_k, intermediate]; addresses[p] (int64 [tokens * top_k]) is where
        the block of pair p's expert lies: 0 leaves out[p] as it is.
        """
        ...

    def down(self, act: Tensor, addresses: Tensor, parts: ExpertParts, out: Tensor) -> None:
        """act f32 [pairs, intermediate] -> out f32 [pairs, hidden], with the bias where there is one; pairs of
        address 0 stay as they are."""
        ...

    def make_groups(self, ids: IntArray, experts: IntArray, addresses: IntArray, device: torch.device) -> Groups:
        """The pairs of ids [tokens, top_k] whose expert is among `experts`, whose blocks lie at `addresses`."""
        ...

    def gate_up_grouped(self, x: Tensor, groups: Groups, parts: ExpertParts, out: Tensor) -> None:
        """gate_up of any number of tokens, for the pairs in `groups`; the others of `out` stay as they are."""
        ...

    def down_grouped(self, act: Tensor, groups: Groups, parts: ExpertParts, out: Tensor) -> None:
        """down for the pairs in `groups`; the others of `out` stay as they are."""
        ...


class Tile(NamedTuple):
    """What one program of a decode kernel holds in registers: rows of the matrix, times lanes along each."""

    rows: int
    lanes: int


NUM_WARPS: Final = 4
# A thread (128 a program) has 8 lanes of quantised weights: of 8 rows, which share its activations. More programs than
# these would leave it fewer: on an H100, q4_k took 1.1 times as long with 4 rows as with 8, and 1.6 with 1 as with 2.
PLAIN_LANES: Final = 512
QUANTISED_LANES: Final = 1024
LINEAR_PROGRAMS: Final = 264  # two for each of 132 SMs
EXPERT_PROGRAMS: Final = 48  # of one pair: 8 pairs make it 384. Not of all, or a row would depend on the others
WIDEN_TILE: Final = (8, 256)  # rows, weights of each
# What a program of a grouped kernel computes: columns of the output (of gate and of up each), and how many weights of a
# row it multiplies in one step. f32 has no tensor cores, and takes more registers.
DOT_TILE: Final = (64, 64)
F32_DOT_TILE: Final = (32, 32)
DOT_WARPS: Final = 8  # with 4, blocks being widened do not fit into the registers
SCRATCH_WEIGHTS: Final = 1 << 26  # widened at once: 128 MiB of bf16


def decode_tile(format: Format, rows: int, cols: int, num_programs: int) -> Tile:
    """The tile of a matrix [rows, cols]: at least `num_programs` of them where rows suffice.

    As many lanes as leave at most an eighth of them idle in a row's last step; the sum over fewer lanes is shorter.
    """
    codes = LANE_BYTES if format == "q8_0" else 2 * LANE_BYTES
    num_lanes = -(-cols // (8 if format in PLAIN_DTYPES else codes))
    lanes = next((n for n in (128, 64) if -num_lanes % n * 8 <= num_lanes), 32)
    tile_rows = (PLAIN_LANES if format in PLAIN_DTYPES else QUANTISED_LANES) // lanes
    while tile_rows > 1 and rows < tile_rows * num_programs:
        tile_rows //= 2
    return Tile(tile_rows, lanes)


class TritonMatrixOps:
    """MatrixOps in Triton's kernels (triton_matrix.py); where products are large and dense, torch's."""

    make_groups = staticmethod(make_groups)

    def __init__(
        self,
        linear_programs: int = LINEAR_PROGRAMS,
        expert_programs: int = EXPERT_PROGRAMS,
        scratch_weights: int = SCRATCH_WEIGHTS,
    ) -> None:
        """Programs are those of one product of decode; scratch_weights: how many weights are widened at once."""
        # Here, since only torch builds with CUDA bring triton along, and everyone imports the protocol.
        from moeinf.gpu import triton_matrix

        self._kernels = triton_matrix
        self._linear_programs, self._expert_programs = linear_programs, expert_programs
        self._scratch_weights = scratch_weights
        self._scratch = torch.empty(0, dtype=torch.bfloat16)

    def linear(self, x: Tensor, w: DeviceMatrix, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        if len(x) > MAX_ROWS:
            self._large_linear(x, w, out, bias, add)
            return
        tile = decode_tile(w.format, w.rows, w.cols, self._linear_programs)
        self._kernels.linear[(_ceil(w.rows, tile.rows),)](
            x,
            w.data,
            bias,
            out,
            len(x),
            w.format,
            w.cols,
            w.rows,
            add,
            tile.rows,
            tile.lanes,
            num_warps=NUM_WARPS,
            **LAUNCH,
        )

    def gate_up(self, x: Tensor, addresses: Tensor, parts: ExpertParts, out: Tensor) -> None:
        gate, up = parts.gate or parts.up, parts.up
        gate_tile, up_tile = (
            decode_tile(part.format, part.rows, part.cols, self._expert_programs) for part in (gate, up)
        )
        rows = min(gate_tile.rows, up_tile.rows)
        self._kernels.gate_up[(_ceil(up.rows, rows), len(addresses))](
            x,
            addresses,
            out,
            len(addresses) // len(x),
            *_form(parts),
            gate.format,
            gate.offset_bytes,
            up.format,
            up.offset_bytes,
            up.cols,
            up.rows,
            rows,
            gate_tile.lanes,
            up_tile.lanes,
            num_warps=NUM_WARPS,
            **LAUNCH,
        )

    def down(self, act: Tensor, addresses: Tensor, parts: ExpertParts, out: Tensor) -> None:
        part = parts.down
        tile = decode_tile(part.format, part.rows, part.cols, self._expert_programs)
        self._kernels.down[(_ceil(part.rows, tile.rows), len(addresses))](
            act,
            addresses,
            out,
            *_bias(parts.down_bias),
            part.format,
            part.offset_bytes,
            part.cols,
            part.rows,
            tile.rows,
            tile.lanes,
            num_warps=NUM_WARPS,
            **LAUNCH,
        )

    def gate_up_grouped(self, x: Tensor, groups: Groups, parts: ExpertParts, out: Tensor) -> None:
        gate, up = parts.gate or parts.up, parts.up
        if not len(groups.starts):
            return
        cols, step = min(dot_tile(gate), dot_tile(up))
        self._kernels.gate_up_grouped[(_ceil(up.rows, cols), len(groups.starts))](
            x,
            groups.pairs,
            groups.starts,
            groups.counts,
            groups.addresses,
            out,
            groups.top_k,
            *_form(parts),
            gate.format,
            gate.offset_bytes,
            up.format,
            up.offset_bytes,
            up.cols,
            up.rows,
            groups.tile_rows,
            cols,
            step,
            x.is_cuda,
            num_warps=DOT_WARPS,
            **LAUNCH,
        )

    def down_grouped(self, act: Tensor, groups: Groups, parts: ExpertParts, out: Tensor) -> None:
        part = parts.down
        if not len(groups.starts):
            return
        cols, step = dot_tile(part)
        self._kernels.down_grouped[(_ceil(part.rows, cols), len(groups.starts))](
            act,
            groups.pairs,
            groups.starts,
            groups.counts,
            groups.addresses,
            out,
            *_bias(parts.down_bias),
            part.format,
            part.offset_bytes,
            part.cols,
            part.rows,
            groups.tile_rows,
            cols,
            step,
            act.is_cuda,
            num_warps=DOT_WARPS,
            **LAUNCH,
        )

    def _large_linear(self, x: Tensor, w: DeviceMatrix, out: Tensor, bias: Tensor | None, add: bool) -> None:
        """Multiplies by as many rows of the matrix at a time as the scratch holds."""
        rounded = x.to(PLAIN_DTYPES.get(w.format, torch.bfloat16))
        step = w.rows if w.format in PLAIN_DTYPES else max(1, self._scratch_weights // w.cols)
        for first in range(0, w.rows, step):
            part = slice(first, min(first + step, w.rows))
            result = _matmul(rounded, self._operand(w, part))
            if bias is not None:
                result += bias[part]
            if add:
                out[:, part] += result
            else:
                out[:, part] = result

    def _operand(self, w: DeviceMatrix, part: slice) -> Tensor:
        """Returns some rows [rows, cols] of a matrix, as they are or widened into the scratch."""
        if w.format in PLAIN_DTYPES:
            return w.data.view(PLAIN_DTYPES[w.format]).view(w.rows, w.cols)[part]
        num_rows, row_bytes = part.stop - part.start, format_bytes(w.format, (w.cols,))
        if self._scratch.numel() < num_rows * w.cols or self._scratch.device != w.data.device:
            self._scratch = torch.empty(num_rows * w.cols, dtype=torch.bfloat16, device=w.data.device)
        widened = self._scratch[: num_rows * w.cols].view(num_rows, w.cols)
        tile_rows, step = WIDEN_TILE
        self._kernels.widen[(_ceil(num_rows, tile_rows), _ceil(w.cols, step))](
            w.data[part.start * row_bytes :],
            widened,
            num_rows,
            w.format,
            w.cols,
            tile_rows,
            step,
            num_warps=NUM_WARPS,
            **LAUNCH,
        )
        return widened


def _form(parts: ExpertParts) -> tuple[object, ...]:
    """The constants of an expert's form, as the kernels of gate and up take them; a part of None is not there."""
    form = parts.form
    activation = form.activation, form.limit, form.gate_limit, parts.gate is not None
    return *activation, *_bias(parts.gate_bias), *_bias(parts.up_bias)


def _bias(part: ExpertPart | None) -> tuple[Format | None, int]:
    """Returns the format and the offset of a part; of None, those of a part that is not there."""
    return (None, 0) if part is None else (part.format, part.offset_bytes)


def dot_tile(part: ExpertPart) -> tuple[int, int]:
    """Returns the columns of a grouped kernel's tile, and the weights of a row that it multiplies in one step."""
    return F32_DOT_TILE if part.format == "f32" else DOT_TILE


def _matmul(x: Tensor, w: Tensor) -> Tensor:
    """x @ w.T in f32. Torch before 2.8, and without a GPU, rounds the sums to the type of x first."""
    if x.dtype != torch.float32 and x.is_cuda and hasattr(torch.ops.aten.mm, "dtype"):
        return torch.mm(x, w.T, out_dtype=torch.float32)
    return (x @ w.T).float()


def _ceil(count: int, step: int) -> int:
    return -(-count // step)
