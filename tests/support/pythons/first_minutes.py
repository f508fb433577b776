"""What a user does first, with the commands of one environment."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_WORDS = ("--expert-cache", "33%", "-n", "8", "--seed", "7", "-q")


class Commands:
    """`moeinf` of an environment, with a store of its own."""

    def __init__(self, programs: Path, home: Path) -> None:
        self._command = str(programs / "moeinf")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MOEINF_", "PYTHON"))}
        self._variables = kept | {"MOEINF_HOME": str(home)}

    def __call__(self, *words: str, stdin: str = "") -> str:
        done = subprocess.run(
            [self._command, *words], input=stdin, capture_output=True, text=True, env=self._variables, check=False
        )
        if done.returncode or "Warning" in done.stderr:
            raise SystemExit(f"moeinf {' '.join(words)}: exit code {done.returncode}\n{done.stderr}{done.stdout}")
        return done.stdout

    def served(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """What a server answers."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        words = [self._command, "serve", "--host", address]
        with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=self._variables) as server:
            assert server.stderr is not None
            said = ""
            while address not in said:
                said = server.stderr.readline()
                if not said:
                    raise SystemExit(f"moeinf serve ended with exit code {server.wait()}")
            try:
                asked = urllib.request.Request(f"http://{address}{path}", json.dumps(body).encode())
                with urllib.request.urlopen(asked) as answer:
                    told: dict[str, Any] = json.load(answer)
                    return told
            finally:
                server.terminate()
                server.stderr.read()


def first_minutes(programs: Path, home: Path, checkpoint: Path) -> list[str]:
    """Runs all that the README begins with; returns the answers, which are the same under every Python."""
    run = Commands(programs, home)
    run("--version")
    answers = [run("run", "demo", *_WORDS, "Once upon a time"), run("run", "demo", "Once", "upon", *_WORDS)]
    answers.append(run("run", "demo", *_WORDS, stdin="Once upon"))
    run("pull", str(checkpoint), "--name", "tiny", "-q")
    answers.append(run("run", "tiny", "Hello", "-n", "3", "-q", "--temperature", "0"))
    run("list")
    run("show", "tiny")
    body = {"model": "demo", "prompt": "Once upon", "stream": False, "options": {"num_predict": 4, "temperature": 0}}
    return [*answers, run.served("/api/generate", body)["response"]]
