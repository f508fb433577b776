"""Answers of the Responses API: whole, or told as typed events with numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from moeinf.engine.completion import Completion
from moeinf.server.ask import Call, Chosen, Ended, Event, Failed, Loading, Queued, Reading, Text
from moeinf.server.figures import figures
from moeinf.server.http import Answer, sse
from moeinf.server.http_errors import Fault, fault_of
from moeinf.server.openai.errors import message_of
from moeinf.server.openai.stream import waiting_comment
from moeinf.server.responses.output_items import OutputItems
from moeinf.types import JsonObject

ALIVE_S: Final = 15.0  # clients that do not count comments are told so often that the response is in progress
_CODES: Final = {"context": "context_length_exceeded", "busy": "rate_limit_exceeded", "server": "server_error"}


@dataclass
class ResponseWriter:
    """Writes one response.

    head: its members that are known before the answer. keep: is given the response at its end. clock: seconds.
    """

    head: JsonObject
    output: OutputItems
    keep: Callable[[JsonObject], None]
    clock: Callable[[], float] = time.monotonic
    media_type: str = "text/event-stream"

    def __post_init__(self) -> None:
        self._number, self._told_s = 0, float("-inf")

    def encode(self, event: Event | None) -> Iterator[bytes]:
        if not self._number:
            yield self._event(self._state("response.created"))
            yield self._event(self._state("response.in_progress"))
        if event is None or isinstance(event, Queued | Loading | Reading):
            yield waiting_comment(event)
            if self.clock() - self._told_s >= ALIVE_S:
                yield self._event(self._state("response.in_progress"))
        elif isinstance(event, Text | Call | Chosen):
            yield from map(self._event, self.output.take(event))
        elif isinstance(event, Failed):
            failed = {"status": "failed", "error": _error(fault_of(event.error)), "output": self.output.items}
            yield self._event({"type": "response.failed", "response": {**self.head, **failed}})
        elif isinstance(event, Ended) and event.completion is not None:
            yield from map(self._event, self.output.end(whole=event.completion.finish_reason != "length"))
            response = self._ended(event.completion)
            yield self._event({"type": f"response.{response['status']}", "response": response})

    def whole(self, answer: Answer) -> JsonObject:
        completion = answer.made
        calls = [Call(part.index, part.name, part.arguments) for part in completion.call_parts]
        said: list[Text | Call | Chosen] = [Text(answer.thinking, thought=True), *answer.chosen, Text(answer.text)]
        for piece in (*said, *calls):
            for _ in self.output.take(piece):
                pass
        for _ in self.output.end(whole=completion.finish_reason != "length"):
            pass
        return self._ended(completion)

    def _ended(self, completion: Completion) -> JsonObject:
        """The response, which is kept."""
        cut = completion.finish_reason == "length"
        response = {
            **self.head,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else int(time.time()),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self.output.items,
            "usage": _usage(completion),
            "moeinf": figures(completion.stats),
        }
        self.keep(response)
        return response

    def _state(self, kind: str) -> JsonObject:
        return {"type": kind, "response": {**self.head, "output": self.output.items}}

    def _event(self, event: JsonObject) -> bytes:
        kind = event["type"]
        encoded = sse({"type": kind, "sequence_number": self._number, **event}, kind)
        self._number, self._told_s = self._number + 1, self.clock()
        return encoded


def _error(fault: Fault) -> JsonObject:
    return {"code": _CODES.get(fault.kind, "invalid_prompt"), "message": message_of(fault)}


def _usage(completion: Completion) -> JsonObject:
    stats, generated = completion.stats, len(completion.token_ids)
    return {
        "input_tokens": stats.prompt_tokens,
        "input_tokens_details": {"cached_tokens": stats.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": completion.thought_tokens},
        "total_tokens": stats.prompt_tokens + generated,
    }
