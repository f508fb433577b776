"""What `list --available` tells: the models that have names, their sizes, and what they would be on this machine."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.engine.speed.kept import kept_rates
from moeinf.engine.speed.rates import Rates
from moeinf.forecast.known_sizes import KnownSize, size_of
from moeinf.hardware import Machine, machine
from moeinf.store.naming.aliases import own_aliases
from moeinf.store.naming.catalogue import KnownModel, catalogue
from moeinf.store.naming.names import written
from moeinf.terminal.screen import table, text_width
from moeinf.text.quantities import count_text, size_text
from moeinf.types import JsonObject

_ALSO_COLUMNS = 30
_UNKNOWN = "`moeinf fit` tells"


def available_lines(home: Path, prefix: str) -> list[str]:
    """A row for each model of which a name begins so, and what the columns mean."""
    here, rates = _machine(home)
    grid: list[tuple[str, ...]] = [("NAME", "ALSO", "PARAMETERS", "A TOKEN", "AT 4 BITS", "HERE")]
    grid += [_row(model, here, rates) for model in _models(prefix)]
    grid += [(name, "", "", "", "", f"yours: {source}") for name, source in _own(home, prefix).items()]
    how = "HERE: how much of it stays in memory at 4 bits"
    how += ", and how fast it answers, roughly" if rates else "; once `moeinf doctor` has measured, how fast it answers"
    lines = table(grid, 2)
    if sys.stdout.isatty() and max(map(text_width, lines)) > shutil.get_terminal_size().columns:
        lines = table([(row[0], *row[2:]) for row in grid], 2)  # without its other names
    return [*lines, "", f"{how}. `moeinf fit NAME` shows the forms of a model, `moeinf run NAME` takes one."]


def available_json(home: Path, prefix: str) -> str:
    here, rates = _machine(home)
    found = [_object(model, here, rates) for model in _models(prefix)]
    found += [{"name": name, "checkpoint": source} for name, source in _own(home, prefix).items()]
    return json.dumps(found, indent=2)


def _machine(home: Path) -> tuple[Machine, Rates | None]:
    """This machine, and its rates where they were measured."""
    here = machine()
    return here, kept_rates(home, open_kernels(here.cores, RuntimeConfig().compute.isa), here)


def _models(prefix: str) -> list[KnownModel]:
    models = {model.name: model for model in catalogue().values()}
    return [model for _, model in sorted(models.items()) if _begins(model, prefix)]


def _begins(model: KnownModel, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in (model.name, *model.also))


def _own(home: Path, prefix: str) -> dict[str, str]:
    """The user's own names."""
    return {name: written(source) for name, source in own_aliases(home).items() if name.startswith(prefix)}


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


def _object(model: KnownModel, here: Machine, rates: Rates | None) -> JsonObject:
    size = size_of(model)
    found: JsonObject = {
        "name": model.name,
        "also": list(model.also),
        "checkpoint": model.checkpoint.kind if model.checkpoint.kind == "embedded" else written(model.checkpoint),
        "quantised": [written(each) for each in model.quantised],
        "gguf": [written(each) for each in model.gguf],
    }
    if size is not None:
        found |= {
            "parameters": size.num_params,
            "active_parameters": size.active_params,
            "bytes_at_4_bits": size.store_bytes,
            "least_memory_bytes": size.least_bytes,
            "resident_share": size.resident_share(here),
            "tokens_per_s": round(size.tokens_per_s(here, rates), 3) if rates else None,
        }
    return found
