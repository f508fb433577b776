"""Names of stored models that have a system message and options of their own."""

from __future__ import annotations

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.plan import wanted_context
from moeinf.engine.stored.preset import Preset, preset_of
from moeinf.store.library import Library, StoredModel


def give_name(library: Library, stored: StoredModel, name: str, preset: Preset) -> StoredModel:
    """Names a stored model, with what the preset says and, beside it, what goes with the old name already.

    Raises UsageError for what is no name or that of another model, and for a context beyond the model's.
    """
    made = preset.over(preset_of(stored))
    wanted_context(stored.manifest.info, made.configured(RuntimeConfig()))
    return library.copy(stored.name, name, made.dumps())
