"""How fast one thread multiplies many activations with a matrix of random weights, by instruction set.

    python benchmarks/prompt_rates.py --isas amx,avx512bf16 --formats q4_k,q8_0,bf16 --rows 16,32,64,128,512

GFLOP/s of the best of --repeats calls, what turns activations into what is multiplied included. Instruction sets take
their calls by turns; --passes prints so many tables, one after the other.
"""

import argparse
import time
from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt

from moeinf import _native
from moeinf.types import Format, format_bytes

PASS_TOKENS = 1000  # of a prompt, whatever part of it one expert is given


def random_matrix(rng: np.random.Generator, format: Format, rows: int, cols: int) -> _native.Matrix:
    weights = (0.04 * rng.standard_normal((rows, cols))).astype(np.float32)
    memory = np.zeros(format_bytes(format, (rows, cols)), np.uint8)
    if format == "bf16":
        memory[:] = (weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).ravel()
    else:
        _native.quantise(format, weights.view(np.uint8).ravel(), "f32", rows, cols, memory)
    return _native.Matrix(memory, format, rows, cols)


def seconds(kernels: _native.Kernels, matrix: _native.Matrix, x: npt.NDArray[np.float32], num_rows: int) -> float:
    y = np.zeros((len(x), num_rows), np.float32)
    kernels.begin_pass(PASS_TOKENS)
    started = time.perf_counter()
    kernels.linear(x, matrix, y)
    return time.perf_counter() - started


def measure(
    isas: Sequence[str], matrix: _native.Matrix, x: npt.NDArray[np.float32], num_rows: int, repeats: int
) -> dict[str, float]:
    """GFLOP/s of each instruction set."""
    kernels = {isa: _native.Kernels(1, isa) for isa in isas}
    best = dict.fromkeys(isas, float("inf"))
    for _ in range(repeats):
        for isa in isas:
            best[isa] = min(best[isa], seconds(kernels[isa], matrix, x, num_rows))
    return {isa: 2 * x.size * num_rows / 1e9 / best[isa] for isa in isas}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isas", default=",".join(_native.available_isas()[:2]))
    parser.add_argument("--formats", default="q4_k,q8_0,bf16")
    parser.add_argument("--rows", default="16,32,64,128,512", help="of activations")
    parser.add_argument("--matrix", default="768x2048", help="rows and columns of the weights")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--passes", type=int, default=1)
    chosen = parser.parse_args()
    isas = chosen.isas.split(",")
    num_rows, cols = (int(size) for size in chosen.matrix.split("x"))
    rng = np.random.default_rng(1)
    for _ in range(chosen.passes):
        print("| weights | activations | " + " | ".join(isas) + " |\n" + "|---" * (len(isas) + 2) + "|")
        for format in chosen.formats.split(","):
            matrix = random_matrix(rng, cast(Format, format), num_rows, cols)
            for count in (int(text) for text in chosen.rows.split(",")):
                x = rng.standard_normal((count, cols)).astype(np.float32)
                rates = measure(isas, matrix, x, num_rows, chosen.repeats)
                print(f"| {format} | {count} | " + " | ".join(f"{rates[isa]:.0f}" for isa in isas) + " |", flush=True)


if __name__ == "__main__":
    main()
