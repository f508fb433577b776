"""A new cache is filled from what earlier runs used, while nobody waits for an answer."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from moeinf.runtime.cache.tier import ExpertTier
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.types import IntArray


class WarmStart:
    """Reads the experts that earlier requests used most into free slots, on a thread of its own, until `stop`."""

    def __init__(self, tier: ExpertTier, collection: ActivationCollection, notify: Callable[[str], None]) -> None:
        """notify(text) is told where that fails: requests then read what they need."""
        self._stopped, self._notify = threading.Event(), notify
        self._thread = threading.Thread(
            target=self._fill, args=(tier, most_used(collection)), name="warm start", daemon=True
        )
        self._thread.start()

    def _fill(self, tier: ExpertTier, keys: IntArray) -> None:
        try:
            tier.fill(keys, self._stopped.is_set)
        except BaseException as error:
            self._notify(f"experts that earlier runs used were not read before the first request: {error!r}")

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def stop(self) -> None:
        """Nothing more is read from now on. Waits for no read; a second call does nothing."""
        self._stopped.set()
        self._thread.join()


def most_used(collection: ActivationCollection) -> IntArray:
    """Returns the keys of the experts that were used, the largest share of their layer's routing first.

    A request counts as much as any other, however long it was. Equal shares: the earlier key first.
    """
    shares = collection.rows[: len(collection)].sum(axis=0, dtype=np.float64).ravel()
    order = np.argsort(-shares, kind="stable")
    used: IntArray = order[: np.count_nonzero(shares)]
    return used
