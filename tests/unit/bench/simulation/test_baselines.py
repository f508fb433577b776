"""Machines without a cache, by hand; and predictions, compared with the truth by counting."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.bench.simulation.baselines import NoCache, WholeLayers
from moeinf.bench.simulation.quality import FARTHEST, QualityMeter
from moeinf.bench.simulation.replay import drive, whole
from moeinf.bench.simulation.run import SimulatedRun, Timing
from moeinf.runtime.policy.counting import LeastRecentlyUsed
from moeinf.runtime.policy.plain_predictors import PopularityPredictor, PreviousTokenPredictor
from moeinf.runtime.policy.priority import EPS
from moeinf.runtime.prefetch import AT_LEAST
from moeinf.traces.trace import Trace
from moeinf.types import MoeShape

SHAPE = MoeShape(num_layers=4, num_experts=6, top_k=2)


def trace(tokens: int = 50) -> Trace:
    experts = np.random.default_rng(3).random((tokens, 4, 6)) * np.array([1, 1, 1, 1, 2, 3])
    return Trace("random", SHAPE, (-experts).argsort(axis=2)[:, :, :2], np.array([0, tokens // 2, tokens]))


def test_without_a_cache_every_expert_is_read_and_waited_for() -> None:
    (result,) = drive(trace(), [NoCache(SHAPE, Timing(read_s=2.0, layer_s=3.0))], [], None, 0)
    stats, visits = whole(result), 50 * 4
    assert (stats.hits, stats.misses, stats.demand_reads) == (0, 2 * visits, 2 * visits)
    assert stats.stall_s == 4.0 * visits and result["decode"].seconds == 7.0 * visits


@pytest.mark.parametrize(("layer_s", "step_s"), [(1.0, 6.0), (6.0, 6.0), (9.0, 9.0)])
def test_whole_layers_take_the_longer_of_reading_and_computing(layer_s: float, step_s: float) -> None:
    (result,) = drive(trace(), [WholeLayers(SHAPE, Timing(read_s=1.0, layer_s=layer_s))], [], None, 0)
    stats, visits = whole(result), 50 * 4
    assert result["decode"].seconds == pytest.approx(6.0 + (visits - 1) * step_s + layer_s)
    assert stats.late_hits == stats.misses == (2 if layer_s >= 6 else 2 * visits)
    assert stats.prefetches == 6 * (visits + 1) and stats.prefetches_used == 2 * visits


@pytest.mark.parametrize("predictor", [PopularityPredictor, PreviousTokenPredictor])
def test_predictions_are_compared_as_counting_one_by_one_does(
    predictor: type[PopularityPredictor] | type[PreviousTokenPredictor],
) -> None:
    recorded, policy, made = trace(), LeastRecentlyUsed(SHAPE), predictor(SHAPE)
    run = SimulatedRun(SHAPE, 9, policy)
    meter = QualityMeter(SHAPE, run, made)
    drive(recorded, [run], [policy, made], None, 0, meter)

    policy, made = LeastRecentlyUsed(SHAPE), predictor(SHAPE)
    run = SimulatedRun(SHAPE, 9, policy)
    counted = {distance: [0] * 6 for distance in range(1, FARTHEST + 1)}
    for token in recorded.experts:
        for layer in range(4):
            for observer in (policy, made):
                observer.observe(layer, token[layer][None])
            likelihood = made.predict(layer)
            for ahead in range(0 if likelihood is None else len(likelihood)):
                assert likelihood is not None
                row, true, sums = likelihood[ahead], set(token[layer + 1 + ahead].tolist()), counted[ahead + 1]
                named = {j for j in range(6) if (row[j] + EPS) * (1 - (ahead + 1) / 4) > AT_LEAST}
                resident = {key - 6 * (layer + 1 + ahead) for key in run.tier.snapshot().resident}
                likeliest = sorted(range(6), key=lambda j: -row[j])[:2]
                sums[0] += 1 if row.any() else 0
                sums[1] += sum(j in true and row[j] > 0 for j in likeliest)
                for at, group in ((2, named), (4, named - resident)):
                    sums[at] += len(group)
                    sums[at + 1] += len(group & true)
            run.visit(layer, np.sort(token[layer]), np.ones(2, np.int64), 1)
    for quality in meter.result():
        layers, right, named_sum, named_right, absent, absent_right = counted[quality.distance]
        assert quality.recall == pytest.approx(right / (2 * layers), abs=0.03), "equal likelihoods may be cut elsewhere"
        assert quality.named == named_sum / layers and quality.read == absent / layers
        assert quality.precision == pytest.approx(named_right / named_sum if named_sum else np.nan, nan_ok=True)
        assert quality.used == pytest.approx(absent_right / absent if absent else np.nan, nan_ok=True)
    assert len(meter.result()) == (1 if predictor is PopularityPredictor else 3)
