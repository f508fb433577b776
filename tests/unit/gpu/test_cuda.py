"""Finding a GPU, refusing one that cannot be used, and naming one that failed."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from moeinf.errors import DeviceError
from moeinf.gpu.cuda import Gpu, Toolkit, _open_toolkit, check_cuda, explain, find_cuda, is_out_of_memory
from tests.support.gpu.cuda_error import CudaError

GIB = 1 << 30


@dataclass
class FakeDriver:
    names: tuple[str, ...] = ("NVIDIA A5000",)
    version: int = 13000
    capabilities: tuple[int, int] = (8, 6)
    free_bytes: int = 20 * GIB
    broken: str = ""
    display: bool = False

    @property
    def device_count(self) -> int:
        return len(self.names)

    def name(self, i: int) -> str:
        return self.names[i]

    def capability(self, i: int) -> tuple[int, int]:
        return self.capabilities

    def total_bytes(self, i: int) -> int:
        return 24 * GIB

    def has_display(self, i: int) -> bool:
        return self.display

    def memory(self, i: int) -> tuple[int, int]:
        if self.broken:
            raise CudaError(self.broken)
        return self.free_bytes, 24 * GIB


HERE = FakeDriver()
TOOLKIT = Toolkit("13.0", lambda: ["sm_75", "sm_80", "sm_90a", "compute_120"], "3.9.0+git1")


def find(
    device: str, driver: FakeDriver | Exception = HERE, toolkit: Toolkit = TOOLKIT, notices: list[str] | None = None
) -> Gpu | None:
    def open_driver() -> FakeDriver:
        if isinstance(driver, Exception):
            raise driver
        return driver

    said = [] if notices is None else notices
    return find_cuda(device, said.append, open_driver=open_driver, open_toolkit=lambda: toolkit)  # type: ignore[arg-type]


def test_a_gpu_without_torch_is_named_with_the_command_that_installs_it() -> None:
    without = Toolkit(None, list, None, has_torch=False)
    wanted = r"GPU 0 \(NVIDIA A5000\) cannot be used without torch: pip install 'moeinf\[gpu\]'"
    with pytest.raises(DeviceError, match=wanted):
        find("cuda", toolkit=without)
    notices: list[str] = []
    assert find("auto", toolkit=without, notices=notices) is None
    assert len(notices) == 1 and re.search(f"running on the CPU: {wanted}$", notices[0])


@pytest.fixture(autouse=True)
def every_gpu_is_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("moeinf.gpu.cuda._AMD", "/none")


NO_DRIVER = OSError("libcuda.so.1: cannot open shared object file")
NO_DEVICE = CudaError("CUDA_ERROR_NO_DEVICE")
# What is wrong -> (driver, toolkit, what is said of it)
UNUSABLE: dict[str, tuple[FakeDriver | Exception, Toolkit, str]] = {
    "torch for the CPU": (HERE, TOOLKIT._replace(torch_cuda=None), "torch is installed without CUDA.*pytorch.org"),
    "torch for AMD's cards": (
        HERE,
        TOOLKIT._replace(torch_cuda=None, torch_hip="6.4.43482"),
        r"torch is built for ROCm 6\.4\.43482, GPU 0 .*needs one for CUDA.*pytorch.org",
    ),
    "old driver": (replace(HERE, version=12040), TOOLKIT, r"too old: it knows CUDA 12\.4, torch needs 13\.0.*580"),
    "old card": (replace(HERE, capabilities=(7, 5)), TOOLKIT, r"capability 7\.5, moeinf needs 8\.0"),
    "card newer than torch": (replace(HERE, capabilities=(10, 0)), TOOLKIT, "torch was built for sm_75.*is sm_100"),
    "torch that does not start": (HERE, TOOLKIT._replace(targets=list), r"does not start.*torch\.cuda\.init"),
    "no triton": (HERE, TOOLKIT._replace(triton=None), "pip install triton"),
    "old triton": (
        HERE,
        TOOLKIT._replace(triton="3.2.0"),
        r"triton 3\.2\.0 does not compile.*3\.3 and newer do: pip install --upgrade 'torch>=2\.7'",
    ),
    "full card": (replace(HERE, free_bytes=GIB - 1), TOOLKIT, "1023 of 24576 MiB free.*nvidia-smi"),
    "card in exclusive use": (
        replace(HERE, broken="CUDA_ERROR_DEVICE_UNAVAILABLE"),
        TOOLKIT,
        "cannot be opened.*DEVICE_UNAVAILABLE",
    ),
    "half an update": (CudaError("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), TOOLKIT, "differ in version.*restart"),
    "a refusal without advice": (CudaError("CUDA_ERROR_UNKNOWN"), TOOLKIT, "does not start .CUDA_ERROR_UNKNOWN"),
}
ABSENT: dict[str, tuple[Exception | FakeDriver, str]] = {
    "no driver": (NO_DRIVER, "no NVIDIA driver .libcuda.so.1.*install it"),
    "no card": (NO_DEVICE, "sees no GPU.*nvidia-smi"),
    "no card that counts": (FakeDriver(names=()), "sees no GPU"),
}


@pytest.mark.parametrize("triton", ["3.3.0", "3.3.1+gitc8757738", "3.9.0", "3.10.0"])
def test_every_triton_from_that_of_torch_2_7_on_is_taken(triton: str) -> None:
    assert find("cuda", toolkit=TOOLKIT._replace(triton=triton)) is not None


@pytest.mark.parametrize("device", ["auto", "cuda", "cuda:0"])
def test_a_usable_card_is_told_with_what_planning_needs(device: str) -> None:
    assert find(device) == Gpu(0, "NVIDIA A5000", (8, 6), 13000, 24 * GIB, 20 * GIB)


def test_a_card_that_others_need_too_is_told_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    windows = tmp_path / "dxg"
    monkeypatch.setattr("moeinf.gpu.cuda._WINDOWS", str(windows))
    alone, display = find("cuda"), find("cuda", replace(HERE, display=True))
    windows.touch()
    under_windows = find("cuda")
    assert alone and display and under_windows
    assert (alone.has_display, display.has_display, under_windows.has_display) == (False, True, True)


def test_a_card_of_amd_is_told_apart_from_no_card(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    amd = tmp_path / "kfd"
    monkeypatch.setattr("moeinf.gpu.cuda._AMD", str(amd))
    notices: list[str] = []
    assert find("auto", NO_DRIVER, notices=notices) is None and not notices
    amd.touch()
    with pytest.raises(DeviceError, match=r"a GPU of AMD is not used yet: .*never run there.*: run with --device cpu$"):
        find("cuda", NO_DRIVER)
    assert find("auto", NO_DRIVER, notices=notices) is None and not notices, "laptops have such cards without ROCm"


def test_what_torch_was_built_for_is_asked_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.1.0")
    monkeypatch.setattr(torch.version, "cuda", None)
    toolkit = _open_toolkit()
    assert (toolkit.torch_cuda, toolkit.torch_hip, toolkit.has_torch) == (None, "7.1.0", True)


def test_the_number_chooses_among_cards() -> None:
    gpu = find("cuda:1", replace(HERE, names=("first", "second")))
    assert gpu is not None and (gpu.index, gpu.name) == (1, "second")


def test_a_number_that_no_card_has_is_refused_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match=r"no GPU cuda:2; there is cuda:0 \(first\), cuda:1 \(second\)"):
        find("cuda:2", replace(HERE, names=("first", "second")))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    with pytest.raises(DeviceError, match="with CUDA_VISIBLE_DEVICES=3"):
        find("cuda:1")


def test_the_cpu_is_taken_without_a_look_at_the_driver() -> None:
    assert find("cpu", AssertionError("looked")) is None


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_card_that_cannot_be_used_is_refused_where_it_was_asked_for(case: str) -> None:
    driver, toolkit, said = UNUSABLE[case]
    with pytest.raises(DeviceError, match=said) as raised:
        find("cuda", driver, toolkit)
    assert "\n" not in str(raised.value) and str(raised.value).endswith("or run with --device cpu")


@pytest.mark.parametrize("case", UNUSABLE)
def test_a_card_that_cannot_be_used_is_said_once_where_none_was_asked_for(case: str) -> None:
    driver, toolkit, _ = UNUSABLE[case]
    notices: list[str] = []
    assert find("auto", driver, toolkit, notices) is None
    assert len(notices) == 1 and notices[0].startswith("running on the CPU: ") and "--device cpu" not in notices[0]


@pytest.mark.parametrize("case", ABSENT)
def test_without_a_card_auto_says_nothing_and_cuda_refuses(case: str) -> None:
    driver, said = ABSENT[case]
    notices: list[str] = []
    assert find("auto", driver, notices=notices) is None and not notices
    with pytest.raises(DeviceError, match=said):
        find("cuda", driver)


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_cards_that_a_variable_hides_are_not_there_and_cuda_names_the_variable(
    hidden: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert find("auto") is None
    with pytest.raises(DeviceError, match=r"CUDA_VISIBLE_DEVICES=.*hides every GPU: unset it"):
        find("cuda:0")


@pytest.mark.parametrize(
    ("capability", "runs"), [((8, 0), True), ((8, 9), True), ((9, 0), True), ((12, 1), True), ((10, 3), False)]
)
def test_machine_code_runs_within_its_major_version_and_ptx_on_what_is_newer(
    capability: tuple[int, int], runs: bool
) -> None:
    assert (find("auto", replace(HERE, capabilities=capability)) is not None) == runs


def test_what_can_be_refused_without_a_context_is_refused_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = replace(HERE, broken="a context was made")
    monkeypatch.setattr("moeinf.gpu.cuda._open_driver", lambda: driver)
    monkeypatch.setattr("moeinf.gpu.cuda._open_toolkit", lambda: TOOLKIT)
    check_cuda("cuda:0")
    monkeypatch.setattr("moeinf.gpu.cuda._open_toolkit", lambda: TOOLKIT._replace(torch_cuda=None))
    check_cuda("auto")
    check_cuda("cpu")
    with pytest.raises(DeviceError, match="without CUDA"):
        check_cuda("cuda")


def test_a_driver_of_the_same_major_version_suffices() -> None:
    toolkit = TOOLKIT._replace(torch_cuda="12.8")
    assert find("cuda", replace(HERE, version=12000), toolkit) is not None


def test_looking_where_there_is_no_driver_loads_no_torch() -> None:
    script = """
