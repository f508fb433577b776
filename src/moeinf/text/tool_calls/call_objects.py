"""Reads calls that are JSON objects: {"name": ..., "arguments": {...}}, one or a list of them."""

from __future__ import annotations

import json
import re
from typing import Any

from moeinf.text.tool_calls.json_text import joined, read_json, read_value
from moeinf.text.tool_calls.reading import Fragment, Name, NotACallError, Reading, Source

_MAX_NAME_CHARS = 128
_NAME = re.compile(r"[\w./:-]*")


def checked_name(name: object) -> str:
    """A tool's name. Raises NotACallError for what cannot be one."""
    if not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS and _NAME.fullmatch(name)):
        raise NotACallError
    return name


def read_name(source: Source) -> Reading[str]:
    """The name that comes next, up to what cannot be a part of it."""
    while True:
        match = _NAME.match(source.text, source.at)
        name = match[0] if match else ""
        if source.at + len(name) < len(source.text) or len(name) > _MAX_NAME_CHARS:
            source.at += len(name)
            return checked_name(name)
        yield from source.more()


def read_calls(source: Source) -> Reading[None]:
    """One call, or a list of calls."""
    if not (yield from source.accept("[")):
        yield from read_call(source)
        return
    while True:
        yield from source.space()
        yield from read_call(source)
        yield from source.space()
        if not (yield from source.accept(",")):
            break
    yield from source.expect("]")


def read_call(source: Source) -> Reading[None]:
    """One object with a name, and with arguments or parameters in any order; its other members are left out."""
    name, held, given = None, None, False
    yield from source.expect("{")
    while True:
        key = yield from _read_key(source)
        if key == "name" and not given:
            name = checked_name((yield from read_value(source)))
        elif key in ("arguments", "parameters") and name is not None and not given:
            yield from read_arguments(source, name)
            given = True
        elif key in ("arguments", "parameters") and not given:
            held = yield from joined(read_arguments(source, ""))
        else:
            yield from read_value(source)
        yield from source.space()
        if not (yield from source.accept(",")):
            break
    if given:
        yield from source.accept("}")  # some models forget it, but the call is whole
        return
    yield from source.expect("}")
    yield from whole_call(checked_name(name), held or "{}")


def whole_call(name: str, arguments: str) -> Reading[None]:
    yield Name(name)
    yield Fragment(arguments)


def _read_key(source: Source) -> Reading[str]:
    yield from source.space()
    if (yield from source.peek()) != '"':
        raise NotACallError
    key: str = yield from read_value(source)
    yield from source.space()
    yield from source.expect(":")
    yield from source.space()
    return key


def read_arguments(source: Source, name: str) -> Reading[None]:
    """The call of `name` with the arguments that come next: an object, which is passed on as it comes.

    A string that holds one is taken for it, and null for none.
    """
    yield from source.space()
    if (yield from source.peek()) == "{":
        yield from _expect_object(source)
        yield Name(name)
        yield from read_json(source)
    else:
        yield from whole_call(name, _object_text((yield from read_value(source))))


def _expect_object(source: Source) -> Reading[None]:
    """Looks whether the brace that comes next begins a JSON object. Python's dicts and templates in braces do not."""
    ahead = 1
    while (char := (yield from source.peek(ahead))).isspace():
        ahead += 1
    if char not in '"}':
        raise NotACallError


def _object_text(value: Any) -> str:
    """The object that a value other than an object stands for. Raises NotACallError where it stands for none."""
    if value is None:
        return "{}"
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise NotACallError
    return json.dumps(found)
