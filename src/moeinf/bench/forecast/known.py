"""The rates of this machine: those that were kept, or measured now and kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from moeinf.bench.forecast.measure import measure, measure_reading
from moeinf.bench.forecast.rates import Kind, Rates, file_of, load, save
from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.errors import MoeinfError
from moeinf.hardware import machine


def known_rates(
    home: Path,
    config: RuntimeConfig,
    report: Callable[[str], None] = lambda line: None,
    *,
    again: bool = False,
    kinds: Iterable[Kind] = (),
) -> Rates:
    """Measures where nothing was kept for this machine, instruction set and number of threads.

    again: measures in any case. kinds: of weights whose reading is to be known, too: a moment of measuring, of which
    nothing is reported. Raises as `measure` does.
    """
    here = machine()
    isa, threads = open_kernels(1, config.isa).isa, config.threads or here.cores
    kept = None if again else load(file_of(home, isa, threads))
    if kept is not None and not kept.fits(here, isa, threads):
        kept = None
    rates = kept or measure(home, config, report)
    missing = [kind for kind in kinds if rates.reading_of(kind) is None]
    found = measure_reading(config, missing) if missing else {}
    if kept is not None and not found:
        return kept
    rates = rates.with_reading(found)
    try:
        save(rates, home)
    except MoeinfError as error:
        report(f"the rates are not kept: {error}")
    return rates
