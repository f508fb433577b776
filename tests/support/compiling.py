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
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.types import DEVICE_FORMATS

# Compute capabilities: the oldest that is supported, or those that `make gpu-compile` asks for, which asks for every
# format and shape too. Else there is one of each kind: 16 bits, blocks of 32, of 256, and scales that are no numbers.
TARGETS = tuple(int(target) for target in os.environ.get("KERNEL_TARGETS", "80").split(","))
ALL = "KERNEL_TARGETS" in os.environ
FORMATS = tuple(format for format in DEVICE_FORMATS if ALL or format in ("bf16", "q8_0", "q4_k", "mxfp4"))
POINTERS = {torch.float32: "*fp32", torch.float16: "*fp16", torch.bfloat16: "*bf16", torch.uint8: "*u8",
            torch.int32: "*i32", torch.int64: "*i64"}  # fmt: skip
ROOT = Path(__file__).parents[2]


def lines_of(script: str, capability: int, cache: Path) -> list[dict[str, Any]]:
    """The lines of JSON that a file prints when it is run, without the interpreter, for one target."""
    pytest.importorskip("triton", reason="triton is not installed: nothing to compile")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    module = ".".join(Path(script).relative_to(ROOT).with_suffix("").parts)
    command = [sys.executable, "-m", module, str(capability)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def compiled_kernel(
    capability: int, kernel: Any, arguments: dict[str, Any], options: dict[str, Any], *, aligned_counts: bool
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
    target = triton.backends.compiler.GPUTarget("cuda", capability, 32)
    binary = triton.compile(source, target=target, options=options)
    tool = Path(triton.__path__[0]) / "backends" / "nvidia" / "bin" / "cuobjdump"
    facts = {
        "constants": str(constants),
        "shared_bytes": binary.metadata.shared,
        "fused": options.get("enable_fp_fusion", "by default"),
    }
    return facts | _resources(tool, binary.asm["cubin"]), binary.asm["ptx"]


def _resources(tool: Path, cubin: bytes) -> dict[str, int]:
    """Of one thread: registers, and bytes of what they have no room for."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        usage = subprocess.run([tool, "--dump-resource-usage", file.name], check=True, capture_output=True, text=True)
    count = {name: int(value) for name, value in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", usage.stdout)}
    return {"registers": count["REG"], "spilled_bytes": count["STACK"] + count["LOCAL"]}
