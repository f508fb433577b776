"""What `moeinf tune` has trained for a stored model, kept beside its weights, and whether it is in use."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from moeinf.engine.reporting import Notify
from moeinf.errors import StoreError, UsageError
from moeinf.runtime.policy.eviction import DEFAULT, TUNED
from moeinf.runtime.policy.tuned import MOST_BYTES, TunedNetwork
from moeinf.store.files import errors_named, publish, read_small
from moeinf.store.library import StoredModel

FILE: Final = "tuned.npz"


def path_of(stored: StoredModel) -> Path:
    return stored.path / FILE


def load_tuned(stored: StoredModel) -> TunedNetwork | None:
    """None where nothing was tuned. Raises StoreError, in a line that names the file, for one that cannot be used."""
    path = path_of(stored)
    try:
        return TunedNetwork.loads(read_small(path, MOST_BYTES), stored.id, stored.manifest.moe)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}") from error
    except StoreError as error:
        raise StoreError(f"{path}: {error}") from error


def check_writable(stored: StoredModel) -> None:
    """Raises UsageError where nothing can be kept beside the weights."""
    if not os.access(stored.path, os.W_OK):
        raise UsageError(f"{stored.path} is read-only: what is trained could not be kept; make it writable")


def save_tuned(stored: StoredModel, network: TunedNetwork) -> None:
    """Replaces the file as a whole. Raises StoreError where that fails."""
    with errors_named(path_of(stored)):
        publish(path_of(stored), network.dumps())


def chosen_policy(stored: StoredModel, asked: str, notify: Notify) -> tuple[str, TunedNetwork | None]:
    """The policy that runs, and its network where it has one. asked: "" for the default.

    The default is the network where that was better on later requests, else next-use; a file that cannot be used is
    told. Raises UsageError where the network was asked for and there is none, StoreError where it cannot be used.
    """
    if asked not in ("", TUNED):
        return asked, None
    try:
        network = load_tuned(stored)
    except StoreError as error:
        if asked:
            raise
        notify(f"{error}; {DEFAULT} decides what is evicted")
        return DEFAULT, None
    if network is None and asked:
        raise UsageError(f"--policy {TUNED}: {stored.name} has no network yet; `moeinf tune {stored.name}` trains one")
    if network is None or not (asked or network.gain.better):
        return DEFAULT, None
    return TUNED, network
