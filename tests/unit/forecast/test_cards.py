"""What is foretold of a card follows from its published rates and the plan that a run on it would make."""

from __future__ import annotations

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.device_plan import plan_device_memory
from moeinf.engine.stored.outline import outline_of
from moeinf.errors import OutOfMemoryError, UsageError
from moeinf.forecast.cards import CARDS, CONTEXT_BYTES, Card, card_forecast, card_named
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel

PLENTY = Machine(1 << 36, "test", 2)
MIB = 1 << 20


@pytest.mark.parametrize(
    ("name", "gib", "wanted"),
    [
        ("rtx 4090", 0, ("RTX 4090", 24)),
        ("NVIDIA GeForce RTX 4060 Ti", 16, ("RTX 4060 Ti", 16)),
        ("RTX 4060 Ti 16GB", 0, ("RTX 4060 Ti", 16)),
        ("RTX 4060 Ti", 0, ("RTX 4060 Ti", 8)),
        ("NVIDIA A100-SXM4-80GB", 79, ("A100", 80)),
        ("NVIDIA H100 PCIe", 80, ("H100 PCIe", 80)),
        ("NVIDIA H100 80GB HBM3", 80, ("H100", 80)),
        ("NVIDIA RTX 6000 Ada Generation", 48, ("RTX 6000 Ada", 48)),
    ],
)
def test_a_card_is_found_by_the_name_of_its_driver_and_of_its_user(
    name: str, gib: int, wanted: tuple[str, int]
) -> None:
    card = card_named(name, gib << 30)
    assert (card.name, card.memory_gib) == wanted


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 40900", "Radeon RX 7900 XTX", ""])
def test_a_card_of_which_nothing_is_known_is_refused_with_those_that_are(name: str) -> None:
    with pytest.raises(UsageError, match=r"no rates of a card .* are known here; known: RTX 3060, .*H200"):
        card_named(name)


def test_no_two_cards_have_one_name_and_memory() -> None:
    assert len({(card.name, card.memory_gib) for card in CARDS}) == len(CARDS)


def test_twice_the_memory_rate_halves_the_time_of_weights(demo: StoredModel) -> None:
    config, outline = RuntimeConfig.of(expert_cache="30%"), outline_of(demo)
    slow, fast = (card_forecast(outline, config, PLENTY, Card("x", 24, rate, 16, 4)) for rate in (500, 1000))
    assert slow.decode and fast.decode and slow.plan == fast.plan and slow.decode.read_bytes == fast.decode.read_bytes
    launches = 2 * fast.decode.compute_s - slow.decode.compute_s
    assert 0 < launches < fast.decode.compute_s < slow.decode.compute_s < 2 * fast.decode.compute_s
    narrow = card_forecast(outline, config, PLENTY, Card("x", 24, 500, 8, 4)).decode
    assert narrow and narrow.read_s == pytest.approx(2 * slow.decode.read_s) and narrow.read_s > 0


def test_the_plan_is_that_of_a_run_on_such_a_card(demo: StoredModel) -> None:
    config, outline = RuntimeConfig.of(), outline_of(demo)
    found = card_forecast(outline, config, PLENTY, card_named("RTX 3060"))
    free = (12 << 30) - CONTEXT_BYTES
    assert found.plan == plan_device_memory(outline.device_footprint, config, PLENTY, free, 12 << 30)
    assert found.resident_share(demo.manifest.moe) == 1 and found.decode and found.decode.read_bytes == 0


def test_nothing_is_foretold_where_experts_would_come_from_the_disk(demo: StoredModel) -> None:
    config = RuntimeConfig.of(expert_cache="30%", ram="1090MiB")
    little = Machine(1092 * MIB, "test", 2, 2 << 30)
    found = card_forecast(outline_of(demo), config, little, card_named("RTX 3060"))
    assert found.plan.host_slots < demo.manifest.moe.total_experts and found.decode is None


def test_a_card_too_small_for_the_dense_weights_is_refused(demo: StoredModel) -> None:
    with pytest.raises(OutOfMemoryError):
        card_forecast(outline_of(demo), RuntimeConfig.of(vram="20MiB"), PLENTY, card_named("RTX 3060"))
