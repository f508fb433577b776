"""What was recorded of kernels that were compiled for cards, and the table of docs/contributing/gpu.md made from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tests.support.compiling import ROOT

RECORD = ROOT / "docs" / "lab" / "kernels.json"
PAGE = ROOT / "docs" / "contributing" / "gpu.md"
_MARKED = re.compile(r"(<!-- kernels -->\n).*?(<!-- end -->)", re.DOTALL)


def digest() -> str:
    """Of the files that say what is compiled."""
    folder = ROOT / "src" / "moeinf" / "gpu"
    found = hashlib.sha256()
    for path in sorted((*folder.glob("triton_*.py"), *folder.glob("*_ops.py"), folder / "matrix.py")):
        found.update(path.read_bytes())
    return found.hexdigest()[:16]


def cell_of(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """How many kernels compile, which do not and why, and the most that one of them takes of what a card has."""
    lines = list(lines)
    made = [line for line in lines if "failed" not in line]
    return {
        "compiled": len(made),
        "failed": sorted({f"{line['name']}: {line['failed']}" for line in lines if "failed" in line}),
        "shared_kib": max((line["shared_bytes"] for line in made), default=0) / 1024,
        "spilling": sum(line["spilled_bytes"] > 0 for line in made),
        "spilled_bytes": max((line["spilled_bytes"] for line in made), default=0),
    }


def with_table(page: str) -> str:
    """The page with the table that the record makes."""
    return _MARKED.sub(lambda found: f"{found[1]}{table()}\n{found[2]}", page)


def table() -> str:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["results"]
    results = {version: recorded[version] for version in sorted(recorded, key=_numbers)}
    targets = list(dict.fromkeys(target for cells in results.values() for target in cells))
    lines = [["card", *(f"Triton {version}" for version in results)], ["---"] * (1 + len(results))]
    for target in targets:
        name = f"sm_{target}" if target.isdigit() else target
        lines.append([name, *(_shown(cells.get(target)) for cells in results.values())])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def _shown(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "not compiled"
    total = cell["compiled"] + len(cell["failed"])
    spills = f"{cell['spilling']} spill, {cell['spilled_bytes']} B" if cell["spilling"] else "none spills"
    return f"{cell['compiled']} of {total}; {cell['shared_kib']:.0f} KiB; {spills}"
