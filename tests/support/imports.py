"""What the files of moeinf import."""

from __future__ import annotations

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "moeinf"
MODULES = {path.relative_to(SOURCE).with_suffix("").as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}


def module_named(dotted: str) -> str:
    """The file that an import of `dotted` reads, from src/moeinf on: of a name in a module, that module."""
    parts = dotted.split(".")[1:]
    while parts:
        for path in ("/".join(parts), "/".join([*parts, "__init__"])):
            if path in MODULES or path == "_native":
                return path
        parts.pop()
    return "__init__"


def imported(source: str) -> set[str]:
    """Modules of moeinf that a text imports anywhere: at its top, within functions, and for its types alone."""
    names = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return {module_named(name) for name in names if name.split(".")[0] == "moeinf"}
