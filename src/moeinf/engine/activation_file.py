"""What runs of a model have learned about its routing, kept beside its weights."""

from __future__ import annotations

import os
from typing import Final

from moeinf.engine.reporting import Notify
from moeinf.errors import StoreError
from moeinf.runtime.policy.eamc import MOST_BYTES, ActivationCollection
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.store.files import publish, read_small
from moeinf.store.library import StoredModel
from moeinf.store.processes.locks import locked

FILE: Final = "eamc.npz"
SAVED_AFTER: Final = 8  # matrices: of four requests, whose prompts and answers have one each


class ActivationFile:
    """The collection of a stored model's activation matrices: read when the model is opened, and added to.

    Other processes may add to the same file: each writes what it has learned itself behind what is there by then.
    """

    def __init__(self, stored: StoredModel, notify: Notify, *, learns: bool = True) -> None:
        """Starts with an empty collection where there is none yet, or where it cannot be read, which is told.

        learns: whether what is added is to be kept.
        """
        self._path, self._notify, self._shape = stored.path / FILE, notify, stored.manifest.moe
        self._learns = learns and self._writable()
        if learns and not self._learns:
            notify(f"{self._path.parent} is read-only: what this run learns about routing is not kept")
        self._fresh: list[ActivationMatrix] = []  # that are not in the file yet
        self.collection = ActivationCollection(self._shape)
        try:
            self.collection = self._read()
        except FileNotFoundError:
            pass
        except (OSError, StoreError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            notify(f"{self._path}: {reason}; starting without it")

    def _writable(self) -> bool:
        return os.access(self._path.parent, os.W_OK)

    def _read(self) -> ActivationCollection:
        return ActivationCollection.loads(read_small(self._path, MOST_BYTES), self._shape)

    def add(self, matrix: ActivationMatrix) -> None:
        """Adds to the collection, and now and then to the file."""
        self.collection.add(matrix)
        if self._learns:
            self._fresh = [*self._fresh, matrix][-self.collection.capacity :]
            if len(self._fresh) % SAVED_AFTER == 0:
                self.save()

    def save(self) -> None:
        """Adds to the file what it lacks of what this run has learned; where that fails, tells so."""
        if not self._fresh or not self._writable():
            return  # told when the model was opened
        try:
            with locked(self._path.parent, folder=True):
                merged = self._found()
                for matrix in self._fresh:
                    merged.add(matrix)
                publish(self._path, merged.dumps())
            self._fresh = []
        except OSError as error:
            self._notify(f"the activation collection was not kept: {self._path}: {error.strerror}")

    def _found(self) -> ActivationCollection:
        """What is there by now: nothing in the place of a damaged file."""
        try:
            return self._read()
        except (FileNotFoundError, StoreError):
            return ActivationCollection(self._shape)
