"""How a call is read from text that arrives in pieces.

A reader is a generator: it takes what it needs from a Source and yields None where more text has to come first. So
what it reads does not depend on where the pieces were cut. Between two Nones it yields events.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator
from typing import NamedTuple, TypeVar

from moeinf.text.text_stream import TOKEN_MARK, CallPart, Piece

Result = TypeVar("Result")


class NotACallError(Exception):
    """What stands here is no call: whatever was not yet given out as one is text."""


class Name(NamedTuple):
    """A call begins. From here on it is one, whatever follows."""

    name: str


class Fragment(NamedTuple):
    """Text of the call's arguments."""

    text: str


class End(NamedTuple):
    """The call is whole."""


class Thought(NamedTuple):
    """No call, but something that the model thought."""

    text: str


Event = Name | Fragment | End | Thought
Reading = Generator[Event | None, None, Result]


class Source:
    """Text as far as it has come, and how far it was read. Every method that waits raises NotACallError at the end.

    tokens: marks that are tokens of the vocabulary. Only those count, and not their letters; see stream.TOKEN_MARK.
    """

    def __init__(self, tokens: Collection[str] = ()) -> None:
        self.text, self.at = "", 0
        self.ended = self.cut = False  # whether no more comes, and whether that is not by the model's own will
        longest_first = sorted(tokens, key=len, reverse=True)
        self._token = re.compile("|".join(map(re.escape, longest_first))) if tokens else None

    def written(self, mark: str) -> str:
        """A mark as it stands in the text: a token, letters, or letters around tokens."""
        if self._token is None:
            return mark
        return self._token.sub(lambda token: TOKEN_MARK + token[0], mark)

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

    def matching(self, characters: re.Pattern[str], most: int) -> Reading[str]:
        """Takes the characters that a pattern matches, of which there may be none, up to the first that it does not.

        most: how many are waited for.
        """
        while True:
            found = match[0] if (match := characters.match(self.text, self.at)) else ""
            if self.at + len(found) < len(self.text) or len(found) > most or (self.ended and not self.cut):
                self.at += len(found)
                return found
            yield from self.more()

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

    def accept_any(self, *marks: str) -> Reading[bool]:
        for mark in marks:
            if (yield from self.accept(mark)):
                return True
        return False

    def follows(self, *marks: str) -> Reading[bool]:
        """Whether one of these marks comes next, which stays where it is."""
        start = self.at
        found = yield from self.accept_any(*marks)
        self.at = start
        return found

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
    """Runs a reader over the text behind a mark that opens calls, or of a message that is one.

    A call that goes wrong behind its name is given out as far as it was certain; the rest of it is passed over.
    """

    def __init__(self, source: Source, reader: Reading[None], first_index: int, passer: Reading[None] | None = None):
        """first_index: of the first call that it finds. passer: passes over the rest of a call that went wrong.

        Without a passer, all that comes belongs to the call.
        """
        self.index = first_index  # of the next call
        self.finished = False
        self.found_any = False  # so that the mark that opened it is no text
        self.broke_off = False  # in the middle of a call
        self._source, self._reader, self._passer = source, reader, passer
        self._in_call = False
        self._given = 0  # characters of the text that came out as calls

    @property
    def rest(self) -> str:
        """Once `finished`: the text that belongs to no call."""
        return self._source.text[self._given :]

    def feed(self, text: str) -> Iterator[Piece]:
        """Takes text; yields what is certain of calls."""
        self._source.text += text
        return self._run()

    def end(self, *, cut: bool = False) -> Iterator[Piece]:
        """No more comes; it is `finished` then. cut: whether the text was cut off."""
        self._source.ended, self._source.cut = True, cut
        return self._run()

    def _run(self) -> Iterator[Piece]:
        while not self.finished:
            try:
                for event in self._reader:
                    if event is None:
                        return
                    self._given = self._source.at
                    yield from self._pieces(event)
                self._given, self.finished = self._source.at, True
            except NotACallError:
                self._give_up()

    def _give_up(self) -> None:
        self.broke_off, self._in_call = self.broke_off or self._in_call, False
        if self.found_any and self._passer is not None and not self._source.ended:
            self._reader, self._passer = self._passer, None
        else:
            self.finished = True
            self._given = len(self._source.text) if self.found_any else 0

    def _pieces(self, event: Event) -> Iterator[Piece]:
        self.found_any = True
        if isinstance(event, Name):
            self.index, self._in_call = self.index + 1, True
            yield Piece("", call=CallPart(self.index - 1, event.name, ""))
        elif isinstance(event, End):
            self._in_call = False
        elif isinstance(event, Thought):
            yield Piece(event.text, thought=True)
        elif event.text:
            yield Piece("", call=CallPart(self.index - 1, None, event.text))
