"""Workers on this machine, each a process of its own, for tests that need other ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeinf.store.library import StoredModel

KEY = "a key that all ranks of a test share"


@dataclass(frozen=True)
class RunningWorker:
    address: str  # host:port
    pid: int

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Workers:
    """Starts workers, and ends them. Use `with`."""

    def __init__(self, folder: Path, prefix: tuple[str, ...] = (), address: str = "127.0.0.1") -> None:
        """prefix: words in front of the command, such as `ip netns exec NAME`."""
        self.key_file = folder / "key"
        self.key_file.write_text(KEY)
        self._address = address
        self._started: list[RunningWorker] = []
        self._host = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.support.ranks.host"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[3],
        )
        assert self._told() == "ready"

    def start(
        self, stored: StoredModel, *, port: int = 0, key: str = KEY, home: Path | None = None, **options: Any
    ) -> RunningWorker:
        """home: of another store, that may lack the model. options: of RuntimeConfig. Returns when it listens."""
        home = home or stored.path.parents[1]
        asked = {"home": str(home), "name": stored.name, "address": self._address, "port": port, "key": key}
        assert self._host.stdin is not None
        self._host.stdin.write(json.dumps(asked | {"options": options}) + "\n")
        self._host.stdin.flush()
        told = json.loads(self._told())
        assert told["port"], "a worker did not start"
        worker = RunningWorker(f"{self._address}:{told['port']}", told["pid"])
        self._started.append(worker)
        return worker

    def options(self, *workers: RunningWorker) -> dict[str, Any]:
        """What a model that uses these workers is opened with."""
        return {"workers": ",".join(each.address for each in workers), "worker_key_file": str(self.key_file)}

    def end_all(self) -> None:
        for worker in self._started:
            worker.signal(signal.SIGKILL)
        self._started.clear()

    def _told(self) -> str:
        assert self._host.stdout is not None
        return self._host.stdout.readline().strip()

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self.end_all()
        for pipe in (self._host.stdin, self._host.stdout):
            assert pipe is not None
            pipe.close()
        self._host.wait()
