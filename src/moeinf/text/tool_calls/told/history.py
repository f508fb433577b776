"""The calls of a chat as clients send them back, and which result belongs to which call.

Ids of clients come again: some count anew in every turn, some give two calls of a turn the same one, and ollama's API
has none. So a result belongs to a call of the last turn that it can belong to, by its id, else by its tool's name, and
by its place only where it has neither.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from moeinf.errors import TextError
from moeinf.text.tool_calls.json_text import begun_json
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import JsonMapping, JsonObject


@dataclass
class _Call:
    given: str  # its id as it was given, "" for none
    made: str  # the id that templates get, which no other call of the chat has
    name: str
    answered: bool = False


class ChatCalls:
    """The calls of a chat so far."""

    def __init__(self, syntax: Syntax | None) -> None:
        self._syntax = syntax
        self._turns: list[list[_Call]] = []
        self._ids: set[str] = set()
        self._num_calls = 0

    def turn(self, given: object) -> list[JsonObject]:
        """The calls of the next turn, as templates read them. Raises TextError for what are none."""
        if not isinstance(given, Sequence) or isinstance(given, str):
            raise TextError('the tool_calls of a message in this chat are no list; each is {"function": {"name": ...}}')
        self._turns.append([])
        return [self._made(call) for call in given]

    def _made(self, call: object) -> JsonObject:
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not (isinstance(call, Mapping) and isinstance(function, Mapping) and isinstance(name, str) and name):
            raise TextError("a tool call of this chat has no function with a name")
        arguments = _object(function.get("arguments"))
        if arguments is None:
            raise TextError(f"the arguments of a call of {name!r} in this chat are no JSON object; leave the call out")
        given = str(call.get("id") or "")
        made = self._new_id(given or f"call_{self._num_calls}", name)
        self._num_calls += 1
        self._turns[-1].append(_Call(given, made, name))
        return {"id": made, "type": "function", "function": {"name": name, "arguments": arguments}}

    def _new_id(self, given: str, name: str) -> str:
        form = self._syntax.call_id if self._syntax else None
        made = form(given, name, self._num_calls) if form else given
        while made in self._ids:
            given = f"{given}_{self._num_calls}"
            made = form(given, name, self._num_calls) if form else given
        self._ids.add(made)
        return made

    def answered(self, result: JsonMapping) -> JsonObject:
        """A result with id and name of its call, where it belongs to one."""
        given, name = (str(result.get(key) or "") for key in ("tool_call_id", "name"))
        name = name or str(result.get("tool_name") or "")
        call = next(self._fitting(given, name), None)
        if call is not None:
            call.answered = True
        found = {"tool_call_id": call.made if call else given, "name": name or (call.name if call else "")}
        return {**result, **{key: value for key, value in found.items() if value}}

    def _fitting(self, given: str, name: str) -> Iterator[_Call]:
        """The calls that a result may belong to, the most probable first."""
        calls = [call for turn in reversed(self._turns) for call in turn]
        if given:
            same = [call for call in calls if call.given == given]
            yield from (call for call in same if not call.answered and call.name == name)
            yield from (call for call in same if not call.answered)
            yield from same
        else:
            yield from (call for call in calls if not call.answered and name in ("", call.name))


def _object(arguments: object) -> JsonObject | None:
    """Arguments as an object; None where they are none.

    Of those that the end of an answer cut off, what came; those that were encoded twice are decoded twice.
    """
    for _ in range(2):
        if isinstance(arguments, str):
            arguments = _read(arguments)
    return dict(arguments or {}) if isinstance(arguments, Mapping | None) else None


def _read(text: str) -> object:
    """None for no arguments; the text where it is no JSON."""
    try:
        return json.loads(text) if text.strip() else None
    except (ValueError, RecursionError):
        found = begun_json(text)
        return text if found is None else found
