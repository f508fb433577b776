"""What a chat template is given: copies in which every text, name and key is known for a client's (traced.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from moeinf.text.templates.sandbox import GivenDict, GivenList
from moeinf.text.templates.traced import BEGUN, GIVEN, MARK, OWN, Traced, alternatives
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.types import Json, JsonObject, Message

_ANY_CALLS: Final = [{"id": "x", "type": "function", "function": {"name": "x", "arguments": {"x": "x"}}}]
_ANY_TOOLS: Final = [
    {
        "type": "function",
        "function": {"name": "x", "description": "x", "parameters": {"properties": {"x": {"type": "string"}}}},
    }
]


def given(value: Json) -> Json:
    """A value as a template is given it, at any depth. What moeinf has written itself stays its own."""
    if isinstance(value, str):
        kept = value if isinstance(value, Traced) else Traced(value)
        return kept.replace(MARK, "")
    if isinstance(value, Mapping):
        return GivenDict((given(key), given(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return GivenList(map(given, value))
    return value


def given_messages(messages: Sequence[Message], roles: Sequence[str]) -> GivenList:
    """The same of a chat. roles: the words of moeinf, from which some templates make control tokens."""
    made = GivenList(map(given, messages))
    for message in made:
        if message.get("role") in roles:
            message["role"] = Traced(message["role"], OWN)
    return made


def begun(message: Message) -> JsonObject:
    """A message whose text is the beginning of the answer."""
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": Traced(content, BEGUN)}
    parts = [{**p, "text": Traced(p["text"], BEGUN)} if isinstance(p.get("text"), str) else p for p in content or ()]
    return {**message, "content": parts}


def with_own_marks(syntax: Syntax, control: Sequence[str]) -> Syntax:
    """The syntax, of whose writers the control tokens are moeinf's own, and all else is a client's.

    These are the tokens that a writer puts around any call, tool or result at all: others may come together from what
    it writes and what a client begins with.
    """
    pattern = alternatives(control)
    first = re.compile(f"[{re.escape(''.join(sorted({token[0] for token in control})))}]") if control else None

    def marked(value: Json) -> Json:
        """No character of a client begins a control token."""
        if isinstance(value, str):
            return first.sub(lambda match: match[0] + MARK, value.replace(MARK, "")) if first else value
        if isinstance(value, Mapping):
            return {marked(key): marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list | tuple) else value

    def known(write: Callable[..., str], any_value: object, value: Json, *rest: object) -> Traced:
        own = alternatives(pattern.findall(write(any_value, *rest))) if pattern else None
        parts = enumerate(_cut(own, write(marked(value), *rest)))
        return Traced().join(Traced(each, OWN if at % 2 else GIVEN) for at, each in parts).replace(MARK, "")

    def wrapped(write: Callable[..., str] | None, any_value: object) -> Callable[..., Traced] | None:
        return None if write is None else partial(known, write, any_value)

    return replace(
        syntax,
        write=wrapped(syntax.write, _ANY_CALLS),
        describe=wrapped(syntax.describe, _ANY_TOOLS),
        write_result=wrapped(syntax.write_result, "x"),
    )


def _cut(pattern: re.Pattern[str] | None, text: str) -> list[str]:
    """The text, cut at control tokens, which are every second part."""
    return re.split(f"({pattern.pattern})", text) if pattern else [text]
