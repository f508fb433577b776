"""How far a stored model was found to be from others, kept beside its weights."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Final

from moeinf.errors import MALFORMED, StoreError
from moeinf.store.files import parse_json_object, publish, read_small
from moeinf.store.library import StoredModel
from moeinf.store.processes.locks import locked

FILE: Final = "compared.json"
_MOST: Final = 8  # that are remembered: the latest


@dataclass(frozen=True, slots=True)
class ComparedBefore:
    """One comparison, as `moeinf compare` has made it."""

    reference: str  # the name of the model that this one was compared with
    reference_id: str
    text: str  # the name of its file, without its folder; "" for the text that comes along
    predictions: int
    kl: float  # KL(reference || this model), nats a token
    kl_error: float  # its standard error
    more_perplexity: float  # than the reference's: 0.01 is a hundredth
    same: float  # share of the predictions whose likeliest token is the reference's


def load_compared(stored: StoredModel) -> list[ComparedBefore]:
    """The latest last; [] where nothing is known, or where it cannot be read."""
    path = stored.path / FILE
    try:
        value = parse_json_object(read_small(path, 1 << 16), str(path), StoreError)
        found = [ComparedBefore(**each) for each in value["compared"]]
        whole = all(isfinite(n) for each in found for n in (each.kl, each.kl_error, each.more_perplexity, each.same))
    except (OSError, StoreError, *MALFORMED):
        return []
    return found if whole else []


def record_compared(stored: StoredModel, compared: ComparedBefore) -> None:
    """Adds one, in place of an earlier one with the same reference and text. A store that cannot be written remembers
    nothing."""
    if not os.access(stored.path, os.W_OK):
        return
    try:
        with locked(stored.path, folder=True):
            others = [
                each
                for each in load_compared(stored)
                if (each.reference_id, each.text) != (compared.reference_id, compared.text)
            ]
            kept = [asdict(each) for each in (*others, compared)][-_MOST:]
            publish(stored.path / FILE, json.dumps({"compared": kept}).encode())
    except OSError:
        return  # what was found is printed
