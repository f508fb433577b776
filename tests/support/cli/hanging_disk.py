"""A disk that stops answering, for a command that is a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.support.cli.commands import COMMAND


@dataclass
class Hang:
    environment: dict[str, str]
    mark: Path  # once it exists, reads hang

    def run(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*COMMAND, "run", "demo", *words],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=0,
        )

    def await_it(self, child: subprocess.Popen[str]) -> None:
        reached = self.mark.with_name(self.mark.name + ".reached")
        while not reached.exists():
            assert child.poll() is None, "it ended before it read"


def build_library(folder: Path) -> Path:
    """What is preloaded into the command so that its reads hang."""
    built = folder / "hanging_disk.so"
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    source = Path(__file__).with_name("hanging_disk.cc")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(built), str(source), "-ldl"], check=True)
    return built
