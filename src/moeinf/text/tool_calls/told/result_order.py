"""Results of tools in the order of their calls, however their client sent them.

Most templates write results one behind the other and leave it to their order which call each belongs to; clients send
them as they come, with ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from moeinf.types import Json, Message

_RESULTS = ("tool", "function")
_Called = tuple[str, str]  # the id and the name of a call, "" for none


def in_order_of_calls(messages: Sequence[Message]) -> list[Message]:
    """The messages, those results of each turn's calls in order that say by id or name which call they belong to.

    One that is parted from its call by what a user or the system said stands before that.
    """
    made, calls, results, behind = list[Message](), list[_Called](), list[Message](), list[Message]()
    for message in messages:
        role = message.get("role")
        if role == "assistant":
            if results or behind:
                made += [*_sorted(results, calls), *behind]
                calls, results, behind = [], [], []
            made.append(message)
            calls += _calls_of(message)
        elif role in _RESULTS and (not behind or _has_id_of(message, calls)):
            results.append(message)
        else:
            behind.append(message)
    return [*made, *_sorted(results, calls), *behind]


def _has_id_of(result: Message, calls: Sequence[_Called]) -> bool:
    given = _text(result.get("tool_call_id"))
    return bool(given) and any(call[0] == given for call in calls)


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
