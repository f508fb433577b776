"""What `list --available` tells: the models that have names, their sizes, and what they would be on this machine."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from moeinf.engine.speed.rates import Rates
from moeinf.forecast.available import machine_and_rates, models_beginning, own_names
from moeinf.forecast.known_sizes import KnownSize, size_of
from moeinf.hardware import Machine
from moeinf.store.naming.catalogue import KnownModel
from moeinf.terminal.screen import table, text_width
from moeinf.text.quantities import count_text, size_text

_ALSO_COLUMNS = 30
_UNKNOWN = "`moeinf fit` tells"


def available_lines(home: Path, prefix: str) -> list[str]:
    """A row for each model of which a name begins so, and what the columns mean."""
    here, rates = machine_and_rates(home)
    grid: list[tuple[str, ...]] = [("NAME", "ALSO", "PARAMETERS", "A TOKEN", "AT 4 BITS", "HERE")]
    grid += [_row(model, here, rates) for model in models_beginning(prefix)]
    grid += [(name, "", "", "", "", f"yours: {source}") for name, source in own_names(home, prefix).items()]
    how = "HERE: how much of it stays in memory at 4 bits"
    how += ", and how fast it answers, roughly" if rates else "; once `moeinf doctor` has measured, how fast it answers"
    lines = table(grid, 2)
    if sys.stdout.isatty() and max(map(text_width, lines)) > shutil.get_terminal_size().columns:
        lines = table([(row[0], *row[2:]) for row in grid], 2)  # without its other names
    how += ". Sizes are computed, from the config.json of the model or of one of the same shape"
    return [*lines, "", f"{how}. `moeinf fit NAME` shows the forms of a model, `moeinf run NAME` takes one."]


def _row(model: KnownModel, here: Machine, rates: Rates | None) -> tuple[str, ...]:
    size = size_of(model)
    if size is None:
        embedded = model.checkpoint.kind == "embedded"
        return (model.name, _also(model), "", "", "", "comes with moeinf" if embedded else _UNKNOWN)
    active = "" if size.num_params == size.active_params else count_text(size.active_params)
    return (
        *(model.name, _also(model), count_text(size.num_params), active),
        *(size_text(size.store_bytes), _here(size, here, rates)),
    )


def _also(model: KnownModel) -> str:
    """The shortest of its other names."""
    text = ""
    for name in sorted(model.also, key=lambda each: (len(each), each)):
        longer = f"{text}, {name}" if text else name
        if len(longer) > _ALSO_COLUMNS:
            break
        text = longer
    return text


def _here(size: KnownSize, here: Machine, rates: Rates | None) -> str:
    share = size.resident_share(here)
    if share is None:
        return f"needs {size_text(size.least_bytes)} of memory"
    held = f"{share:.0%}" if share >= 0.01 or not share else "<1%"
    speed = size.tokens_per_s(here, rates) if rates else 0.0
    return f"{held}, {speed:.2g} tokens/s" if 0 < speed < 20 else f"{held}, {speed:.0f} tokens/s" if speed else held
