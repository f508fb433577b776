"""Compiles Triton's kernels for real GPUs, without one, and says what became of them.

Tests run in Triton's interpreter, which is chosen when a kernel is declared: so compiling is done by running the test's
own file in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.types import DEVICE_FORMATS

# Compute capabilities of NVIDIA's cards, and AMD's names of theirs: one of each, or those that `make gpu-compile` asks
# for, which asks for every format and shape too. Else there is one format of each kind: 16 bits, blocks of 32, of 256,
# and scales that are no numbers.
_ASKED = os.environ.get("KERNEL_TARGETS", "80,gfx942").split(",")
TARGETS = tuple(target for target in _ASKED if target.isdigit())
AMD_TARGETS = tuple(target for target in _ASKED if not target.isdigit())
ALL = "KERNEL_TARGETS" in os.environ
FORMATS = tuple(format for format in DEVICE_FORMATS if ALL or format in ("bf16", "q8_0", "q4_k", "mxfp4"))
POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.uint8: "*u8",
            torch.int32: "*i32", torch.int64: "*i64"}  # fmt: skip
ROOT = Path(__file__).parents[2]


def lines_of(script: str, target: str, cache: Path, formats: Sequence[str] = FORMATS) -> list[dict[str, Any]]:
    """The lines of JSON that a file prints when it is run, without the interpreter, for one target."""
    pytest.importorskip("triton", reason="triton is not installed: nothing to compile")
    lines = lines_under(None, script, target, cache, formats)
    failed = [line for line in lines if "failed" in line]
    assert not failed, failed
    return lines


def lines_under(
    triton: Path | None, script: str, target: str, cache: Path, formats: Sequence[str] = FORMATS
) -> list[dict[str, Any]]:
    """The same under the Triton in a folder, or the installed one; a kernel that does not compile has `failed`."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(cache)} | ({} if triton is None else {"PYTHONPATH": str(triton)})
    module = ".".join(Path(script).relative_to(ROOT).with_suffix("").parts)
    command = [sys.executable, "-m", module, target, *formats]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def print_lines(launches: Iterable[tuple[Any, dict[str, Any], dict[str, Any]]], facts_of: Callable[..., Any]) -> None:
    """Of each kernel, its arguments and its options, what `facts_of` says, or why it does not compile."""
    for kernel, arguments, options in launches:
        try:
            facts = facts_of(kernel, arguments, options)
        except Exception as error:  # whatever a compiler ends with
            said = [line.strip() for line in f"{error.__cause__ or error}".splitlines() if line.strip()]
            facts = {"name": kernel.__name__, "failed": f"{type(error).__name__}: {said[-1][:300] if said else ''}"}
        print(json.dumps(facts), flush=True)


def compiled_kernel(
    target: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any], *, aligned_counts: bool
) -> tuple[dict[str, Any], str]:
    """What a kernel takes, and its assembly, compiled as a launch would: tensors are aligned.

    aligned_counts: so are whole numbers that 16 divides, where the kernel lets Triton look at them.
    """
    triton: Any = import_module("triton")  # by name: it has no types, and is not installed everywhere
    signature, constants, aligned = {}, {}, {}
    for number, (name, parameter) in enumerate(zip(kernel.arg_names, kernel.params, strict=True)):
        value = arguments[name]
        if parameter.is_constexpr or value is None:
            signature[name], constants[(number,)] = "constexpr", value
        elif isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
        else:
            signature[name] = "fp32" if isinstance(value, float) else "i32"
        if isinstance(value, torch.Tensor) or (aligned_counts and signature[name] == "i32" and value % 16 == 0):
            aligned[(number,)] = [["tt.divisibility", 16]]
    source = triton.compiler.ASTSource(kernel, signature, constants, aligned)
    binary = triton.compile(source, target=_target(target), options=options)
    facts = {
        "constants": str(constants),
        "shared_bytes": binary.metadata.shared,
        "fused": options.get("enable_fp_fusion", "by default"),
    }
    if not target.isdigit():
        return facts | _resources_of_amd(binary.asm["amdgcn"]), binary.asm["amdgcn"]
    tool = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "cuobjdump"
    return facts | _resources(tool, binary.asm["cubin"]), binary.asm["ptx"]


def _target(name: str) -> Any:
    """What Triton compiles for: "80" is NVIDIA's compute capability 8.0, "gfx942" a card of AMD's."""
    kind = import_module("triton.backends.compiler").GPUTarget
    if name.isdigit():
        return kind("cuda", int(name), 32)
    _link_by_triton()
    return kind("hip", name, 64 if name.startswith("gfx9") else 32)


def _link_by_triton() -> None:
    """Before 3.6 Triton links by the lld of ROCm: without one, what was assembled stays as it is."""
    compiler = import_module("triton.backends").backends["amd"].compiler
    native = import_module("triton._C.libtriton").amd
    if hasattr(native, "link_hsaco"):
        return
    try:
        compiler.path_to_rocm_lld()
    except Exception:  # of no kind of its own
        compiler.hash = lambda self: f"not linked, {self.target}"  # which asks the linker for its version
        compiler.make_hsaco = staticmethod(
            lambda code, metadata, options: native.assemble_amdgcn(code, options.arch, "")
        )


def _resources(tool: Path, cubin: bytes) -> dict[str, int]:
    """Of one thread: registers, and bytes of what they have no room for."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True)
    count = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage.stdout)}
    return {"registers": count["REG"], "spilled_bytes": count["STACK"] + count["LOCAL"]}


def _resources_of_amd(assembly: str) -> dict[str, int]:
    """The same, from what the assembler is told; and whether f32 keeps subnormal numbers."""
    count = {name: int(value) for name, value in re.findall(r"^\s*\.(\w+):\s+(\d+)$", assembly, re.MULTILINE)}
    kept = int(re.search(r"\.amdhsa_float_denorm_mode_32 (\d)", assembly)[1]) == 3  # type: ignore[index]
    spilled = count["private_segment_fixed_size"]
    return {"registers": count["vgpr_count"], "spilled_bytes": spilled, "subnormal": kept}
