"""How published quantised checkpoints pack their weights, slow and obvious, and what these are worth.

Written from the definitions of the formats: compressed-tensors 0.8 to 0.20 (pack_quantized, nvfp4), AutoGPTQ 0.7 and
GPTQModel (qlinear.pack; checkpoint_format gptq and gptq_v2), AutoAWQ 0.2 (WQLinear_GEMM), NVIDIA modelopt, bitsandbytes
(QuantState.as_dict(packed=True)). Nothing of moeinf is used. Each function makes a random matrix [rows, cols] and
returns its tensors by what stands behind the name of the layer, and the weights in float32.
"""

from __future__ import annotations

import json

import torch
from torch import Tensor

Coded = tuple[dict[str, Tensor], Tensor]
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
NF4 = torch.tensor(
    [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]
)  # fmt: skip

FP4 = torch.tensor([0, 1 / 192, 2 / 3, 1, 1 / 3, 1 / 2, 1 / 6, 1 / 4])


def words_along_columns(values: Tensor, bits: int) -> Tensor:
    """Packs [rows, cols] of unsigned numbers into int32 [rows, cols * bits / 32], the first in the lowest bits."""
    each = 32 // bits
    padded = torch.nn.functional.pad(values.long(), (0, -values.shape[1] % each))
    words = torch.zeros(values.shape[0], padded.shape[1] // each, dtype=torch.int64)
    for i in range(each):
        words |= padded[:, i::each] << bits * i
    return words.to(torch.uint32).view(torch.int32)


def words_along_rows(values: Tensor, bits: int) -> Tensor:
    return words_along_columns(values.T, bits).T.contiguous()


def scales_of(rows: int, groups: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return (torch.rand(rows, groups, generator=generator) * 0.02 + 0.002).to(dtype)


def in_act_order(cols: int, group: int, generator: torch.Generator) -> Tensor:
    """The group of each column, after columns were quantised in another order."""
    return (torch.randperm(cols, generator=generator) // group).int()


def packed(
    rows: int,
    cols: int,
    generator: torch.Generator,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    act_order: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    in_words: bool = True,
) -> Coded:
    """compressed-tensors: signed numbers, shifted to unsigned ones where they are packed into words."""
    half = 1 << bits - 1
    codes = torch.randint(-half, half, (rows, cols), generator=generator)
    scales = scales_of(rows, cols // group, dtype, generator)
    zeros = torch.zeros(rows, cols // group, dtype=torch.int64)
    if not symmetric:
        zeros = torch.randint(-half, half, zeros.shape, generator=generator)
    groups = in_act_order(cols, group, generator) if act_order else (torch.arange(cols) // group).int()
    found = {"weight_scale": scales}
    if in_words:
        found |= {"weight_packed": words_along_columns(codes + half, bits), "weight_shape": torch.tensor([rows, cols])}
    else:
        found["weight"] = codes.to(torch.int8)
    if not symmetric:
        found["weight_zero_point"] = words_along_rows(zeros + half, bits) if in_words else zeros.to(torch.int8)
    if act_order:
        found["weight_g_idx"] = groups
    return found, (codes - zeros[:, groups]).float() * scales.float()[:, groups]


def gptq(
    rows: int,
    cols: int,
    generator: torch.Generator,
    *,
    bits: int = 4,
    group: int = 32,
    symmetric: bool = True,
    act_order: bool = False,
    v2: bool = False,
) -> Coded:
    """GPTQ keeps a matrix with its columns first; its first version stores the zero points less one."""
    codes = torch.randint(0, 1 << bits, (cols, rows), generator=generator)
    scales = scales_of(cols // group, rows, torch.float16, generator)
    zeros = torch.full(scales.shape, 1 << bits - 1)
    if not symmetric:
        zeros = torch.randint(0 if v2 else 1, 1 << bits, scales.shape, generator=generator)
    groups = in_act_order(cols, group, generator) if act_order else (torch.arange(cols) // group).int()
    found = {
        "qweight": words_along_rows(codes, bits),
        "qzeros": words_along_columns(zeros if v2 else zeros - 1, bits),
        "scales": scales,
        "g_idx": groups,
    }
    return found, ((codes - zeros[groups.long()]).float() * scales.float()[groups.long()]).T.contiguous()


def awq(rows: int, cols: int, generator: torch.Generator, *, group: int = 32) -> Coded:
    """AWQ packs eight rows of the matrix to a word, in an order of its own."""
    codes = torch.randint(0, 16, (cols, rows), generator=generator)
    scales = scales_of(cols // group, rows, torch.float16, generator)
    zeros = torch.randint(0, 16, scales.shape, generator=generator)

    def pack(values: Tensor) -> Tensor:
        order = [8 * word + i for word in range(values.shape[1] // 8) for i in AWQ_ORDER]
        return words_along_columns(values[:, order], 4)

    groups = torch.arange(cols) // group
    found = {"qweight": pack(codes), "qzeros": pack(zeros), "scales": scales}
    return found, ((codes - zeros[groups]).float() * scales.float()[groups]).T.contiguous()


def nvfp4(rows: int, cols: int, generator: torch.Generator, *, modelopt: bool = False) -> Coded:
    codes = torch.randint(0, 16, (rows, cols), generator=generator)
    scales = (torch.rand(rows, cols // 16, generator=generator) * 440 + 1).to(torch.float8_e4m3fn)
    pairs = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    if modelopt:
        whole = torch.tensor(3.1e-5)
        found = {"weight": pairs, "weight_scale": scales, "weight_scale_2": whole, "input_scale": torch.tensor(0.1)}
        each = scales.float() * whole
    else:
        whole = torch.tensor([29000.0])
        found = {"weight_packed": pairs, "weight_scale": scales, "weight_global_scale": whole}
        found["input_global_scale"] = torch.tensor([300.0])
        each = scales.float() / whole
    return found, E2M1[codes] * each.repeat_interleave(16, 1)


def mxfp4(rows: int, cols: int, generator: torch.Generator, *, deepseek: bool = False) -> Coded:
    codes = torch.randint(0, 16, (rows, cols), generator=generator)
    scales = torch.randint(110, 122, (rows, cols // 32), dtype=torch.uint8, generator=generator)
    pairs = (codes[:, ::2] | codes[:, 1::2] << 4).to(torch.uint8)
    each = 2.0 ** (scales.float() - 127)
    found = {"weight_packed": pairs, "weight_scale": scales}
    if deepseek:
        found = {"weight": pairs.view(torch.int8), "weight_scale": scales.view(torch.float8_e8m0fnu)}
    return found, E2M1[codes] * each.repeat_interleave(32, 1)


def four_bits(
    rows: int, cols: int, generator: torch.Generator, *, kind: str = "nf4", block: int = 64, nested: bool = True
) -> Coded:
    """bitsandbytes; its FP4 is another table."""
    table = NF4 if kind == "nf4" else torch.cat([FP4, -FP4])
    codes = torch.randint(0, 16, (rows * cols,), generator=generator)
    count = -(-rows * cols // block)
    state = {"quant_type": kind, "blocksize": block, "dtype": "bfloat16", "shape": [rows, cols]}
    found = {"weight": (codes[::2] << 4 | codes[1::2]).to(torch.uint8)[:, None], "weight.quant_map": table.clone()}
    if nested:
        inner = torch.linspace(-1, 1, 256)
        bytes_ = torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)
        outer = torch.rand(-(-count // 256), generator=generator) * 0.01
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.015625}
        found |= {"weight.absmax": bytes_, "weight.nested_absmax": outer, "weight.nested_quant_map": inner.clone()}
        scales = inner[bytes_.long()] * outer.repeat_interleave(256)[:count] + 0.015625
    else:
        scales = found["weight.absmax"] = torch.rand(count, generator=generator) * 0.02
    found[f"weight.quant_state.bitsandbytes__{kind}"] = torch.tensor(
        list(json.dumps(state).encode()), dtype=torch.uint8
    )
    return found, (table[codes] * scales.repeat_interleave(block)[: rows * cols]).reshape(rows, cols)


def fp8(rows: int, cols: int, generator: torch.Generator, *, per: str = "tensor", name: str = "weight_scale") -> Coded:
    codes = torch.randn(rows, cols, generator=generator).to(torch.float8_e4m3fn)
    shape = {"tensor": (), "one": (1,), "row": (rows, 1), "rows": (rows,)}[per]
    scales = torch.rand(shape, generator=generator) * 0.02 + 0.002
    found = {"weight": codes, name: scales, "input_scale": torch.tensor(0.5)}
    each = scales.reshape(-1, 1)
    return found, (codes.float() * each).bfloat16().float()
