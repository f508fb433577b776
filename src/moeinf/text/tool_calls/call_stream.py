"""Turns token ids into text, thoughts and calls."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

from moeinf.text.text_stream import TOKEN_MARK, CallPart, Piece
from moeinf.text.thoughts import Tags
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import CallSplitter
from moeinf.text.tool_calls.syntax import Syntax


class TextStream(Protocol):
    """Turns token ids into pieces."""

    def step(self, ids: Sequence[int]) -> list[Piece]: ...

    def flush(self, *, cut: bool = False) -> list[Piece]:
        """Ends the answer. cut: whether it was cut off, as by a limit of tokens."""


class CallStream:
    """Turns token ids into text, thoughts and calls.

    What is thought is no call, with one exception: some models forget to end their thought before they call. So whole
    calls of given tools count that end the last thought of an answer which the model itself ended, if it says nothing
    behind them, neither in the thought nor outside of it.
    """

    def __init__(
        self,
        stream: TextStream,
        syntax: Syntax | None,
        tools: ToolSchemas,
        tokens: Collection[str],
        tags: Tags | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        """stream: marks the tokens of the syntax and the tags, which are `tokens`. Others: see CallSplitter."""
        self._stream, self._tools, self._hidden = stream, tools, hidden
        self._new_splitter = partial(CallSplitter, syntax, tools, tokens)
        self._splitter = CallSplitter(syntax, tools, tokens, tags, hidden)
        self._num_calls = 0
        self._last_thought: list[str] = []  # from its first token of the syntax on; [] once something follows
        self._has_thought = False

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return list(self._apart(self._stream.step(ids)))

    def flush(self, *, cut: bool = False) -> list[Piece]:
        pieces = [*self._apart(self._stream.flush(cut=cut)), *self._counted(self._splitter.flush(cut=cut))]
        return pieces if cut else [*pieces, *self._called_in_thought()]

    def _apart(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.thought:
                self._has_thought = True
                at = 0 if self._last_thought else piece.text.find(TOKEN_MARK)
                self._last_thought += [piece.text[at:]] if at >= 0 else []
                yield Piece(self._plain(piece.text), thought=True)
            else:
                self._last_thought.clear()
                yield from self._counted(self._splitter.push(piece.text))

    def _counted(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.thought:
                space, self._has_thought = "\n\n" if self._has_thought else "", True
                yield Piece(space + self._plain(piece.text), thought=True)
                continue
            self._num_calls += piece.call is not None and piece.call.name is not None
            yield piece

    def _plain(self, text: str) -> str:
        for tag in self._hidden:
            text = text.replace(TOKEN_MARK + tag, "")
        return text.replace(TOKEN_MARK, "")

    def _called_in_thought(self) -> list[Piece]:
        """The calls that end a thought which nothing follows."""
        if not self._last_thought:
            return []
        splitter = self._new_splitter()
        parts: list[CallPart] = []
        for piece in [*splitter.push("".join(self._last_thought)), *splitter.flush()]:
            if piece.call is None:
                parts.clear()
            else:
                parts.append(piece.call)
        names = [part.name for part in parts if part.name is not None]
        if splitter.broke_off or not all(name in self._tools for name in names):
            return []
        skipped = parts[0].index - self._num_calls if parts else 0
        return [Piece("", call=replace(part, index=part.index - skipped)) for part in parts]
