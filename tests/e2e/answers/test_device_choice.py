"""With --device auto a GPU that cannot be used, or that the CPU outruns, is left alone after one line; a GPU that was
asked for is used or refused. The GPU is a device in host memory."""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import plan_device_memory
from moeinf.engine.model import Model
from moeinf.engine.preference import slower
from moeinf.engine.reporting import Notify, Reporting, log_warning
from moeinf.engine.speed.card_rates import card_rates
from moeinf.engine.speed.rates import CardRates, Reading
from moeinf.engine.speed.rates_file import save
from moeinf.engine.speed.speed import Step, device_decode_step
from moeinf.errors import DeviceError, OutOfMemoryError, UsageError
from moeinf.forecast.known import known_rates
from moeinf.forecast.subject import forecast_of, stored_subject
from moeinf.gpu.cuda import Gpu
from moeinf.gpu.open_gpu import OpenGpu, open_gpu
from moeinf.gpu.ops import Ops
from moeinf.gpu.trial import try_out
from moeinf.hardware import Machine, machine
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.fake_device import LateCopier
from tests.support.footprints import LARGE, on
from tests.support.gpu.cuda_error import CudaError
from tests.support.rates import PLAIN, rates_of_this_machine

CARD = Gpu(0, "Emulated", (8, 6), 13000, 24 << 30, 23 << 30)
FAST, SLOW = CardRates(900e9, 25e9), CardRates(200e9, 1e6)
ROOMY = Machine(1 << 36, "machine", 1)
Opening = Callable[[Gpu], OpenGpu]


def emulated(gpu: Gpu = CARD, total_bytes: int = 1 << 40) -> OpenGpu:
    device = EmulatedDevice()
    ops = recorded(device, Ops(TorchVectorOps(), TorchMatrixOps()))
    return OpenGpu("Emulated", device, ops, LateCopier(), total_bytes, total_bytes)


def refused(gpu: Gpu) -> OpenGpu:
    raise DeviceError("the card is broken, or run with --device cpu")


def small(gpu: Gpu) -> OpenGpu:
    return emulated(gpu, 1 << 30)


def opened(
    monkeypatch: pytest.MonkeyPatch,
    stored: StoredModel,
    opening: Opening,
    rates: CardRates | None = FAST,
    notify: Notify = log_warning,
    **options: Any,
) -> Model:
    monkeypatch.setattr("moeinf.engine.devices.find_cuda", lambda device, notice: CARD)
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", opening)
    monkeypatch.setattr("moeinf.engine.preference.card_rates", lambda device: rates)
    monkeypatch.setattr("moeinf.engine.preference.decode_rates", lambda home, kernels, here, kinds: PLAIN)
    return Model(stored, RuntimeConfig.of(threads=1, **options), Reporting(notify), on=ROOMY)


