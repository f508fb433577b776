"""Harmony, in which gpt-oss writes: an answer is several messages, each in a channel.

    <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...<|return|>

Its analysis is shown as other models show their thoughts, between <think> and </think>, and is not given back to it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from moeinf.generate.token_stream import TokenStream

_START, _CHANNEL, _MESSAGE, _END = _CONTROLS = "<|start|>", "<|channel|>", "<|message|>", "<|end|>"
_OPEN, _CLOSE = "<think>\n", "\n</think>\n\n"
_THOUGHTS = re.compile(f"{re.escape(_OPEN)}.*?({re.escape(_CLOSE)}|$)", re.DOTALL)


def is_harmony(tokenizer: Tokenizer) -> bool:
    return tokenizer.token_to_id(_CHANNEL) is not None


def without_thoughts(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What the assistant is reminded of: its answers alone, as the format asks."""
    return [{**message, "content": _THOUGHTS.sub("", message["content"])}
            if message.get("role") == "assistant" and isinstance(message.get("content"), str) else message
            for message in messages]


class HarmonyStream:
    """Text of ids as they come; the messages' heads (role and channel) are left out."""

    def __init__(self, tokenizer: Tokenizer, context: Sequence[int]) -> None:
        """context: the end of the prompt, which may have begun a message."""
        self._tokenizer = tokenizer
        self._controls = {tokenizer.token_to_id(name): name for name in _CONTROLS}
        names = [self._controls.get(token) for token in context]
        in_head = _START in names and _MESSAGE not in names[len(names) - names[::-1].index(_START):]
        self._head: list[int] | None = [] if in_head else None  # since its last control token; None in a message's text
        self._text = TokenStream(tokenizer, [] if in_head else list(context), skip_special=True)
        self._shown = self._thinking = False

    def step(self, ids: Sequence[int]) -> str:
        return "".join(map(self._step_one, ids))

    def _step_one(self, token: int) -> str:
        control = self._controls.get(token)
        if control == _MESSAGE:
            return self._begin()
        if control is not None:
            rest, self._head = self.flush(), []
            return rest
        if self._head is not None:
            self._head.append(token)
            return ""
        text = self._text.step([token])
        self._shown = self._shown or bool(text)
        return text

    def _begin(self) -> str:
        """What stands between the message before and that whose head is complete."""
        channel = self._tokenizer.decode(self._head or []).split()[:1]
        was, self._thinking = self._thinking, channel == ["analysis"]
        self._head, self._text = None, TokenStream(self._tokenizer, [], skip_special=True)
        if was and not self._thinking:
            return _CLOSE
        between = "\n\n" if self._shown else ""
        return between + _OPEN if self._thinking and not was else between

    def flush(self) -> str:
        return "" if self._head is not None else self._text.flush()
