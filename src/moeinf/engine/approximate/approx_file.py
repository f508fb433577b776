"""What --approx has measured of a stored model, kept beside its weights, so that the next start is quick."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from math import isfinite
from typing import Final

from moeinf.errors import MALFORMED, StoreError
from moeinf.runtime.approximate import Within
from moeinf.store.files import parse_json_object, publish, read_small
from moeinf.store.library import StoredModel
from moeinf.store.processes.locks import locked
from moeinf.version import __version__

FILE: Final = "approx.json"
_MOST: Final = 32  # that are remembered: the latest
_STEPS: Final = 20  # of the share of experts that is resident, between which nothing is told apart


@dataclass(frozen=True, slots=True)
class Measured:
    """What decides what is measured."""

    budget: float
    text: str
    resident: float  # share of the experts that memory has room for
    how: tuple[str, ...]  # what decides which those are, and how is computed

    @property
    def key(self) -> str:
        text = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        return " ".join((f"{self.budget:g}", text, str(round(_STEPS * self.resident)), *self.how, __version__))


def load(stored: StoredModel, measured: Measured) -> Within | None:
    """What was measured before; None where nothing was, or where it cannot be read."""
    try:
        most_lost, found = (float(each) for each in _known(stored)[measured.key])
    except (OSError, StoreError, *MALFORMED):
        return None
    if not (0 <= most_lost < 1 and isfinite(found) and 0 <= found <= measured.budget):
        return None
    return Within(measured.budget, found, most_lost)


def save(stored: StoredModel, measured: Measured, found: Within) -> None:
    """A store that cannot be written remembers nothing."""
    if not os.access(stored.path, os.W_OK):
        return
    try:
        with locked(stored.path, folder=True):
            try:
                known = _known(stored)
            except (OSError, StoreError):
                known = {}
            known.pop(measured.key, None)
            known[measured.key] = (found.most_lost, found.measured)
            publish(stored.path / FILE, json.dumps(dict(list(known.items())[-_MOST:])).encode())
    except OSError:
        return  # the next start measures again


def _known(stored: StoredModel) -> dict[str, tuple[float, float]]:
    path = stored.path / FILE
    return dict(parse_json_object(read_small(path, 1 << 16), str(path), StoreError))
