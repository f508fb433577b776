"""What TritonMatrixOps launches at the shapes of models, recorded and compiled for a real GPU, without one.

It is run as a process of its own, without Triton's interpreter: there launches are recorded instead of carried out, and
what was recorded is compiled. So what is compiled is what the class launches, and nothing else.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

import torch

from moeinf.gpu.matrix import DeviceMatrix, ExpertPart, ExpertParts, Groups
from moeinf.gpu.matrix_ops import TritonMatrixOps
from moeinf.types import ExpertForm, Format, format_bytes
from tests.support.compiling import ALL, compiled_kernel, print_lines

PLAIN = {"bf16", "f16", "f32"}


def main(target: str, *formats: Any) -> None:
    """Prints a line of JSON for every kernel and combination of types and constants that is launched."""
    print_lines(recorded(formats), partial(facts_of, target))


def recorded(formats: Iterable[Format]) -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """What TritonMatrixOps launches for matrices of these formats: kernels, arguments and options."""
    launches: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        arguments = dict(zip(kernel.arg_names, args, strict=True))
        if "NARROW" in arguments:
            arguments["NARROW"] = True  # as for tensors on a GPU
        types = {name: getattr(value, "dtype", value) for name, value in arguments.items()}
        launches[f"{kernel.__name__} {types}"] = kernel, arguments, options

    import_module("triton").JITFunction.run = record
    for format in formats:
        launch_all(TritonMatrixOps(), format)
    return list(launches.values())


def facts_of(target: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    formats = sorted({value for name, value in arguments.items() if name in ("FORMAT", "GATE", "UP")})
    facts = compile_for(target, kernel, arguments, options)
    biased = any(arguments.get(name) for name in ("BIAS", "GATE_BIAS", "UP_BIAS"))
    return {"name": kernel.__name__, "formats": formats, "biased": biased, "gated": arguments.get("GATED")} | facts


def launch_all(ops: TritonMatrixOps, format: Format) -> None:
    """Each operation at the geometry of Qwen3-30B-A3B's experts, and those of decode at one with remainders too."""
    cells = torch.empty(64, dtype=torch.int32)
    addresses = torch.empty(8, dtype=torch.int64)
    groups = Groups(cells, cells[:4], cells[:4], addresses[:4], 64, 8)
    odd = (2304, 1280) if format == "q4_k" else (2880, 1408)
    for hidden, intermediate in ((2048, 768), odd):
        gate = ExpertPart(format, intermediate, hidden, 0)
        end = format_bytes(format, (intermediate, hidden))
        up, down = gate._replace(offset_bytes=end), ExpertPart(format, hidden, intermediate, 2 * end)
        parts = ExpertParts(gate, up, down)
        x, act, out = torch.empty(9, hidden), torch.empty(8, intermediate), torch.empty(8, hidden)
        ops.gate_up(x[:1], addresses, parts, act)
        ops.down(act, addresses, parts, out)
        if hidden != 2048:
            continue
        ops.gate_up_grouped(x, groups, parts, act)
        ops.down_grouped(act, groups, parts, out)
        if format == "mxfp4" or (ALL and format == "bf16"):
            launch_forms(ops, parts, 3 * end)
        data = torch.empty(format_bytes(format, (512, hidden)), dtype=torch.uint8)
        w = DeviceMatrix(data, format, 512, hidden)
        ops.linear(x[:1], w, torch.empty(1, 512))
        ops.linear(x[:8], w, torch.empty(8, 512), torch.empty(512), True)
        if format not in PLAIN:
            ops.linear(x, w, torch.empty(9, 512))


def launch_forms(ops: TritonMatrixOps, parts: ExpertParts, end: int) -> None:
    """What gpt-oss, NLLB and Switch compute, and both kinds of gelu."""
    cells, addresses = torch.empty(64, dtype=torch.int32), torch.empty(4, dtype=torch.int64)
    groups = Groups(cells, cells[:4], cells[:4], addresses, 64, 4)
    narrow = ExpertPart("bf16", parts.up.rows, 1, end)
    wide = ExpertPart("bf16", parts.down.rows, 1, end + 4 * parts.up.rows)
    other = narrow._replace(offset_bytes=end + 2 * parts.up.rows)
    x, act = torch.empty(9, parts.up.cols), torch.empty(4, parts.up.rows)
    for variant in (
        ExpertParts(*parts[:3], narrow, other, wide, ExpertForm("swiglu_clamped", biased=True, limit=7.0)),
        ExpertParts(None, parts.up, parts.down, None, narrow, wide, ExpertForm("relu", gated=False, biased=True)),
        parts._replace(gate=None, form=ExpertForm("relu2", gated=False)),
        parts._replace(form=ExpertForm("gelu")),
        parts._replace(form=ExpertForm("gelu_tanh")),
    ):
        ops.gate_up(x[:1], addresses, variant, act)
        ops.down(act, addresses, variant, torch.empty(4, parts.down.rows))
        ops.gate_up_grouped(x, groups, variant, act)
        ops.down_grouped(act, groups, variant, torch.empty(4, parts.down.rows))


def compile_for(target: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a kernel takes, and how it loads and multiplies."""
    facts, assembly = compiled_kernel(target, kernel, arguments, options, aligned_counts=False)
    return facts | {
        "wide_loads": len(re.findall(r"ld\.global\S*\.v4\.[bu]32", assembly)),
        "narrow_loads": len(re.findall(r"ld\.global\S*\.[bu](?:8|16)\b", assembly)),
        "barriers": len(re.findall(r"\bbar(?:rier)?\.\S*sync", assembly)),
        "flushing_products": len(re.findall(r"\bmul(?:\.rn)?\.ftz", assembly)),
        "mma_products": len(re.findall(r"\bmma\.sync\S*m16n8k16", assembly)),  # before 9.0, and since 10.0
        "tensor_products": len(re.findall(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma|v_mfma|v_wmma)", assembly)),
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
