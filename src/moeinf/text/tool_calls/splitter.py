"""Tells the calls of an answer, and later thoughts, from its text."""

from __future__ import annotations

import re
from collections.abc import Collection, Generator, Iterator

from moeinf.text.stops import num_begun
from moeinf.text.text_stream import TOKEN_MARK, Piece
from moeinf.text.thoughts import Tags, without_label
from moeinf.text.tool_calls.quoting import Quoting
from moeinf.text.tool_calls.reading import CallReading, NotACallError, Reading, Source, Thought
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import Syntax


class CallSplitter:
    """Turns text into pieces, each of which is text, a part of a call or a thought.

    White space between text and a call is dropped, unless other text follows: then it stands between the two, and where
    there is none before the call, that behind it. What turns out to be no call is text, marks and all; text without
    calls comes out as it came. A thought behind the first stands between tags that nobody quotes,
    and is one once it has ended.
    """

    def __init__(
        self,
        syntax: Syntax | None,
        tools: ToolSchemas,
        tokens: Collection[str] = (),
        tags: Tags | None = None,
        hidden: Collection[str] = (),
    ) -> None:
        """syntax: None where nothing is a call. tokens: the marks and tags that are tokens; see stream.TOKEN_MARK.

        tags: of thoughts; None where there are none. hidden: those of them that are never shown.
        """
        self._syntax, self._tools, self._tokens = syntax, tools, tokens
        self._tags, self._hidden = tags, hidden
        written = Source(tokens).written
        opens = [*(syntax.opens if syntax else ()), *(tags[:1] if tags else ())]
        self._opens = {written(mark): mark for mark in opens}
        self._opening = re.compile("|".join(map(re.escape, self._opens)) or r"(?!)")
        self._closes = [written(mark) for mark in (syntax.closes if syntax else ())]
        self._held = ""  # text that may be the beginning of a mark, behind white space that a call may follow
        self._call: CallReading | None = None
        self._opened = self._space = ""  # the mark that the call stands behind with the space before it; that space
        self._index = 0
        self._behind: str | None = None  # behind a call or thought: the space that stood before it
        self._has_text = False
        self._quoting = Quoting()
        self.broke_off = False  # whether a call was cut, or went wrong in its arguments

    def push(self, text: str) -> Iterator[Piece]:
        """Takes text; yields what is certain."""
        while text:
            if self._call is None:
                text = yield from self._text(text)
            else:
                yield from self._call.feed(text)
                text = yield from self._after(self._call)

    def flush(self, *, cut: bool = False) -> Iterator[Piece]:
        """Ends the answer; yields what was held back, but for the beginning of a call that was cut off."""
        while self._call is not None:
            yield from self._call.end(cut=cut)
            rest = yield from self._after(self._call, cut=cut)
            yield from self.push(rest)
        held, self._held = self._held, ""
        marks = [*(self._opens if cut else ()), *self._closes_begun(held)]
        yield from self._shown(held[: len(held) - num_begun(held, marks)])

    def _text(self, text: str) -> Generator[Piece, None, str]:
        """Takes text outside of calls; returns what stands behind the mark that opens one."""
        text = self._held + text
        if self._behind is not None:
            text = self._without_closes(text)
        for match in self._opening.finditer(text):
            before, mark = text[: match.start()], self._opens[match[0]]
            if not self._is_tag(mark) or not self._quoting.quotes(before):
                shown, self._held = before.rstrip(), ""
                yield from self._shown(shown)
                self._space = before[len(shown) :]
                self._opened = text[len(shown) : match.end()]
                self._call = self._reading(mark)
                return text[match.end() :]
        shown = text[: len(text) - num_begun(text, [*self._opens, *self._closes_begun(text)])].rstrip()
        self._held = text[len(shown) :]
        yield from self._shown(shown)
        return ""

    def _closes_begun(self, text: str) -> list[str]:
        """The marks that may follow behind a call and begin with this text."""
        return [close for close in self._closes if self._behind is not None and close.startswith(text.lstrip())]

    def _is_tag(self, mark: str) -> bool:
        return self._tags is not None and mark == self._tags[0]

    def _without_closes(self, text: str) -> str:
        """Text without the marks of a call that stand right behind it though it has ended."""
        while close := next((close for close in self._closes if text.lstrip().startswith(close)), ""):
            text = text.lstrip()[len(close) :]
        return text

    def _reading(self, mark: str) -> CallReading:
        source = Source(self._tokens)
        if self._tags is not None and self._is_tag(mark):
            return CallReading(source, _read_thought(source, self._tags), self._index)
        assert self._syntax is not None
        reader = self._syntax.read(source, mark, self._tools)
        return CallReading(source, reader, self._index, _pass_rest(source, self._syntax))

    def _after(self, call: CallReading, *, cut: bool = False) -> Generator[Piece, None, str]:
        """Leaves a call that is finished; returns what stands behind it, or was none."""
        if not call.finished:
            return ""
        self._call, self.broke_off = None, self.broke_off or call.broke_off
        if call.found_any:
            self._index, self._behind = call.index, self._behind or self._space
        elif cut:
            return ""
        else:
            yield from self._shown(self._opened)
        return call.rest

    def _shown(self, text: str) -> Iterator[Piece]:
        for tag in self._hidden:
            text = text.replace(TOKEN_MARK + tag, "")
        text = text.replace(TOKEN_MARK, "")
        if self._behind is not None:
            said = text.lstrip()
            space = self._behind or text[: len(text) - len(said)]
            text = (space if self._has_text else "") + said if said else ""
        if text:
            self._quoting.add(text)
            self._behind, self._has_text = None, True
            yield Piece(text)


def _read_thought(source: Source, tags: Tags) -> Reading[None]:
    """A thought behind the tag that opens it. One that the end of an answer cut off is one, too."""
    try:
        text, _ = yield from source.until(tags[1])
    except NotACallError:
        if not source.cut:
            raise
        text, source.at = source.text.replace(TOKEN_MARK, ""), len(source.text)
    yield Thought(without_label(text, tags))


def _pass_rest(source: Source, syntax: Syntax) -> Reading[None]:
    """Passes over the rest of a call that went wrong, up to its end or to the next one."""
    _, mark = yield from source.until(*syntax.closes, *syntax.opens)
    if mark in syntax.opens:
        source.at -= len(source.written(mark))
