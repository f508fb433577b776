"""benchmarks/gpu.sh runs without a GPU, over one that is emulated: what takes a card's minutes has run before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "gpu.sh"


def rehearse(work: Path, *steps: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [str(SCRIPT), "rehearse", str(work), *steps]
    environment = os.environ | {"PYTHON": sys.executable} | settings
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_row_is_prepared_measured_and_cleaned_and_a_step_that_fails_is_told(tmp_path: Path) -> None:
    done = rehearse(tmp_path, "token", "no-such-row")
    steps = (tmp_path / "results" / "steps.txt").read_text(encoding="utf-8")
    said = (tmp_path / "results" / "token.log").read_text(encoding="utf-8")
    token, unknown = steps.splitlines()
    assert token.startswith("token: ") and token.endswith(" s, done"), steps + said
    assert "qwen12:q4_k: " in said and "decoded: median" in said and "deleted 'qwen12:q4_k'" in said
    assert "failed with 2" in unknown and done.returncode == 1
    assert "no row no-such-row; known: kernels, token" in (tmp_path / "results" / "no-such-row.log").read_text()


def test_no_step_begins_when_the_time_is_over(tmp_path: Path) -> None:
    done = rehearse(tmp_path, "token", MINUTES="0")
    assert done.returncode == 0 and done.stdout == "token: left out: the time is over\n"


def test_a_step_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = rehearse(tmp_path, "token", STEP_SECONDS="1")
    assert done.returncode == 1 and "token: " in done.stdout and "failed with 124" in done.stdout
