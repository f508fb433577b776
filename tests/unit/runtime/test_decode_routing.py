"""What other caches would have hit, counted natively as the simulator counts it in Python."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf._native import replayed_hits
from moeinf.bench.simulation.belady import Belady
from moeinf.bench.simulation.replay import SimulatedTier, replay, whole
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.runtime.policy.counting import LeastRecentlyUsed
from moeinf.server.figures import figures
from moeinf.store.library import StoredModel
from moeinf.terminal.answer_stats import stats_lines
from moeinf.traces.trace import Trace, passes_of
from moeinf.types import IntArray, MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=8, top_k=2)


def trace(rows: int) -> Trace:
    """40 tokens, so many a pass, which use some experts more than others."""
    weights = np.random.default_rng(rows).random((40, 3, 8)) ** np.linspace(1, 4, 8)
    experts = (-weights).argsort(axis=2)[:, :, :2]
    return Trace("random", SHAPE, experts, np.array([0, 40]), np.arange(0, 41, rows))


@pytest.mark.parametrize(("rows", "num_slots"), [(1, 4), (1, 12), (1, 20), (2, 8), (2, 12), (4, 20)])
def test_hits_are_those_of_the_simulator(rows: int, num_slots: int) -> None:
    recorded = trace(rows)
    tiers = [SimulatedTier(num_slots, policy) for policy in (LeastRecentlyUsed(SHAPE), Belady(recorded))]
    wanted = tuple(whole(result).hits for result in replay(recorded, tiers))
    visits: list[IntArray] = [
        (recorded.experts[first:last, layer] + layer * SHAPE.num_experts).ravel()
        for _, first, last in passes_of(recorded)
        for layer in range(3)
    ]
    sizes = np.array([len(visit) for visit in visits])
    keys, nothing = np.concatenate(visits), np.empty(0, np.int64)
    found = replayed_hits(keys, sizes, nothing, num_slots)
    assert found == wanted and found[0] < found[1]
    everything = np.arange(SHAPE.total_experts)
    assert replayed_hits(keys, sizes, everything, SHAPE.total_experts) == (len(keys), len(keys))


def test_each_answer_tells_what_others_would_have_hit(demo: StoredModel) -> None:
    """Where the request ran alone, and not every expert was there."""
    with Model(demo, RuntimeConfig.of(expert_cache="33%", policy="lru", prefetch=False)) as model:
        for _ in range(2):
            answer = model.generate("Once upon a time", model.params(temperature=0.0, num_predict=20))
            cache = answer.stats.decode_cache
            assert cache.compared == cache.activations > 0
            assert 0 < cache.lru_hits < cache.best_hits < cache.compared and cache.hits <= cache.best_hits
            others = (
                f"others as large:      LRU {cache.lru_hit_rate:.1%} hit, the best possible {cache.best_hit_rate:.1%}"
            )
            assert others in stats_lines(answer.stats, model)
            assert figures(answer.stats)["best_hit_rate"] == cache.best_hit_rate
            assert abs(cache.lru_hits - cache.hits) < 0.1 * cache.compared, "but for the order that the prompt left"
    with Model(demo, RuntimeConfig.of(expert_cache="100%")) as model:
        answer = model.generate("Once upon a time", model.params(temperature=0.0, num_predict=5))
        assert answer.stats.decode_cache.best_hit_rate is None
