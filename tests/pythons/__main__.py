"""python -m tests.pythons [--ends]: the first minutes under every Python of this machine, or the oldest and the newest.

Under every Python, the tests of tests/unit that need no torch run as well. The answers are compared with those of the
environment that runs this.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.pythons.first_minutes import first_minutes
from tests.support.pythons.interpreters import PROMISED, ROOT, environment, interpreters
from tests.support.seeing_models import write_seeing

_TESTS = ("pytest", "hypothesis", "selenium", "pillow")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.pythons")
    parser.add_argument("--ends", action="store_true", help="the oldest and the newest alone, and no tests")
    ends = parser.parse_args().ends
    found = interpreters()
    chosen = [min(found), max(found)] if ends else list(found)
    own = sys.version_info[:2]
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = write_seeing(Path(folder) / "checkpoint", "qwen3_5_moe", sighted=False)
        wanted = first_minutes(Path(sys.executable).parent, Path(folder) / "home", checkpoint)
        for version in sorted(set(chosen) - ({own} if ends else set())):
            name = ".".join(map(str, version))
            programs = environment(found[version], ROOT / "build" / f"python-{name}", *(() if ends else _TESTS))
            answers = first_minutes(programs, Path(folder) / name, checkpoint)
            if answers != wanted:
                raise SystemExit(f"Python {name} answers {answers}, this one {wanted}")
            if not ends:
                _run_tests(programs)
            print(f"Python {name}: as Python {own[0]}.{own[1]}", flush=True)
    missing = [".".join(map(str, version)) for version in PROMISED if version not in found]
    if missing and not ends:
        print(f"not on this machine: Python {', '.join(missing)}")


def _run_tests(programs: Path) -> None:
    words = ["-m", "pytest", "tests/unit", "-p", "tests.support.pythons.without_torch", "-x", "-q", "--no-header"]
    subprocess.run([programs / "python", *words], cwd=ROOT, check=True)


main()
