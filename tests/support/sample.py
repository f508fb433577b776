"""Which tests `make test` runs, in the twenty minutes that it may take: those of which it has all, and of the others a
sample that is the same each time. `make long-test` runs every test, and so does pytest without SAMPLED_TESTS.

In the folders that take most of the time, a test with many cases tries most of its code with each of them: a twelfth
of them run. Of the other tests of tests/e2e, which start processes and open models, a twelfth run. Which ones do is
decided by their names, so that the cases of one family or format are spread over the tests. Kernels of GPUs are
compiled by `make long-test` and `make gpu-compile` alone.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable
from zlib import crc32

SAMPLED = bool(os.environ.get("SAMPLED_TESTS"))
_MANY_CASES = 4
_CASES = 12  # one in so many runs
_STARTED = 12
_STARTING = "tests/e2e/"
_COMPILING = tuple(f"tests/unit/gpu/test_{kind}_compile.py" for kind in ("matrix", "vector", "amd"))
_UNITS = ("gguf", "gpu", "models", "native", "text")
_FOLDERS = (_STARTING, "tests/faults/", "tests/fuzz/", "tests/parity/", *(f"tests/unit/{unit}/" for unit in _UNITS))


def sample(ids: Iterable[str]) -> set[str]:
    """Of tests by pytest's names, those that run: of each test with many cases at least one."""
    cases, chosen = defaultdict[str, list[str]](list), set[str]()
    for each in ids:
        cases[each.partition("[")[0]].append(each)
    for test, those in cases.items():
        chosen.update(_chosen(test, those))
    return chosen


def _chosen(test: str, cases: list[str]) -> list[str]:
    if test.startswith(_COMPILING):
        return []
    if not test.startswith(_FOLDERS):
        return cases
    if len(cases) >= _MANY_CASES:
        return [each for each in cases if _number(each) % _CASES == 0] or [min(cases, key=_number)]
    return cases if not test.startswith(_STARTING) or _number(test) % _STARTED == 0 else []


def _number(name: str) -> int:
    return crc32(name.encode())
