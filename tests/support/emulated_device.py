"""A device in host memory: the GPU path runs on it, captured graphs included, on any machine.

Operations are carried out as they are submitted. A capture records torch's operations and calls of kernels, and a
replay repeats them over the same tensors; what a real capture refuses (asking for a value, copying to the host and
waiting) is refused here too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from moeinf.gpu.device import Graph
from moeinf.gpu.ops import Ops
from tests.support.fake_device import COMPUTE_STREAM

WAITS = {torch.ops.aten._local_scalar_dense, torch.ops.aten.nonzero, torch.ops.aten.masked_select}  # among others


class Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Callable[[], object]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket in WAITS or any(_selects(arg) for arg in args):
            raise RuntimeError("a captured stretch asks for a value of the device")
        result = func(*args, **kwargs)
        returns = func._schema.returns
        if "empty" in func.name() or (func.is_view and _shares_memory(result, args[0])):
            return result  # nothing is computed (but reshape and contiguous may copy)
        if any(r.alias_info is not None and r.alias_info.is_write for r in returns) or not returns:
            self.calls.append(lambda: func(*args, **kwargs))
        else:
            self.calls.append(lambda: _renew(result, func(*args, **kwargs)))
        return result


def _selects(argument: Any) -> bool:
    """Whether it is a list of indices with a mask in it, whose number of places the host would have to know."""
    return isinstance(argument, list | tuple) and any(
        isinstance(item, Tensor) and item.dtype == torch.bool for item in argument
    )


def _shares_memory(result: Any, source: Tensor) -> bool:
    first: Tensor = result if isinstance(result, Tensor) else result[0]
    return first.untyped_storage().data_ptr() == source.untyped_storage().data_ptr()


def _renew(kept: Any, new: Any) -> None:
    for target, value in zip(*((kept,), (new,)) if isinstance(kept, Tensor) else (kept, new), strict=True):
        target.copy_(value)


class EmulatedGraph:
    def __init__(self, calls: list[Callable[[], object]]) -> None:
        self._calls = calls

    def replay(self) -> None:
        for call in self._calls:
            call()


class EmulatedDevice:
    """moeinf.gpu.device.Device on the CPU."""

    kind = torch.device("cpu")
    stream = COMPUTE_STREAM
    current: ClassVar[EmulatedDevice | None] = None  # where a kernel that is launched now would run

    def __init__(self, memory_bytes: int = 1 << 40) -> None:
        self.memory_bytes = memory_bytes
        self.recording: Recording | None = None
        self.num_captures = 0

    @contextmanager
    def computing(self) -> Iterator[None]:
        before, EmulatedDevice.current = EmulatedDevice.current, self
        try:
            yield
        finally:
            EmulatedDevice.current = before

    def make_current(self) -> None:
        EmulatedDevice.current = self

    def begin_program(self) -> None:
        assert self.recording is None, "a capture is under way"

    def begin_capture(self) -> None:
        assert self.recording is None, "a capture is under way"
        self.recording = Recording()
        self.recording.__enter__()  # type: ignore[no-untyped-call]

    def end_capture(self) -> Graph:
        assert self.recording is not None, "no capture is under way"
        recording, self.recording = self.recording, None
        recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self.num_captures += 1
        return EmulatedGraph(recording.calls)

    def drop_capture(self) -> None:
        if self.recording is not None:
            self.end_capture()

    def synchronise(self) -> None:
        assert self.recording is None, "a captured stretch waits for the device"

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype)

    def free_bytes(self) -> int:
        return self.memory_bytes

    def peak_bytes(self) -> int:
        return 3_000_000

    def limit(self, num_bytes: int) -> None:
        self.memory_bytes = min(self.memory_bytes, num_bytes)

    def release_unused(self) -> None:
        pass


class RecordedCalls:
    """Kernels whose calls a capture records as one step each."""

    def __init__(self, device: EmulatedDevice, kernels: Any) -> None:
        self._device = device
        self._kernels = kernels

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._kernels, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            assert EmulatedDevice.current in (None, self._device), "a kernel of one card is launched on another"
            recording = self._device.recording
            if recording is None:
                return method(*args, **kwargs)
            self._device.recording = None
            recording.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            try:
                result = method(*args, **kwargs)
            finally:
                recording.__enter__()  # type: ignore[no-untyped-call]
                self._device.recording = recording
            recording.calls.append(lambda: method(*args, **kwargs))
            return result

        return call


def recorded(device: EmulatedDevice, ops: Ops) -> Ops:
    return Ops(RecordedCalls(device, ops.vectors), RecordedCalls(device, ops.matrices))
