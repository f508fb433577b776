"""The models that have names, their sizes, and what they would be on this machine."""

from __future__ import annotations

from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.engine.build_context import open_kernels
from moeinf.engine.speed.kept import kept_rates
from moeinf.engine.speed.rates import Rates
from moeinf.forecast.known_sizes import size_of
from moeinf.hardware import Machine, machine
from moeinf.store.naming.aliases import own_aliases
from moeinf.store.naming.catalogue import KnownModel, catalogue
from moeinf.store.naming.names import written
from moeinf.types import JsonObject


def available(home: Path, prefix: str = "") -> list[JsonObject]:
    """Each model of which a name begins so, and the user's own names, as JSON. Raises UsageError for a file of aliases
    that is not sound."""
    here, rates = machine_and_rates(home)
    found = [_object(model, here, rates) for model in models_beginning(prefix)]
    return found + [{"name": name, "checkpoint": source} for name, source in own_names(home, prefix).items()]


def machine_and_rates(home: Path) -> tuple[Machine, Rates | None]:
    """This machine, and its rates where they were measured."""
    here = machine()
    return here, kept_rates(home, open_kernels(here.cores, RuntimeConfig().compute.isa), here)


def models_beginning(prefix: str) -> list[KnownModel]:
    """Models of which a name begins so, by name."""
    models = {model.name: model for model in catalogue().values()}
    return [model for _, model in sorted(models.items()) if _begins(model, prefix)]


def own_names(home: Path, prefix: str) -> dict[str, str]:
    """The user's own names that begin so, and what they mean."""
    return {name: written(source) for name, source in own_aliases(home).items() if name.startswith(prefix)}


def _begins(model: KnownModel, prefix: str) -> bool:
    return any(name.startswith(prefix) for name in (model.name, *model.also))


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
            "computed_from": model.like,
            "parameters": size.num_params,
            "active_parameters": size.active_params,
            "bytes_at_4_bits": size.store_bytes,
            "least_memory_bytes": size.least_bytes,
            "resident_share": size.resident_share(here),
            "tokens_per_s": round(size.tokens_per_s(here, rates), 3) if rates else None,
        }
    return found
