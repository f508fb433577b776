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
    reporting: whom to tell of fallbacks and of progress, and which form of a model is taken, or whose files; without
    it, these are warnings of the logger "moeinf".
    Of what `moeinf create` has named the options hold; its system message is for whoever makes the messages.
    Raises MoeinfError (its subclasses tell what went wrong; the text tells the remedy).
    """
    from moeinf.config.environment import store_home, with_environment
    from moeinf.config.pull_options import NO_OPTIONS, PullOptions
    from moeinf.engine.model import Model
    from moeinf.engine.reporting import log_warning
    from moeinf.engine.stored.preset import preset_of
    from moeinf.forecast.form_choice import usual_form
    from moeinf.pull.events import NotedProgress
    from moeinf.pull.forms.form import Form
    from moeinf.pull.mtp_layer import ensure_draft
    from moeinf.references.fetching import fetch, settled
    from moeinf.references.meaning import meaning
    from moeinf.references.stored_forms import usual_of
    from moeinf.store.library import Library
    from moeinf.store.naming.catalogue import KnownModel

    asked, library = with_environment(**options), Library(store_home())
    tell = reporting.notify if reporting else log_warning
    progress = NotedProgress(tell)

    def choose(model: KnownModel, name: str, given: PullOptions) -> Form:
        return usual_form(model, name, given, asked, library.home, tell)

    found = meaning(name, NO_OPTIONS, library)
    if found.several:
        stored = usual_of(name, found.several, tell)
    else:
        stored = fetch(settled(found, library, choose, progress), library, progress)
    preset = preset_of(stored)
    config = preset.configured(asked)
    ensure_draft(stored, config)
    return Model(stored, config, reporting, defaults=preset.params)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
