"""A first kernel and a first product on a device, before anything is loaded onto it."""

from __future__ import annotations

from typing import Final

import torch

from moeinf.errors import DeviceError
from moeinf.gpu.device import Device
from moeinf.gpu.ops import Ops

_COUNT: Final = 64


def try_out(device: Device, ops: Ops) -> None:
    """Asks for all that computing takes: Triton's compiler and launcher, the driver that loads what they make, and the
    library of matrix products.

    It takes a second where Triton has compiled nothing so far, and little where it has. Raises DeviceError where
    numbers are wrong, and whatever those raise.
    """
    with device.computing():
        x = torch.arange(1.0, _COUNT + 1, device=device.kind).view(1, _COUNT)
        normed = torch.empty_like(x)
        ops.vectors.rms_norm(x, torch.ones_like(x[0]), 0.0, normed)
        matrix = torch.eye(_COUNT, dtype=torch.bfloat16, device=device.kind) * 2
        product = torch.mm(x.to(torch.bfloat16), matrix)
        values, host = x.cpu(), normed.cpu()
    wanted = values * torch.rsqrt(values.square().mean())
    if not torch.allclose(host, wanted, rtol=1e-4, atol=0) or not torch.equal(product.float().cpu(), values * 2):
        raise DeviceError(
            "the GPU computes wrong numbers: see `dmesg | grep Xid` and `nvidia-smi -q`, whether torch "
            "and the driver fit each other, or run with --device cpu"
        )
