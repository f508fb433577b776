"""Reads parameters whose values stand in plain text between marks, and may hold any marks themselves.

A value ends at the first mark behind which the call goes on, or is closed, as its syntax has it. It may quote whole
calls, and parameters within a line: what is opened in it is closed in it. And where text behind a closed call would
close one once more, the call was not closed before. So the end of a call is certain once another begins, or the answer
ends. Only where that leaves no end at all are the ways tried in which models forget a mark, and not where the answer
was cut off.

Of a value on lines of its own, a last line that is the mark behind it, and closes nothing in it, was written twice.

What nobody can tell apart stays so: a value that holds the end of its parameter and the beginning of another one, or
the end of its call and the beginning of another one, is what these say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.reading import End, Fragment, NotACallError, Reading, Source


@dataclass(frozen=True)
class Form:
    """How a syntax writes parameters.

    read_key: reads what stands before a value; raises NotACallError for anything else. start: the last mark that it
    passes, or how that begins. end: the mark behind a value.
    closes: the marks that close the call behind its last value. opens: the mark that begins a call. begins: whether
    one does behind that mark. lined: whether values stand on lines of their own. next_key: finds parameters in a text
    that lacks the marks between them. goes_on: whether another call begins here, within the mark that opened this one;
    it stands between marks that begin and end with `inner`.
    """

    read_key: Callable[[Source], Reading[str]]
    start: str
    end: str
    closes: tuple[str, ...]
    opens: str
    begins: Callable[[Source], Reading[bool]]
    lined: bool = False
    next_key: re.Pattern[str] | None = None
    goes_on: Callable[[Source], Reading[bool]] | None = None
    inner: tuple[str, str] = ("", "")


class _Way(NamedTuple):
    """A way to read a value. closes: the marks that close the call."""

    nested: bool
    lined: bool
    closes: tuple[str, ...]


class _Read(NamedTuple):
    """parameters: keys and the texts of their values; several where the marks between them were forgotten."""

    parameters: list[tuple[str, str]]
    ends_call: bool


Member = Callable[[str, str], str]  # a parameter as a member of a JSON object, given its key and the text of its value


def read_parameters(source: Source, form: Form, member: Member) -> Reading[None]:
    """The parameters of a call, and what closes it."""
    members = _Members(member)
    closed = yield from _closed_at_once(source, form)
    while closed is None:
        key = yield from form.read_key(source)
        yield from members.before(key)
        read = yield from _read_value(source, form, key)
        for parameter in read.parameters:
            yield from members.before(parameter[0])
            members.last = parameter
        closed = source.at if read.ends_call else None
        yield from source.space()
    source.at = closed
    yield Fragment(members.end())
    yield End()


def _closed_at_once(source: Source, form: Form) -> Reading[int | None]:
    """Where the text goes on behind a call without parameters. No value holds its marks, so the first one is enough."""
    closed = yield from _closed(source, form, form.closes)
    if closed is None and not source.cut and (yield from source.accept(form.closes[0])):
        closed = source.at
    source.at = source.at if closed is None else closed
    return closed


class _Members:
    """Writes a JSON object. A parameter that is given twice, one behind the other, is what it is the second time."""

    def __init__(self, member: Member) -> None:
        self._member, self._before = member, "{"
        self.last: tuple[str, str] | None = None

    def before(self, key: str) -> Iterator[Fragment]:
        """What is certain once this key comes."""
        if self.last is not None and self.last[0] != key:
            yield Fragment(self._before + self._member(*self.last))
            self._before, self.last = ", ", None

    def end(self) -> str:
        return self._before + (self._member(*self.last) if self.last else "") + "}"


def _read_value(source: Source, form: Form, key: str) -> Reading[_Read]:
    """A value. Goes on behind its mark, or behind the call that ends with it."""
    start = source.at
    for way in _ways(form):
        source.at = start
        try:
            text, ends_call = yield from _read_in_one_way(source, form, way)
            return _Read([(key, _plain(_ended_once(source, form, text)))], ends_call)
        except NotACallError:
            if source.cut:
                raise
    source.at = start
    text = yield from _read_without_end(source, form)
    return _Read(list(_parted(form, key, text)), True)


def _ways(form: Form) -> Iterator[_Way]:
    """The strictest first; no other is tried before the text has ended.

    That the last mark of a call is forgotten comes before a value that holds what opens a call and nothing that closes
    it: else such a value would hold the next call.
    """
    for lined in (True, False) if form.lined else (False,):
        for nested, closes in ((True, form.closes), (True, form.closes[:-1]), (False, form.closes)):
            yield _Way(nested, lined, closes)
    if len(form.closes) > 1:
        yield _Way(False, False, form.closes[1:])
    for num_closes in reversed(range(len(form.closes))):
        yield _Way(False, False, form.closes[:num_closes])


def _read_in_one_way(source: Source, form: Form, way: _Way) -> Reading[tuple[str, bool]]:
    """The text of a value, and whether the call ends with it."""
    start, depth = source.at, 0
    lined = way.lined and (yield from source.peek()) == "\n"
    closed: tuple[int, int] | None = None  # where a value may have ended, and the call with it
    while (mark := (yield from _next_mark(source, form))) or not closed:
        if not mark:
            raise NotACallError
        behind = source.at
        if mark == form.opens:
            begins = yield from form.begins(source)
            source.at = behind
            if begins and closed:
                break
            depth += begins and way.nested
            continue
        end = behind - len(source.written(mark))
        value = source.text[start:end]
        may_end = not depth and (not lined or value.endswith("\n") or not _is_open(source, form, value))
        call_end = yield from _closed(source, form, way.closes)
        if call_end is not None and depth:
            depth -= 1
        elif call_end is not None and may_end:
            closed, source.at = (end, call_end), call_end
        elif may_end and (yield from _goes_on(source, form)):
            return value, False
        elif may_end and (yield from _calls_again(source, form, value)):
            return value, True
    assert closed is not None
    source.at = closed[1]
    return source.text[start : closed[0]], True


def _is_open(source: Source, form: Form, text: str) -> bool:
    """Whether a text begins a parameter that the next mark would end."""
    return text.count(source.written(form.start)) > text.count(source.written(form.end))


def _ended_once(source: Source, form: Form, text: str) -> str:
    """The text of a value that stands on lines of its own, without a second line that is but the mark of its end."""
    end = source.written(form.end)
    while form.lined and (kept := text.rstrip()).endswith(f"\n{end}"):
        before = kept.removesuffix(end)
        if not before.strip() or _is_open(source, form, before):
            break
        text = before
    return text


def _next_mark(source: Source, form: Form) -> Reading[str]:
    """Passes over the next mark that ends a value or opens a call; "" where there is none any more."""
    try:
        return (yield from source.until(form.end, form.opens))[1]
    except NotACallError:
        return ""


def _closed(source: Source, form: Form, closes: tuple[str, ...]) -> Reading[int | None]:
    """Where the text goes on behind the marks that close a call, if they come next.

    Without the last mark of all, a call is closed where the text ends or another one begins.
    """
    start = source.at
    for mark in closes:
        yield from source.space()
        if not (yield from source.accept(mark)):
            source.at = start
            return None
        if mark != closes[-1]:
            yield from _pass_again(source, mark)
    behind, found = source.at, True
    if closes[-1:] != form.closes[-1:]:
        yield from source.space()
        found = (yield from source.at_end()) or (yield from _call_follows(source, form))
    source.at = start
    return behind if found else None


def _pass_again(source: Source, mark: str) -> Reading[None]:
    """Passes over a mark that was written more than once."""
    behind = source.at
    yield from source.space()
    while (yield from source.accept(mark)):
        behind = source.at
        yield from source.space()
    source.at = behind


def _call_follows(source: Source, form: Form) -> Reading[bool]:
    """Whether another call comes next."""
    start = source.at
    found = (yield from source.accept(form.opens)) and (yield from form.begins(source))
    source.at = start
    return found


def _goes_on(source: Source, form: Form) -> Reading[bool]:
    """Whether another parameter comes next."""
    start = source.at
    try:
        yield from source.space()
        yield from form.read_key(source)
    except NotACallError:
        return False
    finally:
        source.at = start
    return True


def _calls_again(source: Source, form: Form, value: str) -> Reading[bool]:
    """Whether the call ends here, as another one comes next that shares its mark. Goes on between them if so.

    A value that quotes the beginning of a call quotes its end, too.
    """
    if form.goes_on is None or value.count(form.inner[0]) > value.count(form.inner[1]):
        return False
    start = source.at
    yield from source.space()
    closed = yield from source.accept(form.closes[0])
    end = source.at
    yield from source.space()
    found = closed and (yield from form.goes_on(source))
    source.at = end if found else start
    return found


def _read_without_end(source: Source, form: Form) -> Reading[str]:
    """The text of a value whose own mark was forgotten, so that it ends with the call."""
    start = source.at
    while True:
        yield from source.until(form.closes[0])
        end = source.at - len(source.written(form.closes[0]))
        behind = source.at
        for mark in form.closes[1:]:
            yield from source.space()
            if not ((yield from source.accept(mark)) or (yield from source.at_end())):
                break
        else:
            return _plain(source.text[start:end])
        source.at = behind


def _parted(form: Form, key: str, text: str) -> Iterator[tuple[str, str]]:
    """The parameters in text up to the end of a call, none of which has an end of its own."""
    start = 0
    for match in form.next_key.finditer(text) if form.next_key else ():
        yield key, text[start : match.start()]
        key, start = match[1], match.end()
    yield key, text[start:]


def _plain(text: str) -> str:
    return text.replace(TOKEN_MARK, "")
