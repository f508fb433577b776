"""Experts that miss on the device and lie in host memory, computed there by the CPU instead of being copied."""

from __future__ import annotations

import time

import numpy as np
import torch
from torch import Tensor

from moeinf.gpu.device import Device
from moeinf.runtime.cache.table import BoolArray
from moeinf.runtime.experts import ExpertKernel
from moeinf.runtime.gpu.cpu_share import CpuShare
from moeinf.runtime.gpu.host_slots import HostSlots
from moeinf.types import Copier, Float32Array, IntArray


class CpuExperts:
    """The CPU's share of one token's missing experts: as many as are computed while the others are copied.

    The CPU rounds its sums otherwise than the device, and measured times decide how many experts it takes: the same
    prompt may then end in another text. So it is used only where the user asks for it.
    """

    def __init__(
        self, device: Device, host: HostSlots, copier: Copier, kernel: ExpertKernel, share: CpuShare, width: int
    ) -> None:
        self._host = host
        self._copier = copier
        self._expert_bytes = host.cache.table.sizes.mean_bytes
        self._kernel = kernel
        self._share = share
        self._num_experts = host.cache.shape.num_experts
        self._layer = 0
        self._taken = self._keys = self._offsets = np.empty(
            0, np.int64
        )  # of that layer; held in host memory until computed
        self._staged = device.pinned((1, width), torch.float32)
        self.hidden = device.pinned((1, width), torch.float32)  # of the token, when its routing is known
        self.output = torch.zeros((1, width), dtype=torch.float32, device=device.kind)  # sum of the share

    def norm_outputs(self, layer: int, scale: Tensor, eps: float) -> None:
        """See moeinf.models.layers.protocol.ExpertsOf."""
        self._kernel.norm_outputs(layer, scale.cpu().numpy(), eps)

    def take_share(self, layer: int, experts: IntArray, known: BoolArray) -> IntArray:
        """The `experts` that the device is left with; known [num_experts]: which it holds or is about to."""
        self._layer = layer
        missing = experts[~known[experts]]
        missing = missing[self._host.holds(missing + layer * self._num_experts)]
        self._share.copied(self._copier.bytes_copied() / self._expert_bytes, self._copier.busy_seconds())
        count = self._share.share(len(missing))
        self._host.release(self._keys)  # of a visit that was given up
        self._taken = missing[:count]
        self._keys = self._taken + layer * self._num_experts
        self._offsets = self._host.hold(self._keys)
        if not count:
            return experts
        return experts[~np.isin(experts, self._taken)]

    def compute(self, ids: IntArray, weights: Float32Array) -> None:
        """output = the weighted sum of the share; ids, weights [1, top_k] of the token."""
        if not len(self._taken):
            self.output.zero_()
            return
        started = time.perf_counter()
        out: Float32Array = self._staged.numpy()
        out[:] = 0
        among = np.isin(ids[0], self._taken)
        ids, weights = ids[:, among].astype(np.int64), weights[:, among].copy()
        self._kernel.begin(self.hidden.numpy(), ids, weights, self._layer)
        self._kernel.compute(self._taken, self._offsets)
        self._kernel.finish(out)
        self._host.release(self._keys)
        self._share.computed(len(self._taken), time.perf_counter() - started)
        self.output.copy_(self._staged, non_blocking=True)
