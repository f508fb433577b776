"""How a call is read from text that arrives in pieces.

A reader is a generator: it takes what it needs from a Source and yields None where more text has to come first. So
what it reads does not depend on where the pieces were cut. Between two Nones it yields events.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from typing import NamedTuple, TypeVar

from moeinf.text.stream import TOKEN_MARK, CallPart

Result = TypeVar("Result")


class NotACallError(Exception):
    """What stands here is no call: whatever was not yet given out as one is text."""


class Name(NamedTuple):
    """A call begins. From here on it is one, whatever follows."""

    name: str


class Fragment(NamedTuple):
    """Text of the call's arguments."""

    text: str


Event = Name | Fragment
Reading = Generator[Event | None, None, Result]


class Source:
    """Text as far as it has come, and how far it was read. Every method that waits raises NotACallError at the end.

    tokens: marks that are tokens of the vocabulary. Only those count, and not their letters; see stream.TOKEN_MARK.
    """

    def __init__(self, tokens: Collection[str] = ()) -> None:
        self.text, self.at = "", 0
        self.ended = self.cut = False  # whether no more comes, and whether that is not by the model's own will
        self._tokens = tokens

    def written(self, mark: str) -> str:
        """A mark as it stands in the text."""
        return TOKEN_MARK + mark if mark in self._tokens else mark

    def more(self) -> Reading[None]:
        if self.ended:
            raise NotACallError
        yield None

    def space(self) -> Reading[None]:
        """Passes over white space, of which there may be none."""
        while True:
            while self.at < len(self.text) and self.text[self.at].isspace():
                self.at += 1
            if self.at < len(self.text) or self.ended:
                return
            yield None

    def peek(self, ahead: int = 0) -> Reading[str]:
        """The character that comes next, or `ahead` characters behind it."""
        while self.at + ahead >= len(self.text):
            yield from self.more()
        return self.text[self.at + ahead]

    def accept(self, mark: str) -> Reading[bool]:
        """Passes over a mark if it comes next; says whether it did. It does not at the end of the text."""
        mark = self.written(mark)
        while len(rest := self.text[self.at : self.at + len(mark)]) < len(mark) and mark.startswith(rest):
            if self.ended:
                return False
            yield None
        found = rest == mark
        self.at += len(mark) if found else 0
        return found

    def expect(self, mark: str) -> Reading[None]:
        if not (yield from self.accept(mark)):
            raise NotACallError

    def follows(self, *marks: str) -> Reading[bool]:
        """Whether one of these marks comes next, which stays where it is."""
        for mark in marks:
            start = self.at
            if (yield from self.accept(mark)):
                self.at = start
                return True
        return False

    def until(self, *marks: str) -> Reading[tuple[str, str]]:
        """Takes the text up to the first of these marks, and passes over that; returns both."""
        written = {self.written(mark): mark for mark in marks}
        longest, start = max(map(len, written)), self.at
        while True:
            found = [(at, mark) for mark in written if (at := self.text.find(mark, start)) >= 0]
            if found:
                at, mark = min(found)
                text, self.at = self.text[self.at : at], at + len(mark)
                return text.replace(TOKEN_MARK, ""), written[mark]
            start = max(self.at, len(self.text) - longest + 1)
            yield from self.more()

    def at_end(self) -> Reading[bool]:
        """Whether the model ended its text here. Raises NotACallError where that was cut off."""
        while self.at == len(self.text) and not self.ended:
            yield None
        if self.at == len(self.text) and self.cut:
            raise NotACallError
        return self.at == len(self.text)


class CallReading:
    """Runs a reader over the text behind a mark that opens calls, or of a message that is one."""

    def __init__(self, source: Source, reader: Reading[None], first_index: int) -> None:
        """first_index: of the first call that it finds."""
        self.index = first_index  # of the next call
        self.finished = False
        self.broke_off = False  # in the middle of a call
        self._source, self._reader, self._first = source, reader, first_index
        self._given = 0  # characters of the text that came out as calls

    @property
    def found_any(self) -> bool:
        """Whether a call began, so that the mark that opened it is no text."""
        return self.index > self._first

    @property
    def rest(self) -> str:
        """Once `finished`: the text that belongs to no call."""
        return self._source.text[self._given :]

    def feed(self, text: str) -> Iterator[CallPart]:
        """Takes text; yields what is certain of calls."""
        self._source.text += text
        return self._run()

    def end(self, *, cut: bool = False) -> Iterator[CallPart]:
        """No more comes; it is `finished` then. cut: whether the text was cut off."""
        self._source.ended, self._source.cut = True, cut
        return self._run()

    def _run(self) -> Iterator[CallPart]:
        if self.finished:
            return
        try:
            for event in self._reader:
                if event is None:
                    return
                yield from self._parts(event)
            self._given = self._source.at
        except NotACallError:
            self.broke_off = self.found_any
        self.finished = True

    def _parts(self, event: Event) -> Iterator[CallPart]:
        self._given = self._source.at
        if isinstance(event, Name):
            self.index += 1
            yield CallPart(self.index - 1, event.name, "")
        elif event.text:
            yield CallPart(self.index - 1, None, event.text)
