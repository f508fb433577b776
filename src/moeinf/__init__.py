"""Runs Mixture-of-Experts language models that do not fit in memory.

    with moeinf.load("demo", expert_cache="30%") as model:
        for piece in model.stream("Once upon a time"):
            print(piece, end="")

Importing this package loads neither torch nor anything of that size; `load` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moeinf.errors import MoeinfError
from moeinf.version import __version__

if TYPE_CHECKING:
    from moeinf.engine.completion import Completion, GenerationStats, Hooks
    from moeinf.engine.model import Model
    from moeinf.engine.reporting import Reporting
    from moeinf.sampling.params import SamplingParams

__all__ = [
    "Completion",
    "GenerationStats",
    "Hooks",
    "Model",
    "MoeinfError",
    "Reporting",
    "SamplingParams",
    "__version__",
    "load",
]

_HOMES = {
    "Completion": "moeinf.engine.completion",
    "GenerationStats": "moeinf.engine.completion",
    "Hooks": "moeinf.engine.completion",
    "Model": "moeinf.engine.model",
    "Reporting": "moeinf.engine.reporting",
    "SamplingParams": "moeinf.sampling.params",
}


def load(name: str, *, reporting: Reporting | None = None, **options: object) -> Model:
    """Opens a model, pulling it first where it is not stored yet.

    name: as on the command line (`demo`, `mixtral`, `org/repo`, a folder). options: fields of
    moeinf.config.RuntimeConfig, such as expert_cache="6GiB", policy="lru", prefetch=False, context=8192.
    reporting: whom to tell of fallbacks and of progress; without it, fallbacks are warnings of the logger "moeinf".
    Of what `moeinf create` has named the options hold; its system message is for whoever makes the messages.
    Raises MoeinfError (its subclasses tell what went wrong; the text tells the remedy).
    """
    from moeinf.config.environment import store_home, with_environment
    from moeinf.config.pull_options import NO_OPTIONS
    from moeinf.engine.model import Model
    from moeinf.engine.reporting import log_warning
    from moeinf.engine.stored.preset import preset_of
    from moeinf.forecast.form_choice import settled_unasked
    from moeinf.foreign.adopting import adopted
    from moeinf.pull.mtp_layer import ensure_draft
    from moeinf.pull.origins import stored_model
    from moeinf.pull.pull import ensure
    from moeinf.store.library import Library

    asked, home = with_environment(**options), store_home()
    tell = reporting.notify if reporting else log_warning
    stored = stored_model(name, Library(home), None) or adopted(name, NO_OPTIONS, Library(home))
    if stored is None:
        reference, given = settled_unasked(name, NO_OPTIONS, asked, home, tell)
        stored = ensure(reference, given, home=home)
    preset = preset_of(stored)
    config = preset.configured(asked)
    ensure_draft(stored, config)
    return Model(stored, config, reporting, defaults=preset.params)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
