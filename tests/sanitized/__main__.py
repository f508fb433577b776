"""python -m tests.sanitized address|thread [--short]: the whole product with a native module that has a sanitizer.

The tests that call native code most, answers of models of several formats, and a server with clients. --short leaves
the tests out and takes a few of the models. Everything runs on when a sanitizer has told of something; what each has
told of is printed at the end, and is status 1. What is suppressed stands in tests/sanitized/suppressions, with reasons.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import ensure, pull
from moeinf.store.verify import verify
from tests.support.checkpoints import random_tensors
from tests.support.gguf_files import tokenizer_fields, write_gguf
from tests.support.mixed_gguf import MIXED, WIDE, by_turns, small
from tests.support.sanitized.parallel_clients import ENDINGS, ask_in_parallel
from tests.support.sanitized.sanitized_server import SanitizedServer

ROOT = Path(__file__).parents[2]
TOKENIZER = ROOT / "src/moeinf/data/demo/tokenizer.json"
SUPPRESSIONS = Path(__file__).parent / "suppressions"
TESTS = ("contract", "unit/native", "unit/runtime/cache", "unit/runtime/io", "unit/prefixes")
QUANTS = ("q8_0", "q4_k", "mxfp4", "q4_0", "iq4_nl")
# Its control group is too small for the address sanitizer; and how much memory is resident is the sanitizer's, too.
UNFIT_TESTS = ("test_control_group", "memory_that_is_given_back_is", "are_taken_ahead")


class Sanitized:
    """Python with the sanitized module over one store, which writes what a sanitizer tells of into a folder."""

    def __init__(self, sanitizer: str, home: Path, reports: Path) -> None:
        told = f"log_path={reports}/report:suppressions={SUPPRESSIONS}"
        self.command = [str(ROOT / "cextensions" / "tests" / "python.sh"), sanitizer]
        self.environment = os.environ | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "MOEINF_HOME": str(home),
            "ASAN_OPTIONS": f"{told}/address.txt",
            "UBSAN_OPTIONS": f"{told}/undefined.txt",
            "TSAN_OPTIONS": f"{told}/thread.txt",
        }

    @property
    def alone(self) -> dict[str, str]:
        """The environment of a process that starts others without the sanitizer."""
        return self.environment | {"SANITIZED_ALONE": "1"}

    def passes(self, *words: str) -> bool:
        environment = self.environment if "pytest" in words else self.alone
        return subprocess.run([*self.command, *words], env=environment, cwd=ROOT).returncode == 0


def store(home: Path, quants: Sequence[str]) -> list[str]:
    """The embedded model as it is and in these formats, and a GGUF file of many types."""
    ensure("demo", home=home)
    for quant in quants:
        pull("demo", PullOptions(quant=quant), home=home)
    config = WIDE | {"vocab_size": 4096, "max_position_embeddings": 2048}
    tokenizer = tokenizer_fields(json.loads(TOKENIZER.read_text()), size=config["vocab_size"], eos=0)
    weights, kinds = small(random_tensors(config)), by_turns(MIXED)
    [file] = write_gguf(home.parent / "mixed.gguf", config, weights, kinds=kinds, metadata=tokenizer)
    mixed = ensure(str(file), home=home)
    assert not verify(mixed)  # which makes the checksums that a GGUF file has not
    return ["demo", *(f"demo:{quant}" for quant in quants), mixed.name]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.sanitized")
    parser.add_argument("sanitizer", choices=("address", "thread"))
    parser.add_argument("--short", action="store_true", help="no tests, few models, and clients for a few seconds")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="moeinf-sanitized-") as folder:
        reports = Path(folder) / "reports"
        reports.mkdir()
        python = Sanitized(given.sanitizer, Path(folder) / "home", reports)
        names = store(Path(folder) / "home", QUANTS[:2] if given.short else QUANTS)
        steps: dict[str, Callable[[], bool]] = {
            "answers": lambda: python.passes("-m", "tests.sanitized.runs", *names, *["--short"] * given.short),
            "server": lambda: served(python, Path(folder), names[:3], 20 if given.short else 90),
        }
        if not given.short:
            tests = ["-m", "pytest", *(f"tests/{name}" for name in TESTS), "-k", f"not {' and not '.join(UNFIT_TESTS)}"]
            steps["tests"] = lambda: python.passes(*tests)
        failed = [name for name, passes in steps.items() if not passes()]
        found = sorted(reports.iterdir())
        for report in found:
            print(f"==== {report.name}\n{report.read_text()[:4000]}")
        print(f"{given.sanitizer} sanitizer: {len(found)} reports; failed: {', '.join(failed) or 'nothing'}")
    return int(bool(found or failed))


def served(python: Sanitized, folder: Path, models: Sequence[str], seconds: float) -> bool:
    with SanitizedServer(python.command, python.alone, folder / "server.log") as server:
        found = ask_in_parallel(server.port, models, seconds)
    print(f"requests: {dict(found)}; the server ended with status {server.status}", flush=True)
    return bool(found["200"]) and not found.keys() - ENDINGS and server.status == 0


sys.exit(main())
