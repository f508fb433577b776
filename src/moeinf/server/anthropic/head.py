"""What stands around the content of one answer of Anthropic's API."""

from __future__ import annotations

import secrets

from moeinf.engine.completion import Completion
from moeinf.types import JsonObject


class Head:
    """The members of a message that are known before its content."""

    def __init__(self, model: str) -> None:
        self._fields = {"id": f"msg_{secrets.token_hex(12)}", "type": "message", "role": "assistant", "model": model}

    def message(self, content: list[JsonObject], ending: JsonObject, usage: dict[str, int]) -> JsonObject:
        """ending: what `ending_of` gives."""
        return {**self._fields, "content": content, **ending, "usage": usage}


def ending_of(completion: Completion | None) -> dict[str, str | None]:
    """Why the answer ended. None: it has not."""
    if completion is None:
        return {"stop_reason": None, "stop_sequence": None}
    if completion.finish_reason == "length":
        reason = "model_context_window_exceeded" if completion.cut_by == "context" else "max_tokens"
    elif completion.tool_calls:
        reason = "tool_use"
    else:
        reason = "end_turn" if completion.stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": completion.stop}


def tool_use(name: str) -> JsonObject:
    """The block of a call whose input is to come."""
    return {"type": "tool_use", "id": f"toolu_{secrets.token_hex(12)}", "name": name, "input": {}}


def usage_of(completion: Completion) -> dict[str, int]:
    """Tokens of the prompt that were reused count apart from those that were computed."""
    cached = completion.stats.cached_tokens
    return usage(completion.stats.prompt_tokens - cached, cached, len(completion.token_ids))


def usage(computed: int, cached: int, generated: int) -> dict[str, int]:
    return {
        "input_tokens": computed,
        "cache_creation_input_tokens": 0,  # nobody pays for what is kept
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }
