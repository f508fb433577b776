"""The rates of this machine: those that were kept, or measured now and kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.engine.speed.kept import Report, keep, kept_rates, with_reading
from moeinf.engine.speed.rates import Kind, Rates
from moeinf.forecast.measure import disk_rates, measure
from moeinf.hardware import machine


def known_rates(
    home: Path,
    config: RuntimeConfig,
    report: Report = lambda line: None,
    *,
    again: bool = False,
    kinds: Iterable[Kind] = (),
    folders: Iterable[str] = (),
) -> Rates:
    """Measures where nothing was kept for this machine, instruction set and number of threads.

    again: measures in any case. kinds: of weights whose reading is to be known, too: a moment of measuring, of which
    nothing is reported. folders: on other disks, whose rates are. Raises as `measure` does.
    """
    here = machine()
    kernels = open_kernels(config.compute.threads or here.cores, config.compute.isa)
    rates = None if again else kept_rates(home, kernels, here)
    if rates is None:
        rates = measure(home, config, report)
        keep(rates, home, report)
    for folder in folders:
        if folder not in rates.also:
            report(f"measuring the disk of {folder}")
            rates = replace(rates, also={**rates.also, folder: disk_rates(Path(folder), config)})
            keep(rates, home, report)
    return with_reading(rates, kinds, home, kernels, here, report)
