"""A forecast goes by the very plan of a run, and by what it says of reads and products."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.bench.forecast.checkup import check_rates
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import NO_OPTIONS
from moeinf.engine.model import Model
from moeinf.engine.speed.rates import Kind, Rates
from moeinf.engine.speed.speed import prefill
from moeinf.engine.speed.weight_bytes import main_kinds, token_weights
from moeinf.engine.stored.hit_record import load_hits
from moeinf.engine.stored.outline import outline_of
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.forecast.forecast import forecast
from moeinf.forecast.subject import Subject, forecast_of, stored_subject, subject_of_headers
from moeinf.hardware import Machine, machine
from moeinf.pull.origins import resolve
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.store.placed.expert_slices import SliceSlots
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.rates import PLAIN

PLENTY = Machine(4 << 30, "machine", 2, 8 << 30)
CPU = {"device": "cpu", "threads": 1}


@pytest.mark.parametrize("given", [{}, {"expert_cache": "20%"}, {"context": 512}, {"ram": "200MiB"}])
def test_the_plan_is_that_of_the_run(given: dict[str, object], demo: StoredModel) -> None:
    config = RuntimeConfig.of(**CPU, **given)
    found = forecast(outline_of(demo), config, PLENTY, lambda _: PLAIN, {})
    with Model(demo, config, on=PLENTY) as model:
        assert model.plan == found.plan


def test_what_a_run_counted_is_what_the_next_forecast_expects(tmp_path: Path) -> None:
    stored = pull("demo", home=tmp_path)
    config = RuntimeConfig.of(**CPU, expert_cache="20%", prefetch=False)
    with Model(stored, config) as model:
        stats = model.replay(range(1, 30), range(1, 60))
    found = forecast_of(stored_subject(stored), config, machine(), lambda _: PLAIN)
    assert found.hits.hit_rate == stats.decode_cache.hit_rate > 0
    assert (
        found.hits.read_share * stats.decode_cache.activations * stored.manifest.layout.stride_bytes
        == pytest.approx(stats.decode_cache.demand_bytes)
    )


def test_a_run_that_holds_every_expert_counts_nothing(tmp_path: Path) -> None:
    stored = pull("demo", home=tmp_path)
    with Model(stored, RuntimeConfig.of(**CPU)) as model:
        model.replay(range(1, 30), range(1, 30))
    assert load_hits(stored) == {}


def test_the_rates_are_those_of_what_a_token_reads_most_of(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Kind] = []

    def rates(kinds: Sequence[Kind]) -> Rates:
        asked.extend(kinds)
        return PLAIN

    outline = outline_of(demo)
    found = forecast(outline, RuntimeConfig.of(**CPU), PLENTY, rates, {})
    assert asked == main_kinds(outline) and len(asked) == 2
    (note,) = found.notes
    assert note.startswith("too little memory is free to measure how fast bf16 of 128, bf16 of 64 is read")
    experts = token_weights(outline)[0]
    counts = (experts, Counter({Kind("f32", 64): sum(experts.values()) // 1000}))
    monkeypatch.setattr("moeinf.engine.speed.weight_bytes.token_weights", lambda _: counts)
    assert set(main_kinds(outline)) == set(experts)


def test_more_memory_and_a_faster_machine_are_never_slower(demo: StoredModel) -> None:
    def rates_of(config: dict[str, object], rates: Rates = PLAIN) -> tuple[float, float]:
        found = forecast(outline_of(demo), RuntimeConfig.of(**CPU, **config), PLENTY, lambda _: rates, {})
        return found.decode.tokens_per_s, found.prefill.tokens_per_s

    sizes = [rates_of({"expert_cache": f"{share}%"}) for share in (10, 20, 40, 80, 100)]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    few: dict[str, object] = {"expert_cache": "10%"}
    faster = replace(PLAIN, disk={size: 10 * rate for size, rate in PLAIN.disk.items()})
    assert all(a > b for a, b in zip(rates_of(few, faster), rates_of(few), strict=True))


def test_slices_count_for_the_part_of_experts_that_they_hold(demo: StoredModel) -> None:
    outline = outline_of(demo)
    whole = forecast(outline, RuntimeConfig.of(**CPU, expert_cache="10%"), PLENTY, lambda _: PLAIN, {})
    slots, stride = whole.plan.num_slots, whole.plan.slot_bytes
    sliced = replace(whole, plan=replace(whole.plan, slices=SliceSlots(4, stride // 4, 4 * slots + 2)))
    total = outline.manifest.moe.total_experts
    assert sliced.resident_share == (slots + 0.5) / total > whole.resident_share == slots / total
    read = prefill(outline, sliced.plan, PLAIN, 64).read_bytes / prefill(outline, whole.plan, PLAIN, 64).read_bytes
    assert read == pytest.approx((total - slots - 0.5) / (total - slots))


def _measured_in_vain(_: Sequence[Kind]) -> Rates:
    pytest.fail("the machine is measured for a model that cannot run")


def test_what_cannot_run_says_what_would_help(demo: StoredModel, tmp_path: Path) -> None:
    tiny = Machine(8 << 20, "control group /tiny", 1, 1 << 30)
    with pytest.raises(OutOfMemoryError, match=r"demo:latest does not fit: it needs .* at least.*/tiny.*; end other"):
        forecast_of(stored_subject(demo), RuntimeConfig.of(**CPU), tiny, _measured_in_vain)
    with pytest.raises(OutOfMemoryError, match=r"raise --ram to .*fewer bits.*smaller model"):
        forecast_of(stored_subject(demo), RuntimeConfig.of(**CPU, ram="70MiB"), PLENTY, lambda _: PLAIN)
    with pytest.raises(OutOfMemoryError, match=r"lower --num-ctx"):
        forecast_of(stored_subject(demo), RuntimeConfig.of(**CPU, ram="70MiB", context=2048), PLENTY, lambda _: PLAIN)
    with pytest.raises(UsageError, match="context 100000 is beyond"):
        forecast_of(stored_subject(demo), RuntimeConfig.of(**CPU, context=100000), PLENTY, lambda _: PLAIN)
    folder = write_checkpoint(tmp_path / "checkpoint", random_tensors())
    origin = resolve(str(folder), Library(tmp_path / "home"))
    unpulled = subject_of_headers("tiny", origin, NO_OPTIONS, tmp_path / "home")
    assert not unpulled.stored and not (tmp_path / "home").exists()
    with pytest.raises(OutOfMemoryError, match=r"--quant q4_k needs"):
        forecast_of(unpulled, RuntimeConfig.of(**CPU, ram="70MiB"), PLENTY, lambda _: PLAIN)


def test_the_least_that_is_told_suffices(demo: StoredModel) -> None:
    subject: Subject = stored_subject(demo)
    with pytest.raises(OutOfMemoryError) as refused:
        forecast_of(subject, RuntimeConfig.of(**CPU, ram="70MiB"), PLENTY, lambda _: PLAIN)
    least = str(refused.value).partition("raise --ram to ")[2].partition(",")[0].replace(" ", "")
    assert forecast_of(subject, RuntimeConfig.of(**CPU, ram=least), PLENTY, lambda _: PLAIN).plan.num_slots


def test_a_slow_disk_is_a_fault_with_a_remedy() -> None:
    assert list(check_rates(PLAIN)) == []
    (fault,) = check_rates(replace(PLAIN, disk={1 << 20: 1e8}))
    assert "100 MB/s" in fault.text and "SSD" in fault.remedy
