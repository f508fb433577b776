"""The end of the process some seconds after a signal, whatever it still waits for: a disk, a client, native code."""

from __future__ import annotations

import os
import select
import threading
import time


class ExitDeadline:
    """Waits on a thread of its own. `start` may be called in a handler of signals: it takes no lock."""

    def __init__(self) -> None:
        self._wanted, self._wants = os.pipe()
        threading.Thread(target=self._wait, name="exit deadline", daemon=True).start()

    def start(self, seconds: int) -> None:
        """Unless `close` comes first, the process ends within so many seconds, of several the fewest."""
        os.write(self._wants, bytes([seconds]))

    def close(self) -> None:
        os.close(self._wants)

    def expire(self) -> None:
        """Ends the process with a line and exit code 1; what its threads hold is the system's to give back."""
        written = select.poll()
        written.register(2, select.POLLOUT)
        if written.poll(0):  # somebody reads
            os.write(2, b"the server has ended without waiting for the disk, or for what else did not answer in time\n")
        os._exit(1)

    def _wait(self) -> None:
        until = float("inf")
        wanted = select.poll()
        wanted.register(self._wanted, select.POLLIN | select.POLLHUP)
        while True:
            left_s = until - time.monotonic()
            if not wanted.poll(None if left_s == float("inf") else max(0.0, 1000 * left_s)):
                self.expire()
            if not (seconds := os.read(self._wanted, 1)):
                break
            until = min(until, time.monotonic() + seconds[0])
        os.close(self._wanted)
