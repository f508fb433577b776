"""A model's class stays small: what answers, and what opens, are parts of their own."""

from __future__ import annotations

import ast
import inspect

from moeinf.engine import model
from moeinf.engine.model import Model
from tests.support.imports import imported

MOST_IMPORTS = 15
MOST_METHODS = 15
MOST_LINES = 20


def test_what_users_hold_knows_few_parts_and_does_little() -> None:
    source = inspect.getsource(model)
    (found,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Model")
    methods = [node for node in found.body if isinstance(node, ast.FunctionDef)]
    assert len(imported(source)) <= MOST_IMPORTS
    assert len([each for each in methods if not each.name.startswith("_")]) <= MOST_METHODS
    assert len(inspect.getsource(Model.__init__).splitlines()) < MOST_LINES
    assert "isinstance" not in source
