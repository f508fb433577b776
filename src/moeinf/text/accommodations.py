"""What is changed in a chat for a template that refuses it as it is, or leaves something of it out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Message = Mapping[str, Any]

_MERGED = "the chat template wants alternating turns: consecutive turns of one role were merged"
_LATE = "the chat template takes a system message at the beginning only: a later one was put into the turn beside it"
_FOLDED = "the chat template takes no system message: it was put in front of the first user turn"
_RESULTS = "the chat template knows no results of tools: they were put into user turns"


def accommodations(messages: Sequence[Message]) -> Iterator[tuple[list[Message], list[str]]]:
    """The chat as it is, then with one change more at a time; each with a note for every change."""
    yield from _of_turns(messages)
    if any(message.get("role") == "tool" for message in messages):
        as_user = [{**m, "role": "user"} if m.get("role") == "tool" else m for m in messages]
        for candidate, notes in _of_turns(as_user):
            yield candidate, [_RESULTS, *notes]


def _of_turns(messages: Sequence[Message]) -> Iterator[tuple[list[Message], list[str]]]:
    yield list(messages), []
    merged = merge_turns(messages)
    notes = [_MERGED] if len(merged) < len(messages) else []
    if notes:
        yield merged, notes
    late = fold_late_system(messages)
    if late != list(messages):
        yield late, [_LATE]
        merged, notes = merge_turns(late), [_LATE]
        if len(merged) < len(late):
            notes = [_LATE, _MERGED]
            yield merged, notes
    if messages and messages[0].get("role") == "system":
        yield merge_turns(fold_system(merged)), [*notes, _FOLDED]


def merge_turns(messages: Sequence[Message]) -> list[Message]:
    """Consecutive turns of one role joined by an empty line. Results of tools, and turns behind calls, stay apart."""
    merged: list[Message] = []
    for message in messages:
        before = merged[-1] if merged else None
        if before is not None and _can_join(before, message):
            merged[-1] = _joined(before, message)
        else:
            merged.append(message)
    return merged


def fold_system(messages: Sequence[Message]) -> list[Message]:
    """A leading system message put in front of the user turn that follows, or made a user turn if none does."""
    if not messages or messages[0].get("role") != "system":
        return list(messages)
    return merge_turns([{**messages[0], "role": "user"}, *messages[1:]])


def fold_late_system(messages: Sequence[Message]) -> list[Message]:
    """System messages behind the first turn put into the user turn beside them, or made user turns if none is.

    Those at the beginning become one.
    """
    made: list[Message] = []
    before_late = False  # whether the last turn was a system message
    for message in messages:
        leading = all(turn.get("role") == "system" for turn in made)
        late = message.get("role") == "system" and not leading
        turn = {**message, "role": "user"} if late else message
        both_system = leading and bool(made) and message.get("role") == "system"
        if made and (late or before_late or both_system) and _can_join(made[-1], turn):
            made[-1] = _joined(made[-1], turn)
        else:
            made.append(turn)
        before_late = late
    return made


def drops_system(messages: Sequence[Message], text: str) -> bool:
    """Whether a template left out a system message."""
    contents = [message.get("content") for message in messages if message.get("role") == "system"]
    return any(isinstance(content, str) and content.strip() not in text for content in contents)


def _can_join(before: Message, message: Message) -> bool:
    return (
        before.get("role") == message.get("role") != "tool"
        and not before.get("tool_calls")
        and isinstance(before.get("content"), str)
        and isinstance(message.get("content"), str)
    )


def _joined(before: Message, message: Message) -> Message:
    content = "\n\n".join(text for text in (before["content"], message["content"]) if text)
    return {**before, **message, "content": content}
