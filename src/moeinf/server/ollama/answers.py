"""The answers of chat and generate: lines of JSON while they are made, or one object."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime, timezone

import msgspec

from moeinf.engine.completion import Completion, ToolCall, whole_calls
from moeinf.server.ask import Ask, Call, Chosen, Ended, Event, Failed, Loading, Queued, Reading, Text
from moeinf.server.figures import figures, logprobs, waits
from moeinf.server.http import Answer
from moeinf.server.http_errors import fault_of
from moeinf.server.ollama.errors import error_body
from moeinf.text.text_stream import CallPart
from moeinf.types import Json, JsonObject

PROGRESS_S = 0.5  # between two lines that tell how far loading and reading the prompt are


class Lines(ABC):
    """Writes one answer. How text is told is a subclass's to say."""

    media_type = "application/x-ndjson"

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        """To be made when the request comes: total_duration counts from then on. clock: seconds."""
        self._ask, self._clock = ask, clock
        self._began, self._told_s = clock(), float("-inf")
        self._parts: list[CallPart] = []  # of a call that is not whole yet
        self._chosen: list[Chosen] = []  # tokens whose probabilities have not been told

    @abstractmethod
    def said(self, text: str, thinking: str = "", calls: Sequence[ToolCall] = ()) -> JsonObject:
        """The fields for a piece of text, of thoughts, and calls of tools; each may be empty."""

    def encode(self, event: Event | None) -> Iterator[bytes]:
        """The lines for an event. Silence is a line with an empty text: clients cannot read an empty line."""
        if event is None:
            yield self._line(self.said(""), done=False)
        elif isinstance(event, Queued | Loading | Reading):
            yield from self._now_and_then(moeinf=waits(event))
        elif isinstance(event, Call):
            yield from self._call(event)
        elif isinstance(event, Text):
            yield from self._whole_calls()
            said = self.said("", event.text) if event.thought else self.said(event.text)
            yield self._line(said, done=False, **self._logprobs())
        elif isinstance(event, Chosen):
            self._chosen.append(event)
        elif isinstance(event, Failed):
            yield _encoded(error_body(fault_of(event.error)))
        elif isinstance(event, Ended):
            yield from self._whole_calls()
            ending = self._ending(event.completion, event.load_s)
            yield self._line(self.said(""), **self._logprobs(), **ending)

    def _logprobs(self) -> JsonObject:
        """How probable the tokens since the last such line were, where the client asked for that."""
        told, self._chosen = logprobs(self._chosen), []
        return {"logprobs": told} if told else {}

    def _call(self, part: Call) -> Iterator[bytes]:
        """Calls are told whole: until then the client hears that there is more to come."""
        if part.name is not None:
            yield from self._whole_calls()
        self._parts.append(CallPart(part.index, part.name, part.arguments))
        yield from self._now_and_then()

    def _whole_calls(self) -> Iterator[bytes]:
        calls, self._parts = whole_calls(self._parts), []
        if calls:
            yield self._line(self.said("", calls=calls), done=False)

    def _now_and_then(self, **more: Json) -> Iterator[bytes]:
        """A line with an empty text, unless there was one just now."""
        if self._clock() - self._told_s >= PROGRESS_S:
            self._told_s = self._clock()
            yield self._line(self.said(""), done=False, **more)

    def whole(self, answer: Answer) -> JsonObject:
        """The one object of an answer that is not streamed."""
        ending = self._ending(answer.completion, answer.load_s)
        calls = answer.completion.tool_calls if answer.completion is not None else ()
        told = {"logprobs": logprobs(answer.chosen)} if answer.chosen else {}
        return {**self._head(), **self.said(answer.text, answer.thinking, calls), **told, **ending}

    def _line(self, said: JsonObject, **more: Json) -> bytes:
        return _encoded({**self._head(), **said, **more})

    def _head(self) -> JsonObject:
        moment = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        return {"model": self._ask.model, "created_at": moment.replace("+00:00", "Z")}

    def _ending(self, completion: Completion | None, load_s: float) -> JsonObject:
        """The fields of the last line. Durations are nanoseconds."""
        ending: JsonObject = {"done": True}
        if completion is None:
            ending["done_reason"] = "unload" if self._ask.only_closes else "load"
            return ending | {"total_duration": self._passed(), "load_duration": nanoseconds(load_s)}
        stats = completion.stats
        return ending | {
            "done_reason": "length" if completion.finish_reason == "length" else "stop",
            "total_duration": self._passed(),
            "load_duration": nanoseconds(load_s),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": nanoseconds(stats.prompt_s),
            "eval_count": stats.generated_tokens,
            "eval_duration": nanoseconds(stats.decode_s),
            "moeinf": _extension(completion),
        }

    def _passed(self) -> int:
        return nanoseconds(self._clock() - self._began)


class ChatLines(Lines):
    _num_calls = 0

    def said(self, text: str, thinking: str = "", calls: Sequence[ToolCall] = ()) -> JsonObject:
        more: JsonObject = {"thinking": thinking} if thinking else {}
        if calls:
            more["tool_calls"] = [self._told(call) for call in calls]
        return {"message": {"role": "assistant", "content": text, **more}}

    def _told(self, call: ToolCall) -> JsonObject:
        function = {"index": self._num_calls, "name": call.name, "arguments": json.loads(call.arguments)}
        self._num_calls += 1
        return {"id": f"call_{secrets.token_hex(4)}", "function": function}


class GenerateLines(Lines):
    def said(self, text: str, thinking: str = "", calls: Sequence[ToolCall] = ()) -> JsonObject:
        """Nobody gives generate any tools to call."""
        return {"response": text, **({"thinking": thinking} if thinking else {})}


def _extension(completion: Completion) -> JsonObject:
    """What ollama has no field for; `moeinf run` prints it as it would its own figures."""
    stats = completion.stats
    return {
        **figures(stats),
        "cut_by": completion.cut_by,
        "cached_from": stats.cached_from,
        "prefill_cache": asdict(stats.prefill_cache),
        "decode_cache": asdict(stats.decode_cache),
        "peak_rss_bytes": stats.peak.rss,
        "peak_vram_bytes": stats.peak.vram,
    }


def _encoded(value: JsonObject) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
