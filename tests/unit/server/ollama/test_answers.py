"""The lines of a streamed answer, and the one object of another."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from moeinf.engine.completion import Completion, GenerationStats, Made
from moeinf.errors import ContextLengthError
from moeinf.server.ask import Ask, Call, Ended, Event, Failed, Loading, Reading, Text
from moeinf.server.http import Answer
from moeinf.server.ollama.answers import PROGRESS_S, ChatLines, GenerateLines, Lines


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def told(lines: Lines, *events: Event | None) -> list[dict[str, Any]]:
    written = b"".join(piece for event in events for piece in lines.encode(event))
    assert not written or written.endswith(b"\n")
    return [json.loads(line) for line in written.split(b"\n")[:-1]]


def a_completion() -> Completion:
    stats = GenerationStats(prompt_tokens=9, prompt_s=0.5, generated_tokens=3, token_s=[0.25, 0.25], made=Made(seed=7))
    return Completion("one two", [1, 2, 3], "length", stats, cut_by="num_predict")


def test_text_and_thoughts_come_in_fields_of_their_own() -> None:
    chat = told(ChatLines(Ask("m")), Text("hm", thought=True), Text("one"))
    assert [line["message"] for line in chat] == [
        {"role": "assistant", "content": "", "thinking": "hm"},
        {"role": "assistant", "content": "one"},
    ]
    generate = told(GenerateLines(Ask("m")), Text("hm", thought=True), Text("one"))
    assert [(line["response"], line.get("thinking")) for line in generate] == [("", "hm"), ("one", None)]
    for line in (*chat, *generate):
        assert (line["model"], line["done"]) == ("m", False)
        assert datetime.fromisoformat(line["created_at"].replace("Z", "+00:00")).tzinfo is not None


def test_silence_is_a_line_with_an_empty_text() -> None:
    assert [line["message"]["content"] for line in told(ChatLines(Ask("m")), None, None)] == ["", ""]


def test_progress_is_told_now_and_then() -> None:
    clock = Clock()
    lines = ChatLines(Ask("m"), clock)
    assert [line["moeinf"] for line in told(lines, Loading(1, 9), Loading(2, 9))] == [
        {"phase": "loading", "done": 1, "total": 9}
    ]
    clock.now += PROGRESS_S
    assert [line["moeinf"]["phase"] for line in told(lines, Reading(3, 9), Reading(9, 9))] == ["prefill"]


def test_a_call_is_told_once_it_is_whole() -> None:
    clock = Clock()
    lines = ChatLines(Ask("m"), clock)
    parts = [Call(0, "f", ""), Call(0, None, '{"a":'), Call(0, None, " 1}"), Call(1, "g", "{}")]
    written = told(lines, *parts, Text("and"), Call(2, "cut", '{"b'), Ended(a_completion()))
    calls = [call for line in written for call in line["message"].get("tool_calls", ())]
    assert [call["function"] for call in calls] == [
        {"index": 0, "name": "f", "arguments": {"a": 1}},
        {"index": 1, "name": "g", "arguments": {}},
    ]
    assert len({call["id"] for call in calls}) == 2 and written[-1]["done"]


def test_a_long_call_is_no_silence() -> None:
    clock = Clock()
    lines = ChatLines(Ask("m"), clock)
    assert len(told(lines, Call(0, "f", "{"), Call(0, None, " "))) == 1
    clock.now += PROGRESS_S
    assert [line["message"]["content"] for line in told(lines, Call(0, None, " "))] == [""]


def test_the_last_line_has_the_figures_in_nanoseconds() -> None:
    clock = Clock()
    lines = ChatLines(Ask("m"), clock)
    clock.now += 2
    [last] = told(lines, Ended(a_completion(), 0.75))
    assert (last["done"], last["done_reason"], last["message"]["content"]) == (True, "length", "")
    durations = {name: value for name, value in last.items() if name.endswith("_duration")}
    assert durations == {
        "total_duration": 2_000_000_000,
        "load_duration": 750_000_000,
        "prompt_eval_duration": 500_000_000,
        "eval_duration": 500_000_000,
    }
    assert (last["prompt_eval_count"], last["eval_count"]) == (9, 3)
    assert (last["moeinf"]["seed"], last["moeinf"]["cut_by"]) == (7, "num_predict")


def test_what_only_loads_or_unloads_says_so() -> None:
    assert told(GenerateLines(Ask("m")), Ended(None, 1.0))[0]["done_reason"] == "load"
    assert told(GenerateLines(Ask("m", keep_alive=(0.0,))), Ended(None))[0]["done_reason"] == "unload"


def test_an_error_is_the_last_line() -> None:
    assert told(ChatLines(Ask("m")), Failed(ValueError("a path of this machine"))) == [
        {"error": "unexpected error; the server's log has more"}
    ]
    assert told(ChatLines(Ask("m")), Failed(ContextLengthError("too long"))) == [
        {"error": "too long", "moeinf": {"kind": "context"}}
    ]


def test_a_whole_answer_is_one_object() -> None:
    answer = Answer()
    for event in (Text("hm", thought=True), Text("one "), Text("two"), Ended(a_completion(), 0.75)):
        answer.take(event)
    whole = ChatLines(Ask("m")).whole(answer)
    assert whole["message"] == {"role": "assistant", "content": "one two", "thinking": "hm"}
    assert (whole["done"], whole["done_reason"], whole["eval_count"]) == (True, "length", 3)
