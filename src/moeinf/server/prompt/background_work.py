"""Which requests nobody waits for at a screen: what clients say, and the side work of chat programs and agents."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from moeinf.engine.completion import TokenIds
from moeinf.server.ask import Ask, Inputs
from moeinf.types import Message

# The urgency of HTTP's Priority header (RFC 9218), of which 7 is for background work.
_URGENCY: Final = re.compile(r"(?:^|[,\s])u=([0-7])(?=$|[,;\s])")
BACKGROUND_URGENCY: Final = 7
# Texts of the prompts with which clients ask for titles, tags and summaries beside a chat, without tools.
_IN_SYSTEM: Final = (
    "You are a title generator.",  # opencode
    "indicates a new conversation topic",  # Claude Code
    "Generate a concise, sentence-case title",
    "Summarize this coding conversation",
    "you will generate a short title based on the first message",  # crush
)
_AT_BEGINNING: Final = (
    "### Task:\n",  # Open WebUI: titles, tags, follow-ups, queries
    "Please write a 5-10 word title",  # Claude Code
    "[SUGGESTION MODE:",
)
_LOOKED_AT: Final = 4000  # characters of a message


def in_background(ask: Ask, headers: Mapping[str, str]) -> bool:
    """Whether the request says so in its Priority header, or is known side work."""
    urgency = _URGENCY.search(headers.get("priority", ""))
    if urgency is not None:
        return int(urgency[1]) == BACKGROUND_URGENCY
    return _is_side_work(ask)


def _is_side_work(ask: Ask) -> bool:
    if ask.tools.offered or ask.raw or ask.prompt is None or isinstance(ask.prompt, TokenIds | Inputs):
        return False
    if isinstance(ask.prompt, str):
        return ask.prompt.startswith(_AT_BEGINNING)
    systems, users = _texts(ask.prompt, "system"), _texts(ask.prompt, "user")
    if any(mark.lower() in text.lower() for text in systems for mark in _IN_SYSTEM):
        return True
    return bool(users) and users[-1].startswith(_AT_BEGINNING)


def _texts(messages: Sequence[Message], role: str) -> list[str]:
    """The beginnings of the messages of a role."""
    contents = [message.get("content") for message in messages if message.get("role") == role]
    return [content[:_LOOKED_AT] for content in contents if isinstance(content, str)]
