"""What every comparison does: processes of both sides on the same token ids, in turn."""

from __future__ import annotations

import os
import signal
import subprocess
from importlib import resources
from pathlib import Path

from tokenizers import Tokenizer

GROUPS = (  # of control groups, version 1 and 2: the group, and the file of its limit
    (Path("/sys/fs/cgroup/memory/moeinf-bench"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup/moeinf-bench"), "memory.max"),
)
TIMEOUT_S = 600


class Failed(Exception):
    """What a process ended with."""


def can_limit() -> bool:
    """Whether processes can be held to a limit of memory: root can, where there are control groups for it."""
    try:
        _limited(1 << 40)
    except (Failed, OSError):
        return False
    return True


def _limited(limit_bytes: int) -> Path:
    """A control group with that limit. Raises Failed where there can be none."""
    for group, limit in GROUPS:
        if os.access(group.parent, os.W_OK):
            group.mkdir(exist_ok=True)
            if (group / limit).exists():
                (group / limit).write_text(str(limit_bytes))
                return group
    raise Failed("no control group can hold memory to a limit here; it takes root")


def output_of(command: list[str], limit_bytes: int | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """What a command prints, run within a limit of memory and on a cold page cache if there is one. Raises Failed."""
    group = None if limit_bytes is None else _limited(limit_bytes)

    def join() -> None:
        assert group is not None
        (group / "cgroup.procs").write_text(str(os.getpid()))

    if group is not None:
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, preexec_fn=join if group is not None else None
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s} s") from None
    if done.returncode == -signal.SIGKILL:
        raise Failed("killed: out of memory")
    if done.returncode < 0:
        raise Failed(f"it crashed: {signal.Signals(-done.returncode).name}")
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
