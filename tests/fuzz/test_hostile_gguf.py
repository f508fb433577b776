"""A short run of the fuzzer of hostile GGUF files; `make fuzz` makes a long one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_mutated_gguf_files_end_in_success_or_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.hostile_gguf", "--cases", "500", "--seed", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0 and "; 0 faults" in done.stdout, done.stdout + done.stderr
    for what in ("file refused", "file sound", "split refused", "split sound"):
        assert what in done.stdout, "neither all files nor none are hostile"
