"""What models would be on a machine by the sizes that come with moeinf."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeinf.engine.speed.rates import Reading
from moeinf.forecast.known_sizes import nearest_mixture, size_of
from moeinf.hardware import Machine
from moeinf.store.naming.catalogue import catalogue, known_model
from tests.support.rates import rates_of_this_machine

QWEN = known_model("qwen3:30b-a3b")


def machine(num_bytes: float) -> Machine:
    return Machine(int(num_bytes), "machine", 2, int(num_bytes))


def test_each_model_that_says_whose_sizes_it_has_finds_them() -> None:
    models = {model.name: model for model in catalogue().values()}
    assert len(models) > 150 and sum(size_of(model) is not None for model in models.values()) > 60
    for model in models.values():
        size = size_of(model)
        assert (size is not None) == bool(model.like), model.name
        if size is not None:
            experts = size.num_layers * size.num_experts * size.expert_bytes
            assert experts < size.store_bytes and size.dense_bytes < size.least_bytes, model.name
            assert 0 < size.active_params <= size.num_params


def test_more_memory_holds_more_and_is_faster() -> None:
    assert QWEN is not None
    size = size_of(QWEN)
    assert size is not None
    rates = replace(
        rates_of_this_machine(), memory=20e9, disk={1 << 20: 1e9}, reading={"q4_k": {2048: Reading(20e9, 10e9)}}
    )
    assert size.resident_share(machine(size.least_bytes - 1)) is None
    assert size.tokens_per_s(machine(size.least_bytes - 1), rates) == 0
    shares = [size.resident_share(machine(size.least_bytes + part * 4e9)) or 0.0 for part in range(6)]
    speeds = [size.tokens_per_s(machine(size.least_bytes + part * 4e9), rates) for part in range(6)]
    assert shares == sorted(shares) and shares[0] == 0 and shares[-1] == 1
    assert speeds == sorted(speeds) and speeds[0] < speeds[-1]
    experts = size.num_layers * size.top_k * size.expert_bytes
    assert speeds[-1] == pytest.approx(10e9 / (size.dense_bytes + experts)), "all is read at the rate of products"
    assert speeds[0] == pytest.approx(1 / ((size.dense_bytes + experts) / 10e9 + experts / 1e9)), "and all of the disk"


def test_the_mixture_that_is_about_as_large() -> None:
    near = nearest_mixture(18 * 10**9)
    assert near is not None and 14e9 < near[1].store_bytes < 23e9 and near[1].num_experts > 1
