"""A cable between rank 0 and a worker, and somebody in its middle who passes on, holds back, cuts and changes."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

Change = Callable[[bytes], bytes]
_PIECE: Final = 1 << 16
_KEPT: Final = 8  # pieces of each side, of which one may be sent again
_AT_ONCE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: what is closed says so, and sends nothing more


class Cable:
    """An address whose connections are passed on to a worker. `close` ends them."""

    def __init__(self, worker: str, rng: random.Random) -> None:
        host, port = worker.rsplit(":", 1)
        self._worker, self._rng = (host, int(port)), rng
        self._passes, self._cut = threading.Event(), False
        self._passes.set()
        self._lock = threading.Lock()
        self._changes: list[Change] = []  # of the next pieces, whichever side sends them
        self._sent = deque[bytes](maxlen=_KEPT)
        self._open: list[socket.socket] = []
        self.changed = 0  # pieces so far
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self) -> None:
        """Nothing passes, and nobody is told."""
        self._passes.clear()

    def cut(self) -> None:
        """All connections are gone, and new ones are refused."""
        self._cut = True
        self.drop()

    def mend(self) -> None:
        self._cut = False
        self._passes.set()

    def drop(self) -> None:
        """All connections are gone."""
        with self._lock:
            gone, self._open = self._open, []
        for each in gone:
            with suppress(OSError):
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
                each.shutdown(socket.SHUT_RDWR)

    def end_one_side(self) -> None:
        """One end of one connection is told that nothing more comes."""
        with self._lock, suppress(OSError):
            if self._open:
                self._rng.choice(self._open).shutdown(socket.SHUT_WR)

    def change(self, change: Change) -> None:
        """Of the next piece."""
        with self._lock:
            self._changes.append(change)

    def sent_before(self) -> bytes:
        with self._lock:
            return self._rng.choice(self._sent) if self._sent else b""

    def close(self) -> None:
        self._listener.close()
        self.cut()
        self._passes.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                try:
                    there = None if self._cut else socket.create_connection(self._worker, 1.0)
                except OSError:
                    there = None
                if there is None:
                    here.close()
                    continue
                there.settimeout(None)
                for each in (here, there):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                with self._lock:
                    self._open += [here, there]
                for source, to in ((here, there), (there, here)):
                    threading.Thread(target=self._pump, args=(source, to), daemon=True).start()

    def _pump(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_PIECE):
                self._passes.wait()
                to.sendall(self._changed(data))
        with suppress(OSError):
            to.shutdown(socket.SHUT_WR)
        with self._lock, suppress(ValueError):
            self._open.remove(source)

    def _changed(self, data: bytes) -> bytes:
        with self._lock:
            self._sent.append(data)
            if not self._changes:
                return data
            change = self._changes.pop(0)
            self.changed += 1
        return change(data)
