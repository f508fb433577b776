"""What coverage-guided fuzzing has kept: each input once more (tests/support/campaign/executions.py finds new ones)."""

from __future__ import annotations

import pytest

from tests.support.campaign.executions import CORPUS
from tests.support.campaign.targets import TARGETS, seeds


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_of_the_corpus_are_read_or_refused(name: str) -> None:
    kept = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert kept
    for data in [*seeds(name), *kept]:
        TARGETS[name](data)


def test_the_corpus_is_small() -> None:
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 200_000
