"""Tests stand alone: what several of them need lies in tests/support and tests/oracles."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
SHARED = ("tests.support", "tests.oracles")


def imported(path: Path) -> set[str]:
    """Modules of the tests that a file imports, wherever in it."""
    found = set[str]()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add(f"{'.' * node.level}{node.module or ''}")
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return {name for name in found if name.split(".")[0] in ("tests", "")}


def test_no_test_module_imports_another() -> None:
    wrong = {
        str(path.relative_to(TESTS)): sorted(others)
        for path in TESTS.rglob("*.py")
        if (others := {name for name in imported(path) if not f"{name}.".startswith(tuple(f"{s}." for s in SHARED))})
    }
    assert wrong == {}, "move what they share to tests/support"


def test_oracles_use_no_helper_of_tests() -> None:
    """They are slow and obvious, and say by themselves what is meant."""
    for path in (TESTS / "oracles").rglob("*.py"):
        assert all(name.startswith("tests.oracles.") for name in imported(path)), path
