"""What --lora means: a folder or a GGUF file of this machine, or a repository of the Hub, which may be in its cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from moeinf.errors import UsageError
from moeinf.gguf.header import Value
from moeinf.pull.events import PullProgress
from moeinf.pull.lora.adapter import Adapter
from moeinf.pull.lora.adapter_files import WEIGHTS_FILE, AdapterFiles, AdapterFolder
from moeinf.pull.lora.fitted_adapter import FittedAdapter
from moeinf.pull.lora.gguf_adapter import GgufAdapter, adapter_file
from moeinf.pull.source import ADAPTER_CONFIG
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import address_source, repository_source, written
from moeinf.types import JsonObject

OpenAdapter = AdapterFiles | GgufAdapter


def adapter_source(reference: str) -> ModelSource:
    """What --lora means: a folder or a GGUF file of this machine, or a repository of the Hub, maybe with a file in it.

    Raises UsageError for anything else.
    """
    path = Path(os.path.expanduser(reference.replace("\0", "")))
    if reference and "\0" not in reference and path.is_dir():
        return ModelSource("folder", os.path.realpath(path))
    if "\0" not in reference and path.is_file() and path.suffix.lower() == ".gguf":
        return ModelSource("file", os.path.realpath(path))
    source = address_source(reference) or repository_source(reference)
    if path.is_file() or source is None:
        what = "is a file" if path.is_file() else "is neither a folder nor org/repo"
        raise UsageError(
            f"--lora {reference[:100]!r} {what}; give the folder that has {ADAPTER_CONFIG} and {WEIGHTS_FILE}, a GGUF "
            "file, or the repository of the Hub"
        )
    return source


def open_adapter(source: ModelSource, token: str | None, progress: PullProgress) -> OpenAdapter:
    """Raises CheckpointError where it is no adapter, UnsupportedModelError, HubError, UsageError."""
    if source.kind == "folder":
        return AdapterFolder(Path(source.location))
    if source.kind == "file":
        return adapter_file(Path(source.location))
    # Here and not at the top, as in moeinf.pull.pull: it takes 0.2 s.
    from moeinf.pull.hub.adapter_repository import cached_adapter, open_repository

    cached = cached_adapter(source)
    return AdapterFolder(cached, written(source)) if cached is not None else open_repository(source, token, progress)


def adapter_for(opened: OpenAdapter, config: JsonObject, metadata: Mapping[str, Value]) -> Adapter:
    """An adapter for one model. config: the model's. metadata: of its file; {} of a checkpoint.

    Raises as Adapter and FittedAdapter.
    """
    return Adapter(FittedAdapter(opened, config, metadata) if isinstance(opened, GgufAdapter) else opened)
