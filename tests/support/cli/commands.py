"""The command as a process of its own, and what became of one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Any

COMMAND = [sys.executable, "-m", "moeinf"]


@dataclass
class Done:
    code: int
    out: str
    err: str


def run_process(environment: dict[str, str], *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, with stdin from nowhere unless said otherwise."""
    defaults: dict[str, Any] = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
    return subprocess.run(
        [*COMMAND, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **defaults,
        **options,
    )
