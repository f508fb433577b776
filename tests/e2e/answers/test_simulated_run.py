"""The simulator tells the truth: a run and the simulation of its trace give the same hits and misses."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.bench.simulate import replay
from moeinf.bench.traces import Trace
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.runtime.policy.eviction import POLICIES, make_policy
from moeinf.runtime.policy.trace import RequestRecorder
from moeinf.store.library import StoredModel
from moeinf.types import IntArray

PROMPT = "Once upon a time, in a village by the sea, there was a fisherman who said:"


@pytest.mark.parametrize("policy", POLICIES)
def test_a_run_and_the_simulation_of_its_trace_hit_and_miss_alike(
    demo: StoredModel, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without prefetch, whose time is the machine's; with as many slots as let a prompt through without waves."""
    passes: list[IntArray] = []  # ids [tokens, top_k] of every visit
    observe = RequestRecorder.observe

    def noting(self: RequestRecorder, layer: int, ids: IntArray) -> None:
        passes.append(ids.copy())
        observe(self, layer, ids)

    shape = demo.manifest.moe
    (demo.path / "eamc.npz").unlink(missing_ok=True)  # the simulation knows no earlier request either
    with Model(demo, RuntimeConfig.of(policy=policy, prefetch=False, expert_cache="40%")) as model:
        num_slots = model.tier.num_slots
        assert 2 * shape.num_experts < num_slots < shape.total_experts
        monkeypatch.setattr(RequestRecorder, "observe", noting)
        answer = model.generate(PROMPT, model.params(temperature=0.0, num_predict=40, stop=()))
        monkeypatch.undo()
    prefill, decode = answer.stats.prefill_cache, answer.stats.decode_cache

    tokens = [np.stack(passes[at : at + shape.num_layers], 1) for at in range(0, len(passes), shape.num_layers)]
    experts = np.concatenate(tokens)
    trace = Trace("recorded", shape, experts, np.array([0, len(experts)]))
    collection = ActivationCollection(shape)
    recorder = RequestRecorder(shape, collection.add)
    chosen = make_policy(policy, shape, collection)
    (simulated,) = replay(trace, [num_slots], chosen, recorder, prefill_tokens=len(tokens[0]))
    live = prefill.hits + decode.hits, prefill.misses + decode.misses, prefill.demand_reads + decode.demand_reads
    assert live == (simulated.hits, simulated.misses, simulated.demand_reads)
    assert decode.hits and decode.misses
