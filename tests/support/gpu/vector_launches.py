"""What TritonVectorOps launches at the shapes of models, recorded and compiled for a real GPU, without one.

It is run as a process of its own, as matrix_launches is.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from importlib import import_module
from typing import Any

import torch

from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues, SlotTensors, TritonVectorOps
from tests.support.compiling import ALL, compiled_kernel, print_lines

# Heads, those of keys, their width, window, clip and what keys are kept in: each of these once, and the largest.
SHAPES = (
    (32, 8, 128, 4096, 8.0, torch.bfloat16), (6, 2, 80, 0, 8.0, torch.bfloat16), (64, 2, 64, 128, 0.0, torch.float16),
    (8, 1, 576, 0, 0.0, torch.bfloat16), (128, 1, 576, 0, 0.0, torch.float32), (8, 8, 512, 0, 0.0, torch.float32),
)  # fmt: skip
OTHER_SHAPES = (
    (32, 4, 128, 0, 0.0, torch.bfloat16), (32, 4, 128, 0, 0.0, torch.float16), (32, 4, 128, 0, 0.0, torch.float32),
    (2, 2, 256, 0, 0.0, torch.float32), (128, 1, 576, 0, 0.0, torch.bfloat16), (16, 1, 576, 0, 0.0, torch.float16),
)  # fmt: skip


def main(target: str) -> None:
    """Prints a line of JSON for every kernel and combination of types and constants that is launched."""
    print_lines(recorded(), partial(facts_of, target))


def recorded() -> list[tuple[Any, dict[str, Any], dict[str, Any]]]:
    """What TritonVectorOps launches: kernels, arguments and options."""
    launches: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {}

    def record(kernel: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        constants = {name: value for name, value in options.items() if name in kernel.arg_names}
        num_warps = {name: value for name, value in options.items() if name not in kernel.arg_names}
        arguments = dict(zip(kernel.arg_names, args, strict=False)) | constants
        types = {name: getattr(value, "dtype", value) for name, value in arguments.items()}
        launches[f"{kernel.__name__} {types}"] = kernel, arguments, num_warps

    import_module("triton").JITFunction.run = record
    launch_all(TritonVectorOps())
    return list(launches.values())


def launch_all(ops: TritonVectorOps) -> None:
    """Each operation at shapes of Qwen3-30B-A3B, Mixtral and OLMoE, of DeepSeek's wide heads, and at odd ones."""
    floats = torch.empty(8, 4096)
    for hidden in (96, 2048, 4096, 16384):
        ops.rms_norm(torch.empty(1, hidden), torch.empty(hidden), 1e-6, torch.empty(1, hidden))
    position = torch.zeros(1, dtype=torch.int32)
    for heads, kv_heads, head_dim, window, clip, dtype in (*SHAPES, *(OTHER_SHAPES if ALL else ())):
        q, k = torch.empty(1, heads * head_dim), torch.empty(1, kv_heads * head_dim)
        keys, angles = torch.empty(kv_heads, 32, head_dim, dtype=dtype), torch.empty(32, head_dim // 2)
        norm = None if clip else torch.empty(head_dim)
        cache = KeyValues(keys, keys)
        ops.rope_store(q, k, k, HeadForm(angles, angles, False, norm, norm, 1e-6, clip), position, cache)
        ops.attend(q, cache, position, 0, AttentionForm(0.1, window), q)
    q, k, norm = torch.empty(1, 64 * 64), torch.empty(1, 8 * 64), torch.empty(64)
    keys = torch.empty(8, 32, 64, dtype=torch.bfloat16)
    cache = KeyValues(keys, keys)
    ops.attend(q, cache, position, 0, AttentionForm(0.125, 128, sinks=torch.empty(64)), q)  # gpt-oss
    ops.attend(q, cache, position, 0, AttentionForm(0.0625, 4096, cap=50.0), q)  # gemma2
    beams, past = torch.empty(1, 4 * 12 * 64), torch.empty(4 * 12, 32, 64)
    biased = AttentionForm(1.0, bias=torch.empty(12, 32))  # switch-base
    ops.attend(beams, KeyValues(past, past), position, 0, biased, beams)
    for rotary_dim, interleaved in ((64, True), (32, False), (16, True), (0, False)):
        angles = torch.empty(32, rotary_dim // 2)
        ops.rope_store(q, k, k, HeadForm(angles, angles, interleaved, norm, norm, 1e-6), position, cache)
    ids = torch.empty(8, dtype=torch.int32)
    for experts, top_k in ((128, 8), (8, 2), (384, 6), (512, 10)):
        weights = torch.empty(1, top_k)
        ops.softmax_topk(torch.empty(1, experts), top_k, experts != 384, ids, weights)
        ops.combine(floats, weights, torch.empty(1, 4096))
    for slots in (8, 2000, 6144, 15000):
        slot, address = torch.empty(slots, dtype=torch.int32), torch.empty(slots, dtype=torch.int64)
        table = SlotTensors(slot, slot, address, slot, address, floats, address, 128, 48, [1] * 4)
        ops.claim(ids, 3, table, address[:8], torch.empty(8, 2, dtype=torch.int64))
    ops.gather(torch.empty(8, 2, dtype=torch.int64), 1152 * 4096)


def facts_of(target: str, kernel: Any, arguments: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What a kernel takes, and how it loads and stores."""
    facts, assembly = compiled_kernel(target, kernel, arguments, options, aligned_counts=True)
    return (
        {"name": kernel.__name__}
        | facts
        | {
            "wide_loads": len(re.findall(r"ld\.global\.cg\.(?:v2\.b64|v4\.b32)", assembly)),
            "wide_stores": len(re.findall(r"st\.global\.(?:v2\.b64|v4\.b32)", assembly)),
        }
    )


if __name__ == "__main__":
    main(sys.argv[1])
