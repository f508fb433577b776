"""The table of native calls has all that is bound. cextensions/tests/run.sh runs the fuzzer that reads it."""

from __future__ import annotations

import ast
from pathlib import Path

from moeinf import _native
from tests.support.native.rows import bound_names
from tests.support.native.table import ROWS

STUB = Path(__file__).parents[2] / "src/moeinf/_native.pyi"


def test_the_table_has_a_row_for_each_name_that_is_bound() -> None:
    assert bound_names() == set(ROWS)


def test_the_stub_has_the_same_names() -> None:
    """But for `_arrive`, of which an iterator is made."""
    found = set[str]()
    for node in ast.parse(STUB.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef) and not issubclass(getattr(_native, node.name), BaseException):
            own = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
            own += [each.target.id for each in node.body if isinstance(each, ast.AnnAssign)]  # type: ignore[union-attr]
            found |= {node.name, *(f"{node.name}.{each}" for each in own if each != "__init__")}
    assert found == {name for name in ROWS if name != "Visit._arrive"}
