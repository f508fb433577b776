"""Rates of a made-up link and of this machine's own memory, by a clock that the test moves."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
import torch

from moeinf.bench.device_rates import measure_device, measure_gather, measure_link
from moeinf.types import Copier, IntArray
from tests.oracles.torch_vector import TorchVectorOps

MIB = 1 << 20


class Link:
    """Copies take time only while they are waited for: the n-th batch at rates[n] bytes a second."""

    def __init__(self, rates: list[float]) -> None:
        self.now = 0.0
        self.rates = rates
        self.seen: list[tuple[IntArray, IntArray, int]] = []

    def copy(self, sources: IntArray, destinations: IntArray, num_bytes: IntArray, compute_stream: int) -> int:
        (size,) = set(num_bytes.tolist())
        self.seen.append((sources, destinations, size))
        return len(self.seen) - 1

    def wait(self, ticket: int) -> None:
        sources, _, num_bytes = self.seen[ticket]
        self.now += len(sources) * num_bytes / self.rates[ticket]


def test_the_best_batch_is_the_rate_of_the_link() -> None:
    link = Link([10e9, 24e9, 23e9, 20e9, 22e9])
    rate = measure_link(cast(Copier, link), 1000, 5000, 33 * MIB, lambda: link.now)
    assert rate == pytest.approx(24e9) and len(link.seen) == 5
    sources, destinations, size = link.seen[0]
    assert size == 4 * MIB and np.array_equal(sources, 1000 + np.arange(8) * size)  # what is no whole piece stays out
    assert np.array_equal(destinations - sources, np.full(8, 4000))


def test_a_kernel_that_gathers_is_timed_over_the_pieces_that_it_brings() -> None:
    host = np.random.default_rng(1).integers(0, 256, (10, 4 * MIB), np.uint8)
    target = torch.zeros(10 * 4 * MIB, dtype=torch.uint8)
    times = iter([0.0, 10.0, 12.0, 20.0, 21.0, 30.0, 34.0, 40.0, 42.0, 50.0, 52.0])
    sources = host.ctypes.data + np.arange(10, dtype=np.int64) * 4 * MIB
    cpu = torch.device("cpu")
    rate = measure_gather(TorchVectorOps(), cpu, sources, target, lambda: next(times))
    assert rate == 40 * MIB / 1.0 and np.array_equal(target.numpy(), host.ravel())
    assert measure_gather(TorchVectorOps(), cpu, sources[:0], target) == 0


def test_with_too_little_pinned_memory_no_rate_is_told() -> None:
    link = Link([])
    assert measure_link(cast(Copier, link), 0, 0, 4 * MIB - 1) == 0 and not link.seen


def test_copies_within_the_device_count_twice_and_the_first_round_does_not() -> None:
    times = iter([0.0, 10.0, 12.0, 20.0, 21.0, 30.0, 34.0, 40.0, 42.0, 50.0, 52.0])  # start of each round, and its end
    rate = measure_device(torch.device("cpu"), 1000, lambda: next(times))
    assert rate == 10 * 2 * 1000 / 1.0
