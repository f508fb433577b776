"""`moeinf serve` under a sanitizer, ended by SIGTERM."""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

START_S = END_S = 180.0  # a sanitizer makes all of it ten times as slow


class SanitizedServer:
    """Runs while entered; afterwards `status` is what it exited with."""

    def __init__(self, python: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._words = [*python, "-m", "moeinf", "serve", "--host", "127.0.0.1:0", "--expert-cache", "25%"]
        self._environment, self._log = environment, log
        self.status, self.port = -1, 0

    def __enter__(self) -> SanitizedServer:
        with self._log.open("w") as log:
            self._process = subprocess.Popen(self._words, env=self._environment, stdout=log, stderr=subprocess.STDOUT)
        give_up_s = time.monotonic() + START_S
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", self._log.read_text())):
            if self._process.poll() is not None or time.monotonic() > give_up_s:
                self._process.kill()
                raise SystemExit(f"the server did not start:\n{self._log.read_text()}")
            time.sleep(0.2)
        self.port = int(found[1])
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self.status = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self.status:
            print(f"the server ended with status {self.status}:\n{self._log.read_text()[-4000:]}")
