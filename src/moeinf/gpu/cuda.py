"""Which GPU a run uses, why one that is there cannot be used, and what a GPU's failure means."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from moeinf.errors import DeviceError, MoeinfError

if TYPE_CHECKING:
    from moeinf._native import CudaDriver

LEAST_CAPABILITY: Final = (8, 0)  # bf16 in the matrix units, and the oldest that Triton supports
LEAST_TRITON: Final = (3, 3)  # that of torch 2.7; `make gpu-tritons` compiles by it, 3.6 has run on a card
LEAST_FREE_BYTES: Final = 1 << 30  # the driver's context and torch's libraries alone take half of it
_WINDOWS: Final = "/dev/dxg"  # how WSL2 reaches the card
_DRIVERS: Final = {12: "525", 13: "580"}  # the first driver of each major version of CUDA, as nvidia-smi shows it
_AMD: Final = "/dev/kfd"  # how ROCm reaches cards of AMD
_ADVICE: Final = "or run with --device cpu"


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int  # among those that CUDA_VISIBLE_DEVICES shows; torch counts alike
    name: str
    capability: tuple[int, int]
    driver_version: int  # the newest CUDA that the driver knows: 12040 is 12.4
    total_bytes: int
    free_bytes: int  # with this process's context in place
    has_display: bool = False  # or Windows shares it: others need its memory, which is then taken away unannounced


class Toolkit(NamedTuple):
    """What of this installation computes on a GPU."""

    torch_cuda: str | None  # version of CUDA that torch was built with; None: a build for the CPU
    targets: Callable[[], list[str]]  # "sm_90", "compute_120": what torch's kernels were compiled for; needs a driver
    triton: str | None  # its version; None: it is missing
    has_torch: bool = True
    torch_hip: str | None = None  # version of HIP, where torch was built for ROCm


class _NoGpu(DeviceError):
    """There is nothing to use, as against something that cannot be used."""


def find_cuda(
    device: str,
    notice: Callable[[str], None],
    *,
    open_driver: Callable[[], CudaDriver] | None = None,
    open_toolkit: Callable[[], Toolkit] | None = None,
) -> Gpu | None:
    """The GPU that `device` ("auto", "cpu", "cuda", "cuda:1") means; None: the CPU computes.

    auto: None where there is no driver or no GPU, which loads nothing; where there is one that cannot be used, None
    after one `notice`. cuda, cuda:i: raises DeviceError with the reason and the remedy, never None. Imports torch only
    when a GPU is there. open_driver and open_toolkit stand for the machine in tests.
    """
    if device == "cpu":
        return None
    try:
        return _usable(_number(device), open_driver or _open_driver, open_toolkit or _open_toolkit)
    except _NoGpu:
        if device != "auto":
            raise
    except DeviceError as error:
        if device != "auto":
            raise
        notice(f"running on the CPU: {without_advice(error)}")
    return None


def is_absent(error: DeviceError) -> bool:
    """Whether an error of find_cuda says that there is no GPU, as against one that cannot be used."""
    return isinstance(error, _NoGpu)


def without_advice(error: Exception) -> str:
    """What an error says, but for the remedy that is taken: to run on the CPU."""
    return str(error).removesuffix(", " + _ADVICE)


def check_cuda(device: str) -> None:
    """Refuses what find_cuda would refuse, but a full card: making a context to learn that takes half a second."""
    if device.startswith("cuda"):
        _fitting(_number(device), _open_driver, _open_toolkit)


def _number(device: str) -> int:
    return int(device.partition(":")[2] or 0)


def _fitting(
    wanted: int, open_driver: Callable[[], CudaDriver], open_toolkit: Callable[[], Toolkit]
) -> tuple[CudaDriver, Gpu]:
    """A card that this installation can use, as the driver tells of it without making a context."""
    driver = _driver(open_driver)
    gpu = _gpu(driver, wanted)
    _check_toolkit(gpu, open_toolkit())
    return driver, gpu


def _usable(wanted: int, open_driver: Callable[[], CudaDriver], open_toolkit: Callable[[], Toolkit]) -> Gpu:
    driver, gpu = _fitting(wanted, open_driver, open_toolkit)
    try:
        gpu = replace(gpu, free_bytes=driver.memory(wanted)[0])
    except RuntimeError as error:
        raise DeviceError(
            f"{_named(gpu)} cannot be opened ({getattr(error, 'name', error)}): {_RESTART}, {_ADVICE}"
        ) from error
    if gpu.free_bytes < LEAST_FREE_BYTES:
        raise DeviceError(
            f"{_named(gpu)} has {gpu.free_bytes >> 20} of {gpu.total_bytes >> 20} MiB free: end what "
            f"uses it (nvidia-smi lists that), choose another with --device cuda:N, {_ADVICE}"
        )
    return gpu


def _driver(open_driver: Callable[[], CudaDriver]) -> CudaDriver:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        raise _NoGpu(f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU: unset it, {_ADVICE}")
    try:
        return open_driver()
    except OSError as error:
        if os.path.exists(_AMD):
            raise _NoGpu(
                "a GPU of AMD is not used yet: moeinf's kernels compile for it, but have never run there, and what "
                "pins memory and copies from it speaks to NVIDIA's driver alone: run with --device cpu"
            ) from error
        raise _NoGpu(
            f"no NVIDIA driver ({error}): install it, start a container with its GPUs (--gpus all), {_ADVICE}"
        ) from error
    except RuntimeError as error:  # CudaError: the driver is there and refuses
        name = str(getattr(error, "name", error))
        if name in ("CUDA_ERROR_NO_DEVICE", "CUDA_ERROR_STUB_LIBRARY"):
            raise _NoGpu(f"the NVIDIA driver sees no GPU ({name}): see nvidia-smi, {_ADVICE}") from error
        raise DeviceError(
            f"the NVIDIA driver does not start ({name}): {_REFUSALS.get(name, _RESTART)}, {_ADVICE}"
        ) from error


_RESTART: Final = "see whether nvidia-smi works, restart the machine if it does not"
_REFUSALS: Final = {
    "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH": "its library and its kernel module differ in version, as after an update: "
    "restart the machine",
    "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE": "cuda-compat does not support this card: take its folder out of "
    "LD_LIBRARY_PATH",
    "CUDA_ERROR_SYSTEM_NOT_READY": "start nvidia-fabricmanager, which cards with NVSwitch need",
    "CUDA_ERROR_OPERATING_SYSTEM": "the device files /dev/nvidia* are missing or not permitted to this user",
}


def _gpu(driver: CudaDriver, wanted: int) -> Gpu:
    count = driver.device_count
    if not count:
        raise _NoGpu(f"the NVIDIA driver sees no GPU: see nvidia-smi, {_ADVICE}")
    if wanted >= count:
        here = ", ".join(f"cuda:{i} ({driver.name(i)})" for i in range(count))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        limited = f" with CUDA_VISIBLE_DEVICES={visible}" if visible is not None else ""
        raise DeviceError(f"no GPU cuda:{wanted}{limited}; there is {here}")
    return Gpu(
        wanted,
        driver.name(wanted),
        driver.capability(wanted),
        driver.version,
        driver.total_bytes(wanted),
        0,
        os.path.exists(_WINDOWS) or driver.has_display(wanted),
    )


def _check_toolkit(gpu: Gpu, toolkit: Toolkit) -> None:
    if gpu.capability < LEAST_CAPABILITY:
        raise DeviceError(
            f"{_named(gpu)} has compute capability {_dotted(gpu.capability)}, moeinf needs "
            f"{_dotted(LEAST_CAPABILITY)} (Ampere, 2020) or newer: use another card, {_ADVICE}"
        )
    if not toolkit.has_torch:
        raise DeviceError(f"{_named(gpu)} cannot be used without torch: pip install 'moeinf[gpu]', {_ADVICE}")
    if toolkit.torch_hip is not None:
        raise DeviceError(
            f"torch is built for ROCm {toolkit.torch_hip}, {_named(gpu)} needs one for CUDA: install it from "
            f"https://pytorch.org/get-started, {_ADVICE}"
        )
    if toolkit.torch_cuda is None:
        raise DeviceError(
            f"torch is installed without CUDA, {_named(gpu)} cannot be used: install it from "
            f"https://pytorch.org/get-started, {_ADVICE}"
        )
    major = int(toolkit.torch_cuda.split(".")[0])
    if gpu.driver_version // 1000 < major:  # within a major version any driver runs any toolkit
        least = f" ({_DRIVERS[major]} or newer)" if major in _DRIVERS else ""
        knows = f"{gpu.driver_version // 1000}.{gpu.driver_version % 1000 // 10}"
        raise DeviceError(
            f"the NVIDIA driver is too old: it knows CUDA {knows}, torch needs {toolkit.torch_cuda}: "
            f"update the driver{least}, install a torch for CUDA {knows}, {_ADVICE}"
        )
    targets = toolkit.targets()
    if not targets:
        raise DeviceError(
            f"torch (CUDA {toolkit.torch_cuda}) does not start on {_named(gpu)}: "
            f"`python -c 'import torch; torch.cuda.init()'` says why; mend that, {_ADVICE}"
        )
    if not any(_runs(target, gpu.capability) for target in targets):
        raise DeviceError(
            f"torch was built for {', '.join(targets)}, {_named(gpu)} is sm_{_digits(gpu.capability)}: "
            f"install a torch whose list has it, {_ADVICE}"
        )
    if toolkit.triton is None:
        raise DeviceError(f"triton is missing, {_named(gpu)} cannot be used: pip install triton, {_ADVICE}")
    if tuple(map(int, re.findall(r"\d+", toolkit.triton)[:2])) < LEAST_TRITON:
        raise DeviceError(
            f"triton {toolkit.triton} does not compile moeinf's kernels, {_dotted(LEAST_TRITON)} and "
            f"newer do: pip install --upgrade 'torch>=2.7', which brings one, {_ADVICE}"
        )


def _runs(target: str, capability: tuple[int, int]) -> bool:
    """Whether code for `target` runs: machine code within a major version, PTX (compute_) on all that is newer."""
    kind, _, digits = target.partition("_")
    number = int(re.sub(r"\D", "", digits) or 0)  # "90a" has a letter
    built = (number // 10, number % 10)
    return built <= capability and (kind == "compute" or built[0] == capability[0])


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.name})"


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def _digits(capability: tuple[int, int]) -> str:
    return "".join(map(str, capability))


def _open_driver() -> CudaDriver:
    from moeinf._native import CudaDriver

    return CudaDriver()


def _open_toolkit() -> Toolkit:
    if importlib.util.find_spec("torch") is None:
        return Toolkit(None, list, None, has_torch=False)
    import torch

    there = importlib.util.find_spec("triton") is not None
    triton = _triton_version() if there else None
    return Toolkit(torch.version.cuda, torch.cuda.get_arch_list, triton, torch_hip=torch.version.hip)


def _triton_version() -> str:
    """Of the package, whatever the distribution is called that it came with."""
    version: str = importlib.import_module("triton").__version__
    return version


# What the runtime's message, Triton's or the driver's name of an error has in it -> what it means.
_FAULTS: Final = (
    (
        r"kernel image is invalid|INVALID_IMAGE|no kernel image is available|NO_BINARY_FOR_GPU|INVALID_PTX"
        r"|UNSUPPORTED_PTX_VERSION|PTX was compiled with an unsupported toolchain|provided PTX",
        "the NVIDIA driver is older than the compiler that came with triton: update the driver",
    ),
    (
        r"illegal memory access|ILLEGAL_ADDRESS|misaligned address|MISALIGNED|illegal instruction|ILLEGAL_INSTRUCTION"
        r"|INVALID_PC|invalid program counter|INVALID_ADDRESS_SPACE|operation not supported on global/shared"
        r"|device-side assert|ERROR_ASSERT",
        "`dmesg | grep Xid` says whether the card is at fault; if it is not, report this with the command",
    ),
    (
        r"uncorrectable ECC|ECC_UNCORRECTABLE|uncorrectable NVLink|NVLINK_UNCORRECTABLE|hardware stack error"
        r"|HARDWARE_STACK_ERROR|hardware error|ERROR_CONTAINED",
        "a fault of the hardware: see `nvidia-smi -q` and `dmesg | grep Xid`, and restart the machine",
    ),
    (
        r"launch timed out|LAUNCH_TIMEOUT",
        "the card also drives a display, which limits what it computes at once: lower --prefill-chunk",
    ),
    (
        r"unspecified launch failure|LAUNCH_FAILED|unknown error|ERROR_UNKNOWN|DEVICE_LOST|GPU is lost"
        r"|fallen off the bus|driver shutting down|DEINITIALIZED|context is destroyed|CONTEXT_IS_DESTROYED"
        r"|DEVICE_UNAVAILABLE|busy or unavailable|NO_DEVICE|no CUDA-capable device|EXTERNAL_DEVICE|SYSTEM_NOT_READY",
        "see whether `nvidia-smi` still lists it and what `dmesg | grep Xid` says; restart the machine if it is gone",
    ),
)


def explain(error: BaseException) -> MoeinfError | None:
    """What of torch, Triton or the driver says that the GPU failed or is gone, as one line with the remedy; else None.

    None also for an error of ours (an invalid argument) and for want of the device's memory: torch.OutOfMemoryError and
    CUDA_ERROR_OUT_OF_MEMORY stay what they are, and whoever can shrink something handles them. After an explained
    error nothing on the device can be used any more by this process.
    """
    if isinstance(error, MoeinfError):
        return None
    if compiling := _of_the_compiler(error):
        return DeviceError(f"{compiling}, {_ADVICE}")
    if not isinstance(error, RuntimeError):
        return None
    text = f"{getattr(error, 'name', '')} {error}"
    if _is_of_the_host(text):
        return DeviceError(
            f"the system does not pin memory for copies to the GPU ({getattr(error, 'name', error)}): "
            f"free memory, raise `ulimit -l` where it is low, {_ADVICE}"
        )
    if is_out_of_memory(error) or not re.search(r"CUDA|CUBLAS", text):
        return None
    for pattern, remedy in _FAULTS:
        found = re.search(pattern, text, re.IGNORECASE)
        if found:
            return DeviceError(f"the GPU failed while it was used ({found.group(0)}): {remedy}; run again, {_ADVICE}")
    return None


def _of_the_compiler(error: BaseException) -> str | None:
    """What kept Triton from compiling a kernel or its launcher, with the remedy; None for anything else."""
    kind = type(error).__name__
    if isinstance(error, subprocess.CalledProcessError):  # gcc over the launcher, in which it wants Python.h
        return (
            "Triton cannot build its launcher: install Python's headers (python3-dev) and a C compiler that works; "
            f"`{shlex.join(map(str, error.cmd)) if isinstance(error.cmd, list) else error.cmd}` ended with "
            f"{error.returncode}"
        )
    if "Failed to find C compiler" in str(error):
        return "Triton needs a C compiler once, to build its launcher: install gcc, or set CC"
    if kind in ("OutOfResources", "PTXASError", "CompilationError") and type(error).__module__.startswith("triton"):
        said = str(error).strip().splitlines()
        return (
            f"Triton {_triton_version()} cannot compile a kernel for this card "
            f"({kind}: {said[-1][:200] if said else ''}): install the triton that came with torch, report this if "
            "that does not help"
        )
    return None


def _is_of_the_host(text: str) -> bool:
    """Whether a call of the driver failed that asks for pinned memory of the host."""
    return bool(re.search(r"\bcuMemHost(Alloc|Register).*OUT_OF_MEMORY", text, re.DOTALL))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether a smaller cache on the device might help: torch's, Triton's or the driver's refusal of its memory."""
    text = f"{type(error).__name__} {getattr(error, 'name', '')} {error}"
    if _is_of_the_host(text):
        return False
    refusal = r"^OutOfMemoryError|ERROR_OUT_OF_MEMORY|CUDA.*out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    return isinstance(error, RuntimeError) and bool(re.search(refusal, text, re.DOTALL))
