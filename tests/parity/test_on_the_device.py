"""What a family computes stays on the device: no tensor of the host takes part, as a captured step demands.

An emulated device cannot tell, since all its tensors are the host's. Here the device is torch's meta device, whose
tensors have a shape and strides but no numbers; kernels check what they are given, as they take bare addresses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from moeinf.gpu.ops import Ops
from moeinf.gpu.program import DecodeProgram
from moeinf.models.family import family_of
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.rotary import DevicePositions
from moeinf.models.gpu.staging import Staging
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.kv_cache import Span
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import Float32Array, Profiler
from tests.support.checkpoints import random_tensors
from tests.support.tiny_models import all_configs

CONFIGS = all_configs()
GPU = torch.device("meta")


class OnTheDevice(TorchDispatchMode):
    """Refuses operations that read or make a tensor of the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in tree_leaves((args, kwargs, result)):
            assert not isinstance(value, Tensor) or value.device == GPU, f"{func} has a tensor of the {value.device}"
        return result


class Kernels:
    """Any kernel: takes tensors, and computes nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        def launch(*args: Any, **options: Any) -> None:
            for value in tree_leaves((args, options)):
                whole = not isinstance(value, Tensor) or (value.device == GPU and value.is_contiguous())
                assert whole, f"{name} is given {value}"

        return launch


class Experts:
    wants_expectations = True

    def run(self, layer: int, hidden: Tensor, routing: Any, out: Tensor) -> None:
        assert (hidden.dtype, routing.ids.dtype, routing.weights.dtype) == (torch.float32, torch.int32, torch.float32)
        Kernels().run(hidden, routing.ids, routing.weights, out)

    def expect(self, layer: int, guess: Any) -> None:
        pass

    def norm_outputs(self, layer: int, scale: Tensor, eps: float) -> None:
        Kernels().norm_outputs(scale)


class FakeDevice:
    kind = GPU


class FakeStaging(Staging):
    def upload(self, rows: Float32Array) -> Tensor:
        return torch.empty(rows.shape, device=GPU)


class FakeLayers(DeviceLayers):
    def run_or_replay(
        self,
        compute: Callable[[Tensor, Sequence[Span[DevicePositions]]], Tensor],
        x: Tensor,
        spans: Sequence[Span[DevicePositions]],
    ) -> Any:
        with OnTheDevice():  # type: ignore[no-untyped-call]
            return compute(x, spans)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_pass_has_no_tensor_of_the_host(name: str) -> None:
    config = CONFIGS[name]
    kernels: Any = Kernels()
    device: Any = FakeDevice()
    experts: Any = Experts()
    weights = {
        name: StoredTensor(tensor.bfloat16().view(-1).view(torch.uint8).numpy(), "bf16", tuple(tensor.shape))
        for name, tensor in random_tensors(config, layout=-1).items()
    }
    on_device = DeviceWeights(device, Ops(kernels, kernels), weights, weights)
    layers = FakeLayers(on_device, "bf16", 256, DecodeProgram(device))
    layers.staging = FakeStaging(device)
    model = family_of(config).build(layers, experts, Profiler())
    cache = model.new_cache(200)
    for length, size in ((3, 3), (4, 1), (74, 70), (75, 1)):
        if cache.outgrown(length):
            size = length
            cache.truncate(0)
        model.forward([7] * size, cache)
        assert cache.length == length
