"""The CUDA driver and the copier as Python sees them, over a driver made for tests; the native tests ask for more."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import re
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from moeinf._native import Arena, Copier, CudaDriver, CudaError
from moeinf.types import ByteArray

REPOSITORY = Path(__file__).parents[3]
NATIVE_TESTS = REPOSITORY / "cextensions" / "tests" / "cuda"
EXPERT = 8192
RING = 65536
MIB = 1 << 20


def compiler() -> str:
    found = shutil.which(os.environ.get("CXX") or "c++") or shutil.which("g++")
    if found is None:
        pytest.skip("there is no C++ compiler to build the fake driver with")
    return found


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("fake_cuda") / "libfakecuda.so"
    flags = ["-std=c++17", "-O1", "-shared", "-fPIC", "-pthread", "-fvisibility=hidden"]
    subprocess.run([compiler(), *flags, str(NATIVE_TESTS / "fake_cuda.cc"), "-o", str(path)], check=True)
    return str(path)


@pytest.fixture
def fake(library: str) -> Iterator[ctypes.CDLL]:
    """The knobs of the driver, all in their first position."""
    knobs = ctypes.CDLL(library)
    knobs.fake_set_pin_limit.argtypes = [ctypes.c_long]
    knobs.fake_compute.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    knobs.fake_synchronize.argtypes = [ctypes.c_void_p]
    knobs.fake_reset()
    yield knobs
    knobs.fake_reset()


@pytest.fixture
def driver(fake: ctypes.CDLL, library: str) -> CudaDriver:
    return CudaDriver(library)


@pytest.fixture
def copier(driver: CudaDriver) -> Iterator[Copier]:
    copier = Copier(driver, 0, RING)
    yield copier
    copier.close()


def registered(copier: Copier, memory: ByteArray, progress: Callable[[int], None] | None = None) -> int:
    """Registers memory that holds experts, of which the last may be shorter."""
    ends = np.minimum(np.arange(EXPERT, len(memory) + EXPERT, EXPERT), len(memory))
    return copier.register(memory, ends, progress)


class Experts:
    """Four experts in host memory, and as many slots of a device."""

    def __init__(self) -> None:
        self.host = Arena(4 * EXPERT).array().reshape(4, EXPERT)
        self.host[:] = np.random.default_rng(1).integers(0, 256, (4, EXPERT), np.uint8)
        self.device = np.zeros_like(self.host)
        self.sources, self.destinations = rows(self.host), rows(self.device)

    def copy(self, copier: Copier, stream: int = 0) -> int:
        return copier.copy(self.sources, self.destinations, np.full_like(self.sources, EXPERT), stream)


def rows(memory: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
    return memory.ctypes.data + np.arange(len(memory), dtype=np.int64) * memory.strides[0]


def test_a_driver_tells_its_version_and_devices(driver: CudaDriver) -> None:
    assert driver.version == 13000
    assert driver.device_count == 2
    assert (driver.name(0), driver.capability(0)) == ("Fake GPU", (8, 6))
    assert driver.total_bytes(0) == 8 << 30
    assert driver.has_display(0) and not driver.has_display(1)
    assert driver.memory(0) == (7 << 30, 8 << 30)
    assert driver.uuid(1) == "GPU-f1e1d1c1-b1a1-9181-7161-514131211101"


def test_a_library_that_is_not_there_is_an_os_error() -> None:
    with pytest.raises(OSError, match="libnosuchcuda"):
        CudaDriver("libnosuchcuda.so.1")


def test_a_library_that_is_no_driver_names_the_function_that_it_lacks() -> None:
    with pytest.raises(OSError, match=r"libc\.so\.6 has no cuGetErrorName"):
        CudaDriver("libc.so.6")


def test_a_driver_that_does_not_start_is_an_error_with_its_name(fake: ctypes.CDLL, library: str) -> None:
    fake.fake_fail(b"cuInit", 100, 0)
    with pytest.raises(CudaError, match=r"^cuInit: .*CUDA_ERROR_NO_DEVICE") as raised:
        CudaDriver(library)
    assert (raised.value.code, raised.value.name) == (100, "CUDA_ERROR_NO_DEVICE")
    assert isinstance(raised.value, RuntimeError)


def test_a_device_that_is_not_there_is_an_error(driver: CudaDriver) -> None:
    for ask in (driver.name, driver.capability, driver.total_bytes, driver.has_display, driver.uuid, driver.memory):
        with pytest.raises(CudaError, match="CUDA_ERROR_INVALID_DEVICE"):
            ask(2)


def test_experts_arrive_from_registered_and_from_other_memory(fake: ctypes.CDLL, copier: Copier) -> None:
    experts = Experts()
    copier.wait(experts.copy(copier))
    assert np.array_equal(experts.device, experts.host)
    assert registered(copier, experts.host.reshape(-1)) == experts.host.nbytes
    experts.device[:] = 0
    copier.wait(experts.copy(copier))
    assert np.array_equal(experts.device, experts.host)
    assert copier.batched and fake.fake_num_batches() == 1
    assert copier.bytes_copied() == 2 * experts.host.nbytes
    assert copier.busy_seconds() == pytest.approx(2 * experts.host.nbytes / 1024 / 1000)


def test_copies_come_after_earlier_and_before_later_computing(fake: ctypes.CDLL, copier: Copier) -> None:
    experts = Experts()
    before, after = np.ones_like(experts.host), np.zeros_like(experts.host)
    fake.fake_hold_compute(1)
    fake.fake_compute(None, before.ctypes.data, experts.device.ctypes.data, before.nbytes)
    ticket = experts.copy(copier)
    copier.make_wait(0, ticket)
    fake.fake_compute(None, after.ctypes.data, experts.device.ctypes.data, after.nbytes)
    fake.fake_settle()
    assert not copier.done(ticket)
    assert not experts.device.any()
    fake.fake_hold_compute(0)
    fake.fake_synchronize(None)
    assert not before.any()
    assert np.array_equal(after, experts.host)
    assert copier.done(ticket)


def test_a_copy_that_waits_for_the_ring_lets_other_threads_run(fake: ctypes.CDLL, copier: Copier) -> None:
    experts = Experts()
    fake.fake_hold_copies(1)

    def let_go() -> None:
        fake.fake_wait_until_waiting()
        fake.fake_hold_copies(0)

    other = threading.Thread(target=let_go)
    other.start()
    for _ in range(4):  # twice the ring
        experts.copy(copier)
    other.join()
    copier.wait(4)
    assert np.array_equal(experts.device, experts.host)


def test_what_the_system_will_not_pin_is_told_and_copied_all_the_same(fake: ctypes.CDLL, copier: Copier) -> None:
    arena = Arena(700 * MIB)
    fake.fake_set_pin_limit(RING + 600 * MIB)
    assert registered(copier, arena.array()) == 256 * MIB, "the second piece is left to others"
    assert copier.device_address(arena.address + 5) == arena.address + 5
    with pytest.raises(ValueError, match="not registered"):
        copier.device_address(arena.address + 256 * MIB - 1, 2)
    half = arena.array()[256 * MIB - EXPERT : 256 * MIB + EXPERT].reshape(2, EXPERT)
    half[:] = np.random.default_rng(2).integers(0, 256, half.shape, np.uint8)
    device = np.zeros(2 * EXPERT, np.uint8)
    copier.wait(copier.copy(rows(half)[:1], np.array([device.ctypes.data]), np.array([device.nbytes]), 0))
    assert np.array_equal(device, half.reshape(-1))


def test_pinning_tells_how_far_it_is_and_what_was_pinned_before_an_interrupt_is_given_back(
    fake: ctypes.CDLL, driver: CudaDriver
) -> None:
    copier, arena = Copier(driver, 0, RING), Arena(700 * MIB)
    told: list[int] = []
    assert registered(copier, arena.array(), told.append) == 700 * MIB
    assert told == [256 * MIB, 512 * MIB, 700 * MIB]
    copier.close()
    copier = Copier(driver, 0, RING)

    def interrupt(num_bytes: int) -> None:
        if num_bytes > 256 * MIB:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        registered(copier, arena.array(), interrupt)
    assert copier.device_address(arena.address + 256 * MIB, 256 * MIB) == arena.address + 256 * MIB
    copier.close()
    assert fake.fake_num_live() == 0


def test_registered_memory_lives_until_the_copier_is_closed(driver: CudaDriver) -> None:
    copier = Copier(driver, 0, RING)
    memory = Arena(EXPERT).array()
    alive = weakref.ref(memory)
    registered(copier, memory)
    del memory
    gc.collect()
    assert alive() is not None
    copier.close()
    gc.collect()
    assert alive() is None


def test_a_closed_copier_holds_nothing_and_only_counts(fake: ctypes.CDLL, driver: CudaDriver) -> None:
    copier = Copier(driver, 1, ring_bytes=RING)
    experts = Experts()
    ticket = experts.copy(copier)
    copier.close()
    copier.close()
    assert np.array_equal(experts.device, experts.host)
    assert fake.fake_num_live() == 0
    assert copier.bytes_copied() == experts.host.nbytes
    for use in (lambda: copier.done(ticket), lambda: copier.wait(ticket), lambda: experts.copy(copier)):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_copier_that_is_dropped_gives_everything_back(fake: ctypes.CDLL, driver: CudaDriver) -> None:
    copier = Copier(driver, 0, RING)
    registered(copier, Arena(EXPERT).array())
    assert fake.fake_num_live() > 0
    del copier
    gc.collect()
    assert fake.fake_num_live() == 0


def test_misuse_is_a_value_error(driver: CudaDriver, copier: Copier) -> None:
    experts = Experts()
    with pytest.raises(ValueError, match="4 sources, 3 destinations and 4 sizes"):
        copier.copy(experts.sources, experts.destinations[:3], np.full_like(experts.sources, EXPERT), 0)
    with pytest.raises(ValueError, match="num_bytes is 0"):
        copier.copy(experts.sources, experts.destinations, np.zeros_like(experts.sources), 0)
    with pytest.raises(ValueError, match="no ticket 1"):
        copier.wait(1)
    with pytest.raises(ValueError, match="ring_bytes is 4096"):
        Copier(driver, 0, 4096)
    registered(copier, experts.host[1])
    with pytest.raises(ValueError, match="overlaps"):
        registered(copier, experts.host.reshape(-1))
    with pytest.raises(ValueError, match="start of a page"):
        registered(copier, experts.host[2, 1:])


def test_the_declarations_of_the_driver_are_those_of_its_headers() -> None:
    triton = importlib.util.find_spec("triton")
    if triton is None or triton.origin is None:
        pytest.skip("NVIDIA's headers come with triton, which is not installed")
    headers = Path(triton.origin).parent / "backends" / "nvidia" / "include"
    header = headers / "cuda.h"
    found = re.search(r"#define CUDA_VERSION (\d+)", header.read_text()) if header.exists() else None
    if found is None or int(found[1]) < 13000:
        pytest.skip("this triton has no headers of CUDA 13.0 or newer")
    flags = ["-std=c++17", "-fsyntax-only", f"-I{REPOSITORY / 'cextensions' / 'include'}", f"-isystem{headers}"]
    subprocess.run([compiler(), *flags, str(NATIVE_TESTS / "check_cuda_abi.cc")], check=True)
