"""The operations of matrix_ops.MatrixOps in plain torch, on any device: short, slow, and the oracle of the kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from moeinf.gpu.groups import make_groups
from moeinf.gpu.matrix import MAX_ROWS, PLAIN_DTYPES, DeviceMatrix, ExpertPart, ExpertParts, Groups
from moeinf.types import FORMAT_BLOCKS, ExpertForm, Format, format_bytes

IQ4_NL_VALUES: Final = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
MXFP4_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantise(matrix: DeviceMatrix) -> Tensor:
    """The weights, f32 [rows, cols]."""
    if matrix.format in PLAIN_DTYPES:
        return matrix.data.view(PLAIN_DTYPES[matrix.format]).view(matrix.rows, matrix.cols).float()
    blocks = matrix.data.view(-1, FORMAT_BLOCKS[matrix.format][1])  # [blocks, bytes]
    return DEQUANTISERS[matrix.format](blocks).reshape(matrix.rows, matrix.cols)


def rounded(values: Tensor, format: Format) -> Tensor:
    """Activations, or weights, as the products with weights of `format` take them: f32, of fewer bits."""
    return values.to(PLAIN_DTYPES.get(format, torch.bfloat16)).float()


def _halves(blocks: Tensor) -> Tensor:
    """f16 scales [blocks, n] of uint8 [blocks, 2 n], as f32."""
    return blocks.contiguous().view(torch.float16).float()


def _nibbles(codes: Tensor) -> Tensor:
    """Low halves, then high halves, of uint8 [..., n]: int64 [..., 2 n]."""
    return torch.cat((codes & 15, codes >> 4), dim=-1).long()


def _table(values: Sequence[float], codes: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.float32, device=codes.device)[codes]


def _q8_0(blocks: Tensor) -> Tensor:
    return _halves(blocks[:, :2]) * blocks[:, 2:].contiguous().view(torch.int8)


def _q4_0(blocks: Tensor) -> Tensor:
    return _halves(blocks[:, :2]) * (_nibbles(blocks[:, 2:]) - 8)


def _iq4_nl(blocks: Tensor) -> Tensor:
    return _halves(blocks[:, :2]) * _table(IQ4_NL_VALUES, _nibbles(blocks[:, 2:]))


def _mxfp4(blocks: Tensor) -> Tensor:
    exponent = blocks[:, :1].int()
    scale = torch.where(exponent == 0, 0x00400000, exponent << 23).view(torch.float32)  # 2^-127 is subnormal
    return scale * _table(MXFP4_VALUES, _nibbles(blocks[:, 1:]))


def _q4_k(blocks: Tensor) -> Tensor:
    d, dmin = _halves(blocks[:, :4]).unbind(1)  # [blocks] each
    a, b, c = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = torch.cat((a & 63, (c & 15) | (a >> 6 << 4)), dim=1)  # of 8 sub-blocks
    mins = torch.cat((b & 63, (c >> 4) | (b >> 6 << 4)), dim=1)
    codes = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).view(-1, 8, 32)
    return torch.sub((d[:, None] * scales)[:, :, None] * codes, (dmin[:, None] * mins)[:, :, None])


DEQUANTISERS: Final[Mapping[Format, Callable[[Tensor], Tensor]]] = {
    "q8_0": _q8_0, "q4_0": _q4_0, "q4_k": _q4_k, "iq4_nl": _iq4_nl, "mxfp4": _mxfp4,
}  # fmt: skip


class _Memory:
    """Bytes at an address of a CUDA device, in the form in which torch takes over foreign memory."""

    def __init__(self, address: int, num_bytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (num_bytes,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def part_at(address: int, part: ExpertPart, device: torch.device) -> DeviceMatrix:
    """One matrix of the expert whose block lies at `address`; valid as long as that memory is."""
    start, num_bytes = address + part.offset_bytes, format_bytes(part.format, (part.rows, part.cols))
    if device.type == "cpu":
        data = torch.frombuffer((ctypes.c_uint8 * num_bytes).from_address(start), dtype=torch.uint8)
    else:
        data = torch.as_tensor(_Memory(start, num_bytes), device=device)
    return DeviceMatrix(data, part.format, part.rows, part.cols)


class TorchMatrixOps:
    """MatrixOps. Allocates, and waits for the device where it reads addresses: not for graphs."""

    make_groups = staticmethod(make_groups)

    def linear(self, x: Tensor, w: DeviceMatrix, out: Tensor, bias: Tensor | None = None, add: bool = False) -> None:
        result = _product(x, w, exact=len(x) <= MAX_ROWS)
        if bias is not None:
            result += bias
        out.copy_(out + result if add else result)

    def gate_up(self, x: Tensor, addresses: Tensor, parts: ExpertParts, out: Tensor) -> None:
        top_k = len(addresses) // len(x)
        for pair, address in enumerate(addresses.tolist()):
            if address:
                out[pair] = _activated(x[pair // top_k, None], address, parts, exact=True)

    def down(self, act: Tensor, addresses: Tensor, parts: ExpertParts, out: Tensor) -> None:
        for pair, address in enumerate(addresses.tolist()):
            if address:
                out[pair] = _part_product(act[pair, None], address, parts.down, parts.down_bias, exact=True)

    def gate_up_grouped(self, x: Tensor, groups: Groups, parts: ExpertParts, out: Tensor) -> None:
        for pairs, address in _tiles(groups):
            out[pairs] = _activated(x[pairs // groups.top_k], address, parts, exact=False)

    def down_grouped(self, act: Tensor, groups: Groups, parts: ExpertParts, out: Tensor) -> None:
        for pairs, address in _tiles(groups):
            out[pairs] = _part_product(act[pairs], address, parts.down, parts.down_bias, exact=False)


def _product(x: Tensor, w: DeviceMatrix, exact: bool) -> Tensor:
    """x @ w.T in f32. Quantised weights are taken as they are, or (not `exact`) rounded to bf16."""
    weights = dequantise(w)
    return rounded(x, w.format) @ (weights if exact else rounded(weights, w.format)).T


def _part_product(x: Tensor, address: int, part: ExpertPart, bias: ExpertPart | None, exact: bool) -> Tensor:
    result = _product(x, part_at(address, part, x.device), exact)
    return result if bias is None else result + dequantise(part_at(address, bias, x.device))[:, 0]


def _activated(x: Tensor, address: int, parts: ExpertParts, exact: bool) -> Tensor:
    up = _part_product(x, address, parts.up, parts.up_bias, exact)
    if parts.gate is None:
        return activated(parts.form, None, up)
    return activated(parts.form, _part_product(x, address, parts.gate, parts.gate_bias, exact), up)


def activated(form: ExpertForm, gate: Tensor | None, up: Tensor) -> Tensor:
    """What down is given: see ExpertForm."""
    if form.activation == "swiglu_clamped":  # modeling_gpt_oss.py, GptOssExperts
        assert gate is not None, "it has a gate"
        gate, up = gate.clamp(max=form.limit), up.clamp(-form.limit, form.limit)
        return (up + 1) * gate * torch.sigmoid(1.702 * gate)
    if form.activation == "silu_clamped":  # modeling_deepseek_v4.py, DeepseekV4Experts
        assert gate is not None, "it has a gate"
        return F.silu(gate.clamp(max=form.limit)) * up.clamp(-form.limit, form.limit)
    if form.activation == "clamped_silu":  # modeling_step3p7.py, Step3p7Experts
        assert gate is not None, "it has a gate"
        return F.silu(gate).clamp(max=form.limit) * up.clamp(-form.limit, form.limit)
    if form.activation == "softcapped":  # Inkling2SoftcappedSwiGLU of transformers, SituAndMul of vLLM
        assert gate is not None, "it has a gate"
        capped = form.gate_limit * torch.tanh(gate / form.gate_limit) * torch.sigmoid(gate)
        return capped * (form.limit * torch.tanh(up / form.limit) if form.limit else up)
    functions: Mapping[str, Callable[[Tensor], Tensor]] = {
        "silu": F.silu,
        "gelu": F.gelu,
        "gelu_tanh": partial(F.gelu, approximate="tanh"),
        "quick_gelu": lambda x: x * torch.sigmoid(1.702 * x),
        "relu": F.relu,
        "relu2": lambda x: F.relu(x).square(),
    }
    activation = functions[form.activation]
    return activation(up) if gate is None else activation(gate) * up


def _tiles(groups: Groups) -> list[tuple[Tensor, int]]:
    """Pairs [rows] and the address of each tile."""
    tiles = zip(groups.starts.tolist(), groups.counts.tolist(), groups.addresses.tolist(), strict=True)
    return [(groups.pairs[start : start + count].long(), address) for start, count, address in tiles]
