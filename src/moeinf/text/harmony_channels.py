"""Harmony, in which gpt-oss writes: an answer is several messages, each in a channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

Its analysis is what other models think between tags. A message to a tool of the request, or to=functions.name, calls
it; one to another program, such as python or browser.search, is no answer either, and counts as thought. So does a
message of the user or of a tool, which the model made up.
Others in the channel commentary tell the user what is being done.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tokenizers import Tokenizer

from moeinf.text.text_stream import Piece, TokenStream
from moeinf.text.tool_calls.reading import CallReading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntaxes.harmony import HARMONY, called_in
from moeinf.text.tool_calls.syntaxes.harmony_heads import CHANNEL, CONSTRAIN, END, MESSAGE, START, Head

_PEOPLE = ("user", "assistant", "all", "")  # recipients that a message may have and still be an answer
_BUILT_IN = ("browser", "python")  # tools that gpt-oss was trained with


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
        self._controls = {tokenizer.token_to_id(name): name for name in (START, CHANNEL, MESSAGE, END, CONSTRAIN)}
        begun = in_head(tokenizer, context)
        self._head = Head(tokenizer, START, context) if begun else None  # None in a message's text
        self._text = TokenStream(tokenizer, list(context), skip_special=True)
        self._thinking = False
        self._shown: set[bool] = set()  # whether there was some thought (True) and some answer (False)

    def step(self, ids: Sequence[int]) -> list[Piece]:
        return [piece for token in ids for piece in self._step_one(token)]

    def _step_one(self, token: int) -> Iterator[Piece]:
        control = self._controls.get(token)
        if self._head is not None and control in (CHANNEL, CONSTRAIN):
            self._head.add_mark(control)
        elif control == MESSAGE:
            yield from self._end_message()  # one that nothing has ended
            yield from self._begin(TokenStream(self._tokenizer, [], skip_special=True))
        elif control in (START, CHANNEL, END):
            yield from self._end_message()
            self._head = Head(self._tokenizer, control)
        elif self._head is None:
            yield from self._pieces(self._text.step([token]))
        elif not self._head.add(token):
            text, stream = self._head.end_in_text()
            yield from self._begin(stream)
            yield from self._pieces(text)

    def _begin(self, text: TokenStream) -> list[Piece]:
        """Begins a message whose head is complete; returns the space between it and the one of its kind before."""
        head, self._head, self._text = self._head, None, text
        recipient = head.recipient if head is not None else None
        name = called_in(recipient, self._tools) if recipient and self._tools is not None else None
        is_thought = head is not None and (head.is_analysis or head.is_made_up)
        self._thinking = is_thought or self._is_for_others(recipient)
        if self._tools is not None and name is not None:
            source = Source()
            self._call = CallReading(source, HARMONY.read(source, name, self._tools), self._num_calls)
            return []
        return self._pieces("\n\n" if self._thinking in self._shown else "")

    def _is_for_others(self, recipient: str | None) -> bool:
        """Whether a message goes to a program. Without tools, one to a function is text, as other calls are."""
        if recipient is None or recipient in _PEOPLE:
            return False
        return self._tools is not None or recipient.split(".")[0] in _BUILT_IN

    def _pieces(self, text: str) -> list[Piece]:
        if self._call is not None:
            return list(self._call.feed(text))
        self._shown |= {self._thinking} if text else set()
        return [Piece(text, self._thinking)] if text else []

    def flush(self, *, cut: bool = False) -> list[Piece]:
        if self._head is None:
            return self._end_message(cut=cut)
        text, self._thinking = self._head.flush(), self._head.is_analysis
        return [*self._begin(self._text), *self._pieces(text), *self._end_message(cut=cut)] if text else []

    def _end_message(self, *, cut: bool = False) -> list[Piece]:
        if self._head is not None:
            return []
        pieces = self._pieces(self._text.flush())
        return pieces if self._call is None else [*pieces, *self._end_call(self._call, cut=cut)]

    def _end_call(self, call: CallReading, *, cut: bool) -> Iterator[Piece]:
        """Ends a message to a tool; what was no call in it is text, but for a call that the answer's end cut off."""
        yield from call.end(cut=cut)
        self._call, self._num_calls, self._thinking = None, call.index, False
        if call.rest.strip() and not call.broke_off and not (cut and not call.found_any):
            yield from self._pieces(("\n\n" if self._shown & {False} else "") + call.rest)
