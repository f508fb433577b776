"""How fast, and how exactly, one thread multiplies many activations with a matrix of random weights.

    python benchmarks/prompt_rates.py --isas amx,avx512bf16 --formats q4_k,q8_0,bf16 --rows 16,32,64,128,512

For each instruction set, GFLOP/s of the best of --repeats calls, what turns activations into what is multiplied
included, and the root mean square error against float64 of the same weights, as a share of the results'. Instruction
sets take their calls by turns; --passes prints so many tables, one after the other. --uneven makes so many columns of
the activations 20 times as large as the others, as those of real models are.
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


def random_matrix(
    rng: np.random.Generator, format: Format, rows: int, cols: int
) -> tuple[_native.Matrix, npt.NDArray[np.float32]]:
    """Also as float32."""
    weights = (0.04 * rng.standard_normal((rows, cols))).astype(np.float32)
    memory = np.zeros(format_bytes(format, (rows, cols)), np.uint8)
    if format == "bf16":
        memory[:] = (weights.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8).ravel()
    else:
        _native.quantise(format, weights.view(np.uint8).ravel(), "f32", rows, cols, memory)
    _native.dequantise(format, memory, rows, cols, weights)
    return _native.Matrix(memory, format, rows, cols), weights


def measure(
    isas: Sequence[str],
    matrix: _native.Matrix,
    weights: npt.NDArray[np.float32],
    x: npt.NDArray[np.float32],
    repeats: int,
) -> list[str]:
    """GFLOP/s and error of each instruction set."""
    exact = x.astype(np.float64) @ weights.astype(np.float64).T
    kernels = {isa: _native.Kernels(1, isa) for isa in isas}
    best, errors = dict.fromkeys(isas, float("inf")), dict.fromkeys(isas, 0.0)
    y = np.ones((len(x), len(weights)), np.float32)  # in memory before the first call
    for _ in range(repeats):
        for isa in isas:
            kernels[isa].begin_pass(PASS_TOKENS)
            started = time.perf_counter()
            kernels[isa].linear(x, matrix, y)
            best[isa] = min(best[isa], time.perf_counter() - started)
            errors[isa] = float(np.sqrt(((y - exact) ** 2).mean() / (exact**2).mean()))
    return [f"{2 * x.size * len(weights) / 1e9 / best[isa]:.0f}, {errors[isa]:.2%}" for isa in isas]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--isas", default=",".join(_native.available_isas()[:2]))
    parser.add_argument("--formats", default="q4_k,q8_0,bf16")
    parser.add_argument("--rows", default="16,32,64,128,512", help="of activations")
    parser.add_argument("--matrix", default="768x2048", help="rows and columns of the weights")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--passes", type=int, default=1)
    parser.add_argument("--uneven", type=int, default=0, help="columns of the activations that are 20 times as large")
    chosen = parser.parse_args()
    isas = chosen.isas.split(",")
    num_rows, cols = (int(size) for size in chosen.matrix.split("x"))
    rng = np.random.default_rng(1)
    for _ in range(chosen.passes):
        print("| weights | activations | " + " | ".join(isas) + " |\n" + "|---" * (len(isas) + 2) + "|")
        for format in chosen.formats.split(","):
            matrix, weights = random_matrix(rng, cast(Format, format), num_rows, cols)
            for count in (int(text) for text in chosen.rows.split(",")):
                x = rng.standard_normal((count, cols)).astype(np.float32)
                x[:, rng.choice(cols, chosen.uneven, replace=False)] *= 20
                found = measure(isas, matrix, weights, x, chosen.repeats)
                print(f"| {format} | {count} | " + " | ".join(found) + " |", flush=True)


if __name__ == "__main__":
    main()
