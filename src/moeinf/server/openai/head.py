"""What every part of one answer of OpenAI's API has around it."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence

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

    def whole(self, choices: Sequence[JsonObject], completions: Sequence[Completion], prompts: int = 1) -> JsonObject:
        """prompts: of which each has as many of the completions."""
        told = zip(choices, completions, strict=True)
        return {
            **self._fields,
            "object": self._whole,
            "choices": [
                {"index": i, **each, "finish_reason": finish_reason(made)} for i, (each, made) in enumerate(told)
            ],
            "usage": usage_of(completions, prompts),
            "moeinf": figures(completions[0].stats),
        }

    def chunk(self, choices: list[JsonObject], **more: Json) -> bytes:
        return sse({**self._fields, "object": self._chunk, "choices": choices, **more})


def finish_reason(completion: Completion) -> str:
    if completion.finish_reason == "length":
        return "length"
    return "tool_calls" if completion.tool_calls else "stop"


def usage_of(completions: Sequence[Completion], prompts: int = 1) -> JsonObject:
    """The tokens of each prompt once, and of every completion. prompts: as of Head.whole."""
    firsts = [each.stats for each in completions[:: len(completions) // prompts]]
    prompt, generated = sum(each.prompt_tokens for each in firsts), sum(len(each.token_ids) for each in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": sum(each.cached_tokens for each in firsts)},
        "completion_tokens_details": {"reasoning_tokens": sum(each.thought_tokens for each in completions)},
    }
