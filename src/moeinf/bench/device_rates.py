"""What a GPU's memory and the link to it can give: the limits beside which its decode and copy rates stand."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from moeinf._native import Arena, Copier, CudaDriver
from moeinf.gpu.cuda import Gpu
from moeinf.gpu.vector_ops import TritonVectorOps, VectorOps
from moeinf.types import Copier as CopierProtocol
from moeinf.types import IntArray

_LINK_BYTES: Final = 256 << 20
_PIECE_BYTES: Final = 4 << 20  # about an expert
_DEVICE_BYTES: Final = 1 << 30  # many times the cache of any card
_GATHERED: Final = 8  # pieces at once
_ROUNDS: Final = 5
_COPIES: Final = 10  # a round: long enough for a host's clock

Clock = Callable[[], float]


class GpuRates(NamedTuple):
    """Bytes a second."""

    link: float  # by the engine that copies from host memory
    gather: float  # by kernels that read host memory, as one graph a token does: requests are smaller
    memory: float  # of the card, read and written


def gpu_rates(gpu: Gpu) -> GpuRates:
    """Takes 256 MiB of pinned memory and up to 2 GiB of the card."""
    device = torch.device("cuda", gpu.index)
    arena = Arena(_LINK_BYTES)
    host = arena.array()
    host.fill(1)
    copier = Copier(CudaDriver(), gpu.index)
    try:
        target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device)
        pinned = copier.register(host, np.arange(_PIECE_BYTES, len(host) + 1, _PIECE_BYTES))
        link = measure_link(copier, host.ctypes.data, target.data_ptr(), pinned)
        seen = [copier.device_address(host.ctypes.data + at, _PIECE_BYTES) for at in _pieces(pinned).tolist()]
        gather = measure_gather(TritonVectorOps(), device, np.array(seen, np.int64), target)
    finally:
        copier.close()
    del target
    memory = measure_device(device, min(_DEVICE_BYTES, gpu.free_bytes // 4))
    torch.cuda.empty_cache()
    return GpuRates(link, gather, memory)


def measure_link(
    copier: CopierProtocol, source: int, destination: int, num_bytes: int, clock: Clock = time.perf_counter
) -> float:
    """Best rate of five batches that copy num_bytes from `source` (host) to `destination` (device) in 4 MiB pieces.

    0 where num_bytes, of which all should be pinned, is less than a piece.
    """
    offsets = _pieces(num_bytes)
    if not len(offsets):
        return 0.0
    rates = []
    for _ in range(_ROUNDS):
        started = clock()
        copier.wait(copier.copy(source + offsets, destination + offsets, np.full_like(offsets, _PIECE_BYTES), 0))
        rates.append(len(offsets) * _PIECE_BYTES / (clock() - started))
    return max(rates)


def measure_gather(
    ops: VectorOps, device: torch.device, sources: IntArray, target: Tensor, clock: Clock = time.perf_counter
) -> float:
    """Best of five rounds in which a kernel brings 4 MiB from each of `sources`, as the device sees it, to `target`, a
    token's experts at a time."""
    destinations = target.data_ptr() + np.arange(len(sources), dtype=np.int64) * _PIECE_BYTES
    rows = torch.from_numpy(np.stack([sources, destinations], axis=1)).to(device)
    rates = []
    for number in range(_ROUNDS + 1 if len(sources) else 0):
        _wait(device)
        started = clock()
        for copies in rows.split(_GATHERED):
            ops.gather(copies, _PIECE_BYTES)
        _wait(device)
        if number:  # the first compiles the kernel
            rates.append(len(sources) * _PIECE_BYTES / (clock() - started))
    return max(rates, default=0.0)


def _pieces(num_bytes: int) -> IntArray:
    return np.arange(num_bytes // _PIECE_BYTES, dtype=np.int64) * _PIECE_BYTES


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_device(device: torch.device, num_bytes: int, clock: Clock = time.perf_counter) -> float:
    """Best of five rounds of copying num_bytes within the device's memory; what is read and what is written count."""
    source = torch.ones(num_bytes // 4, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    rates = []
    for number in range(_ROUNDS + 1):
        started = clock()
        for _ in range(_COPIES):
            target.copy_(source)
        _wait(device)
        if number:  # the first loads the kernel
            rates.append(2 * source.nbytes * _COPIES / (clock() - started))
    return max(rates)
