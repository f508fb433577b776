"""A GPU as the rest of the program sees it: one compute stream, captured graphs, pinned memory."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch
from torch import Tensor

from moeinf.errors import DeviceError
from moeinf.gpu.cuda import is_out_of_memory


class Graph(Protocol):
    def replay(self) -> None:
        """Submits the captured operations again, over the same memory."""
        ...


class Device(Protocol):
    """Everything is submitted to one stream, in order. Used from one thread."""

    @property
    def kind(self) -> torch.device: ...

    @property
    def stream(self) -> int:
        """Handle of the compute stream, for copies that are ordered behind it."""
        ...

    def computing(self) -> AbstractContextManager[None]:
        """Inside, torch submits to the compute stream, behind what the caller submitted before."""
        ...

    def make_current(self) -> None:
        """Kernels run here from now on, where several devices compute by turns; until the end of `computing`."""
        ...

    def begin_program(self) -> None:
        """The captures from here on belong together: replayed in their order, they share memory."""
        ...

    def begin_capture(self) -> None:
        """What is submitted from here on is recorded."""
        ...

    def end_capture(self) -> Graph:
        """What was recorded, after it has been carried out once."""
        ...

    def drop_capture(self) -> None:
        """Gives a recording up; does nothing where none is under way."""
        ...

    def synchronise(self) -> None:
        """Waits for the compute stream."""
        ...

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Zeros in host memory that copies to and from the device need not wait for.

        Raises DeviceError where the system refuses: that is no want of the device's memory, and nothing that is given
        up there helps.
        """
        ...

    def free_bytes(self) -> int:
        """Device memory that may still be taken."""
        ...

    def peak_bytes(self) -> int:
        """Most device memory that was ever taken."""
        ...

    def limit(self, num_bytes: int) -> None:
        """Never takes more than this in all, as if the card were smaller."""
        ...

    def release_unused(self) -> None:
        """Gives memory back that torch holds in reserve."""
        ...


class CudaDevice:
    """A CUDA device through torch."""

    def __init__(self, index: int) -> None:
        self.kind = torch.device("cuda", index)
        torch.cuda.init()
        torch.backends.cuda.matmul.allow_tf32 = False  # float32 models mean float32
        self._stream = torch.cuda.Stream(self.kind)
        self._pool = torch.cuda.graph_pool_handle()
        self._capture: torch.cuda.CUDAGraph | None = None
        self._broken: list[torch.cuda.CUDAGraph] = []  # torch before 2.12 goes on asking them at every allocation

    @property
    def stream(self) -> int:
        return int(self._stream.cuda_stream)

    @contextmanager
    def computing(self) -> Iterator[None]:
        self._stream.wait_stream(torch.cuda.current_stream(self.kind))  # a state may have been cleared there
        with torch.cuda.stream(self._stream):
            yield

    def make_current(self) -> None:
        torch.cuda.set_device(self.kind)

    def begin_program(self) -> None:
        # While a capture is under way, torch neither uses nor frees what it holds in reserve.
        gc.collect()
        torch.cuda.empty_cache()
        self._pool = torch.cuda.graph_pool_handle()  # torch refuses one that was used, when its graphs are all gone

    def begin_capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        self._capture = graph

    def end_capture(self) -> Graph:
        graph = self._capture
        assert graph is not None, "no capture is under way"
        graph.capture_end()
        self._capture = None
        graph.replay()  # recording alone computes nothing
        return graph

    def drop_capture(self) -> None:
        graph, self._capture = self._capture, None
        if graph is not None:
            try:
                graph.capture_end()
            except RuntimeError:  # what was refused while recording has ended the capture already
                self._broken.append(graph)

    def synchronise(self) -> None:
        self._stream.synchronize()

    def pinned(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return pinned_zeros(shape, dtype)

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.kind)[0])

    def peak_bytes(self) -> int:
        return torch.cuda.max_memory_reserved(self.kind)

    def limit(self, num_bytes: int) -> None:
        total = torch.cuda.get_device_properties(self.kind).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, num_bytes / total), self.kind)

    def release_unused(self) -> None:
        torch.cuda.empty_cache()


def pinned_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """See Device.pinned."""
    try:
        return torch.zeros(shape, dtype=dtype, pin_memory=True)
    except RuntimeError as error:
        if not is_out_of_memory(error):  # which torch says of the host's memory in the same words
            raise
        num_bytes = math.prod(shape) * dtype.itemsize
        raise DeviceError(
            f"the system does not pin {num_bytes >> 10} KiB of host memory for the GPU: free memory, "
            "raise `ulimit -l` where it is low, or run with --device cpu"
        ) from error


def pinned_copy(values: Tensor) -> Tensor:
    """`values` in pinned memory; where the system has none left, as they are: their upload then waits."""
    try:
        return values.pin_memory()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        return values
