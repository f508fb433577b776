"""Trains the network of `moeinf tune` on recorded traces without a model: what it gains over next-use, and its costs.

python benchmarks/tuned_policy.py TRACE... [--rounds N] [--seed N]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

from moeinf.bench.simulation.belady import Belady
from moeinf.bench.simulation.replay import SimulatedTier, replay, whole
from moeinf.bench.simulation.simulate import slots_of
from moeinf.bench.tuning.tune import MOST_MEASURED, PERCENTS, Course, divided, tune
from moeinf.runtime.policy.tuned import TunedNetwork
from moeinf.terminal.tuning import tuned_lines
from moeinf.traces.trace import Trace, cut, load_trace


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path, metavar="TRACE")
    parser.add_argument("--rounds", type=int, default=Course().rounds)
    parser.add_argument("--seed", type=int, default=Course().seed)
    options = parser.parse_args()
    for folder in options.traces:
        trace = load_trace(folder)
        started = time.perf_counter()
        network = tune(trace, "", Course(options.rounds, options.seed), lambda what, done, whole: None)
        seconds = time.perf_counter() - started
        print("\n".join(tuned_lines(trace.name, network)[:-1]))
        later = cut(divided(trace)[1], MOST_MEASURED)
        rates = " ".join(f"{rate:.1f}" for rate in belady_rates(later))
        print(f"belady {rates}; {seconds:.0f} s in all; {visit_us(network, later):.0f} us a visit\n", flush=True)


def belady_rates(trace: Trace) -> list[float]:
    slots = [slots_of(trace.shape, percent) for percent in PERCENTS]
    bound = Belady(trace)
    results = replay(trace, [SimulatedTier(each, bound) for each in slots])
    return [100 * whole(result).hit_rate for result in results]


def visit_us(network: TunedNetwork, trace: Trace, tokens: int = 2200) -> float:
    """Microseconds of `observe`, the median of the last tokens: by then the memory of tokens is full."""
    use = network.use()
    times = []
    for row in trace.experts[:tokens]:
        started = time.perf_counter()
        for layer, ids in enumerate(row):
            use.observe(layer, ids[None])
        times.append((time.perf_counter() - started) / len(row))
    return 1e6 * float(np.median(times[-100:]))


if __name__ == "__main__":
    main()
