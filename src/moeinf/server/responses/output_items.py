"""The items of a response as they come: thoughts, messages and calls of tools, told as events."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence

from moeinf.server.ask import Call, Chosen, Text
from moeinf.server.figures import logprobs
from moeinf.server.responses.offered_tools import Origin, free_text
from moeinf.types import Json, JsonObject

_ENDS = {True: "completed", False: "incomplete"}


class OutputItems:
    """Takes the pieces of an answer, and yields the events for each, without their numbers.

    One item is open at a time: that of the last piece. `items` has them all, the open one too.
    """

    def __init__(self, origins: Mapping[str, Origin], *, summarised: bool) -> None:
        """origins: as of OfferedTools. summarised: thoughts are told as a summary of themselves."""
        self.items: list[JsonObject] = []
        self._origins, self._summarised = origins, summarised
        self._open = ""  # what the last item is, while it is open: thought, text, or one of the calls
        self._said = ""  # the text of the open item, or the arguments of the call
        self._custom = False  # whether the open item is a call of a custom tool
        self._chosen: list[Chosen] = []  # tokens of the open text, and those of the next piece of it
        self._told = 0  # so many of which were told

    def take(self, piece: Text | Call | Chosen) -> Iterator[JsonObject]:
        if isinstance(piece, Chosen):
            self._chosen.append(piece)
        elif isinstance(piece, Call):
            yield from self._call(piece)
        elif piece.text and piece.thought:
            yield from self._thought(piece.text)
        elif piece.text:
            yield from self._text(piece.text)

    def end(self, *, whole: bool) -> Iterator[JsonObject]:
        """Closes the open item. whole: the answer was not cut. One without text and calls gets an empty message."""
        if whole and not any(item["type"] != "reasoning" for item in self.items):
            yield from self._begun("text", _message())
        yield from self._close(whole=whole)

    def _thought(self, text: str) -> Iterator[JsonObject]:
        self._chosen = []
        yield from self._begun("thought", {"id": _id("rs"), "type": "reasoning", "summary": []})
        self._said += text
        if self._summarised:
            yield self._event("reasoning_summary_text.delta", summary_index=0, delta=text)
        else:
            yield self._event("reasoning_text.delta", content_index=0, delta=text)

    def _text(self, text: str) -> Iterator[JsonObject]:
        yield from self._begun("text", _message())
        self._said += text
        new, self._told = logprobs(self._chosen[self._told :]), len(self._chosen)
        yield self._event("output_text.delta", content_index=0, delta=text, logprobs=new)

    def _call(self, part: Call) -> Iterator[JsonObject]:
        self._chosen = []
        if part.name is not None:
            origin = self._origins.get(part.name, Origin(part.name))
            kind, given = ("custom_tool_call", "input") if origin.is_custom else ("function_call", "arguments")
            item: JsonObject = {"id": _id("ctc" if origin.is_custom else "fc"), "type": kind, "status": "in_progress"}
            item |= {"call_id": _id("call"), "name": origin.name, given: ""}
            yield from self._begun(f"call {part.index}", item | ({"namespace": n} if (n := origin.namespace) else {}))
            self._custom = origin.is_custom
        self._said += part.arguments
        if part.arguments and not self._custom:
            yield self._event("function_call_arguments.delta", delta=part.arguments)

    def _begun(self, name: str, item: JsonObject) -> Iterator[JsonObject]:
        """Opens an item, unless the open one is that of this name."""
        if self._open == name:
            return
        yield from self._close(whole=True)
        self.items.append(item)
        self._open, self._said, self._told = name, "", 0
        yield {"type": "response.output_item.added", "output_index": len(self.items) - 1, "item": item}
        if name == "text":
            yield self._event("content_part.added", content_index=0, part=_output_text("", ()))
        elif name == "thought" and self._summarised:
            yield self._event("reasoning_summary_part.added", summary_index=0, part=_part("summary_text", ""))
        elif name == "thought":
            yield self._event("content_part.added", content_index=0, part=_part("reasoning_text", ""))

    def _close(self, *, whole: bool) -> Iterator[JsonObject]:
        if not self._open:
            return
        if self._open == "text":
            yield from self._close_text()
        elif self._open == "thought":
            yield from self._close_thought()
        else:
            whole = whole and (self._custom or _is_object(self._said))
            yield from self._close_call()
        item = self.items[-1]
        if "status" in item:
            item = self.items[-1] = item | {"status": _ENDS[whole]}
        self._open = ""
        yield {"type": "response.output_item.done", "output_index": len(self.items) - 1, "item": item}

    def _close_text(self) -> Iterator[JsonObject]:
        text, told = self._said, logprobs(self._chosen[: self._told])
        part = _output_text(text, told)
        yield self._event("output_text.done", content_index=0, text=text, logprobs=told)
        yield self._event("content_part.done", content_index=0, part=part)
        self.items[-1] = self.items[-1] | {"content": [part]}
        self._chosen = []

    def _close_thought(self) -> Iterator[JsonObject]:
        text = self._said
        if self._summarised:
            part = _part("summary_text", text)
            yield self._event("reasoning_summary_text.done", summary_index=0, text=text)
            yield self._event("reasoning_summary_part.done", summary_index=0, part=part)
            self.items[-1] = self.items[-1] | {"summary": [part]}
        else:
            part = _part("reasoning_text", text)
            yield self._event("reasoning_text.done", content_index=0, text=text)
            yield self._event("content_part.done", content_index=0, part=part)
            self.items[-1] = self.items[-1] | {"content": [part]}

    def _close_call(self) -> Iterator[JsonObject]:
        if not self._custom:
            yield self._event("function_call_arguments.done", name=self.items[-1]["name"], arguments=self._said)
            self.items[-1] = self.items[-1] | {"arguments": self._said}
            return
        text = free_text(self._said)
        yield self._event("custom_tool_call_input.delta", delta=text)
        yield self._event("custom_tool_call_input.done", input=text)
        self.items[-1] = self.items[-1] | {"input": text}

    def _event(self, kind: str, **members: Json) -> JsonObject:
        """One about the open item."""
        index = len(self.items) - 1
        return {"type": f"response.{kind}", "item_id": self.items[-1]["id"], "output_index": index, **members}


def _message() -> JsonObject:
    return {"id": _id("msg"), "type": "message", "status": "in_progress", "role": "assistant", "content": []}


def _output_text(text: str, told: Sequence[JsonObject]) -> JsonObject:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": list(told)}


def _part(kind: str, text: str) -> JsonObject:
    return {"type": kind, "text": text}


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
