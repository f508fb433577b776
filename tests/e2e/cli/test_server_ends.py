"""A signal ends `moeinf serve` within ten seconds, whatever its clients do or its disk does not."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from moeinf.pull.pull import ensure
from tests.support.cli.commands import COMMAND
from tests.support.cli.hanging_disk import Hang

ENDS_S = 30  # it takes less than 10 on a machine that has nothing else to do
LONG = {"model": "demo", "prompt": "Once upon a time", "options": {"num_predict": 1900, "min_tokens": 1900}}


@contextmanager
def served(environment: dict[str, str], *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server, and its address. It must have ended at the end."""
    child = subprocess.Popen(
        [*COMMAND, "serve", "--port", "0", *options], env=environment, stderr=subprocess.PIPE, text=True
    )
    try:
        assert child.stderr is not None
        yield child, next(found[0] for line in child.stderr if (found := re.search(r"http://\S+", line)))
        said = threading.Thread(target=child.stderr.read)  # so that it can write on
        said.start()
        child.wait(ENDS_S)
        said.join()
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_answer_that_is_being_made_is_finished(number: signal.Signals, environment: dict[str, str]) -> None:
    with served(environment) as (child, url):
        asked = LONG | {"options": {"num_predict": 50, "min_tokens": 50}}
        with httpx.stream("POST", f"{url}/api/generate", json=asked, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            child.send_signal(number)
            assert json.loads(list(lines)[-1])["done_reason"] == "length"
    assert child.returncode == 0


def test_a_second_signal_ends_all_at_once_and_every_client_is_told(environment: dict[str, str], tmp_path: Path) -> None:
    ensure("demo", home=tmp_path)  # a store whose names may change
    alone = ("--parallel", "1")
    with served(environment | {"MOEINF_HOME": str(tmp_path)}, *alone) as (child, url), ThreadPoolExecutor() as clients:
        host, port = url.removeprefix("http://").split(":")
        silent = [socket.socket() for _ in range(5)]
        for each in silent:  # they read nothing of megabytes
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            each.connect((host, int(port)))
            each.sendall(b"GET /page/chat.css HTTP/1.1\r\nHost: localhost\r\n\r\n" * 800)
        httpx.post(f"{url}/api/copy", json={"source": "demo", "destination": "copy"}).raise_for_status()
        with httpx.stream("POST", f"{url}/api/generate", json=LONG, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            bodies = [LONG | {"stream": stream} for stream in (True, False, False)]
            waiting = [clients.submit(httpx.post, f"{url}/api/generate", json=body, timeout=60) for body in bodies]
            deleting = clients.submit(httpx.request, "DELETE", f"{url}/api/delete", json={"model": "copy"}, timeout=60)
            watching = clients.submit(httpx.get, f"{url}/api/live", timeout=60)
            deadline = time.monotonic() + 30
            while not re.search(r"moeinf_waiting_requests [3-9]", httpx.get(f"{url}/metrics").text):
                assert time.monotonic() < deadline, "the requests do not wait for each other"
            for _ in range(2):
                child.send_signal(signal.SIGTERM)
            told = json.loads(list(lines)[-1])
            assert told.get("done") or "stopping" in told["error"] or "stopped" in told["error"]
            for refused in waiting:
                assert refused.result().status_code == 503 and "stopping" in refused.result().json()["error"]
            assert watching.result().status_code == 200
            assert deleting.result().status_code in (200, 503)
        for each in silent:
            each.close()
    assert child.returncode == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="preloads a library as Linux does")
def test_a_disk_that_hangs_does_not_keep_it(hang: Hang) -> None:
    with served(hang.environment, "--expert-cache", "5%") as (child, url), ThreadPoolExecutor() as clients:
        answer = clients.submit(httpx.post, f"{url}/api/generate", json=LONG | {"stream": False}, timeout=60)
        while "demo" not in httpx.get(f"{url}/api/ps").text:
            pass
        hang.mark.touch()
        hang.await_it(child)
        assert httpx.get(f"{url}/health").status_code == 200
        child.send_signal(signal.SIGTERM)
        assert answer.result().status_code == 503
    assert child.returncode in (0, 1)
