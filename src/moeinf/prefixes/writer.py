"""Writes blocks to the disk behind the back of the request that made them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence

from moeinf.prefixes.block import Block
from moeinf.prefixes.disk import DiskTier


class Writer:
    """A thread that writes what it is given, in that order. Blocks are pending, and so stay in memory, until then."""

    def __init__(self, disk: DiskTier) -> None:
        self._disk = disk
        self._queue: deque[Block] = deque()
        self._changed = threading.Condition()
        self._busy = self._closed = False
        self.refused = False  # whether the disk had no room for the last block, or an error
        self._thread: threading.Thread | None = None

    def submit(self, blocks: Sequence[Block]) -> None:
        """Queues blocks, those excepted that are queued already. Where no thread can be started, none are written."""
        fresh = [block for block in blocks if not block.pending]
        if not fresh or not self._started():
            return
        with self._changed:
            for block in fresh:
                block.pending = True
            self._queue += fresh
            self._changed.notify_all()

    def drain(self, timeout_s: float) -> bool:
        """Waits until all is written; whether it is."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue and not self._busy, deadline - time.monotonic())

    def drop(self) -> None:
        """Forgets what is not being written yet."""
        with self._changed:
            for block in self._queue:
                block.pending = False
            self._queue.clear()

    def close(self) -> None:
        """Ends the thread behind the block that it writes."""
        self.drop()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _started(self) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="moeinf-prefixes", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the system has no thread to give: what is kept is written when the model is closed
                self._thread = None
        return self._thread is not None

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._closed)
                if self._closed:
                    return
                block, self._busy = self._queue.popleft(), True
            try:
                self.refused = not self._disk.write(block)
            finally:
                with self._changed:
                    block.pending = self._busy = False
                    self._changed.notify_all()
