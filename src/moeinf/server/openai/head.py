"""What every part of one answer of OpenAI's API has around it."""

from __future__ import annotations

import secrets
import time

from moeinf.engine.completion import Completion
from moeinf.server.figures import figures
from moeinf.server.http import sse
from moeinf.types import Json, JsonObject


class Head:
    """Writes whole answers and chunks that share an id, a time and the model's name."""

    def __init__(self, model: str, whole: str, chunk: str, prefix: str) -> None:
        """whole, chunk: the `object` of both."""
        self._fields = {"id": f"{prefix}-{secrets.token_hex(12)}", "created": int(time.time()), "model": model}
        self._whole, self._chunk = whole, chunk

    def whole(self, choice: JsonObject, completion: Completion) -> JsonObject:
        return {
            **self._fields,
            "object": self._whole,
            "choices": [{"index": 0, **choice, "finish_reason": finish_reason(completion)}],
            "usage": usage_of(completion),
            "moeinf": figures(completion.stats),
        }

    def chunk(self, choices: list[JsonObject], **more: Json) -> bytes:
        return sse({**self._fields, "object": self._chunk, "choices": choices, **more})


def finish_reason(completion: Completion) -> str:
    if completion.finish_reason == "length":
        return "length"
    return "tool_calls" if completion.tool_calls else "stop"


def usage_of(completion: Completion) -> JsonObject:
    prompt, generated = completion.stats.prompt_tokens, len(completion.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": completion.stats.cached_tokens},
    }
