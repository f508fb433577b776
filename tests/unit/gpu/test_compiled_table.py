"""The table of what has been compiled is made from what was recorded."""

from __future__ import annotations

import json
from typing import Any

from tests.support.gpu.compiled_table import PAGE, RECORD, cell_of, with_table


def test_the_page_has_the_table_of_the_record() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page), "run: make gpu-tritons"


def test_whatever_was_compiled_fits_the_card() -> None:
    results = json.loads(RECORD.read_text(encoding="utf-8"))["results"]
    assert {"3.3.1", "3.9.0"} <= set(results)
    for version, cells in results.items():
        for target, cell in cells.items():
            assert cell["compiled"] and not cell["failed"], (version, target, cell)
            assert cell["shared_kib"] <= (99 if target.isdigit() else 64), (version, target, cell)


def test_a_cell_tells_what_fails_and_the_most_that_one_kernel_takes() -> None:
    made: dict[str, Any] = {"name": "a", "shared_bytes": 2048, "spilled_bytes": 0}
    lines = [made, made | {"name": "b", "shared_bytes": 1024, "spilled_bytes": 8}, {"name": "c", "failed": "no"}]
    assert cell_of(lines) == {"compiled": 2, "failed": ["c: no"], "shared_kib": 2.0, "spilling": 1, "spilled_bytes": 8}
