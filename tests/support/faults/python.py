"""An error at the n-th place of the package that a thread comes to, where Python would raise Ctrl-C."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import moeinf

PACKAGE = f"{Path(moeinf.__file__).parent}/"


class Places:
    """Counts the places that the running thread comes to; raises an error at the one of a number, from 1 on.

    A place is where a function of the package begins or a generator goes on; with `lines`, each of its lines too. A
    `with` is none: it is come to again on the way out, where Python itself lets no signal in before __exit__ runs.
    """

    def __init__(self, number: int, error: type[BaseException], *, lines: bool, within: str = "") -> None:
        """number: 0: no error. within: the part of the package whose places count."""
        self.count, self.reached = 0, ""
        self._number, self._error, self._lines, self._within = number, error, lines, PACKAGE + within

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.startswith(self._within):
            return None
        if event == "call" or (event == "line" and frame.f_lineno not in _withs(frame.f_code.co_filename)):
            self.count += 1
            if self.count == self._number:
                self.reached = " < ".join(_places(frame))
                raise self._error
        return self if self._lines else None


@contextmanager
def places(
    number: int = 0, error: type[BaseException] = KeyboardInterrupt, *, lines: bool = False, within: str = ""
) -> Iterator[Places]:
    """See Places; the error comes out of what runs within."""
    counting, before = Places(number, error, lines=lines, within=within), sys.gettrace()
    sys.settrace(counting)
    try:
        yield counting
    finally:
        sys.settrace(before)


@cache
def _withs(path: str) -> frozenset[int]:
    """The lines of a file on which the items of a `with` stand."""
    found = set[int]()
    for node in ast.walk(ast.parse(Path(path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.With):
            found.add(node.lineno)
            for item in node.items:
                found.update(range(item.context_expr.lineno, (item.context_expr.end_lineno or 0) + 1))
    return frozenset(found)


def _places(frame: FrameType | None, most: int = 4) -> Iterator[str]:
    while frame is not None and most:
        if frame.f_code.co_filename.startswith(PACKAGE):
            yield f"{frame.f_code.co_filename.removeprefix(PACKAGE)}:{frame.f_lineno} {frame.f_code.co_name}"
            most -= 1
        frame = frame.f_back
