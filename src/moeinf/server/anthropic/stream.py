"""Answers of Anthropic's API: whole messages, or messages told as events, block after block."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator

from moeinf.engine.completion import Completion
from moeinf.server.anthropic.errors import error_body
from moeinf.server.anthropic.head import Head, ending_of, tool_use, usage, usage_of
from moeinf.server.ask import Call, Ended, Event, Failed, Loading, Queued, Reading, Text
from moeinf.server.figures import figures, waits
from moeinf.server.http import Answer, sse
from moeinf.server.http_errors import fault_of
from moeinf.types import Json, JsonObject

PING_S = 1.0  # between two pings while a model loads or reads


class MessageWriter:
    """Turns the events of an answer into those of a message.

    message_start tells how long the prompt is, and so waits until that is known. Until then, and whenever there is
    nothing to say, there are pings.
    """

    media_type = "text/event-stream"

    def __init__(
        self, head: Head, request_id: str, *, thoughts_shown: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """thoughts_shown: False keeps the text of thoughts back, but not that there were some. clock: seconds."""
        self._clock, self._pinged_s = clock, float("-inf")
        self._head, self._request_id, self._thoughts_shown = head, request_id, thoughts_shown
        self._begun = False
        self._index = -1  # of the last block
        self._open = ""  # the block that is open: thinking, text, or one of the calls
        self._signature = Signature()

    def encode(self, event: Event | None) -> Iterator[bytes]:
        if isinstance(event, Reading) and not self._begun:
            yield self._begin(event.total)
        elif event is None or isinstance(event, Queued | Loading | Reading):
            if event is None or self._clock() - self._pinged_s >= PING_S:
                self._pinged_s = self._clock()
                yield _event("ping", **({} if event is None else {"moeinf": waits(event)}))
        elif isinstance(event, Text):
            yield from self._text(event)
        elif isinstance(event, Call):
            yield from self._call(event)
        elif isinstance(event, Failed):
            yield sse(error_body(fault_of(event.error), self._request_id), "error")
        elif isinstance(event, Ended) and event.completion is not None:
            yield from self._end(event.completion)

    def whole(self, answer: Answer) -> JsonObject:
        completion = answer.made
        content = _blocks_of(answer, thoughts_shown=self._thoughts_shown)
        whole = self._head.message(content, ending_of(completion), usage_of(completion))
        return whole | {"moeinf": figures(completion.stats)}

    def _begin(self, prompt_tokens: int) -> bytes:
        """How many tokens of the prompt were reused is known at the end; message_delta then has all counts."""
        self._begun = True
        return _event("message_start", message=self._head.message([], ending_of(None), usage(prompt_tokens, 0, 0)))

    def _text(self, event: Text) -> Iterator[bytes]:
        if not self._begun:
            yield self._begin(0)
        if event.thought:
            yield from self._block("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._signature.add(event.text)
            if self._thoughts_shown:
                yield self._delta("thinking_delta", thinking=event.text)
        else:
            yield from self._block("text", {"type": "text", "text": ""})
            yield self._delta("text_delta", text=event.text)

    def _call(self, event: Call) -> Iterator[bytes]:
        if not self._begun:
            yield self._begin(0)
        if event.name is not None:
            yield from self._block(f"call {event.index}", tool_use(event.name))
        yield self._delta("input_json_delta", partial_json=event.arguments)

    def _block(self, name: str, content: JsonObject) -> Iterator[bytes]:
        """Opens a block, unless the open one is that of this name."""
        if self._open != name:
            yield from self._close()
            self._index, self._open = self._index + 1, name
            yield _event("content_block_start", index=self._index, content_block=content)

    def _close(self) -> Iterator[bytes]:
        if self._open == "thinking":
            yield self._delta("signature_delta", signature=self._signature.take())
        if self._open:
            yield _event("content_block_stop", index=self._index)
        self._open = ""

    def _delta(self, kind: str, **content: str) -> bytes:
        return _event("content_block_delta", index=self._index, delta={"type": kind, **content})

    def _end(self, completion: Completion) -> Iterator[bytes]:
        if not self._begun:
            yield self._begin(completion.stats.prompt_tokens)
        yield from self._close()
        ending, counts = ending_of(completion), usage_of(completion)
        yield _event("message_delta", delta=ending, usage=counts, moeinf=figures(completion.stats))
        yield _event("message_stop")


class Signature:
    """What clients hand back with a thought. Here it is only its sum: thoughts need not be proven."""

    def __init__(self) -> None:
        self._sum = hashlib.sha256()

    def add(self, text: str) -> None:
        self._sum.update(text.encode("utf-8", "surrogatepass"))

    def take(self) -> str:
        """The signature of what was added since the last one."""
        done, self._sum = self._sum, hashlib.sha256()
        return done.hexdigest()


def _event(kind: str, **members: Json) -> bytes:
    return sse({"type": kind, **members}, kind)


def _blocks_of(answer: Answer, *, thoughts_shown: bool) -> list[JsonObject]:
    """The content of a whole message."""
    blocks: list[JsonObject] = []
    if answer.thinking:
        signature = Signature()
        signature.add(answer.thinking)
        thinking = answer.thinking if thoughts_shown else ""
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signature.take()})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    return blocks + [{**tool_use(call.name), "input": json.loads(call.arguments)} for call in answer.made.tool_calls]
