"""Reads calls that are JSON objects: {"name": ..., "arguments": {...}}, one or a list of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence

from moeinf.text.tool_calls.json_text import joined, read_json, read_value, text_as_json
from moeinf.text.tool_calls.reading import End, Fragment, Name, NotACallError, Reading, Source
from moeinf.types import Json

_MAX_NAME_CHARS = 128
_MAX_MARKS = 8  # that a model writes instead of one
_NAME = re.compile(r"[\w./:-]*")


def checked_name(name: object) -> str:
    """A tool's name. Raises NotACallError for what cannot be one."""
    if not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME_CHARS and _NAME.fullmatch(name)):
        raise NotACallError
    return name


def read_name(source: Source) -> Reading[str]:
    """The name that comes next, up to what cannot be a part of it."""
    return checked_name((yield from source.matching(_NAME, _MAX_NAME_CHARS)))


def read_calls(source: Source) -> Reading[None]:
    """One call, or a list of calls, the brackets of which some models forget."""
    if not (yield from source.accept("[")):
        yield from read_call(source)
        while (yield from _another_call(source)):
            yield from read_call(source)
        return
    while True:
        yield from source.space()
        yield from read_call(source)
        yield from source.space()
        if not (yield from source.accept(",")):
            break
    yield from source.accept("]")  # which some models forget
    yield from pass_surplus(source)


def _another_call(source: Source) -> Reading[bool]:
    """Passes over the comma before another object, if these come next."""
    behind = source.at
    yield from source.space()
    if (yield from source.accept(",")):
        yield from source.space()
        if (yield from source.follows("{")):
            return True
    source.at = behind
    return False


def read_call(source: Source) -> Reading[None]:
    """One object with a name, and with arguments or parameters in any order; its other members are left out.

    Some models put both into an object of their own, function, as OpenAI's API has it.
    """
    name, held, given = None, None, False
    yield from source.expect("{")
    while True:
        key = yield from _read_key(source)
        if key in ("name", "tool_name") and not given:
            name = _stripped_name((yield from read_value(source)))
        elif key == "function" and name is None and not given:
            name, held = _in_function((yield from read_value(source)), held)
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
        yield from pass_surplus(source)
        return
    yield from source.expect("}")
    yield from whole_call(checked_name(name), held or "{}")


def _stripped_name(name: object) -> str:
    return checked_name(name.strip() if isinstance(name, str) else name)


def _in_function(value: Json, held: str | None) -> tuple[str | None, str | None]:
    """Name and arguments of a call whose member function has them; None and what was there for other values."""
    if not isinstance(value, dict) or "name" not in value:
        return None, held
    arguments = value.get("arguments", value.get("parameters"))
    text = json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else _object_text(arguments)
    return _stripped_name(value["name"]), text


def pass_surplus(source: Source) -> Reading[None]:
    """Passes over braces behind a call that close nothing."""
    while True:
        start = source.at
        yield from source.space()
        if not (yield from source.accept("}")):
            source.at = start
            return


def pass_marks(source: Source, *marks: str) -> Reading[None]:
    """Passes over these marks, where a model writes one more than once. One that writes them for ever calls nothing."""
    for _ in range(_MAX_MARKS):
        yield from source.space()
        if not (yield from source.accept_any(*marks)):
            return


def read_section(
    source: Source, call: str, closes: Sequence[str], read_one: Callable[[Source], Reading[None]], *, begun: bool
) -> Reading[None]:
    """Calls between the marks of a section, each behind a mark of its own. What is said between them is passed over.

    begun: whether the first call's mark was read already, without one of a section. closes: what ends the section.
    """
    mark = call
    if not begun:
        said, mark = yield from source.until(call, *closes)
        if mark != call:
            if said.strip():
                raise NotACallError
            yield Fragment("")  # no call, and no text either
    while mark == call:
        yield from pass_marks(source, call)
        yield from read_one(source)
        behind = source.at
        yield from source.space()
        if begun and not (yield from source.follows(call, *closes)):
            return
        try:
            _, mark = yield from source.until(call, *closes)
        except NotACallError:  # nobody has ended the section, and what stands here is text
            source.at = behind
            return


def ended_by(source: Source, end: str, *others: str) -> Reading[None]:
    """Passes over the mark behind a call. It may lack in front of another one, and at the end of the text."""
    yield from source.space()
    if (yield from source.accept(end)) or (yield from source.follows(*others)) or (yield from source.at_end()):
        return
    raise NotACallError


def whole_call(name: str, arguments: str) -> Reading[None]:
    yield Name(name)
    yield Fragment(arguments)
    yield End()


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

    A string that holds one is taken for it; null and an empty string are none.
    """
    yield from source.space()
    if (yield from source.peek()) == "{":
        yield from _expect_object(source)
        yield Name(name)
        yield from read_json(source)
        yield End()
    else:
        yield from whole_call(name, _object_text((yield from read_value(source))))


def read_some_arguments(source: Source, name: str, *ends: str) -> Reading[None]:
    """As `read_arguments`, but there may be none in front of one of these marks, and of the end of the text."""
    yield from source.space()
    if (yield from source.at_end()) or (yield from source.follows(*ends)):
        yield from whole_call(name, "{}")
    else:
        yield from read_arguments(source, name)
        yield from pass_surplus(source)


def _expect_object(source: Source) -> Reading[None]:
    """Looks whether the brace that comes next begins an object. Templates in braces do not."""
    ahead = 1
    while (char := (yield from source.peek(ahead))).isspace():
        ahead += 1
    if char not in "\"'}":
        raise NotACallError


def _object_text(value: Json) -> str:
    """The object that a value other than an object stands for. Raises NotACallError where it stands for none."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return "{}"
    found = text_as_json(value) if isinstance(value, str) else None
    if not isinstance(found, dict):
        raise NotACallError
    return json.dumps(found, ensure_ascii=False)
