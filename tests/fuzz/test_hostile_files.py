"""A short run of the fuzzer of hostile files; `make fuzz` makes a long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_mutated_files_end_in_success_or_one_line_and_spare_the_store() -> None:
    script = Path(__file__).parent / "hostile_files.py"
    done = subprocess.run(
        [sys.executable, str(script), "--cases", "80", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0 and "; 0 faults" in done.stdout, done.stdout + done.stderr
    assert "pull refused" in done.stdout and "pull sound" in done.stdout, "neither all files nor none are hostile"
