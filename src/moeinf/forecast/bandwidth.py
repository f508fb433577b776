"""What memory can give: the limit beside which a decode rate stands."""

from __future__ import annotations

from typing import Final

from moeinf._native import memory_read_rate
from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.hardware import machine

_SPAN_BYTES: Final = 512 << 20
_LEAST_BYTES: Final = 128 << 20  # less would in part be read from caches
_REPEATS: Final = 5


def memory_bytes_per_s(config: RuntimeConfig) -> float:
    """Best rate of all threads together reading fresh memory: 512 MiB, or a quarter of what this process may still use.

    0 where that is too little to tell.
    """
    here = machine()
    span = min(_SPAN_BYTES, here.available_bytes // 4)
    if span < _LEAST_BYTES:
        return 0.0
    return memory_read_rate(open_kernels(config.compute.threads or here.cores, config.compute.isa), span, _REPEATS)
