"""What is known of this machine: the rates that `moeinf doctor` has kept, and those of weights that are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from moeinf._native import Kernels
from moeinf.engine.speed.kernel_rates import measure_reading
from moeinf.engine.speed.rates import Conditions, Kind, Rates, rates_of_reading
from moeinf.engine.speed.rates_file import file_of, load, save
from moeinf.errors import MoeinfError
from moeinf.hardware import Machine

Report = Callable[[str], None]


def kept_rates(home: Path, kernels: Kernels, here: Machine) -> Rates | None:
    """Those of this machine, used in this way; None where none are kept."""
    rates = load(file_of(home, kernels.isa, kernels.threads))
    return rates if rates is not None and rates.conditions.fit(kernels, here) else None


def keep(rates: Rates, home: Path, report: Report) -> None:
    try:
        save(rates, home)
    except MoeinfError as error:
        report(f"the rates are not kept: {error}")


def with_reading(
    rates: Rates, kinds: Iterable[Kind], home: Path, kernels: Kernels, here: Machine, report: Report = lambda line: None
) -> Rates:
    """The same with the reading of these weights. What is missing is measured and kept; nothing is reported of that."""
    missing = [kind for kind in kinds if rates.reading_of(kind) is None]
    found = measure_reading(kernels, here, missing)
    if found:
        rates = rates.with_reading(found)
        keep(rates, home, report)
    return rates


def decode_rates(home: Path, kernels: Kernels, here: Machine, kinds: Iterable[Kind]) -> Rates | None:
    """Enough to forecast decoding without the disk, in a tenth of a second for each kind of weights that is not known.

    None where nothing is kept and too little memory is free to measure with.
    """
    rates = kept_rates(home, kernels, here)
    if rates is not None:
        return with_reading(rates, kinds, home, kernels, here)
    found = measure_reading(kernels, here, kinds)
    return rates_of_reading(found, Conditions.now(kernels, here)) if found else None
