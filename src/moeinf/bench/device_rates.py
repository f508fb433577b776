"""What a GPU's memory and the link to it can give: the limits beside which its decode and copy rates stand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import numpy as np
import torch

from moeinf._native import Arena, Copier, CudaDriver
from moeinf.device.cuda import Gpu
from moeinf.types import Copier as CopierProtocol

_LINK_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 4 << 20  # about an expert
_DEVICE_BYTES: Final = 1 << 30  # many times the cache of any card
_ROUNDS: Final = 5
_COPIES: Final = 10  # a round: long enough for a host's clock

Clock = Callable[[], float]


def gpu_rates(gpu: Gpu) -> tuple[float, float]:
    """(host to device, device memory) in bytes a second. Takes 256 MiB of pinned memory and up to 2 GiB of the card."""
    device = torch.device("cuda", gpu.index)
    arena = Arena(_LINK_BYTES)
    host = arena.array()
    host.fill(1)
    copier = Copier(CudaDriver(), gpu.index)
    try:
        target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device)
        link = measure_link(copier, host.ctypes.data, target.data_ptr(), copier.register(host, _PIECE_BYTES))
    finally:
        copier.close()
    del target
    memory = measure_device(device, min(_DEVICE_BYTES, gpu.free_bytes // 4))
    torch.cuda.empty_cache()
    return link, memory


def measure_link(copier: CopierProtocol, source: int, destination: int, num_bytes: int,
                 clock: Clock = time.perf_counter) -> float:
    """Best rate of five batches that copy num_bytes from `source` (host) to `destination` (device) in 4 MiB pieces.

    0 where num_bytes, of which all should be pinned, is less than a piece.
    """
    offsets = np.arange(num_bytes // _PIECE_BYTES, dtype=np.int64) * _PIECE_BYTES
    if not len(offsets):
        return 0.0
    rates = []
    for _ in range(_ROUNDS):
        started = clock()
        copier.wait(copier.copy(source + offsets, destination + offsets, _PIECE_BYTES, 0))
        rates.append(len(offsets) * _PIECE_BYTES / (clock() - started))
    return max(rates)


def measure_device(device: torch.device, num_bytes: int, clock: Clock = time.perf_counter) -> float:
    """Best of five rounds of copying num_bytes within the device's memory; what is read and what is written count."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    rates = []
    for number in range(_ROUNDS + 1):
        started = clock()
        for _ in range(_COPIES):
            target.copy_(source)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        if number:  # the first loads the kernel
            rates.append(2 * source.nbytes * _COPIES / (clock() - started))
    return max(rates)
