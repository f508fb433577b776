"""What is changed in a chat for a template that refuses it as it is, or leaves something of it out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence

from moeinf.text.templates.traced import Traced
from moeinf.text.tool_calls.told.call_messages import with_calls_written
from moeinf.types import Message

_TOOLS = "calls of tools were written out, and their results put into user turns"


def accommodations(messages: Sequence[Message], why: Callable[[], str]) -> Iterator[tuple[list[Message], list[str]]]:
    """The chat as it is, then with one change more at a time; each with a note for every change.

    why: what the template did with the chat as it is.
    """
    yield from _of_turns(messages)
    if any(message.get("role") == "tool" for message in messages):
        as_user = [{**m, "role": "user"} if m.get("role") == "tool" else m for m in with_calls_written(messages)]
        for candidate, notes in _of_turns(as_user):
            yield candidate, [f"{why()}: {_TOOLS}", *notes]


def _of_turns(messages: Sequence[Message]) -> Iterator[tuple[list[Message], list[str]]]:
    seen: list[list[Message]] = []
    for changes in _CHANGES:
        candidate, notes = list(messages), []
        for change, note in changes:
            changed = change(candidate)
            notes += [note] if changed != candidate else []
            candidate = changed
        if candidate not in seen:
            seen.append(candidate)
            yield candidate, notes


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
    """System messages behind the first turn put into the user turn beside them, or made user turns if none is."""
    made: list[Message] = []
    was_late = False
    for message in messages:
        late = message.get("role") == "system" and any(turn.get("role") != "system" for turn in made)
        turn = {**message, "role": "user"} if late else message
        if made and (late or was_late) and _can_join(made[-1], turn):
            made[-1] = _joined(made[-1], turn)
        else:
            made.append(turn)
        was_late = late
    return made


def join_leading_system(messages: Sequence[Message]) -> list[Message]:
    """The system messages at the beginning made one."""
    made: list[Message] = []
    for message in messages:
        if len(made) == 1 and made[0].get("role") == message.get("role") == "system" and _can_join(made[0], message):
            made[0] = _joined(made[0], message)
        else:
            made.append(message)
    return made


def drops_system(messages: Sequence[Message], text: str) -> bool:
    """Whether a template left out a system message."""
    contents = [message.get("content") for message in messages if message.get("role") == "system"]
    return any(isinstance(content, str) and content.strip() not in text for content in contents)


def drops_user(messages: Sequence[Message], text: str) -> bool:
    """Whether a template seems to have left out what a user said."""
    contents = [message.get("content") for message in messages if message.get("role") == "user"]
    return any(isinstance(content, str) and content.strip() not in text for content in contents)


def in_parts(messages: Sequence[Message]) -> list[Message]:
    """Texts as lists of one part, which is the only form that some templates take (MiniMax-Text-01's)."""
    return [
        {**message, "content": [{"type": "text", "text": content}]}
        if isinstance(content := message.get("content"), str)
        else message
        for message in messages
    ]


def moves_system(messages: Sequence[Message], text: str) -> bool:
    """Whether a template put a late system message in front of the turn before it.

    A chat whose beginning changes with each turn shares no beginning with the one before.
    """
    before = ""
    for message in messages:
        content = str(message.get("content")).strip()
        if message.get("role") != "system":
            before = content or before
        elif content and before and text.rfind(content) < text.find(before):
            return True
    return False


def drops_result(messages: Sequence[Message], text: str) -> bool:
    """Whether a template seems to have left out what a tool gave back: neither it nor its JSON is there."""
    contents = [message.get("content") for message in messages if message.get("role") == "tool"]
    return any(
        isinstance(content, str)
        and content.strip() not in text
        and json.dumps(content, ensure_ascii=False)[1:-1].strip() not in text
        for content in contents
    )


def _can_join(before: Message, message: Message) -> bool:
    return (
        before.get("role") == message.get("role") != "tool"
        and not before.get("tool_calls")
        and isinstance(before.get("content"), str)
        and isinstance(message.get("content"), str)
    )


def _joined(before: Message, message: Message) -> Message:
    content = Traced("\n\n").join(text for text in (before["content"], message["content"]) if text)
    return {**before, **message, "content": content}


_Change = tuple[Callable[[Sequence[Message]], list[Message]], str]  # and what the user is told of it
_MERGE: _Change = (merge_turns, "the chat template wants alternating turns: consecutive turns of one role were merged")
_LATE: _Change = (
    fold_late_system,
    "the chat template takes a system message at the beginning only: a later one was put into the turn beside it",
)
_JOIN: _Change = (join_leading_system, "the chat template takes one system message: those at the beginning were joined")
_FOLD: _Change = (fold_system, "the chat template takes no system message: it was put in front of the first user turn")
# Which changes are tried together, in this order. Those that touch the beginning of a chat come late.
_CHANGES: tuple[tuple[_Change, ...], ...] = (
    (),
    (_MERGE,),
    (_LATE,),
    (_LATE, _JOIN),
    (_LATE, _JOIN, _MERGE),
    (_LATE, _JOIN, _MERGE, _FOLD),
)
