"""Imports go one way, as docs/architecture.md draws it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "moeinf"

# Lower numbers may not import higher ones; parts of one number not each other, unless they are one package.
RANKS = [
    {"errors", "display"},
    {"types", "profiler"},
    {"config", "hardware", "_native"},
    {"device"},
    {"store", "models", "kernels"},
    {"runtime"},
    {"generate", "dense"},
    {"completion", "memory", "references", "waiting"},
    {"meter", "parts"},
    {"on_cpu"},
    {"on_gpu"},
    {"preference"},
    {"opening"},
    {"engine", "install"},
    {"lines"},
    {"bench"},
]
APART = {("generate", "runtime"), ("runtime", "models"), ("runtime", "store"), ("models", "store"), ("store", "models")}


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else "moeinf"


def rank(name: str) -> int:
    """The command line and its displays, and the package's face, stand above all."""
    return next((number for number, names in enumerate(RANKS) if name in names), len(RANKS))


def imported_parts(path: Path) -> set[str]:
    """Parts imported for running: not inside `if TYPE_CHECKING`."""
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and isinstance(branch.test, ast.Name) and branch.test.id == "TYPE_CHECKING"
        for node in ast.walk(branch)
    }
    modules = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node not in typing_only
    ]
    return {part(module) for module in modules if module.startswith("moeinf")}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_file_imports_only_what_lies_below_it(path: Path) -> None:
    name = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if name in ("__init__", "__main__"):
        return
    for other in imported_parts(path) - {name}:
        if other == "moeinf" and name != "moeinf":
            continue  # the version number
        assert (name, other) not in APART, f"{name} must not know {other}"
        assert rank(other) < rank(name) or rank(name) == len(RANKS), f"{name} imports {other}, which lies above it"
