"""docs/models.md says what the table of families says, and the sizes that follow from true configs."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from moeinf.models.registry import FAMILIES

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(DOCS / "generate_models.py"))


def test_the_page_has_every_family_of_the_table(generator: dict[str, Any]) -> None:
    written = (DOCS / "models.md").read_text(encoding="utf-8")
    assert generator["families_text"]() in written, "run: python docs/generate_models.py CONFIGS"


def test_the_sizes_are_those_of_the_true_configs(generator: dict[str, Any], data_folder: Path) -> None:
    written = (DOCS / "models.md").read_text(encoding="utf-8")
    assert written == generator["render"](data_folder / "models"), "run: python docs/generate_models.py CONFIGS"


def test_each_family_has_a_module_of_its_own() -> None:
    models = DOCS.parent / "src" / "moeinf" / "models" / "families"
    assert all((models / f"{family.module}.py").is_file() for family in FAMILIES)
