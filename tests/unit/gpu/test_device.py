"""CudaDevice keeps to the rules of torch's captures and streams, which a stand-in for torch.cuda enforces."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from moeinf.errors import DeviceError
from moeinf.gpu.device import CudaDevice, pinned_copy
from moeinf.gpu.program import DecodeProgram


class Cuda:
    """What CudaDevice uses of torch.cuda. Graphs hold the memory they share; once all are gone, its handle is refused,
    by the allocator of the device as by that of pinned memory (torch 2.11)."""

    def __init__(self) -> None:
        self.holders: dict[tuple[int, int], int] = {}  # graphs by handle
        self.num_handles = 0
        self.refused = False  # whether a capture was broken by what it recorded
        self.current: Any = "the caller's stream"
        self.log: list[tuple[Any, ...]] = []
        cuda = self

        class CUDAGraph:
            def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
                assert cuda.holders.get(pool) != 0, "torch: use_count > 0 INTERNAL ASSERT FAILED"
                assert capture_error_mode == "thread_local", "other threads go on reading and copying"
                self.pool = pool
                cuda.holders[pool] = cuda.holders.get(pool, 0) + 1
                cuda.log.append(("begin", cuda.current))

            def capture_end(self) -> None:
                if cuda.refused:
                    raise RuntimeError("operation failed due to a previous error during capture")
                cuda.log.append(("end", cuda.current))

            def replay(self) -> None:
                cuda.log.append(("replay", cuda.current))

            def __del__(self) -> None:
                cuda.holders[self.pool] -= 1

        class Stream:
            cuda_stream = 7

            def __init__(self, device: torch.device) -> None:
                pass

            def wait_stream(self, other: Any) -> None:
                cuda.log.append((self, "waits for", other))

        self.CUDAGraph, self.Stream = CUDAGraph, Stream

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before

    def current_stream(self, device: torch.device) -> Any:
        return self.current

    def graph_pool_handle(self) -> tuple[int, int]:
        self.num_handles += 1
        return 0, self.num_handles

    def init(self) -> None:
        pass

    def empty_cache(self) -> None:
        self.log.append(("empty",))


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Cuda:
    fake = Cuda()
    for name in ("CUDAGraph", "Stream", "graph_pool_handle", "stream", "current_stream", "init", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, getattr(fake, name))
    return fake


def test_a_program_that_was_forgotten_is_recorded_again(cuda: Cuda) -> None:
    device = CudaDevice(0)
    program = DecodeProgram(device)

    def step() -> torch.Tensor:
        program.outside(lambda: None)
        return torch.zeros(1)

    for _ in range(3):
        for _ in range(3):
            program.run(step, "owner")
        assert sorted(set(cuda.holders.values())) in ([2], [0, 2]), "the graphs of a program share memory"
        program.reset()
    assert [step[0] for step in cuda.log] == 3 * (["empty"] + 2 * ["begin", "end", "replay"] + 2 * ["replay"]), (
        "what torch holds in reserve is of no use to a capture: it goes before"
    )


def test_a_graph_whose_capture_was_broken_is_kept(cuda: Cuda) -> None:
    """torch 2.11 asks it at every allocation whether the stream is its own."""
    program, cuda.refused = DecodeProgram(CudaDevice(0)), True
    for _ in range(2):
        program.run(lambda: torch.zeros(1), "owner")
        with pytest.raises(RuntimeError, match="previous error"):
            program.run(lambda: torch.zeros(1), "owner")
    assert list(cuda.holders.values()) == [1, 1]


def test_what_the_caller_submitted_comes_first(cuda: Cuda) -> None:
    device = CudaDevice(0)
    with device.computing():
        stream = cuda.current
        assert stream != "the caller's stream"
    assert cuda.log == [(stream, "waits for", "the caller's stream")]
    assert cuda.current == "the caller's stream"


def test_a_system_that_pins_no_more_is_not_taken_for_a_full_card(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'")

    device, values = CudaDevice(0), torch.ones(3)
    monkeypatch.setattr(torch, "zeros", refuse)
    monkeypatch.setattr(torch.Tensor, "pin_memory", refuse)
    with pytest.raises(DeviceError, match="does not pin 16 KiB of host memory"):
        device.pinned((1024, 4), torch.float32)
    assert pinned_copy(values) is values


def test_a_device_that_is_lost_while_memory_is_pinned_is_no_refusal(
    cuda: Cuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(torch.Tensor, "pin_memory", fail)
    with pytest.raises(RuntimeError, match="launch failure"):
        pinned_copy(torch.ones(3))
