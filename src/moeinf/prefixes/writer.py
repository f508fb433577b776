"""Writes blocks to the disk behind the back of the request that made them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

from moeinf.prefixes.block import Block
from moeinf.prefixes.disk import DiskTier


class Writer:
    """Writes what it is given, in that order, by a thread that lives while there is something to write.

    Blocks are pending, and so stay in memory, until they are written, or until the thread ends otherwise.
    """

    def __init__(self, disk: DiskTier) -> None:
        self._disk = disk
        self._queue: deque[Block] = deque()
        self._changed = threading.Condition()
        self._running = False
        self.refused = False  # whether the disk had no room for the last block, or an error

    def submit(self, blocks: Sequence[Block]) -> None:
        """Queues blocks, those excepted that are queued already. Where no thread can be started, none are written."""
        with self._changed:
            fresh = [block for block in blocks if not block.pending]
            if not fresh or not self._started():
                return
            self._queue += fresh  # first: what is pending and in no queue would stay in memory for ever
            for block in fresh:
                block.pending = True

    def drain(self, timeout_s: float) -> bool:
        """Waits until all is written; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout_s)

    def drop(self) -> None:
        """Forgets what is not being written yet."""
        with self._changed:
            for block in self._queue:
                block.pending = False
            self._queue.clear()

    def _started(self) -> bool:
        """Under the lock, for which the thread waits before it looks at the queue."""
        if not self._running:
            try:
                threading.Thread(target=self._run, name="moeinf-prefixes", daemon=True).start()
                self._running = True
            except RuntimeError:  # the system has no thread to give: what is kept is written when the model is closed
                pass
        return self._running

    def _run(self) -> None:
        try:
            while (block := self._next()) is not None:
                self.refused = True  # unless the disk takes it
                try:
                    self.refused = not self._disk.write(block)
                finally:
                    block.pending = False
        except BaseException:  # beyond what the disk tells of: a later block is tried by another thread
            with self._changed:
                self.drop()
                self._running = False
                self._changed.notify_all()
            raise

    def _next(self) -> Block | None:
        with self._changed:
            if self._queue:
                return self._queue.popleft()
            self._running = False
            self._changed.notify_all()
            return None
