"""docs/models.md says what the table of families says, and the sizes that follow from true configs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from moeinf.models.registry import FAMILIES
from tests.support.true_configs import PUBLISHED

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_models.py"))


def test_the_page_is_what_its_script_writes(generator: dict[str, Any]) -> None:
    written = (DOCS / "models.md").read_text(encoding="utf-8")
    assert written == generator["render"](PUBLISHED), "run: python docs/generate_models.py"


def test_each_family_has_a_module_of_its_own() -> None:
    models = DOCS.parent / "src" / "moeinf" / "models" / "families"
    assert all((models / f"{family.module.replace('.', '/')}.py").is_file() for family in FAMILIES)