def test_a_card_that_computes_is_taken(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    with opened(monkeypatch, demo, emulated, notify=notices.append) as model:
        assert "Emulated" in model.describe() and not notices


@pytest.mark.parametrize(
    ("opening", "said"), [(refused, "the card is broken"), (small, "not enough memory on the GPU")]
)
def test_a_card_that_cannot_be_used_is_left_to_the_cpu_unless_it_was_asked_for(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch, opening: Opening, said: str
) -> None:
    notices: list[str] = []
    with opened(monkeypatch, demo, opening, notify=notices.append) as model:
        assert model.describe().count("CPU") == 1
        (notice,) = notices
        assert notice.startswith(f"running on the CPU: {said}") and "--device cpu" not in notice
        assert model.generate("Once", model.params(num_predict=1)).token_ids
    for device, vram in (("cuda", "auto"), ("auto", "1GiB")):
        with pytest.raises((DeviceError, OutOfMemoryError)):
            opened(monkeypatch, demo, opening, device=device, vram=vram)


def test_memory_is_looked_at_again_when_the_card_is_open(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's context and torch take a part of it."""
    looks = iter([ROOMY, Machine(1 << 30, "machine", 1)])
    seen: list[int] = []

    def plan(footprint: Any, config: RuntimeConfig, machine: Machine, *args: Any) -> Any:
        seen.append(machine.available_bytes)
        raise OutOfMemoryError("enough seen")

    monkeypatch.setattr("moeinf.engine.opening.machine", lambda: next(looks))
    monkeypatch.setattr("moeinf.engine.devices.find_cuda", lambda device, notice: CARD)
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", emulated)
    monkeypatch.setattr("moeinf.engine.cards.card.plan_device_memory", plan)
    with pytest.raises(OutOfMemoryError, match="enough seen"):
        Model(demo, RuntimeConfig.of(threads=1, device="cuda"))
    assert seen == [1 << 30]


@pytest.fixture
def few_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """The card has room for few experts."""

    def few(*args: Any) -> Any:
        return dataclasses.replace(plan_device_memory(*args), num_slots=20)

    monkeypatch.setattr("moeinf.engine.preference.plan_device_memory", few)


def test_the_cpu_is_preferred_where_it_is_expected_to_be_faster(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch, few_slots: None
) -> None:
    with opened(monkeypatch, demo, emulated, SLOW, expert_cache="10%") as model:
        assert "Emulated" in model.describe(), "the host has no room for every expert: both would wait for the disk"
    notices: list[str] = []
    with opened(monkeypatch, demo, emulated, SLOW, notices.append) as model:
        (notice,) = notices
        assert "CPU" in model.describe() and "ms a token are expected" in notice and "--device cuda" in notice
    with opened(monkeypatch, demo, emulated, SLOW, notices.append, device="cuda") as model:
        assert "Emulated" in model.describe() and len(notices) == 1
    with opened(monkeypatch, demo, emulated, None) as model:
        assert "Emulated" in model.describe(), "nothing is known of the card"


def test_the_choice_goes_by_the_very_step_that_is_forecast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few_slots: None
) -> None:
    """Both take the rates that are kept of the machine, and add how fast the model's weights are read."""
    stored, config = pull("demo", home=tmp_path), RuntimeConfig.of(threads=1)
    here = dataclasses.replace(machine(), available_bytes=1 << 36)
    save(rates_of_this_machine(threads=1), tmp_path)
    monkeypatch.setattr(
        "moeinf.engine.speed.kept.measure_reading", lambda *given: dict.fromkeys(given[-1], Reading(5e9, 1e9))
    )
    monkeypatch.setattr("moeinf.engine.devices.find_cuda", lambda device, notice: CARD)
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", emulated)
    monkeypatch.setattr("moeinf.engine.preference.card_rates", lambda device: SLOW)
    steps: list[Step] = []

    def seen(on_cpu: Step, *args: Any) -> str | None:
        steps.append(on_cpu)
        return slower(on_cpu, *args)

    monkeypatch.setattr("moeinf.engine.preference.slower", seen)
    with Model(stored, config, on=here) as model:
        assert "CPU" in model.describe()
    subject = stored_subject(stored)
    fit = forecast_of(subject, config, here, lambda kinds: known_rates(tmp_path, config, kinds=kinds))
    assert steps == [fit.decode] and fit.decode.compute_s > 0


# Rates of memory, card and link; the card; whether the CPU is expected to be faster with 13 MB experts, 4 of 128.
@pytest.mark.parametrize(
    ("memory", "rates", "card_gib", "faster"),
    [
        (70e9, CardRates(190e9, 11e9), 4, True),  # a laptop: little memory on a narrow link
        (70e9, CardRates(1000e9, 21e9), 24, False),
        (20e9, CardRates(190e9, 11e9), 4, False),  # beside slow memory
    ],
)
def test_the_link_decides_where_few_experts_are_on_the_card(
    memory: float, rates: CardRates, card_gib: int, faster: bool
) -> None:
    moe = LARGE.moe
    plan = plan_device_memory(LARGE, RuntimeConfig(), on(200_000), card_gib << 30, card_gib << 30)
    read = LARGE.dense_bytes + moe.num_layers * moe.top_k * LARGE.sizes.mean_bytes
    on_cpu = Step(1, read / (0.7 * memory), 0.0, 0.0, 0.0)
    said = slower(on_cpu, device_decode_step(plan, moe, rates), plan.num_slots / moe.total_experts, rates.link)
    assert (said is not None) == faster
    whole = dataclasses.replace(plan, num_slots=moe.total_experts)
    assert slower(on_cpu, device_decode_step(whole, moe, CardRates(400e9, rates.link)), 1.0, rates.link) is None


def test_rates_are_measured_on_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeinf.engine.speed.card_rates._SPAN_BYTES", 1 << 20)
    monkeypatch.setattr("moeinf.engine.speed.card_rates._LINK_BYTES", 1 << 20)
    rates = card_rates(EmulatedDevice())
    assert rates is not None and min(rates) > 0


def test_a_card_with_too_little_room_to_measure_it_is_not_weighed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 128.00 MiB.")

    monkeypatch.setattr("moeinf.engine.speed.card_rates._SPAN_BYTES", 1 << 20)
    monkeypatch.setattr(torch, "zeros", refuse)
    assert card_rates(EmulatedDevice()) is None


# ---- trying a card out


def test_a_first_kernel_and_a_first_product_are_held_against_the_host() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from moeinf.gpu.matrix_ops import TritonMatrixOps
    from moeinf.gpu.vector_ops import TritonVectorOps

    device = EmulatedDevice()
    try_out(device, Ops(TritonVectorOps(), TritonMatrixOps()))

    class Wrong(TorchVectorOps):
        def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float, out: torch.Tensor) -> None:
            out.copy_(x)

    with pytest.raises(DeviceError, match="wrong numbers"):
        try_out(device, Ops(Wrong(), TorchMatrixOps()))


