"""What earlier runs of a model have learned about its routing, kept beside its weights."""

from __future__ import annotations

import os
from typing import Final

from moeinf.engine.build_context import Notify
from moeinf.errors import StoreError
from moeinf.runtime.policy.eamc import MOST_BYTES, ActivationCollection
from moeinf.store.files import publish, read_small
from moeinf.store.library import StoredModel

FILE: Final = "eamc.npz"


class ActivationFile:
    """The collection of a stored model's activation matrices: read when the model is opened, written by `save`."""

    def __init__(self, stored: StoredModel, notify: Notify) -> None:
        """Starts with an empty collection where there is none yet, or where it cannot be read, which is told."""
        self._path, self._notify = stored.path / FILE, notify
        if not self._writable():
            notify(f"{self._path.parent} is read-only: what this run learns about routing is not kept")
        self.collection = ActivationCollection(stored.manifest.moe)
        try:
            self.collection = ActivationCollection.loads(read_small(self._path, MOST_BYTES), stored.manifest.moe)
        except FileNotFoundError:
            pass
        except (OSError, StoreError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            notify(f"{self._path}: {reason}; starting without it")

    def _writable(self) -> bool:
        return os.access(self._path.parent, os.W_OK)

    def save(self) -> None:
        """Replaces the file; where that fails, tells so."""
        if not self._writable():
            return  # told when the model was opened
        try:
            publish(self._path, self.collection.dumps())
        except OSError as error:
            self._notify(f"the activation collection was not kept: {self._path}: {error.strerror}")
