"""What `moeinf tune` has trained for a stored model, kept beside its weights, and whether it is in use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from moeinf.engine.reporting import Notify
from moeinf.errors import StoreError, UsageError
from moeinf.runtime.policy import predictors
from moeinf.runtime.policy.eviction import DEFAULT, TUNED
from moeinf.runtime.policy.state_maps import MOST_BYTES as MOST_BYTES_OF_MAPS
from moeinf.runtime.policy.state_maps import StateMaps
from moeinf.runtime.policy.tuned import MOST_BYTES, TunedNetwork
from moeinf.store.files import errors_named, publish, read_small
from moeinf.store.library import StoredModel

FILE: Final = "tuned.npz"
MAPS_FILE: Final = "maps.npz"

T = TypeVar("T")


def path_of(stored: StoredModel, file: str = FILE) -> Path:
    return stored.path / file


def load_tuned(stored: StoredModel) -> TunedNetwork | None:
    """None where nothing was tuned. Raises StoreError, in a line that names the file, for one that cannot be used."""
    moe = stored.manifest.moe
    return _loaded(path_of(stored), MOST_BYTES, lambda data: TunedNetwork.loads(data, stored.id, moe))


def load_maps(stored: StoredModel) -> StateMaps | None:
    """As load_tuned, of the maps."""
    moe, hidden = stored.manifest.moe, stored.manifest.info.hidden_size
    path = path_of(stored, MAPS_FILE)
    return _loaded(path, MOST_BYTES_OF_MAPS, lambda data: StateMaps.loads(data, stored.id, moe, hidden))


def _loaded(path: Path, most_bytes: int, read: Callable[[bytes], T]) -> T | None:
    try:
        return read(read_small(path, most_bytes))
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


def save_maps(stored: StoredModel, maps: StateMaps) -> None:
    """As save_tuned."""
    path = path_of(stored, MAPS_FILE)
    with errors_named(path):
        publish(path, maps.dumps())


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


def chosen_predictor(stored: StoredModel, asked: str, notify: Notify) -> tuple[str, StateMaps | None]:
    """The predictor that runs, and its maps where it has some; as chosen_policy, whose place look-ahead takes."""
    if asked and not predictors.uses_maps(asked):
        return asked, None
    try:
        maps = load_maps(stored)
    except StoreError as error:
        if asked:
            raise
        notify(f"{error}; {predictors.DEFAULT} predicts what is read ahead")
        return predictors.DEFAULT, None
    if maps is None and asked:
        raise UsageError(
            f"--predictor {asked}: {stored.name} has no maps yet; `moeinf tune {stored.name}` learns them from what "
            "--trace-states has recorded"
        )
    if maps is None or not (asked or maps.gain.better):
        return predictors.DEFAULT, None
    return asked or maps.gain.predictor, maps
