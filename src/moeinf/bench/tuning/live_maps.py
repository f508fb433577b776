"""What maps cost and gain where the model really runs: on this machine, by turns with look-ahead."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from moeinf.bench.live import Workload, passages_of
from moeinf.bench.tuning.maps import PERCENT
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import OutOfMemoryError
from moeinf.runtime.policy.predictors import DEFAULT
from moeinf.runtime.policy.state_maps import StateMaps
from moeinf.store.library import StoredModel

WORK: Final = Workload(num_prompt=16, num_decode=64, repeats=3)  # of the text of `bench`: traces hold no text
ROUNDS: Final = 2  # of both by turns, the second in the reverse order


def timed_live(stored: StoredModel, maps: StateMaps, progress: Callable[[str, int, int], None]) -> StateMaps:
    """The maps, which are stored, with the time of a decoded token on the CPU. progress(what is done, so far, in all).

    A simulation knows nothing of the time that predictions and their reads take of the CPU.
    """
    names = DEFAULT, maps.gain.predictor
    times: dict[str, list[float]] = {name: [] for name in names}
    for number, name in enumerate((*names, *reversed(names)) * (ROUNDS // 2)):
        progress("running with maps and without", number, ROUNDS * len(names))
        times[name] += token_seconds(stored, name)
    default, tuned = (round(1e3 * statistics.median(times[name]), 4) for name in names)
    return replace(maps, gain=replace(maps.gain, live_ms=(default, tuned)))


def token_seconds(stored: StoredModel, predictor: str) -> list[float]:
    """Of each token of the warm requests, PERCENT of the experts resident; less where that does not fit."""
    quiet = Reporting(notify=lambda line: None)  # a run says it where it matters
    try:
        model = Model(stored, RuntimeConfig.of(device="cpu", predictor=predictor, expert_cache=f"{PERCENT}%"), quiet)
    except OutOfMemoryError:
        model = Model(stored, RuntimeConfig.of(device="cpu", predictor=predictor), quiet)
    with model:
        _cold, *warm = [model.replay(*passage) for passage in passages_of(model, WORK, WORK.text())]
    return [seconds for stats in warm for seconds in stats.token_s]
