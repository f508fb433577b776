"""How much of the machine's memory this process has, and a stand-in for what takes it."""

from __future__ import annotations

from pathlib import Path


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


class NotedTaker:
    """In place of PageTaker: notes what is asked of it."""

    def __init__(self) -> None:
        self.taken: list[tuple[int, int]] = []
        self.dropped: list[int] = []

    def take(self, start: int, end: int) -> None:
        self.taken.append((start, end))

    def drop(self, start: int) -> None:
        self.dropped.append(start)
