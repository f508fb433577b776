"""Blocks on disk: a file each, in a folder of the model, within a budget for the prefixes of all models."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import moeinf._native as _native
from moeinf.errors import StoreError, is_of_content
from moeinf.prefixes.block import Block, TokenArray, common_length, digest_of, token_array
from moeinf.prefixes.prefix_file import Header, file_size, read_header, read_prefix, write_prefix
from moeinf.store.files import named
from moeinf.types import ByteArray, JsonMapping

FREE_SHARE: Final = 10  # a tenth of the disk's free bytes is the most that one more file may take
STALE_S: Final = 3600.0  # a file that is being written is no older
_NAME: Final = re.compile(r"([0-9a-f]{32})-([0-9a-f]{32})-(\d{1,6})\.(rows|state)")
_counter = itertools.count()

Kind = Literal["rows", "state"]


@dataclass(frozen=True, slots=True)
class DiskBlock:
    """moeinf.prefixes.block.Entry of a file. Its tokens are in the file; that others are the same tells its name."""

    path: Path
    parent: bytes
    digest: bytes
    num_tokens: int
    has_state: bool

    def is_next(self, tokens: TokenArray) -> bool:
        return len(tokens) >= self.num_tokens and digest_of(self.parent, tokens[: self.num_tokens]) == self.digest

    def common(self, tokens: TokenArray) -> int:
        """Opens the file; 0 for one that is gone or damaged, which `DiskTier.read` would find."""
        try:
            return common_length(token_array(read_header(self.path).tokens), tokens)
        except (OSError, StoreError):
            return 0


class DiskTier:
    """The blocks that lie in a folder, which other processes may read, write and empty at the same time.

    A file appears under its name when it is complete, and is never changed. The times of files say when they were used,
    of a way through them the first as the last: so a block leaves before the one that it follows.
    """

    def __init__(self, folder: Path, budget_bytes: int, identity: JsonMapping, notify: Callable[[str], None]) -> None:
        """folder: of the model; the one above it holds those of all models, which the budget is for."""
        self._folder, self._budget_bytes, self._identity, self._notify = folder, budget_bytes, identity, notify
        self._listed_ns = -1  # when the folder had changed last
        self._children: dict[bytes, dict[bytes, DiskBlock]] = {}
        self._unusable: set[bytes] = set()  # names of blocks that could not be read
        self._lock = threading.Lock()  # of the listing: blocks are written by a thread of their own

    def children(self, parent: bytes) -> Sequence[DiskBlock]:
        """The blocks that follow one."""
        with self._lock:
            self._list()
            return [e for e in self._children.get(parent, {}).values() if e.digest not in self._unusable]

    def holds(self, block: Block) -> bool:
        """Whether a block, and its state where it has one, is on disk."""
        found = next((entry for entry in self.children(block.parent) if entry.digest == block.digest), None)
        return found is not None and (found.has_state or not block.has_state)

    def read(self, entry: DiskBlock, kind: Kind, num_bytes: int) -> ByteArray | None:
        """The bytes of a block; None where they are gone or cannot be read. A damaged file is told of, and removed."""
        path = entry.path.with_suffix(f".{kind}")
        try:
            tokens, payload = read_prefix(path, self._identity, entry.digest.hex(), num_bytes)
            if digest_of(entry.parent, tokens) != entry.digest:
                raise StoreError(f"{path} has other tokens than its name says")
            return payload
        except FileNotFoundError:
            pass
        except (OSError, StoreError) as error:
            reason = named(error) if isinstance(error, OSError) else error
            damaged = isinstance(error, StoreError) or is_of_content(error)
            self._notify(f"a kept prefix is not used{', and removed' if damaged else ''}: {reason}")
            if damaged:
                with suppress(OSError):
                    path.unlink()
        self._unusable.add(entry.digest)
        return None

    def touch(self, way: Iterable[tuple[DiskBlock, int]]) -> None:
        """Blocks, each with its position, are used now."""
        for entry, start in way:
            for path in (entry.path, entry.path.with_suffix(".state")):
                self._set_time(path, start)

    def write(self, block: Block) -> bool:
        """Writes what is not there yet of a block, in the place of what was used long ago; whether it is there."""
        parts: list[tuple[Kind, ByteArray | None]] = [("rows", block.rows), ("state", block.state)]
        name = f"{block.parent.hex()}-{block.digest.hex()}-{block.num_tokens}"
        try:
            for kind, payload in parts:
                path = self._folder / f"{name}.{kind}"
                if payload is not None and not path.exists() and not self._publish(path, block, payload):
                    return False
        except Exception as error:  # MemoryError, too: a copy for the disk costs no more than itself
            reason = named(error) if isinstance(error, OSError) else f"{error!r}"
            self._notify(f"prefixes are not kept on disk: {reason}")
            return False
        return True

    def _publish(self, path: Path, block: Block, payload: ByteArray) -> bool:
        self._make_folder()
        if not self._make_room(file_size(payload.nbytes, block.num_tokens)):
            return False
        header = Header(
            self._identity,
            block.parent.hex(),
            block.digest.hex(),
            block.start,
            block.tokens.tolist(),
            payload.nbytes,
            _native.crc32c(payload),
        )
        temporary = self._folder / f".{os.getpid()}-{next(_counter)}.tmp"
        try:
            write_prefix(temporary, header, payload)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        self._unusable.discard(block.digest)
        self._set_time(path, block.start)
        return True

    def _make_folder(self) -> None:
        for folder in (self._folder.parent, self._folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _make_room(self, num_bytes: int) -> bool:
        """Removes what was used least recently until a file of this size fits; False where it cannot."""
        if num_bytes > self._budget_bytes or num_bytes * FREE_SHARE > shutil.disk_usage(self._folder).free:
            return False
        files = sorted(self._all_files())
        used = sum(size for _, size, _ in files)
        for _, size, path in files:
            if used + num_bytes <= self._budget_bytes:
                break
            with suppress(FileNotFoundError):  # another process was first
                path.unlink()
            used -= size
        return True

    def _all_files(self) -> list[tuple[int, int, Path]]:
        """Time, size and path of the files of all models; what killed processes have left is removed."""
        found = []
        for folder in self._folder.parent.iterdir():
            if not folder.is_dir() or folder.is_symlink():
                continue
            for path in folder.iterdir():
                with suppress(FileNotFoundError):
                    facts = path.stat()
                    if path.name.endswith(".tmp"):
                        if time.time() - facts.st_mtime > STALE_S:
                            path.unlink()
                    elif _NAME.fullmatch(path.name):
                        found.append((facts.st_mtime_ns, facts.st_size, path))
        return found

    def _set_time(self, path: Path, start: int) -> None:
        now = time.time_ns() - 1000 * start  # a microsecond a token: what follows counts as used before
        with suppress(OSError):
            os.utime(path, ns=(now, now))

    def _list(self) -> None:
        """Reads the names in the folder where these have changed."""
        try:
            changed_ns = self._folder.stat().st_mtime_ns
            if changed_ns == self._listed_ns and time.time_ns() - changed_ns > 50_000_000:  # of a coarse clock's tick
                return
            names = os.listdir(self._folder)
        except OSError:
            self._children, self._listed_ns = {}, -1
            return
        present, children = set(names), dict[bytes, dict[bytes, DiskBlock]]()
        for name in names:
            match = _NAME.fullmatch(name)
            if match is None or match[4] != "rows":
                continue
            entry = DiskBlock(
                self._folder / name,
                bytes.fromhex(match[1]),
                bytes.fromhex(match[2]),
                int(match[3]),
                f"{name.removesuffix('rows')}state" in present,
            )
            children.setdefault(entry.parent, {})[entry.digest] = entry
        self._listed_ns, self._children = changed_ns, children
