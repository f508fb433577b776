"""Measures how fast a GPU reads its memory, and how fast experts come to it from the host."""

from __future__ import annotations

import time
from typing import Final

import torch

from moeinf.engine.speed.rates import CardRates
from moeinf.gpu.cuda import explain, is_out_of_memory
from moeinf.gpu.device import Device

_SPAN_BYTES: Final = 128 << 20  # copied at once; more than caches hold
_LINK_BYTES: Final = 32 << 20
_ROUNDS: Final = 4  # the first takes longer


def card_rates(device: Device) -> CardRates | None:
    """Takes some hundredths of a second; None where too little memory is free to measure with. Raises DeviceError."""
    try:
        with device.computing():
            host = device.pinned((_LINK_BYTES,), torch.uint8)
            target = torch.empty(_LINK_BYTES, dtype=torch.uint8, device=device.kind)
            link = _rate(device, target, host)
            source = torch.zeros(_SPAN_BYTES, dtype=torch.uint8, device=device.kind)
            return CardRates(2 * _rate(device, torch.empty_like(source), source), link)  # read, and written
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise explain(error) or error from error
        return None


def _rate(device: Device, target: torch.Tensor, source: torch.Tensor) -> float:
    """Returns the best rate of a few copies."""
    seconds = []
    for _ in range(_ROUNDS):
        device.synchronise()
        started = time.perf_counter()
        target.copy_(source, non_blocking=True)
        device.synchronise()
        seconds.append(time.perf_counter() - started)
    return source.nbytes / min(seconds)
