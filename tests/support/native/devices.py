"""Rows of the table: the driver of a GPU and the copier, over the stand-in for libcuda.so.1 of the native tests."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from moeinf import _native
from tests.support.native.table import Arguments, World, call, plain

FAKE = Path(os.environ.get("SANITIZED_NATIVE_MODULE", "/none/of/them")).with_name("libfake_cuda.so")
CUDA = (_native.CudaError,)


@call(
    "CudaDriver",
    "OSError: a library that cannot be loaded or lacks a function; CudaError where it does not start",
    OSError,
    *CUDA,
)
def _driver(world: World) -> Arguments:
    return {"library": str(FAKE)}


plain("CudaDriver", "version", "device_count")
for name in ("name", "capability", "total_bytes", "has_display", "uuid", "memory"):
    call(f"CudaDriver.{name}", "CudaError: a device that there is not", *CUDA)(lambda world: {"device": 0})

CLOSED = "a copier that is closed"


@call("Copier", "a ring of less than 16384 bytes; CudaError: a device that there is not, memory that is refused", *CUDA)
def _copier(world: World) -> Arguments:
    return {"driver": world.get("CudaDriver"), "device": 0, "ring_bytes": 16384}


plain("Copier", "batched", "bytes_copied", "busy_seconds", "close", errors=CUDA)


@call(
    "Copier.register",
    f"memory that is registered or begins within a page, ends that do not ascend or lie behind it, {CLOSED}",
    *CUDA,
)
def _register(world: World) -> Arguments:
    return {"memory": world.get("Arena").array(), "ends": np.array([4096, 8192]), "progress": None}


@call("Copier.device_address", f"a range that is not registered, or in pieces, {CLOSED}", *CUDA)
def _device_address(world: World) -> Arguments:
    return {"address": world.get("Arena").address, "num_bytes": 1}


@call(
    "Copier.copy",
    f"columns of two lengths, less than 1 byte, {CLOSED}",
    *CUDA,
    tried={"sources": (), "destinations": (), "num_bytes": (), "compute_stream": ()},
)
def _copy(world: World) -> Arguments:
    memory = world.kept("copied", lambda: (world.bytes(64), world.bytes(64)))
    addresses = [np.array([each.ctypes.data], np.int64) for each in memory]
    return {"sources": addresses[0], "destinations": addresses[1], "num_bytes": np.array([64]), "compute_stream": 0}


@call("Copier.make_wait", f"a ticket that was not given, {CLOSED}", *CUDA, tried={"compute_stream": ()})
def _make_wait(world: World) -> Arguments:
    return {"compute_stream": 0, "ticket": 1}


@call("Copier.done", f"a ticket that was not given, {CLOSED}", *CUDA)
def _done(world: World) -> Arguments:
    return {"ticket": 1}


@call("Copier.wait", f"a ticket that was not given, {CLOSED}", *CUDA)
def _wait(world: World) -> Arguments:
    return {"ticket": 1}
