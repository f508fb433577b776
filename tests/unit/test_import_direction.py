"""Imports go one way, as docs/contributing/architecture.md draws it, and no folder is too large to survey."""

from __future__ import annotations

import re
from collections import Counter
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.support.imports import MODULES, SOURCE, imported

ROOT = Path(__file__).parents[2]
MOST_FLOORS = 12
MOST_FILES = 15
MOST_REPEATED = 19  # twins of models/cpu and models/gpu, and of the APIs of the server
APART = {("sampling", "runtime"), ("runtime", "models"), ("runtime", "store"), ("models", "store"), ("store", "models")}


def drawing(heading: str) -> list[list[str]]:
    """What stands on each line of a drawing of docs/contributing/architecture.md, the top line first."""
    page = (ROOT / "docs" / "contributing" / "architecture.md").read_text(encoding="utf-8")
    found = re.search(rf"# {heading}\n.*?```\n(.*?)```", page, flags=re.DOTALL)
    assert found is not None, f"docs/contributing/architecture.md has lost its drawing below {heading!r}"
    return [[name.strip() for name in line.split("|")] for line in found[1].splitlines()]


def heights(lines: list[list[str]], within: str = "") -> dict[str, int]:
    """How high each name of a drawing stands, counted from below."""
    return {within + name: len(lines) - number for number, names in enumerate(lines) for name in names}


FLOORS = drawing("Imports go one way")
HEIGHT = heights(FLOORS)
IN_ENGINE = heights(drawing("Inside engine"), "engine/")


def room(module: str, drawn: dict[str, int] = HEIGHT) -> str:
    """The innermost room of a drawing that holds the module."""
    holding = [name for name in drawn if f"{module}/".startswith(f"{name}/")]
    assert holding, f"{module} has no room in docs/contributing/architecture.md"
    return max(holding, key=len)


@pytest.mark.parametrize("module", MODULES)
def test_a_file_imports_only_what_lies_below_it(module: str) -> None:
    for other in imported(MODULES[module].read_text(encoding="utf-8")):
        ours, theirs = room(module), room(other)
        assert (module.split("/")[0], other.split("/")[0]) not in APART, f"{module} must not know {other}"
        assert ours == theirs or HEIGHT[theirs] < HEIGHT[ours], f"{module} imports {other}, which lies above it"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("engine/") and "__init__" not in name])
def test_a_file_of_the_engine_imports_only_what_lies_below_it_there(module: str) -> None:
    for other in imported(MODULES[module].read_text(encoding="utf-8")):
        if other.startswith("engine/"):
            ours, theirs = room(module, IN_ENGINE), room(other, IN_ENGINE)
            assert ours == theirs or IN_ENGINE[theirs] < IN_ENGINE[ours], f"{module} imports {other}, which lies above"


def test_no_two_files_import_each_other() -> None:
    graph = {name: imported(path.read_text(encoding="utf-8")) - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_house_is_no_higher_than_it_may_be() -> None:
    assert len(FLOORS) <= MOST_FLOORS
    rooms = [name for names in FLOORS for name in names]
    assert len(rooms) == len(set(rooms))
    for name in rooms:
        assert is_there(name)


def is_there(name: str) -> bool:
    return (SOURCE / name).is_dir() or any((SOURCE / name).with_suffix(end).is_file() for end in (".py", ".pyi"))


def test_the_drawing_of_the_engine_names_what_is_there() -> None:
    assert all(map(is_there, IN_ENGINE))


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES.values()}), ids=lambda path: path.name)
def test_a_folder_holds_no_more_than_fits_a_screen(folder: Path) -> None:
    files = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(files) <= MOST_FILES, f"{folder.relative_to(SOURCE)} holds {len(files)} files: cut it in two"


def test_every_form_of_import_is_seen() -> None:
    source = """
import moeinf.engine.model
from moeinf import _native, __version__
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    from moeinf.store import library
def late():
    from moeinf.runtime.cache.tier import ExpertTier
"""
    seen = {"engine/model", "_native", "__init__", "store/library", "runtime/cache/tier"}
    assert imported(source) == seen


def test_few_names_of_files_are_used_twice() -> None:
    names = Counter(Path(module).name for module in MODULES if not module.endswith("__init__"))
    repeated = sorted(name for name, count in names.items() if count > 1)
    assert len(repeated) <= MOST_REPEATED, repeated
