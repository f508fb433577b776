"""What a client asks of a model's thinking, and what the model can do of it."""

from __future__ import annotations

from moeinf.text.thinking import TemplateFacts, think_of_effort

ADAPTIVE = "adaptive"  # thoughts are welcome, but not asked for


def think_for(facts: TemplateFacts | None, asked: bool | str | None, effort: str | None = None) -> bool | str | None:
    """`think` of Model.pieces. A model that does not think grants it to be left, and is not asked to adapt.

    facts: None for a model without a chat template. effort: OpenAI's word, which goes before `asked`.
    Raises UsageError for a word that is none.
    """
    if effort is not None:
        return think_of_effort(facts, effort)
    if asked in (False, ADAPTIVE) and not (facts and facts.thinks):
        return None
    return True if asked == ADAPTIVE else asked
