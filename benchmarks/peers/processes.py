"""What every comparison does: processes of both sides on the same token ids, in turn."""

from __future__ import annotations

import os
import signal
import subprocess
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

GROUP = Path("/sys/fs/cgroup/memory/moeinf-bench")
TIMEOUT_S = 600


class Failed(Exception):
    """What a process ended with."""


def output_of(command: list[str], limit_bytes: int | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """What a command prints, run within a limit of memory and on a cold page cache if there is one. Raises Failed."""

    def join() -> None:
        (GROUP / "cgroup.procs").write_text(str(os.getpid()))

    if limit_bytes is not None:
        GROUP.mkdir(exist_ok=True)
        (GROUP / "memory.limit_in_bytes").write_text(str(limit_bytes))
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            preexec_fn=join if limit_bytes is not None else None,
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s} s") from None
    if done.returncode == -signal.SIGKILL:
        raise Failed("killed: out of memory")
    if done.returncode:
        raise Failed((done.stderr.strip().splitlines() or ["no message"])[-1][:200])
    return done.stdout


def passages(folder: Path, prompt: int, decode: int, count: int) -> list[tuple[list[int], list[int]]]:
    """The same cuts of the same text as moeinf.bench.live_bench makes."""
    text = resources.files("moeinf").joinpath("data/bench_text.txt").read_text(encoding="utf-8")
    ids = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids
    size = prompt + decode
    ids = ids * (-(-size * count // len(ids)))
    return [(ids[s : s + prompt], ids[s + prompt : s + size]) for s in range(0, size * count, size)]
