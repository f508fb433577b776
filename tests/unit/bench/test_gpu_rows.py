"""What a benchmark tells of a run on a GPU, which here is a device in host memory."""

from __future__ import annotations

import pytest

from moeinf.bench.bench_report import FORMS, format_rows
from moeinf.bench.device_rates import GpuRates
from moeinf.bench.live_bench import Workload, run_bench
from moeinf.config import RuntimeConfig
from moeinf.errors import DeviceError
from moeinf.gpu.cuda import Gpu
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.gpu.ops import Ops
from moeinf.store.library import StoredModel
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice, recorded
from tests.support.fake_device import FakeCopier

GIB = 1 << 30
CARD = Gpu(0, "Emulated", (9, 0), 13000, 24 * GIB, 23 * GIB)


class CopierAtOnce(FakeCopier):
    """Compute runs at once on the emulated device: what it waits for has to be there."""

    def make_wait(self, compute_stream: int, ticket: int) -> None:
        super().make_wait(compute_stream, ticket)
        self.wait(ticket)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> None:
    def open_gpu(gpu: Gpu) -> OpenGpu:
        device = EmulatedDevice(gpu.free_bytes)
        ops = recorded(device, Ops(TorchVectorOps(), TorchMatrixOps()))
        return OpenGpu(gpu.name, device, ops, CopierAtOnce(), gpu.free_bytes, gpu.total_bytes)

    monkeypatch.setattr("moeinf.bench.live_bench.find_cuda", lambda device, notice: CARD)
    monkeypatch.setattr("moeinf.bench.device_rates.gpu_rates", lambda gpu: GpuRates(25e9, 21e9, 700e9))
    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", open_gpu)


@pytest.mark.usefixtures("card")
def test_rows_tell_the_card_its_budget_and_what_crossed_the_link(demo: StoredModel) -> None:
    config = RuntimeConfig.of(threads=1, vram="2GiB", expert_cache="25%")
    rows = run_bench(demo, config, Workload(num_prompt=8, num_decode=4, repeats=1))
    for row in rows:
        assert (row["backends"], row["gpu_info"], row["cuda_driver"]) == ("CUDA", "Emulated", "13.0")
        assert (row["gpu_bytes"], row["vram_limit_bytes"]) == (24 * GIB, 2 * GIB)
        assert (row["experts"], row["host_experts"]) == (48, 192)
        assert (row["link_gb_per_s"], row["gather_gb_per_s"]) == (25, 21)
        assert (row["memory_gb_per_s"], row["disk_share"]) == (700, 0)
    decode = rows[-1]
    crossed = decode["bytes_per_token"] * 4 / decode["total_s"]
    assert decode["misses"] > 0 and decode["missed_gb_per_s"] == pytest.approx(crossed / 1e9, rel=0.01, abs=0.001)
    assert decode["link_share"] == pytest.approx(decode["missed_gb_per_s"] / 25, abs=0.001)
    assert all("Emulated" in format_rows(rows, form) for form in FORMS if form != "md")


@pytest.mark.usefixtures("card")
def test_with_every_expert_on_the_card_only_the_cold_request_crosses_the_link(demo: StoredModel) -> None:
    rows = run_bench(demo, RuntimeConfig.of(threads=1), Workload(num_prompt=8, num_decode=4, repeats=1))
    assert rows[0]["hits"] == 0 and rows[0]["bytes_per_token"] > 0
    assert {(row["link_share"], row["expert_hit_rate"]) for row in rows[2:]} == {(0, 1)}
    assert all(row["experts"] == 192 for row in rows)


@pytest.mark.usefixtures("card")
def test_a_card_that_does_not_compute_leaves_the_benchmark_to_the_cpu(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(gpu: Gpu) -> OpenGpu:
        raise DeviceError("the card is broken, or run with --device cpu")

    monkeypatch.setattr("moeinf.gpu.open_gpu.open_gpu", refuse)
    said: list[str] = []
    rows = run_bench(demo, RuntimeConfig.of(threads=1), Workload(num_prompt=4, num_decode=2, repeats=1), said.append)
    assert {row["backends"] for row in rows} == {"CPU"} and "running on the CPU: the card is broken" in said
    with pytest.raises(DeviceError, match="broken"):
        run_bench(demo, RuntimeConfig.of(threads=1, device="cuda"), Workload())
