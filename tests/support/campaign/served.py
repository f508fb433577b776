"""A server in a process of its own, for steps that ask it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.campaign.shortage import Group


@contextmanager
def served(
    folder: Path, home: Path, options: Sequence[str], limited: Group | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """The process and its address; its log is a file of the folder."""
    command = [sys.executable, "-m", "moeinf", "serve", "--host", "127.0.0.1:0", "--expert-cache", "33%"]
    environment, enter = {**os.environ, "MOEINF_HOME": str(home)}, None if limited is None else limited.enter
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, *options], env=environment, stdout=log, stderr=log, preexec_fn=enter)
    try:
        while not (found := re.search(r"http://([\d.]+):(\d+)", (folder / "log").read_text())):
            assert process.poll() is None, (folder / "log").read_text()[-500:]
            time.sleep(0.05)
        yield process, (found[1], int(found[2]))
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def resident_bytes(process: int) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    return int(found[1]) << 10 if found else 0
