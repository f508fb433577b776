"""What a client asks of a model's thinking, and what the model can do of it."""

from __future__ import annotations

from moeinf.server.ask import ADAPTIVE, Thoughts
from moeinf.server.http_errors import Refusal
from moeinf.text.thinking_text import TemplateFacts, think_of_effort


def budget_of(given: int, where: str) -> int:
    """thought_tokens of SamplingParams; -1 bounds nothing, as with llama.cpp's server. Raises Refusal."""
    if given < -1:
        raise Refusal(400, f"{where} must be at least 0, or -1 for no bound")
    return given


def think_for(facts: TemplateFacts | None, asked: Thoughts) -> bool | str | None:
    """`think` of Model.pieces. A model that does not think grants it to be left, and is not asked to adapt.

    facts: None for a model without a chat template. Raises UsageError for a word that is none.
    """
    if asked.effort is not None:
        return think_of_effort(facts, asked.effort)
    if asked.level is not None and asked.think is not False and facts is not None and facts.has_levels:
        return think_of_effort(facts, asked.level)
    if asked.think in (False, ADAPTIVE) and not (facts and facts.thinks):
        return None
    return True if asked.think == ADAPTIVE else asked.think
