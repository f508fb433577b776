"""What coverage-guided fuzzing has kept: each input once more (tests/support/campaign/executions.py finds new ones)."""

from __future__ import annotations

from importlib import import_module

import pytest

from tests.support.campaign.executions import CORPUS, NATIVE
from tests.support.campaign.targets import MODULES
from tests.support.campaign.targets.target import Target

TARGETS: dict[str, Target] = {
    f"{module}/{name}": target
    for module in MODULES
    for name, target in import_module(f"tests.support.campaign.targets.{module}").TARGETS.items()
}


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_of_the_corpus_are_read_or_refused(name: str) -> None:
    kept = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    assert kept
    for data in [*TARGETS[name].seeds(), *kept]:
        TARGETS[name].run(data)


def test_the_corpus_has_the_targets_of_python_and_is_small() -> None:
    found = {path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*")}
    assert {name for name in found if not name.startswith(f"{NATIVE}/")} == TARGETS.keys()
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < 500_000
