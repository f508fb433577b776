"""What is said where the system has no files or threads left to give: not that the store is damaged."""

from __future__ import annotations

import errno
import os
import re
import resource
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf._native import Arena, ReadFailure
from moeinf.config import RuntimeConfig
from moeinf.errors import StoreError
from moeinf.runtime.cache.read_errors import ReadErrors
from moeinf.runtime.io import reader as reading
from moeinf.runtime.io.python_reader import PureReader
from moeinf.runtime.io.reader import open_reader, unreadable
from moeinf.types import IntArray

BLOCK = 4096


@pytest.mark.parametrize("kind", ["native", "pure"])
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="descriptors are counted in /proc")
def test_too_many_open_files_ask_for_a_higher_limit(tmp_path: Path, kind: Any) -> None:
    path = tmp_path / "block.bin"
    path.write_bytes(bytes(BLOCK))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        with pytest.raises(StoreError, match=r"Too many open files.*; raise the number of .*\(ulimit -n\)$"):
            open_reader([path] * 100, [BLOCK] * 100, Arena(BLOCK), RuntimeConfig.of(reader=kind))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_threads_that_cannot_be_started_ask_for_a_higher_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EAGAIN, "cannot start a reading thread: Resource temporarily unavailable")

    monkeypatch.setattr(reading, "NativeReader", refuse)
    with pytest.raises(StoreError, match=r"cannot start a reading thread.*\(ulimit -u\)"):
        open_reader([], [], Arena(BLOCK), RuntimeConfig())

    def no_more(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    with pytest.raises(StoreError, match=r"can't start new thread.*\(ulimit -u\)"):
        open_reader([], [], Arena(BLOCK), RuntimeConfig.of(reader="pure"))


def demand(reader: PureReader) -> IntArray:
    column = np.zeros(1, np.int64)
    reader.submit(column, column, column, column, BLOCK, np.full(1, np.inf))
    return reader.wait_any(column)


@pytest.mark.parametrize("error", [MemoryError(), SystemExit(3)])
def test_the_python_readers_thread_outlives_what_reading_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(*given: Any) -> int:
        raise error

    (tmp_path / "block.bin").write_bytes(bytes(BLOCK))
    reader = PureReader([str(tmp_path / "block.bin")], [BLOCK], Arena(BLOCK), on_wait=give_up)
    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", fail)
        with pytest.raises(ReadFailure, match=re.escape(repr(error))):
            demand(reader)
    assert demand(reader).tolist() == [0] and reader.close()


def give_up(waited_s: float, path: str) -> None:
    assert waited_s < 30, "nobody reads"


def test_a_missing_file_is_still_a_matter_of_the_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"absent\.bin.*`moeinf verify`"):
        open_reader([tmp_path / "absent.bin"], [BLOCK], Arena(BLOCK), RuntimeConfig())


def test_only_content_that_is_bad_is_to_be_pulled_again() -> None:
    """Whatever the system answers to a read: a sound store is not to be fetched anew for it."""
    errors = ReadErrors([Path("experts-0.bin")], 8, "demo")
    for number in (0, *sorted(errno.errorcode)):
        failure = ReadFailure(f"read failed: {os.strerror(number)}")
        failure.errno, failure.key, failure.path = number, 3, "experts-0.bin"
        of_content = number in (0, errno.EBADMSG, errno.ENOENT, errno.ENOTDIR)
        for said in (str(unreadable(failure)), str(errors.explain(failure))):
            assert ("then `moeinf pull` it again" in said) == of_content, said
            assert re.search(r"; \w.{20,}", said), f"no remedy: {said}"
    failure.errno = errno.EOPNOTSUPP
    assert "--no-direct-io" in str(unreadable(failure))
