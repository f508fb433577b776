"""What a stream of the Responses API says around the items: its beginning, its waits, and how it ends."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from moeinf.engine.completion import Completion, GenerationStats
from moeinf.errors import ContextLengthError
from moeinf.server.ask import Ended, Failed, Queued, Reading, Text
from moeinf.server.http_errors import BusyError
from moeinf.server.responses.output_items import OutputItems
from moeinf.server.responses.response_writer import ALIVE_S, ResponseWriter

HEAD: dict[str, Any] = {"id": "resp_1", "object": "response", "status": "in_progress", "error": None, "output": []}


class Written:
    """A writer at a time that a test sets, and what it has kept."""

    def __init__(self) -> None:
        self.now, self.kept = 0.0, list[Any]()
        output = OutputItems({}, summarised=False)
        self.writer = ResponseWriter(HEAD, output, self.kept.append, lambda: self.now)

    def told(self, event: Any, after_s: float = 0.0) -> list[Any]:
        self.now += after_s
        return list(parsed(self.writer.encode(event)))


def parsed(pieces: Iterable[bytes]) -> Iterable[Any]:
    """The events; a comment as its text."""
    for piece in pieces:
        text = piece.decode()
        if text.startswith(":"):
            yield text.strip()
            continue
        name, data = text.strip().split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        yield event


def kinds(events: Iterable[Any]) -> list[str]:
    return [each if isinstance(each, str) else each["type"].removeprefix("response.") for each in events]


def test_a_long_wait_has_comments_and_now_and_then_an_event() -> None:
    written = Written()
    assert kinds(written.told(Queued(2))) == ["created", "in_progress", ": queued position=2"]
    assert kinds(written.told(None, ALIVE_S - 1)) == [": waiting"]
    assert kinds(written.told(Reading(5, 9), 2.0)) == [": prefill 5/9", "in_progress"]
    assert kinds(written.told(Reading(9, 9), 2.0)) == [": prefill 9/9"]
    events = written.told(Text("Hi"))
    assert [event["sequence_number"] for event in events] == [3, 4, 5]


def test_an_answer_that_ends_or_is_cut_is_kept() -> None:
    for reason, status in (("stop", "completed"), ("length", "incomplete")):
        written = Written()
        written.told(Text("Hi"))
        stats = GenerationStats(prompt_tokens=7, cached_tokens=5)
        last = written.told(Ended(Completion("Hi", [1, 2, 3], reason, stats)))[-1]  # type: ignore[arg-type]
        assert last["type"] == f"response.{status}" and last["response"] == written.kept[0]
        told = last["response"]
        assert (told["status"], told["output"][0]["content"][0]["text"]) == (status, "Hi")
        assert told["usage"]["input_tokens_details"]["cached_tokens"] == 5
        assert (told["usage"]["input_tokens"], told["usage"]["output_tokens"], told["usage"]["total_tokens"]) == (
            7,
            3,
            10,
        )
        assert told["incomplete_details"] == (None if reason == "stop" else {"reason": "max_output_tokens"})


def test_what_goes_wrong_ends_the_stream_and_is_not_kept() -> None:
    for error, code in (
        (ContextLengthError("too long"), "context_length_exceeded"),
        (BusyError("b"), "rate_limit_exceeded"),
    ):
        written = Written()
        written.told(Text("Hi"))
        (failed,) = written.told(Failed(error))
        assert failed["type"] == "response.failed" and failed["response"]["status"] == "failed"
        assert failed["response"]["error"] == {"code": code, "message": str(error)} and not written.kept
