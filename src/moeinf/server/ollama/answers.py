"""The answers of chat and generate: lines of JSON while they are made, or one object."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import msgspec

from moeinf.engine.completion import Completion
from moeinf.server.ask import Ask, Ended, Event, Failed, Loading, Reading, Text
from moeinf.server.errors import fault_of
from moeinf.server.figures import figures
from moeinf.server.http import Answer
from moeinf.server.ollama.errors import error_body

PROGRESS_S = 0.5  # between two lines that tell how far loading and reading the prompt are


class Lines(ABC):
    """Writes one answer. How text is told is a subclass's to say."""

    def __init__(self, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        """To be made when the request comes: total_duration counts from then on. clock: seconds."""
        self._ask, self._clock = ask, clock
        self._began, self._told_s = clock(), float("-inf")

    @abstractmethod
    def said(self, text: str, thinking: str) -> dict[str, Any]:
        """The fields for a piece of text and of thoughts; either may be empty."""

    def encode(self, event: Event | None) -> Iterator[bytes]:
        """The lines for an event. Silence is a line with an empty text: clients cannot read an empty line."""
        if event is None:
            yield self._line(self.said("", ""), done=False)
        elif isinstance(event, Loading | Reading):
            if self._clock() - self._told_s >= PROGRESS_S:
                self._told_s = self._clock()
                phase = "loading" if isinstance(event, Loading) else "prefill"
                progress = {"phase": phase, "done": event.done, "total": event.total}
                yield self._line(self.said("", ""), done=False, moeinf=progress)
        elif isinstance(event, Text):
            said = self.said("", event.text) if event.thought else self.said(event.text, "")
            yield self._line(said, done=False)
        elif isinstance(event, Failed):
            yield _encoded(error_body(fault_of(event.error)))
        elif isinstance(event, Ended):
            yield self._line(self.said("", ""), **self._ending(event.completion, event.load_s))

    def whole(self, answer: Answer) -> dict[str, Any]:
        """The one object of an answer that is not streamed."""
        ending = self._ending(answer.completion, answer.load_s)
        return {**self._head(), **self.said(answer.text, answer.thinking), **ending}

    def _line(self, said: dict[str, Any], **more: Any) -> bytes:
        return _encoded({**self._head(), **said, **more})

    def _head(self) -> dict[str, Any]:
        moment = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        return {"model": self._ask.model, "created_at": moment.replace("+00:00", "Z")}

    def _ending(self, completion: Completion | None, load_s: float) -> dict[str, Any]:
        """The fields of the last line. Durations are nanoseconds."""
        ending: dict[str, Any] = {"done": True}
        if completion is None:
            ending["done_reason"] = "unload" if self._ask.keep_alive == (0.0,) else "load"
            return ending | {"total_duration": self._passed(), "load_duration": _nanoseconds(load_s)}
        stats = completion.stats
        return ending | {
            "done_reason": "length" if completion.finish_reason == "length" else "stop",
            "total_duration": self._passed(),
            "load_duration": _nanoseconds(load_s),
            "prompt_eval_count": stats.prompt_tokens,
            "prompt_eval_duration": _nanoseconds(stats.prompt_s),
            "eval_count": stats.generated_tokens,
            "eval_duration": _nanoseconds(stats.decode_s),
            "moeinf": _extension(completion),
        }

    def _passed(self) -> int:
        return _nanoseconds(self._clock() - self._began)


class ChatLines(Lines):
    def said(self, text: str, thinking: str) -> dict[str, Any]:
        thoughts = {"thinking": thinking} if thinking else {}
        return {"message": {"role": "assistant", "content": text, **thoughts}}


class GenerateLines(Lines):
    def said(self, text: str, thinking: str) -> dict[str, Any]:
        return {"response": text, **({"thinking": thinking} if thinking else {})}


def _extension(completion: Completion) -> dict[str, Any]:
    """What ollama has no field for; `moeinf run` prints it as it would its own figures."""
    stats = completion.stats
    return {
        **figures(stats),
        "cut_by": completion.cut_by,
        "prefill_cache": asdict(stats.prefill_cache),
        "decode_cache": asdict(stats.decode_cache),
        "peak_rss_bytes": stats.peak_rss_bytes,
        "peak_vram_bytes": stats.peak_vram_bytes,
    }


def _encoded(value: dict[str, Any]) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
