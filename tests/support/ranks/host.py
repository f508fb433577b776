"""A process that starts workers: it loads moeinf once, and each is a fork of it. Orders come as lines of JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

from moeinf.config import RuntimeConfig
from moeinf.distributed import listener as listener_module
from moeinf.distributed.listener import Listener
from moeinf.distributed.proof import stretched
from moeinf.distributed.serving import WorkerServer
from moeinf.distributed.transfer import await_model
from moeinf.engine.worker import WorkerExperts
from moeinf.errors import ModelNotFoundError
from moeinf.store.library import Library
from tests.support.ranks.workers import KEY


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker that was killed
    stretched(KEY.encode())  # for all of them
    print("ready", flush=True)
    for line in sys.stdin:
        reading, writing = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                serve(json.loads(line), writing)
            except BaseException:
                traceback.print_exc()  # a test that finds a rank lost shows why
            finally:
                os._exit(1)
        os.close(writing)
        with os.fdopen(reading) as told:
            print(json.dumps({"pid": pid, "port": int(told.readline() or 0)}), flush=True)


def serve(asked: dict[str, Any], told: int) -> None:
    os.setpgid(0, 0)
    if silent_s := asked["options"].pop("silent_s", None):
        setattr(listener_module, "SILENT_S", silent_s)  # noqa: B010, it is final elsewhere
    listener, library = Listener(asked["address"], asked["port"], asked["key"].encode()), Library(Path(asked["home"]))
    os.write(told, f"{listener.address.port}\n".encode())
    try:
        stored = library.find(asked["name"])
    except ModelNotFoundError:
        stored = await_model(listener, library, asked["name"], lambda line: None)
    with WorkerExperts(stored, RuntimeConfig.of(threads=1, **asked["options"])) as experts:
        WorkerServer(listener, experts.facts, experts.offer, experts, lambda line: None).run(*experts.forms())


if __name__ == "__main__":
    main()
