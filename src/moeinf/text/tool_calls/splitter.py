"""Tells the calls of an answer from its text."""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from functools import partial
from typing import Protocol

from moeinf.text.stops import num_begun
from moeinf.text.stream import TOKEN_MARK, CallPart, Piece
from moeinf.text.tool_calls.reading import CallReading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax


class CallSplitter:
    """Turns text into pieces, each of which is text or a part of a call.

    White space between text and a call, and behind a call, is dropped. What turns out to be no call is text, marks and
    all; text without calls comes out as it came.
    """

    def __init__(self, syntax: Syntax, tools: ToolSchemas, tokens: Collection[str] = ()) -> None:
        """tokens: the marks of the syntax that are tokens of the vocabulary; see stream.TOKEN_MARK."""
        self._syntax, self._tools, self._tokens = syntax, tools, tokens
        self._opens = {Source(tokens).written(mark): mark for mark in syntax.opens}
        self._held = ""  # text that may be the beginning of a mark, behind white space that a call may follow
        self._call: CallReading | None = None
        self._opened = ""  # the mark that the call stands behind
        self._index = 0
        self._behind_call = False
        self.broke_off = False  # whether a call was cut, or went wrong in its arguments

    def push(self, text: str) -> Iterator[Piece]:
        """Takes text; yields what is certain."""
        while text:
            if self._call is None:
                text = yield from self._text(text)
            else:
                yield from pieces_of(self._call.feed(text))
                text = yield from self._after(self._call)

    def flush(self) -> Iterator[Piece]:
        """Ends the answer; yields what was held back."""
        while self._call is not None:
            yield from pieces_of(self._call.end())
            rest = yield from self._after(self._call)
            yield from self.push(rest)
        held, self._held = self._held, ""
        yield from self._shown(held)

    def _text(self, text: str) -> Generator[Piece, None, str]:
        """Takes text outside of calls; returns what stands behind the mark that opens one."""
        text = self._held + text
        if self._behind_call:
            text = text.lstrip()
        found = [(at, mark) for mark in self._opens if (at := text.find(mark)) >= 0]
        if not found:
            shown = text[: len(text) - num_begun(text, tuple(self._opens))].rstrip()
            self._held = text[len(shown) :]
            yield from self._shown(shown)
            return ""
        at, mark = min(found)
        shown, self._held = text[:at].rstrip(), ""
        yield from self._shown(shown)
        self._opened = text[len(shown) : at + len(mark)]
        source = Source(self._tokens)
        self._call = CallReading(source, self._syntax.read(source, self._opens[mark], self._tools), self._index)
        return text[at + len(mark) :]

    def _after(self, call: CallReading) -> Generator[Piece, None, str]:
        """Leaves a call that is finished; returns what stands behind it, or was none."""
        if not call.finished:
            return ""
        self._call, self._index, self.broke_off = None, call.index, self.broke_off or call.broke_off
        if call.found_any:
            self._behind_call = True
        else:
            yield from self._shown(self._opened)
        return call.rest

    def _shown(self, text: str) -> Iterator[Piece]:
        if text:
            self._behind_call = False
            yield Piece(text.replace(TOKEN_MARK, ""))


class TextStream(Protocol):
    """Turns token ids into pieces."""

    def step(self, ids: Sequence[int]) -> list[Piece]: ...

    def flush(self, *, cut: bool = False) -> list[Piece]: ...


class CallStream:
    """Turns token ids into text, thoughts and calls.

    What is thought is no call, unless nothing follows: some models forget to end their thought before they call.
    """

    def __init__(self, stream: TextStream, syntax: Syntax, tools: ToolSchemas, tokens: Collection[str]) -> None:
        """stream: marks the tokens of the syntax, which are `tokens`."""
        self._stream = stream
        self._new_splitter = partial(CallSplitter, syntax, tools, tokens)
        self._splitter = self._new_splitter()
        self._last_thought = ""  # from its first token of the syntax on; "" once something follows

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return list(self._apart(self._stream.step(ids)))

    def flush(self, *, cut: bool = False) -> list[Piece]:
        pieces = [*self._apart(self._stream.flush()), *self._splitter.flush()]
        return [*pieces, *self._called_in_thought()]

    def _apart(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.thought:
                at = 0 if self._last_thought else piece.text.find(TOKEN_MARK)
                self._last_thought += piece.text[at:] if at >= 0 else ""
                yield Piece(piece.text.replace(TOKEN_MARK, ""), thought=True)
            else:
                self._last_thought = ""
                yield from self._splitter.push(piece.text)

    def _called_in_thought(self) -> list[Piece]:
        """The calls in a thought that nothing follows, if they are whole."""
        if not self._last_thought:
            return []
        splitter = self._new_splitter()
        parts = [piece for piece in [*splitter.push(self._last_thought), *splitter.flush()] if piece.call]
        return parts if parts and not splitter.broke_off else []


def pieces_of(parts: Iterable[CallPart]) -> Iterator[Piece]:
    return (Piece("", call=part) for part in parts)
