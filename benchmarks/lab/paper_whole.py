"""The paper's system as it describes it: its eviction, and its prefetch without our admission, with a clock."""

from __future__ import annotations

from experiments import Row, Subject

from moeinf.bench.simulation.replay import SimulatedTier, replay
from moeinf.bench.simulation.run import Timing
from moeinf.bench.simulation.simulate import slots_of
from moeinf.runtime.policy.eamc import CAPACITY, ActivationCollection
from moeinf.runtime.policy.eviction import ActivationAware
from moeinf.runtime.policy.policy_trace import RequestRecorder
from moeinf.runtime.policy.predictors import EamcPredictor
from moeinf.runtime.policy.priority import layer_proximity
from moeinf.runtime.prefetch import NO_ADMISSION
from moeinf.traces.trace import Trace, cut
from moeinf.types import FloatArray

MOST_TOKENS = 800
SHARE = 20  # percent of the experts that are resident


class Undecayed(EamcPredictor):
    """The same prediction, of which the priority of prefetches has no layer decay."""

    def predict(self, layer: int) -> FloatArray | None:
        likelihood = super().predict(layer)
        if likelihood is None:
            return None
        return likelihood / layer_proximity(self._collection.shape.num_layers)[: len(likelihood), None]


def claims_in_time(subject: Subject, timing: Timing) -> list[Row]:
    """What the collection's capacity and the layer decay are worth to the whole system; the beginnings of requests."""
    whole = subject.beginnings(4)
    trace = cut(whole, min(MOST_TOKENS, whole.num_tokens))
    rows = [_row(trace, timing, "no prefetch", prefetch=False)]
    rows += [_row(trace, timing, f"{n} requests kept", capacity=n) for n in (1, 10, CAPACITY)]
    rows.append(_row(trace, timing, "no decay in eviction", of_eviction=False))
    rows.append(_row(trace, timing, "no decay in prefetch", of_prefetch=False))
    return [*rows, _row(trace, timing, "no decay in either", of_eviction=False, of_prefetch=False)]


def _row(
    trace: Trace,
    timing: Timing,
    varied: str,
    *,
    capacity: int = CAPACITY,
    prefetch: bool = True,
    of_eviction: bool = True,
    of_prefetch: bool = True,
) -> Row:
    """of_eviction, of_prefetch: whether layers decay there."""
    collection = ActivationCollection(trace.shape, capacity)
    predictor = (EamcPredictor if of_prefetch else Undecayed)(collection) if prefetch else None
    policy = ActivationAware(trace.shape, collection, layer_decay=of_eviction)
    (result,) = replay(
        trace,
        [SimulatedTier(slots_of(trace.shape, SHARE), policy)],
        RequestRecorder(trace.shape, collection.add),
        predictor,
        timing,
        admission=NO_ADMISSION,
    )
    stats = result["decode"].stats
    ended = stats.prefetches_used + stats.prefetches_wasted
    return {
        "varied": varied,
        "hits": stats.hit_rate,
        "used": stats.prefetches_used / ended if ended else None,
        "ms_a_token": 1e3 * result["decode"].token_s,
    }
