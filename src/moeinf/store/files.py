"""File operations that survive a crash, and whose errors are one line that names the file."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from moeinf.config.environment import store_home
from moeinf.errors import (
    REFUSED_CALL,
    REMEDIES,
    UNSUPPORTED,
    DiskSpaceError,
    MoeinfError,
    StoreError,
    UsageError,
    is_of_content,
)
from moeinf.types import Json, JsonObject

_FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def errors_named(path: Path, error_type: type[MoeinfError] = StoreError) -> Iterator[None]:
    """Turns an OSError inside into one line that names the file (the error's own, else `path`) and the reason."""
    try:
        yield
    except OSError as error:
        raise named(error, str(path), error_type) from error


def named(error: OSError, path: str = "", error_type: type[MoeinfError] = StoreError) -> MoeinfError:
    """Returns an error of one line: the file (the error's own, else `path`), the reason and the remedy."""
    name = os.fsdecode(error.filename) if isinstance(error.filename, str | bytes) else path
    said = f"{name}: {error.strerror or error}" if name else str(error.strerror or error)
    if error.errno in _FULL:
        return DiskSpaceError(f"{said}; free some space and repeat the command, it goes on where it stopped")
    hint = REMEDIES.get(error.errno or 0, "")
    if name == os.devnull:
        return error_type(f"{said}; mount /dev, which has it, or make it (mknod -m 666 /dev/null c 1 3)")
    if not name and error.errno in (errno.EPERM, errno.EACCES, *UNSUPPORTED):
        hint = REFUSED_CALL
    in_store = error_type is StoreError and (path or _in_store(name))
    if name and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM) and in_store:
        hint = "choose a folder that you can read and write with MOEINF_HOME, or change its permissions"
    return error_type(f"{said}; {hint}" if hint else said)


def fault_of_read(error: OSError, path: Path) -> str:
    """What is wrong with a file that cannot be read. Raises StoreError where the system alone refuses to read it."""
    if is_of_content(error):
        return error.strerror or str(error)
    raise named(error, str(path)) from error


def _in_store(name: str) -> bool:
    with suppress(UsageError, OSError):
        return Path(name).is_relative_to(store_home())
    return False


def sync_folder(path: Path) -> None:
    """Makes the names in a folder durable: without it a power cut may undo a rename that was reported done."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def publish(path: Path, *pieces: bytes | memoryview) -> None:
    """Replaces a file so that, whatever happens, it holds its old content or all of the new: the pieces in order."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        done = 0
        for piece in pieces:
            write_fully(fd, piece, done, temporary)
            done += memoryview(piece).nbytes
        os.fsync(fd)
        os.replace(temporary, path)  # while it is open, and so seen to be in use
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)
    sync_folder(path.parent)


def make_home(home: Path) -> None:
    """Creates the folder of the store. Raises StoreError where it cannot be, and as `errors_named` does."""
    try:
        with errors_named(home):
            make_folders(home)
    except StoreError as failed:
        error = failed.__cause__
        if not isinstance(error, OSError) or error.errno in (*_FULL, errno.EIO):
            raise
        raise StoreError(
            f"{home}, where models are stored, cannot be made ({error.strerror}); set MOEINF_HOME to a folder that you "
            "can write to"
        ) from failed


def make_folders(path: Path) -> None:
    """Creates a folder and its parents, each durable in the one above."""
    if path.is_dir():
        return
    make_folders(path.parent)
    with suppress(FileExistsError):
        path.mkdir()
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
    sync_folder(path.parent)


def is_there(path: Path) -> bool:
    """Whether it is a regular file. Raises StoreError where the system does not tell, which is no "no"."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise named(error, str(path)) from error


def open_regular(path: Path) -> int:
    """Opens a regular file for reading. O_NONBLOCK: opening a FIFO must not hang. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EBADMSG, "not a regular file", str(path))
    return fd


def read_fully(fd: int, buffer: memoryview, offset: int, path: Path) -> None:
    """Fills the buffer from `offset`; a file that ends before is an OSError, never a part-filled buffer."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], offset + done)
        if count == 0:
            raise OSError(
                errno.EBADMSG, f"ends at byte {offset + done}, {len(buffer) - done} bytes too early", str(path)
            )
        done += count


def write_fully(fd: int, data: bytes | memoryview, offset: int, path: Path) -> None:
    """Writes all of data at `offset`; OSErrors name the path."""
    view, done = memoryview(data), 0
    try:
        while done < len(view):
            done += os.pwrite(fd, view[done:], offset + done)
    except OSError as error:
        error.filename = str(path)
        raise


def drop_cached(fd: int, offset: int = 0, num_bytes: int = 0) -> None:
    """Tells the kernel that these bytes are not needed again, so that a pull does not push out what is in use."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):  # a filter of system calls may refuse it
            os.posix_fadvise(fd, offset, num_bytes, os.POSIX_FADV_DONTNEED)


def read_small(path: Path, limit_bytes: int = 100_000_000) -> bytes:
    """Reads a whole regular file that is not larger than the limit. Raises OSError."""
    fd = open_regular(path)
    try:
        size = os.fstat(fd).st_size
        if size > limit_bytes:
            raise OSError(errno.EBADMSG, f"is {size} bytes long, more than {limit_bytes}", str(path))
        data = bytearray(size)
        read_fully(fd, memoryview(data), 0, path)
        return bytes(data)
    finally:
        os.close(fd)


LFS_POINTER: Final = b"version https://git-lfs.github.com/spec/"  # how a file begins that stands for another one


def stands_for_another(where: str) -> str:
    """What to say of a file that is a pointer of Git LFS, as a clone without Git LFS has it."""
    return (
        f"{where} is a pointer of Git LFS, and not the file itself; `git lfs pull` in its folder fetches the files, or "
        "give org/repo"
    )


def is_path(text: str) -> bool:
    """Whether a text of JSON can name a file at all: what is no path is an error of the kind of a wrong argument."""
    try:
        return b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


def parse_json_object(data: bytes | bytearray, where: str, error_type: type[MoeinfError]) -> JsonObject:
    """Parses a JSON object in UTF-8 without repeated keys. Raises error_type, naming `where`."""

    def unique(pairs: list[tuple[str, Json]]) -> JsonObject:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a key occurs twice")
        return found

    try:
        value = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError and JSONDecodeError are ValueErrors
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise error_type(f"{where} is not sound JSON: {reason}") from error
    if not isinstance(value, dict):
        raise error_type(f"{where} is not a JSON object")
    return value
