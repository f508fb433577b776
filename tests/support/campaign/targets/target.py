"""What a target of coverage-guided fuzzing is: a reader that is called with bytes, and where fuzzing begins."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from moeinf.errors import MoeinfError

_WORD = re.compile(rb'"[^"\\]{1,40}"|[A-Za-z_][\w.-]{2,30}')


@dataclass(frozen=True)
class Target:
    """run: returns where the bytes are sound, or refused in a line of moeinf's own; what else it raises is a fault.
    seeds: a few sound inputs. words: further ones that inputs are made of, beside those of the seeds."""

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    words: Callable[[], Iterable[str]] = tuple

    def dictionary(self) -> str:
        """The words as libFuzzer reads them."""
        found = {word for seed in self.seeds() for word in _WORD.findall(seed)}
        found |= {f'"{word}"'.encode() for word in self.words()}
        quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in sorted(found))
        return "".join(f'"{word}"\n' for word in quoted)


def refusing(call: Callable[[], object]) -> None:
    """Calls what may raise a line of moeinf's own."""
    try:
        call()
    except MoeinfError as error:
        check_line(str(error))


def check_line(text: str) -> None:
    assert text and "\n" not in text and len(text) < 5000, f"no line: {text[:300]!r}"


def as_json(*values: Any) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


@cache
def folder() -> Path:
    """Of this process, for readers that want a file."""
    memory = Path("/dev/shm")
    held = tempfile.TemporaryDirectory(prefix="moeinf-fuzz-", dir=memory if memory.is_dir() else None)
    _HELD.append(held)
    return Path(held.name)


def file_of(data: bytes, name: str) -> Path:
    path = folder() / name
    path.write_bytes(data)
    return path


_HELD: list[Any] = []
