"""The parent's end of the process that decodes a picture (decoder.py): the bytes of a file to pixels of some views."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

from moeinf.config.environment import debug_wanted
from moeinf.errors import StarvedError, UsageError
from moeinf.pictures.picture_decoder import LIMIT_S
from moeinf.text.process_limits import STARVED_S
from moeinf.types import ByteArray, JsonObject, PictureViews

MOST_BYTES: Final = 32 << 20  # of a file
_PATIENCE_S: Final = LIMIT_S + STARVED_S
# The process gets this one's import path, and not the current folder, which may hold a json.py of anybody.
_BOOTSTRAP: Final = (
    "import os, sys; sys.path[:] = sys.argv[1].split(os.pathsep); "
    "from moeinf.pictures.picture_decoder import main; main()"
)


class _Lost(Exception):
    """The process has ended before its answer."""


def check_decoder() -> None:
    """Raises UsageError where Pillow is missing, which is an optional part."""
    if find_spec("PIL") is None:
        raise UsageError("pictures need Pillow: pip install 'moeinf[vision]'")


def decode(data: bytes, name: str, shown: Callable[[int, int], PictureViews]) -> list[list[ByteArray]]:
    """The pixels of the views of a PNG or JPEG in their rows, each [height, width, 3]: of the picture upright, what is
    transparent being white.

    name: of the picture, in errors. shown: its views, by the height and width that it has.
    Raises UsageError for a picture that cannot be decoded, or that is larger than the bounds of picture_decoder.py,
    StarvedError where the machine does not let it be decoded, and what `shown` raises.
    """
    check_decoder()
    if len(data) > MOST_BYTES:
        raise UsageError(f"{name} has more than {MOST_BYTES >> 20} MiB; save it anew, smaller")
    paths = [path for path in sys.path if path] + [str(Path(__file__).parents[2])]
    process = subprocess.Popen(
        [sys.executable, "-c", _BOOTSTRAP, os.pathsep.join(paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if debug_wanted() else subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C reaches the foreground group of the terminal: not this process
    )
    deadline = threading.Timer(_PATIENCE_S, process.kill)
    deadline.start()
    try:
        with process:
            return _exchanged(process, data, name, shown)
    except _Lost:
        if deadline.finished.is_set():
            raise StarvedError(
                f"{name}: its decoder gets no processor time, or was stopped; ask again when the machine is less busy"
            ) from None
        raise UsageError(
            f"{name} cannot be decoded: the decoder died or took more than {LIMIT_S} s; save it anew"
        ) from None
    finally:
        deadline.cancel()
        process.kill()


def _exchanged(
    process: subprocess.Popen[bytes], data: bytes, name: str, shown: Callable[[int, int], PictureViews]
) -> list[list[ByteArray]]:
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(len(data).to_bytes(8, "little") + data)
        process.stdin.flush()
        found = _answer(process, name)
        try:
            views = shown(found["height"], found["width"])
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from error
        asked = [list(map(asdict, view)) for row in views for view in row]
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        _answer(process, name)
        return [[_read(process, name, view[-1].height, view[-1].width) for view in row] for row in views]
    except BrokenPipeError:
        with suppress(BrokenPipeError):  # what is left to write, which would be tried once more where the pipe is left
            process.stdin.close()
        raise _Lost from None
    finally:
        process.kill()


def _read(process: subprocess.Popen[bytes], name: str, height: int, width: int) -> ByteArray:
    assert process.stdout is not None
    pixels = process.stdout.read(height * width * 3)
    if len(pixels) < height * width * 3:
        raise _Lost
    return np.frombuffer(pixels, np.uint8).reshape(height, width, 3)


def _answer(process: subprocess.Popen[bytes], name: str) -> JsonObject:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.endswith(b"\n"):
        raise _Lost
    answer: JsonObject = json.loads(line)
    if "fault" in answer:
        raise UsageError(f"{name} {answer['fault']}")
    return answer
