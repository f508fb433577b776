"""Whatever is moved about in the code: of every tiny config the same tensors, sizes, logits and tokens as before.

tests/support/frozen.py says what is compared, and writes frozen.json anew where it was meant to change.
"""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.frozen import CONFIGS, FILE, facts, machine

FROZEN = json.loads(FILE.read_text(encoding="utf-8"))


def test_every_tiny_config_is_frozen() -> None:
    assert FROZEN.keys() - {"machine"} == CONFIGS.keys(), "python -m tests.support.frozen writes them anew"


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS, ids=lambda name: name.replace(" ", "-"))
def test_what_follows_from_a_config_is_what_it_was(name: str) -> None:
    found, wanted = facts(CONFIGS[name]), dict(FROZEN[name])
    if machine() != FROZEN["machine"]:  # bits depend on it
        del found["logits"], wanted["logits"]
    assert found == wanted
