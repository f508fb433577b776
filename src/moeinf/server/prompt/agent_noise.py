"""What coding agents put into their system prompts anew with every request, or with every conversation.

Whatever follows it would have to be computed again each time: a prompt is reused only up to its first difference. Lines
that tell a model nothing are left out, of system messages alone. The state of a repository, which tells something, is
moved from the end of the system message to the beginning of the first question: many templates put the tools between
the two, which are most of the prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeinf.types import Message

# In which an agent tells whom to charge, with a sum that differs each time; what a proxy joins to it is no part of it.
_BILLING = re.compile(r"\s*x-anthropic-billing-header:(?:[ \t]*[\w-]+=[^\s;]*;?)+[ \t]*\n*", re.IGNORECASE)
# What is left of the context; some agents append it once more with every turn.
_OPENS, _CLOSES = "<total_tokens>", "</total_tokens>"
_TOKENS_LEFT = re.compile(r"<total_tokens>\s*[0-9][0-9,. ]{0,20}\s*tokens? left\s*</total_tokens>")
_LONGEST = 80
# What Claude Code quotes of git, at the end of its system prompt.
_GIT_STATUS = re.compile(r"(?:\A|\n)[ \t]*(?=gitStatus: This is the git status at the start of the conversation\.)")


def without_noise(messages: Sequence[Message]) -> list[Message]:
    """The chat without such lines. A system message of which nothing is left goes."""
    kept: list[Message] = []
    for message in messages:
        content = message.get("content")
        if message.get("role") != "system" or not isinstance(content, str):
            kept.append(message)
            continue
        quiet = quiet_text(content)
        if quiet or not content:
            kept.append(message if quiet == content else {**message, "content": quiet})
    return _with_status_behind(kept)


def _with_status_behind(messages: Sequence[Message]) -> list[Message]:
    """The chat with the state of a repository at the beginning of the first question, where one follows."""
    if len(messages) < 2 or (messages[0].get("role"), messages[1].get("role")) != ("system", "user"):
        return list(messages)
    told, asked = messages[0].get("content"), messages[1].get("content")
    status = _GIT_STATUS.search(told) if isinstance(told, str) else None
    if not isinstance(told, str) or status is None or not isinstance(asked, str | list):
        return list(messages)
    if not told[: status.start()].strip():
        return list(messages)
    moved = f"<system-reminder>\n{told[status.end() :].strip()}\n</system-reminder>\n\n"
    question = moved + asked if isinstance(asked, str) else [{"type": "text", "text": moved}, *asked]
    first, second = {**messages[0], "content": told[: status.start()].rstrip()}, {**messages[1], "content": question}
    return [first, second, *messages[2:]]


def quiet_text(text: str) -> str:
    """A system prompt, or a block of one, without what changes with every request. Takes time in its length alone."""
    billing = _BILLING.match(text)
    start = billing.end() if billing else 0
    end = kept_end = len(text)
    while True:
        while end > start and text[end - 1].isspace():
            end -= 1
        opens = text.rfind(_OPENS, max(start, end - _LONGEST), end) if text.endswith(_CLOSES, start, end) else -1
        if opens < 0 or not _TOKENS_LEFT.fullmatch(text, opens, end):
            return text[start:kept_end]
        end = kept_end = opens
        while kept_end > start and text[kept_end - 1].isspace():
            kept_end -= 1
