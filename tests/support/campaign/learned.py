"""What runs write beside a model's weights: each of these files is whole or not there, whatever has ended its writer.

A run does without a file that is damaged, and only says so; what it answers would not show a torn one.
"""

from __future__ import annotations

import json

from moeinf.engine.activation_file import FILE as ACTIVATIONS
from moeinf.engine.approximate.approx_file import FILE as APPROX
from moeinf.engine.stored.compared_file import FILE as COMPARED
from moeinf.engine.stored.hit_record import FILE as HITS
from moeinf.engine.stored.hit_record import load_hits
from moeinf.errors import StoreError
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.library import SOURCE_RECORD_FILE, StoredModel


def check_learned(model: StoredModel) -> None:
    """Raises AssertionError naming the file that cannot be read."""
    if (activations := model.path / ACTIVATIONS).exists():
        try:
            found = ActivationCollection.loads(activations.read_bytes(), model.manifest.moe)
        except StoreError as error:
            raise AssertionError(f"{ACTIVATIONS} of {model.name}: {error}") from error
        assert len(found), f"{ACTIVATIONS} of {model.name} is empty"
    if (model.path / HITS).exists():
        assert load_hits(model), f"{HITS} of {model.name} tells nothing"
    for name in (SOURCE_RECORD_FILE, APPROX, COMPARED):
        if (model.path / name).exists():
            try:
                json.loads((model.path / name).read_bytes())
            except ValueError as error:
                raise AssertionError(f"{name} of {model.name}: {error}") from error
