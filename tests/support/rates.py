"""Rates of a machine as `moeinf doctor` keeps them, for tests that must not measure."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from moeinf.engine.build_context import open_kernels
from moeinf.engine.speed.rates import Conditions, Products, Rates
from moeinf.hardware import machine

# Each weight takes a nanosecond in one row, and a tenth of that for each of many.
_PRODUCTS: Final = Products((1, 100), (1e-9, 1e-8))
PLAIN: Final = Rates(
    Conditions("a CPU", "generic", threads=1, memory_bytes=1 << 30, measured="2026-01-02T03:04:05+00:00"),
    disk={1 << 20: 1e9, 4 << 20: 2e9},
    direct=True,
    memory=1e10,
    experts={"bf16": _PRODUCTS, "q4_k": _PRODUCTS},
    linear={"bf16": _PRODUCTS},
    reading={},
    layer_s=1e-5,
    streamed_layer_s=1e-4,
)


def rates_of_this_machine(threads: int | None = None) -> Rates:
    """threads: all, if None. Measured while nothing else ran."""
    here = machine()
    conditions = Conditions.now(open_kernels(threads or here.cores, ""), here)
    return replace(PLAIN, conditions=replace(conditions, load=0.0))
