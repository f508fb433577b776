"""docs/parity.json says of every family how far it is from its reference, and what docs/models.md needs besides."""

from __future__ import annotations

import json

from moeinf.models.registry import FAMILIES
from tests.support.pairs.record import RECORDED, from_gguf, seeing


def test_every_family_was_compared_with_its_reference() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert list(recorded) == [family.model_type for family in FAMILIES], "run: python -m tests.support.pairs.record"
    for name, found in recorded.items():
        assert found["difference"] < 1e-4 < found["spread"] and found["tokens"] == 64 * found["configs"], name
        assert (found["gguf"], found["pictures"]) == (name in from_gguf(), name in seeing()), name
