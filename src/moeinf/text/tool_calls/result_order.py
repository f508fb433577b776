"""Results of tools in the order of their calls, however their client sent them.

Most templates write results one behind the other and leave it to their order which call each belongs to; clients send
them as they come, with ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from moeinf.types import Json, Message

_RESULTS = ("tool", "function")
_Called = tuple[str, str]  # the id and the name of a call, "" for none


def in_order_of_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, those results of each row in order that say by id or name which call they belong to."""
    made, calls = list[Message](), list[_Called]()
    for is_results, group in groupby(messages, lambda message: message.get("role") in _RESULTS):
        row = list(group)
        if is_results:
            made += _sorted(row, calls)
            continue
        made += row
        calls = []
        for message in reversed(row):
            if message.get("role") != "assistant":
                break
            calls = _calls_of(message) + calls
    return made


def _calls_of(message: Message) -> list[_Called]:
    given = message.get("tool_calls") or [{"function": message.get("function_call")}]
    found = list[_Called]()
    for call in given if isinstance(given, list | tuple) else ():
        function = call.get("function") if isinstance(call, Mapping) else None
        if isinstance(function, Mapping):
            found.append((_text(call.get("id")), _text(function.get("name"))))
    return found


def _sorted(row: Sequence[Message], calls: Sequence[_Called]) -> list[Message]:
    """Results that fit no call keep their place."""
    left, places = dict(enumerate(calls)), dict[int, int]()
    for i, result in enumerate(row):
        given = _text(result.get("tool_call_id"))
        name = _text(result.get("name") or result.get("tool_name"))
        fitting = [n for n, call in left.items() if (call[0] == given if given else call[1] == name)]
        if fitting:
            place = next((n for n in fitting if left[n][1] == name), fitting[0])
            places[i] = place
            del left[place]
    order = iter(sorted(places, key=places.__getitem__))
    return [row[next(order)] if i in places else result for i, result in enumerate(row)]


def _text(value: Json) -> str:
    return value if isinstance(value, str) else ""
