"""Microseconds of the kernels of a GPU, by format: products of one token, experts of a prompt, attention.

    python benchmarks/gpu/kernel_times.py [--formats q4_k,q8_0,bf16] [--tokens 512] [--small]

Geometry of Qwen3-30B-A3B, blocks of any codes. Each kernel is launched 48 times in a captured graph, over matrices or
experts that change from launch to launch, so that none is read from the L2 cache. Printed per launch: the median of
five replays, and the rate at which weights were read. --small rehearses: small matrices, two launches, few tokens.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.groups import make_groups
from moeinf.gpu.matrix import DeviceMatrix, ExpertPart, ExpertParts
from moeinf.gpu.matrix_ops import TritonMatrixOps
from moeinf.gpu.vector_ops import AttentionForm, KeyValues, TritonVectorOps
from moeinf.types import DEVICE_FORMATS, FORMAT_BLOCKS, Format, format_bytes

TOP_K, REPLAYS = 8, 5


class Sizes(NamedTuple):
    hidden: int = 2048
    intermediate: int = 768
    experts: int = 128
    vocabulary: int = 151936
    launches: int = 48
    gpu_bytes: int = 6 << 30
    lengths: tuple[int, ...] = (500, 8000, 32000)
    programs: tuple[int, ...] = ()  # of a product of decode, as TritonMatrixOps takes them
    attention_programs: int = 256

    @property
    def dense(self) -> tuple[tuple[int, int], ...]:
        hidden = self.hidden
        return (5 * hidden // 2, hidden), (hidden, 2 * hidden), (self.experts, hidden), (self.vocabulary, hidden)


SMALL = Sizes(64, 32, 8, 64, 2, 1 << 16, (50, 100), (3, 3), 10)


def blocks(format: Format, num_bytes: int) -> Tensor:
    """uint8 of any codes, with scales that make small weights."""
    if format in ("f32", "f16", "bf16"):
        dtype = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}[format]
        return (0.02 * torch.randn(num_bytes // dtype.itemsize, device="cuda")).to(dtype).view(torch.uint8)
    size = FORMAT_BLOCKS[format][1]
    data = torch.randint(0, 256, (num_bytes // size, size), dtype=torch.uint8, device="cuda")
    if format == "mxfp4":
        data[:, 0] = 120
    scale = torch.full((len(data), 1), 0.001, dtype=torch.float16, device="cuda").view(torch.uint8)
    for at in {"mxfp4": (), "q4_k": (0, 2)}.get(format, (0,)):
        data[:, at : at + 2] = scale
    return data.view(-1)


def microseconds(launch: Callable[[int], None], launches: int) -> float:
    stream, times = torch.cuda.Stream(), list[float]()
    with torch.cuda.stream(stream):
        launch(0)  # compiles
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for number in range(launches):
                launch(number)
        for _ in range(REPLAYS + 1):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            stream.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / launches)
    return float(np.median(times[1:]))


def tell(what: str, us: float, num_bytes: int) -> None:
    print(f"{what:44s} {us:9.2f} us {num_bytes / us / 1e6:6.2f} TB/s", flush=True)


def dense(format: Format, sizes: Sizes) -> None:
    ops = TritonMatrixOps(*sizes.programs)
    for rows, cols in sizes.dense:
        num_bytes = format_bytes(format, (rows, cols))
        count = max(2, min(24, sizes.gpu_bytes // 4 // num_bytes))
        matrices = [DeviceMatrix(blocks(format, num_bytes), format, rows, cols) for _ in range(count)]
        x, out = torch.randn(1, cols, device="cuda"), torch.zeros(1, rows, device="cuda")

        def product(number: int, m: list[DeviceMatrix] = matrices, x: Tensor = x, out: Tensor = out) -> None:
            ops.linear(x, m[number % len(m)], out)

        tell(f"{format} {rows} x {cols}", microseconds(product, sizes.launches), num_bytes)


def experts(format: Format, tokens: int, sizes: Sizes) -> None:
    hidden, intermediate, num_experts, _, launches, gpu_bytes, *_ = sizes
    ops, part = TritonMatrixOps(*sizes.programs), format_bytes(format, (intermediate, hidden))
    stride = -(-3 * part // 4096) * 4096
    count = max(num_experts, gpu_bytes // stride)
    memory = blocks(format, count * stride // FORMAT_BLOCKS[format][1] * FORMAT_BLOCKS[format][1] + stride)
    parts = ExpertParts(
        ExpertPart(format, intermediate, hidden, 0),
        ExpertPart(format, intermediate, hidden, part),
        ExpertPart(format, hidden, intermediate, 2 * part),
    )
    rng = np.random.default_rng(0)

    def addresses(chosen: np.ndarray) -> np.ndarray:
        return memory.data_ptr() + chosen.astype(np.int64) * stride

    chosen = [torch.from_numpy(addresses(rng.permutation(count)[:TOP_K])).cuda() for _ in range(launches)]
    x, act = torch.randn(1, hidden, device="cuda"), torch.zeros(TOP_K, intermediate, device="cuda")
    out = torch.zeros(TOP_K, hidden, device="cuda")
    tell(
        f"{format} gate_up of a token",
        microseconds(lambda n: ops.gate_up(x, chosen[n], parts, act), launches),
        16 * part,
    )
    tell(f"{format} down of a token", microseconds(lambda n: ops.down(act, chosen[n], parts, out), launches), 8 * part)
    ids = np.stack([rng.permutation(num_experts)[:TOP_K] for _ in range(tokens)])
    groups = make_groups(ids, np.arange(num_experts), addresses(np.arange(num_experts)), x.device)
    xs, acts = torch.randn(tokens, hidden, device="cuda"), torch.zeros(tokens * TOP_K, intermediate, device="cuda")
    outs = torch.zeros(tokens * TOP_K, hidden, device="cuda")
    gate_up = microseconds(lambda _: ops.gate_up_grouped(xs, groups, parts, acts), 4)
    down = microseconds(lambda _: ops.down_grouped(acts, groups, parts, outs), 4)
    operations = 2e-6 * tokens * TOP_K * hidden * intermediate
    tell(f"{format} gate_up of {tokens} ({2 * operations / gate_up:.0f} TFLOP/s)", gate_up, 2 * num_experts * part)
    tell(f"{format} down of {tokens} ({operations / down:.0f} TFLOP/s)", down, num_experts * part)


def attention(sizes: Sizes) -> None:
    ops, q = TritonVectorOps(sizes.attention_programs), torch.randn(1, 4096, device="cuda")
    caches = [
        KeyValues(*(torch.randn(4, max(sizes.lengths) + 768, 128, device="cuda").bfloat16() for _ in "kv"))
        for _ in range(2)
    ]
    out = torch.empty_like(q)
    for length in sizes.lengths:
        at = torch.tensor([length], dtype=torch.int32, device="cuda")

        def attend(number: int, at: Tensor = at, length: int = length) -> None:
            ops.attend(q, caches[number % 2], at, length, AttentionForm(0.09), out)

        tell(f"attention over {length}, bf16", microseconds(attend, sizes.launches), 2 * 4 * 128 * 2 * length)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--formats", default="q4_k,q8_0,mxfp4,iq4_nl,bf16")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--small", action="store_true")
    given = parser.parse_args()
    sizes, tokens = (SMALL, 4) if given.small else (Sizes(), given.tokens)
    torch.manual_seed(0)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "driver for CUDA", torch.version.cuda)
    for format in DEVICE_FORMATS:
        if format in given.formats.split(","):
            dense(format, sizes)
            experts(format, tokens, sizes)
    attention(sizes)


if __name__ == "__main__":
    main()
