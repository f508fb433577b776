"""docs/models.md says what the table of families says, and the sizes that follow from true configs."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from moeinf.models.registry import FAMILIES
from tests.support.pairs.record import RECORDED, from_gguf, seeing
from tests.support.true_configs import PUBLISHED

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_models.py"))


def test_the_page_is_what_its_script_writes(generator: dict[str, Any]) -> None:
    written = (DOCS / "models.md").read_text(encoding="utf-8")
    assert written == generator["render"](PUBLISHED), "run: python docs/generate_models.py"


def test_every_family_was_compared_with_its_reference() -> None:
    recorded = json.loads(RECORDED.read_text())
    assert list(recorded) == [family.model_type for family in FAMILIES], "run: python -m tests.support.pairs.record"
    for name, found in recorded.items():
        assert found["difference"] < 1e-4 < found["spread"] and found["tokens"] == 64 * found["configs"], name
        assert (found["gguf"], found["pictures"]) == (name in from_gguf(), name in seeing()), name


def test_each_family_has_a_module_of_its_own() -> None:
    models = DOCS.parent / "src" / "moeinf" / "models" / "families"
    assert all((models / f"{family.module.replace('.', '/')}.py").is_file() for family in FAMILIES)
