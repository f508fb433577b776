"""One prompt and its answer: what `moeinf run` does when it is not a chat."""

from __future__ import annotations

import json
import select
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from moeinf.config.user_text import decoded, open_file
from moeinf.errors import UsageError
from moeinf.terminal.conversation_loop import Conversation
from moeinf.terminal.user_notes import say
from moeinf.types import JsonObject

if TYPE_CHECKING:
    from moeinf.engine.completion import Completion

_INTERRUPTED = 130
_MOST_PROMPT_BYTES = 64 << 20
_SILENCE_S = 2.0  # after which whoever has left a pipe open should know what is waited for
_PIECE_BYTES = 1 << 20


def prompt_text(words: Sequence[str], file: Path | None) -> str | None:
    """The prompt: standard input unless it is a terminal, then the file, then the words.

    Each goes on behind a space, or on a line of its own where what is before it ends with newlines, of which one is
    kept. At the end of all, standard input and the file have none, as in a shell's $(...). "" means that the model is
    loaded and nothing else; None means a chat. Raises UsageError where there is neither a prompt nor a terminal.
    """
    said, text = " ".join(words), ""
    for part in (_standard_input(), _file_text(file), said):
        between = " " if part and text and not text.endswith("\n") else ""
        text += between + part
    text = text if said else _dropped(text)
    if text or words:
        return text
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty() and file is None:
        return None
    raise UsageError("no prompt given; write it after the model's name or pipe it in")


def _standard_input() -> str:
    if sys.stdin is None or sys.stdin.isatty():
        return ""
    if not select.select([0], [], [], _SILENCE_S)[0]:
        say("note: waiting for the prompt on standard input; where there is none, write </dev/null behind the command")
    return _text(sys.stdin.buffer, "standard input")


def _file_text(file: Path | None) -> str:
    if file is None:
        return ""
    try:
        with open_file(file) as stream:
            return _text(stream, f"--file {file}")
    except OSError as error:
        raise UsageError(f"--file {file} cannot be read: {error.strerror}") from error


def _text(stream: BinaryIO, what: str) -> str:
    data = bytearray()
    while piece := stream.read(_PIECE_BYTES):  # not all at once: room for that would be taken for any prompt
        data += piece
        if len(data) > _MOST_PROMPT_BYTES:
            raise UsageError(f"{what} is longer than {_MOST_PROMPT_BYTES >> 20} MiB, which no context holds; give less")
    text = decoded(bytes(data))
    kept = _dropped(text)
    return kept + "\n" if kept and kept != text else kept


def _dropped(text: str) -> str:
    """The text without the newlines at its end."""
    return text.rstrip("\r\n")


def answer_once(conversation: Conversation, text: str, *, raw: bool, as_json: bool) -> int:
    """Writes the answer, or one JSON object, to stdout; returns the exit code."""
    if as_json:
        completion = conversation.ask(text, lambda piece: None, raw=raw)
        print(json.dumps(_as_object(conversation, completion)))
    else:
        with conversation.writer(tty=sys.stdout.isatty()) as writer:
            completion = conversation.ask(text, writer.write, writer.think, raw=raw)
    conversation.comment(completion)
    return _INTERRUPTED if completion.finish_reason == "interrupted" else 0


def _as_object(conversation: Conversation, completion: Completion) -> JsonObject:
    stats = asdict(completion.stats)
    stats |= stats.pop("made")
    return {
        "model": conversation.model.name,
        "server": getattr(conversation.model, "url", None),
        "response": completion.text,
        "thinking": completion.thinking,
        "finish_reason": completion.finish_reason,
        "cut_by": completion.cut_by,
        "stats": stats,
    }
