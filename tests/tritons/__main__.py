"""python -m tests.tritons [--versions 3.3.1,3.9.0] [--targets 80,gfx942] [--all]: which Triton compiles for which card.

Each Triton is installed into a folder of build/, apart from the environment's own. What has been compiled is kept in
docs/lab/kernels.json after every pair of a version and a card, and is not compiled again while the kernels are the
same; the table of docs/contributing/gpu.md is made from it. --all: every format and shape, and not one of each kind.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.compiling import FORMATS, ROOT, lines_under
from tests.support.gpu import matrix_launches, vector_launches
from tests.support.gpu.compiled_table import PAGE, RECORD, cell_of, digest, with_table

VERSIONS = "3.3.1,3.6.0,3.9.0"  # of the oldest torch that moeinf takes, of torch 2.11, and the newest
TARGETS = "80,86,89,90,100,120,gfx90a,gfx942,gfx1100,gfx1201"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tritons")
    parser.add_argument("--versions", default=VERSIONS)
    parser.add_argument("--targets", default=TARGETS)
    parser.add_argument("--all", action="store_true", help="every format and shape")
    asked = parser.parse_args()
    if asked.all and "KERNEL_TARGETS" not in os.environ:  # which tests.support.compiling looks at when it is imported
        os.execve(sys.executable, [sys.executable, "-m", "tests.tritons", *sys.argv[1:]], os.environ | _EVERYTHING)
    failed = False
    for version in asked.versions.split(","):
        folder = installed(version)
        for target in asked.targets.split(","):
            cell = cell_of_pair(version, folder, target, "all" if asked.all else "one of each kind")
            print(f"Triton {version}, {target}: {json.dumps(cell)}", flush=True)
            failed |= bool(cell["failed"])
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    raise SystemExit(failed)


_EVERYTHING = {"KERNEL_TARGETS": TARGETS}


def installed(version: str) -> Path:
    """The folder of a Triton, fetched where it is not there yet."""
    folder = ROOT / "build" / f"triton-{version}"
    if not (folder / "triton" / "__init__.py").exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--target", str(folder), f"triton=={version}"], check=True)
    return folder


def cell_of_pair(version: str, folder: Path, target: str, kernels: str) -> dict[str, object]:
    """What one Triton makes of all kernels for one card: as it was recorded, or compiled now and recorded."""
    cell: dict[str, object] | None = recorded(kernels)["results"].get(version, {}).get(target)
    if cell is None:
        cache = ROOT / "build" / "triton-cache"
        scripts = (matrix_launches.__file__, vector_launches.__file__)
        cell = cell_of(line for script in scripts for line in lines_under(folder, script, target, cache, FORMATS))
        record = recorded(kernels)  # to which another run may have added meanwhile
        record["results"].setdefault(version, {})[target] = cell
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return cell


def recorded(kernels: str) -> dict[str, Any]:
    """What was recorded of the kernels as they are now."""
    record = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else {}
    if record.get("sources") == digest() and record.get("kernels") == kernels:
        return dict(record)
    return {"sources": digest(), "kernels": kernels, "results": {}}


main()
