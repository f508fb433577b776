"""What is not known of a machine is measured, where there is room for it, and once."""

from __future__ import annotations

from pathlib import Path

import pytest

from moeinf._native import Kernels
from moeinf.engine.speed import kept, kernel_rates
from moeinf.engine.speed.kept import decode_rates, kept_rates
from moeinf.engine.speed.rates import Kind, Rates, Reading
from moeinf.engine.speed.rates_file import save
from moeinf.hardware import Machine, machine
from tests.support.rates import rates_of_this_machine

KINDS = [Kind("q8_0", 96), Kind("f32", 7)]
CRAMPED = Machine(60 << 20, "machine", 1, 1 << 30)


def test_weights_that_are_asked_for_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[Kind]] = []
    half = Reading(2e9, 1e9)

    def measured(kernels: Kernels, here: Machine, kinds: list[Kind]) -> dict[Kind, Reading]:
        asked.append(kinds)
        return dict.fromkeys(kinds, half)

    monkeypatch.setattr(kept, "measure_reading", measured)
    mine = rates_of_this_machine(threads=1)
    save(mine, tmp_path)
    one, other = Kind("q4_k", 512), Kind("bf16", 7)

    def rates_of(*kinds: Kind) -> Rates:
        found = decode_rates(tmp_path, Kernels(1), machine(), kinds)
        assert found is not None and found == kept_rates(tmp_path, Kernels(1), machine())
        return found

    assert rates_of() == mine
    assert rates_of(one).reading == {"q4_k": {512: half}}
    found = rates_of(one, other)
    assert found.reading == {"q4_k": {512: half}, "bf16": {7: half}} and asked == [[], [one], [other]]
    assert rates_of(other, one) == found and asked[3:] == [[]]


def test_reading_is_measured_where_there_is_room_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_rates, "_READING_BYTES", 16 << 20)
    said: list[str] = []
    found = kernel_rates.measure_reading(Kernels(1), machine(), KINDS, said.append)
    assert set(found) == set(KINDS) and all(min(each.plain, each.product) > 0 for each in found.values())
    assert any("q8_0 of 96" in line for line in said)
    assert kernel_rates.measure_reading(Kernels(1), CRAMPED, KINDS) == {}


def test_a_machine_that_nobody_has_measured_is_known_well_enough_to_decode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = {KINDS[0]: Reading(8e9, 3.4e9), KINDS[1]: Reading(9e9, 8e9)}
    monkeypatch.setattr(kept, "measure_reading", lambda kernels, here, kinds: {kind: reading[kind] for kind in kinds})
    rates = decode_rates(tmp_path, Kernels(1), machine(), KINDS)
    assert rates is not None and all(rates.reading_of(kind) == each for kind, each in reading.items())
    assert rates.memory == 9e9 and rates.linear["q8_0"].of(1) == rates.experts["q8_0"].of(1) == pytest.approx(
        34 / 32 / 3.4e9
    )
    assert list(tmp_path.iterdir()) == []  # of a whole machine too little is known to keep it
    assert decode_rates(tmp_path, Kernels(1), CRAMPED, []) is None
