"""The rates of this machine: those that were kept, or measured now and kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from moeinf.bench.forecast.measure import measure
from moeinf.bench.forecast.rates import Rates, file_of, load, save
from moeinf.config import RuntimeConfig
from moeinf.engine.opening import open_kernels
from moeinf.errors import MoeinfError
from moeinf.hardware import machine


def known_rates(
    home: Path, config: RuntimeConfig, report: Callable[[str], None] = lambda line: None, *, again: bool = False
) -> Rates:
    """Measures where nothing was kept for this machine, instruction set and number of threads.

    again: measures in any case. Raises as `measure` does.
    """
    here = machine()
    isa, threads = open_kernels(1, config.isa).isa, config.threads or here.cores
    kept = load(file_of(home, isa, threads))
    if kept is not None and not again and kept.fits(here, isa, threads):
        return kept
    rates = measure(home, config, report)
    try:
        save(rates, home)
    except MoeinfError as error:
        report(f"the rates are not kept: {error}")
    return rates
