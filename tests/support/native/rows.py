"""All rows of the table, by the file that has them, and the names that moeinf._native binds."""

from __future__ import annotations

from importlib import import_module

from moeinf import _native
from tests.support.native.table import ROWS

GROUPS: dict[str, list[str]] = {}
for _name in ("numbers", "computing", "layers", "caching", "paging", "learning", "devices"):
    _before = set(ROWS)
    import_module(f"tests.support.native.{_name}")
    GROUPS[_name] = [each for each in ROWS if each not in _before]

_OF_OBJECTS = ("__enter__", "__exit__")


def bound_names() -> set[str]:
    """Functions, classes for their constructors, methods and attributes; of errors none."""
    names = set[str]()
    for name, bound in vars(_native).items():
        if name.startswith("__") or (isinstance(bound, type) and issubclass(bound, BaseException)):
            continue
        names.add(name)
        if isinstance(bound, type):
            own = (each for each in vars(bound) if not each.startswith("__") or each in _OF_OBJECTS)
            names |= {f"{name}.{each}" for each in own}
    return names