class Refusing(TorchVectorOps):
    """Triton with something in its way, at the first kernel."""

    error: Exception

    def rms_norm(self, *args: Any) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (subprocess.CalledProcessError(1, ["/usr/bin/gcc", "main.c"]), "python3-dev.*gcc main.c"),
        (
            RuntimeError("Triton Error [CUDA]: device kernel image is invalid"),
            "kernel image is invalid.*update the driver",
        ),
        (torch.OutOfMemoryError("CUDA out of memory."), "does not compute .OutOfMemoryError"),
        (ImportError("no libtriton"), "does not compute .ImportError: no libtriton"),
    ],
)
def test_what_keeps_a_card_from_computing_is_one_line_when_it_is_opened(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    Refusing.error = error
    monkeypatch.setattr("moeinf.gpu.open_gpu.CudaDevice", lambda index: EmulatedDevice())
    monkeypatch.setattr("moeinf.gpu.vector_ops.TritonVectorOps", Refusing)
    with pytest.raises(DeviceError, match=said) as raised:
        open_gpu(CARD)
    assert "\n" not in str(raised.value) and str(raised.value).endswith("or run with --device cpu")


def test_a_host_that_pins_nothing_for_copies_is_told_when_the_card_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="triton is not installed")

    def refuse(driver: object, device: int) -> None:
        raise CudaError("CUDA_ERROR_OUT_OF_MEMORY", "cuMemHostAlloc")

    monkeypatch.setattr("moeinf.gpu.open_gpu.CudaDevice", lambda index: EmulatedDevice())
    monkeypatch.setattr("moeinf.gpu.open_gpu.CudaDriver", object)
    monkeypatch.setattr("moeinf.gpu.open_gpu.NativeCopier", refuse)
    with pytest.raises(DeviceError, match="does not pin memory for copies"):
        open_gpu(CARD)


def test_a_budget_for_the_card_keeps_it_from_being_weighed_against_the_cpu(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="auto, bytes"):
        opened(monkeypatch, demo, emulated, vram="much")
    with opened(monkeypatch, demo, emulated, CardRates(200e9, 1e3), vram="2GiB") as model:
        assert "Emulated" in model.describe()
