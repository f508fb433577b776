"""Turns the tokens of an answer into text, thoughts and tool calls, and finds where it ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from moeinf.text.stops import StopMatcher
from moeinf.text.text_stream import Piece
from moeinf.text.tokenizer import TextStream


class AnswerText:
    """The text of one answer. It ends at an end-of-sequence token or at a stop string outside of thoughts and calls.

    A stop string counts from the token behind the first `min_tokens` on, as with vLLM. Names of control tokens in it
    mean those tokens, too, where the stream was given it.
    token_ids: the tokens of the answer so far, with those of thoughts. ended: whether the answer came to its end.
    """

    def __init__(self, stream: TextStream, eos_ids: Collection[int], stops: Sequence[str], min_tokens: int = 0) -> None:
        self._min_tokens = min_tokens
        self.token_ids: list[int] = []
        self.ended = False
        self._stream, self._eos_ids = stream, eos_ids
        self._written = {stop: stop for stop in stops} | {_told(stop, stream.told): stop for stop in stops}
        self._stops = StopMatcher(list(self._written))
        self._left_out = dict.fromkeys(map(ord, stream.told.values()))

    @property
    def stop(self) -> str | None:
        """The stop string at which the answer ended."""
        return None if self._stops.found is None else self._written[self._stops.found]

    def pieces(self, tokens: Iterable[int | None]) -> Iterator[Piece | None]:
        """None wherever that stands among the tokens."""
        for token in tokens:
            if token is None:
                yield None
                continue
            if token in self._eos_ids:
                self.ended = True
                break
            self.token_ids.append(token)
            yield from self._shown(self._stream.step(token))
            if self._stops.stopped:
                self.ended = True
                break
        yield from self._shown(self._stream.flush(cut=not self.ended))
        self.ended = self.ended or self._stops.stopped  # in the text that was held back until now
        if rest := self._plain(self._stops.flush()):
            yield Piece(rest)

    def close(self) -> None:
        """Ends an answer that nobody reads to its end."""
        self._stream.flush(cut=True)

    def _shown(self, pieces: Iterable[Piece]) -> Iterator[Piece]:
        for piece in pieces:
            if piece.call is not None:
                if held := self._plain(self._stops.flush()):  # no stop string goes on behind a call
                    yield Piece(held)
                if not self._stops.stopped:
                    yield piece._replace(call=replace(piece.call, arguments=self._plain(piece.call.arguments)))
                continue
            free = piece.thought or len(self.token_ids) <= self._min_tokens
            text = self._plain(piece.text if free else self._stops.push(piece.text))
            if text:
                yield Piece(text, piece.thought)

    def _plain(self, text: str) -> str:
        """The text without what stands in it for control tokens."""
        return text.translate(self._left_out) if self._left_out else text


def _told(stop: str, told: Mapping[str, str]) -> str:
    """The stop as it comes where its control tokens come as tokens."""
    for token, character in sorted(told.items(), key=lambda each: -len(each[0])):
        stop = stop.replace(token, character)
    return stop
