"""Answers of OpenAI's API: whole, or chunks as server-sent events, and comments while there is nothing to say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from moeinf.engine.completion import Completion
from moeinf.server.ask import Call, Chosen, Ended, Event, Failed, Loading, Queued, Reading, Text
from moeinf.server.figures import figures
from moeinf.server.http import Answer, sse
from moeinf.server.http_errors import fault_of
from moeinf.server.openai.errors import error_body
from moeinf.server.openai.head import Head, finish_reason, usage_of
from moeinf.server.openai.requests import Sampling
from moeinf.types import Json, JsonObject


class ChunkWriter(ABC):
    """Turns the events of an answer into chunks. What a choice holds is a subclass's to say."""

    media_type = "text/event-stream"

    def __init__(self, head: Head, asked: Sampling, prompts: int = 1) -> None:
        """prompts: each of which has as many answers as `asked` says, which come one behind the other."""
        self.head, self._prompts = head, prompts
        self._usage = asked.stream_options is not None and asked.stream_options.include_usage
        self._count, self._ended = prompts * (asked.n or 1), list[Completion]()

    @property
    def index(self) -> int:
        """Of the answer that comes."""
        return len(self._ended)

    @abstractmethod
    def choice(self, piece: Text | Call | Chosen) -> JsonObject | None:
        """The choice for a piece of an answer; for an empty text, that of the last chunk. None: it is not shown."""

    @abstractmethod
    def choice_of(self, answer: Answer, index: int) -> JsonObject:
        """The choice of a whole answer."""

    def whole(self, answer: Answer) -> JsonObject:
        answers = [answer, *answer.others]
        choices = [self.choice_of(each, index) for index, each in enumerate(answers)]
        return self.head.whole(choices, [each.made for each in answers], self._prompts)

    def encode(self, event: Event | None) -> Iterator[bytes]:
        if event is None or isinstance(event, Queued | Loading | Reading):
            yield waiting_comment(event)
        elif isinstance(event, Text | Call | Chosen):
            if (choice := self.choice(event)) is not None:
                yield self._chunk(choice, None)
        elif isinstance(event, Failed):
            yield sse(error_body(fault_of(event.error)))
        elif isinstance(event, Ended) and event.completion is not None:
            completion = event.completion
            last = self.choice(Text("")) or {}
            yield self._chunk(last, finish_reason(completion), moeinf=figures(completion.stats))
            self._ended.append(completion)
            if self.index < self._count:
                return
            if self._usage:
                yield self.head.chunk([], usage=usage_of(self._ended, self._prompts))
            yield sse(b"[DONE]")

    def _chunk(self, choice: JsonObject, reason: str | None, **more: Json) -> bytes:
        return self.head.chunk([{"index": self.index, "logprobs": None, **choice, "finish_reason": reason}], **more)


def waiting_comment(event: Queued | Loading | Reading | None) -> bytes:
    """How far a request is that has no token yet; None stands for silence."""
    if event is None:
        return b": waiting\n\n"
    eta = "" if event.eta_s is None else f" eta={event.eta_s:.1f}s"
    if isinstance(event, Queued):
        return f": queued position={event.position}{eta}\n\n".encode()
    phase = "loading" if isinstance(event, Loading) else "prefill"
    return f": {phase} {event.done}/{event.total}{eta}\n\n".encode()
