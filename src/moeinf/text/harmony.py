"""Harmony, in which gpt-oss writes: an answer is several messages, each in a channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

Its analysis is what other models think between tags. A message to=functions.name calls a tool; others in the channel
commentary tell the user what is being done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from moeinf.text.stream import Piece, TokenStream
from moeinf.text.tool_calls.reading import CallReading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.splitter import pieces_of
from moeinf.text.tool_calls.syntaxes.harmony import HARMONY, called_in

START, CHANNEL, MESSAGE, END = _CONTROLS = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
CONSTRAIN = "<|constrain|>"  # what the text of a message is: json


def is_harmony(tokenizer: Tokenizer) -> bool:
    return tokenizer.token_to_id(CHANNEL) is not None


def in_head(tokenizer: Tokenizer, context: Sequence[int]) -> bool:
    """Whether a prompt that ends with `context` has begun a message, and not yet its text."""
    names = [name for token in context if (name := tokenizer.id_to_token(token)) in (START, MESSAGE)]
    return names[-1:] == [START]


class HarmonyStream:
    """Turns token ids into thoughts, answer and calls, and leaves out the heads of the messages (role and channel)."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int], tools: ToolSchemas | None = None) -> None:
        """context: the end of the prompt, which may have begun a message. tools: None where no message is a call."""
        self._tokenizer, self._tools = tokenizer, tools
        self._call: CallReading | None = None  # what reads the message, where it is one
        self._num_calls = 0
        self._role = ""  # the part of the head before its channel
        self._controls = {tokenizer.token_to_id(name): name for name in _CONTROLS}
        begun = in_head(tokenizer, context)
        self._head: list[int] | None = [] if begun else None  # since its last control token; None in a message's text
        self._text = TokenStream(tokenizer, [] if begun else list(context), skip_special=True)
        self._thinking = False
        self._shown: set[bool] = set()  # whether there was some thought (True) and some answer (False)

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return [piece for token in ids for piece in self._step_one(token)]

    def _step_one(self, token: int) -> Iterator[Piece]:
        control = self._controls.get(token)
        if control == MESSAGE:
            yield from self.flush()  # a message that nothing has ended
            yield from self._begin()
        elif control is not None:
            yield from self.flush()
            self._role = self._tokenizer.decode(self._head or []) if control == CHANNEL else ""
            self._head = []
        elif self._head is not None:
            self._head.append(token)
        else:
            yield from self._pieces(self._text.step([token]))

    def _begin(self) -> list[Piece]:
        """Begins a message whose head is complete; returns the space between it and the one of its kind before."""
        head = self._tokenizer.decode(self._head or [])
        self._thinking = head.split()[:1] == ["analysis"]
        self._head, self._text = None, TokenStream(self._tokenizer, [], skip_special=True)
        name, self._role = called_in(f"{self._role} {head}"), ""
        if self._tools is not None and name is not None:
            source = Source()
            self._call = CallReading(source, HARMONY.read(source, name, self._tools), self._num_calls)
            return []
        return self._pieces("\n\n" if self._thinking in self._shown else "")

    def _pieces(self, text: str) -> list[Piece]:
        if self._call is not None:
            return list(pieces_of(self._call.feed(text)))
        self._shown |= {self._thinking} if text else set()
        return [Piece(text, self._thinking)] if text else []

    def flush(self) -> list[Piece]:
        if self._head is not None:
            return []
        pieces = self._pieces(self._text.flush())
        return pieces if self._call is None else [*pieces, *self._end_call(self._call)]

    def _end_call(self, call: CallReading) -> Iterator[Piece]:
        """Ends a message to a tool; what was no call in it is text."""
        yield from pieces_of(call.end())
        self._call, self._num_calls, self._thinking = None, call.index, False
        if call.rest.strip():
            yield from self._pieces(("\n\n" if self._shown & {False} else "") + call.rest)
