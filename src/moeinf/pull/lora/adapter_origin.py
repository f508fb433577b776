"""What --lora means: a folder of this machine, or a repository of the Hub, which may be in its cache."""

from __future__ import annotations

import os
from pathlib import Path

from moeinf.errors import UsageError
from moeinf.pull.events import PullProgress
from moeinf.pull.lora.adapter import Adapter
from moeinf.pull.lora.adapter_files import WEIGHTS_FILE, AdapterFiles, AdapterFolder
from moeinf.pull.source import ADAPTER_CONFIG
from moeinf.pull.task import PullTask
from moeinf.store.manifest import ModelSource
from moeinf.store.naming.names import address_source, repository_source, written


def adapter_source(reference: str) -> ModelSource:
    """What --lora means: a folder of this machine, an address of the Hub, or org/repo[@revision].

    Raises UsageError for anything else.
    """
    path = Path(os.path.expanduser(reference.replace("\0", "")))
    if reference and "\0" not in reference and path.is_dir():
        return ModelSource("folder", os.path.realpath(path))
    source = address_source(reference) or repository_source(reference)
    if path.is_file() or source is None or source.file:
        what = "is a file" if path.is_file() else "is neither a folder nor org/repo"
        raise UsageError(
            f"--lora {reference[:100]!r} {what}; give the folder that has {ADAPTER_CONFIG} and {WEIGHTS_FILE}, or the "
            "repository of the Hub"
        )
    return source


def open_adapter(source: ModelSource, token: str | None, progress: PullProgress) -> AdapterFiles:
    """Raises CheckpointError where it is no adapter in safetensors form, HubError, UsageError."""
    if source.kind == "folder":
        return AdapterFolder(Path(source.location))
    # Here and not at the top, as in moeinf.pull.pull: it takes 0.2 s.
    from moeinf.pull.hub.adapter_repository import AdapterRepository, cached_adapter

    cached = cached_adapter(source)
    return AdapterFolder(cached, written(source)) if cached is not None else AdapterRepository(source, token, progress)


def opened_adapter(task: PullTask) -> Adapter:
    """The adapter that was asked for, or that the model had before. Raises as `open_adapter`, and as Adapter."""
    assert task.origin.adapter is not None, "there is one"
    return Adapter(open_adapter(task.origin.adapter, task.options.token, task.progress))
