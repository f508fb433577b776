"""The events of a response, in their order, and the items that they end in."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from moeinf.server.ask import Call, Chance, Chosen, Text
from moeinf.server.responses.offered_tools import Origin
from moeinf.server.responses.output_items import OutputItems

PIECES = [
    Text("Hm", thought=True),
    Text(".", thought=True),
    Text("Look"),
    Text("ing."),
    Call(0, "ns__f", ""),
    Call(0, None, '{"a"'),
    Call(0, None, ": 1}"),
    Call(1, "g", '{"input": '),
    Call(1, None, '"text"}'),
]
ORIGINS = {"ns__f": Origin("f", "ns"), "g": Origin("g", is_custom=True)}
ENDS = ["output_item.done", "output_item.added"]
SAID = ["content_part.added", "output_text.delta", "output_text.done", "content_part.done", *ENDS]
CALLED = ["function_call_arguments.delta", "function_call_arguments.done", *ENDS]
CUSTOM = ["custom_tool_call_input.delta", "custom_tool_call_input.done", "output_item.done"]


def told(pieces: Sequence[Any], *, summarised: bool = False, whole: bool = True) -> tuple[OutputItems, list[Any]]:
    output = OutputItems(ORIGINS, summarised=summarised)
    events = [event for piece in pieces for event in output.take(piece)]
    return output, [*events, *output.end(whole=whole)]


def kinds(events: Sequence[Any]) -> list[str]:
    return [kind for kind, _ in groupby(event["type"].removeprefix("response.") for event in events)]


def test_every_kind_of_item_is_opened_filled_and_closed() -> None:
    output, events = told(PIECES)
    thought = ["content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done", *ENDS]
    assert kinds(events) == ["output_item.added", *thought, *SAID, *CALLED, *CUSTOM]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output.items
    reasoning, message, call, custom = output.items
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "Hm."}] and reasoning["summary"] == []
    assert message["content"][0]["text"] == "Looking." and message["status"] == "completed"
    assert (call["name"], call["namespace"], call["arguments"]) == ("f", "ns", '{"a": 1}')
    assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "g", "text")
    for event in events:
        item = output.items[event["output_index"]]
        assert event.get("item_id", item["id"]) == item["id"]


def test_thoughts_as_a_summary() -> None:
    output, events = told(PIECES[:2], summarised=True)
    parts = [f"reasoning_summary_{name}" for name in ("part.added", "text.delta", "text.done", "part.done")]
    assert kinds(events)[1:6] == [*parts, "output_item.done"]
    assert output.items[0]["summary"] == [{"type": "summary_text", "text": "Hm."}]
    assert "content" not in output.items[0]


def test_an_answer_without_words_has_an_empty_message() -> None:
    output, events = told([])
    assert output.items[0]["content"][0]["text"] == "" and kinds(events)[-1] == "output_item.done"
    assert told([], whole=False)[0].items == []


def test_what_was_cut_is_incomplete() -> None:
    assert told(PIECES[2:4], whole=False)[0].items[0]["status"] == "incomplete"
    assert told([*PIECES[4:6]])[0].items[0]["status"] == "incomplete", "arguments that are no object"
    assert told(PIECES[7:8], whole=False)[0].items[0] | {"id": "", "call_id": ""} == {
        "id": "",
        "type": "custom_tool_call",
        "status": "incomplete",
        "call_id": "",
        "name": "g",
        "input": '{"input": ',
    }


def test_probabilities_are_those_of_the_text_alone() -> None:
    def chosen(word: str) -> Chosen:
        return Chosen(Chance(word.encode(), -0.5), ())

    output, events = told([chosen("Hm"), PIECES[0], chosen("Look"), PIECES[2], chosen("ing"), chosen("."), PIECES[3]])
    deltas = [event["logprobs"] for event in events if event["type"] == "response.output_text.delta"]
    assert [[each["token"] for each in delta] for delta in deltas] == [["Look"], ["ing", "."]]
    assert [each["token"] for each in output.items[1]["content"][0]["logprobs"]] == ["Look", "ing", "."]
