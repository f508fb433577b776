"""Copies of what a GPU keeps of tokens, to host memory and back, byte for byte."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from moeinf.types import ByteArray


def bytes_to_host(rows: Tensor) -> ByteArray:
    """[planes, tokens, width] of any type -> [planes, tokens, bytes of a row]. Waits for the device."""
    values: ByteArray = rows.contiguous().view(torch.uint8).cpu().numpy()
    return values


def bytes_of_host(rows: ByteArray, into: Tensor) -> None:
    """The same back, into [planes, tokens, width]."""
    into.copy_(torch.from_numpy(np.ascontiguousarray(rows)).view(into.dtype))
