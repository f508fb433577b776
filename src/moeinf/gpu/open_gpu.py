"""A GPU that is ready for use: tried out, with its kernels and its copies."""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass

from moeinf._native import Copier as NativeCopier
from moeinf._native import CudaDriver
from moeinf.errors import DeviceError
from moeinf.gpu.arena import SEGMENT_BYTES
from moeinf.gpu.cuda import Gpu, explain
from moeinf.gpu.device import CudaDevice, Device
from moeinf.gpu.ops import Ops
from moeinf.types import Copier


@dataclass(frozen=True, slots=True)
class OpenGpu:
    """A device, its kernels and its copies, ready for use."""

    name: str
    device: Device
    ops: Ops
    copier: Copier
    free_bytes: int  # now, with the driver's context in place
    total_bytes: int
    has_display: bool = False  # see moeinf.gpu.cuda.Gpu
    segment_bytes: int = SEGMENT_BYTES  # of the memory of slots: what is given up at once

    def close(self) -> None:
        """Gives back what copies take, and memory that nothing uses any more."""
        self.copier.close()
        gc.collect()
        with suppress(RuntimeError):  # of a GPU that is lost; of torch before 2.12 after a capture that broke
            self.device.release_unused()


def open_gpu(gpu: Gpu) -> OpenGpu:
    """Tries the card out first. Raises DeviceError for whatever keeps it from computing."""
    from moeinf.gpu.matrix_ops import TritonMatrixOps
    from moeinf.gpu.trial import try_out
    from moeinf.gpu.vector_ops import TritonVectorOps

    try:
        device = CudaDevice(gpu.index)
        gc.collect()
        device.release_unused()  # what a model that was closed has left
        ops = Ops(TritonVectorOps(), TritonMatrixOps())
        try_out(device, ops)
        return OpenGpu(
            gpu.name,
            device,
            ops,
            NativeCopier(CudaDriver(), gpu.index),
            device.free_bytes(),
            gpu.total_bytes,
            gpu.has_display,
        )
    except DeviceError:
        raise
    except Exception as error:  # of three libraries, and what they run: whatever it is, this card does not compute
        said = next(iter(str(error).splitlines()), "")
        raise explain(error) or DeviceError(
            f"GPU {gpu.index} ({gpu.name}) does not compute ({type(error).__name__}: {said}): see nvidia-smi, report "
            "this if it shows nothing, or run with --device cpu"
        ) from error
