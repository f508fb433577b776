"""python -m tests.rehearsal.emulation [-m MODULE | SCRIPT] WORDS: what Python runs, over two GPUs that are emulated.

torch's names of CUDA mean host memory here, the driver is made up, and models run on the emulated device of the tests,
whose captures are recorded and replayed. Kernels that a program launches itself run in Triton's interpreter. Figures
say nothing; that every line of a program has run says that it does not fail on a card for a slip of the pen.
"""

from __future__ import annotations

import runpy
import sys
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.profiler
from torch.overrides import TorchFunctionMode

from moeinf.bench import device_rates
from moeinf.gpu import cuda, open_gpu
from tests.support.fake_device import COMPUTE_STREAM, LateCopier
from tests.support.gpu.emulated_gpu import emulated

CARD_BYTES = 5 << 28  # a quarter of what is free is copied to measure its rate
_LINK_BYTES = 32 << 20  # 10 MB a second pass through Triton's interpreter


class OnHost(TorchFunctionMode):
    """Whatever is asked for on "cuda" is made in host memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.device:
            return func(*args, **kwargs)
        if "device" in kwargs:
            kwargs["device"] = _on_host(kwargs["device"])
        kwargs.pop("pin_memory", None)
        return func(*(_on_host(arg) for arg in args), **kwargs)


def _on_host(value: Any) -> Any:
    named = value if isinstance(value, str) else value.type if isinstance(value, torch.device) else ""
    return torch.device("cpu") if named.startswith("cuda") else value


class Driver:
    """moeinf._native.CudaDriver of a machine with two cards."""

    version, device_count = 13000, 2

    def name(self, index: int) -> str:
        return f"emulated card {index}"

    def capability(self, index: int) -> tuple[int, int]:
        return 9, 0

    def total_bytes(self, index: int) -> int:
        return CARD_BYTES

    def has_display(self, index: int) -> bool:
        return False

    def memory(self, index: int) -> tuple[int, int]:
        return CARD_BYTES, CARD_BYTES


class Copier(LateCopier):
    """Is made as the native one is, and takes the default stream as well."""

    def __init__(self, driver: Any, device: int, ring_bytes: int = 64 << 20) -> None:
        super().__init__()

    def copy(self, sources: Any, destinations: Any, num_bytes: Any, compute_stream: int) -> int:
        return super().copy(sources, destinations, num_bytes, COMPUTE_STREAM)


class Stream:
    cuda_stream = COMPUTE_STREAM

    def synchronize(self) -> None: ...

    def wait_stream(self, other: Any) -> None: ...


class Event:
    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


class Graph:
    """Has computed what was captured, and computes nothing again."""

    def replay(self) -> None: ...


@contextmanager
def _nothing(*_: Any, **__: Any) -> Any:
    yield


def _opened(gpu: cuda.Gpu) -> open_gpu.OpenGpu:
    return replace(emulated(), name=gpu.name, free_bytes=CARD_BYTES, total_bytes=CARD_BYTES)


class Generator(torch._C.Generator):
    def __new__(cls, device: Any = "cpu") -> Any:
        return torch._C.Generator(_on_host(device))


def emulate() -> None:
    """Makes this process believe in its cards."""
    for name, value in {
        "is_available": lambda: True, "device_count": lambda: 2, "init": lambda: None,
        "synchronize": lambda device=None: None, "empty_cache": lambda: None, "Stream": Stream, "Event": Event,
        "CUDAGraph": Graph, "graph": _nothing, "stream": _nothing, "current_stream": lambda device=None: Stream(),
        "get_device_name": lambda device=None: "emulated card", "mem_get_info": lambda device=None: (CARD_BYTES,) * 2,
    }.items():  # fmt: skip
        setattr(torch.cuda, name, value)
    torch.Generator = Generator  # type: ignore[misc]
    torch.profiler.profile = lambda activities: nullcontext(SimpleNamespace(events=list))  # type: ignore[assignment, misc]
    cuda._open_driver = Driver  # type: ignore[assignment]
    cuda._open_toolkit = lambda: cuda.Toolkit("13.0", lambda: ["sm_90"], "3.9.0")
    open_gpu.open_gpu = _opened
    for name, value in {"CudaDriver": Driver, "Copier": Copier, "_LINK_BYTES": _LINK_BYTES}.items():
        setattr(device_rates, name, value)


def main() -> None:
    emulate()
    del sys.argv[0]
    with OnHost():
        if sys.argv[0] == "-m":
            del sys.argv[0]
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif sys.argv[0] == "-c":
            code, sys.argv = sys.argv[1], ["-c", *sys.argv[2:]]
            exec(compile(code, "-c", "exec"), {"__name__": "__main__"})
        else:
            sys.path.insert(0, str(Path(sys.argv[0]).parent))
            runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