import sys
from moeinf.gpu.cuda import find_cuda
def no_driver():
    raise OSError("libcuda.so.1")
assert find_cuda("auto", print, open_driver=no_driver) is None
assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def accelerator_error(text: str) -> RuntimeError:
    """As torch raises it: with three lines of advice behind the message."""
    kind = getattr(torch, "AcceleratorError", RuntimeError)  # new in torch 2.8
    error: RuntimeError = kind.__new__(kind)
    error.args = (f"CUDA error: {text}\nSearch for `cudaErrorLaunchFailure'\nCUDA kernel errors might be",)
    return error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (accelerator_error("unspecified launch failure"), "unspecified launch failure.*nvidia-smi.*Xid"),
        (accelerator_error("an illegal memory access was encountered"), "illegal memory access.*Xid.*report this"),
        (accelerator_error("uncorrectable ECC error encountered"), "fault of the hardware"),
        (accelerator_error("the launch timed out and was terminated"), "--prefill-chunk"),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), "misaligned address"),
        (CudaError("CUDA_ERROR_DEVICE_UNAVAILABLE"), "DEVICE_UNAVAILABLE"),
        (CudaError("CUDA_ERROR_ECC_UNCORRECTABLE"), "fault of the hardware"),
        (CudaError("CUDA_ERROR_LAUNCH_FAILED"), "LAUNCH_FAILED.*nvidia-smi"),
        (
            RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
            "older than the compiler.*update the driver",
        ),
        (accelerator_error("no kernel image is available for execution on the device"), "update the driver"),
        (
            subprocess.CalledProcessError(1, ["gcc", "main.c", "-lcuda"]),
            "python3-dev.*`gcc main.c -lcuda` ended with 1",
        ),
        (CudaError("CUDA_ERROR_OUT_OF_MEMORY", "cuMemHostAlloc"), "does not pin memory for copies"),
        (RuntimeError("Failed to find C compiler. Please specify via CC"), "install gcc, or set CC"),
    ],
)
def test_a_failed_device_is_one_line_with_the_remedy(error: Exception, said: str) -> None:
    explained = explain(error)
    assert not is_out_of_memory(error)
    assert isinstance(explained, DeviceError)
    assert re.search(said, str(explained)) and "\n" not in str(explained)


def test_a_kernel_that_triton_cannot_compile_is_one_line() -> None:
    errors = pytest.importorskip("triton.runtime.errors", reason="triton is not installed")
    for error in (errors.OutOfResources(200_000, 101_376, "shared memory"), errors.PTXASError("a\nb")):
        assert re.search(r"Triton 3.* cannot compile a kernel .*(shared memory|b)", str(explain(error)))


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23 GiB"),
        CudaError("CUDA_ERROR_OUT_OF_MEMORY"),
        RuntimeError("Triton Error [CUDA]: out of memory"),
        accelerator_error("out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
)
def test_want_of_memory_stays_what_it_is(error: RuntimeError) -> None:
    assert explain(error) is None and is_out_of_memory(error)


@pytest.mark.parametrize(
    "error",
    [
        CudaError("CUDA_ERROR_INVALID_VALUE"),
        accelerator_error("invalid argument"),
        RuntimeError("unknown error"),
        ValueError("CUDA error: unspecified launch failure"),
        KeyError("x"),
        DeviceError("CUDA: the GPU is lost"),
    ],
)
def test_what_is_no_fault_of_the_device_is_not_explained(error: Exception) -> None:
    assert explain(error) is None and not is_out_of_memory(error)
