"""The many ways in which clients of OpenAI's API ask for thoughts, or for none."""

from __future__ import annotations

from moeinf.server.ask import Thoughts
from moeinf.server.http_errors import Refusal
from moeinf.server.openai.fields import BUDGETS
from moeinf.server.openai.requests import ChatRequest
from moeinf.server.prompt.thinking_field import budget_of
from moeinf.text.thinking_text import think_of_effort


def thoughts_of(asked: ChatRequest) -> Thoughts:
    """Raises UsageError for a word that is none, Refusal where two fields differ."""
    effort = _effort(asked)
    return Thoughts(_think(asked), effort)


def _effort(asked: ChatRequest) -> str | None:
    """How hard to think."""
    given = {asked.reasoning_effort, asked.reasoning.effort if asked.reasoning else None} - {None}
    if len(given) > 1:
        raise Refusal(400, "reasoning_effort and reasoning.effort say different things; give one of them")
    for word in given:
        think_of_effort(None, str(word))
        if (word == "none") in _switches(asked):
            raise Refusal(400, f"reasoning_effort is {word}, but a switch of thoughts beside it says otherwise")
    return next(iter(given), None)


def _think(asked: ChatRequest) -> bool | None:
    """Whether to think, where the client says so apart from how hard."""
    switches = _switches(asked)
    if len(switches) > 1:
        raise Refusal(400, "enable_thinking, thinking and reasoning.enabled say different things; give one of them")
    return next(iter(switches), None)


def budget_given(asked: ChatRequest) -> dict[str, int]:
    """The field of SamplingParams that bounds thoughts. Raises Refusal for two bounds that differ."""
    given = {name: getattr(asked, name) for name in BUDGETS}
    given["reasoning.max_tokens"] = asked.reasoning.max_tokens if asked.reasoning else None
    given["thinking.budget_tokens"] = asked.thinking.budget_tokens if asked.thinking else None
    said = {name: budget_of(value, name) for name, value in given.items() if value is not None}
    if len(set(said.values())) > 1:
        raise Refusal(400, f"{' and '.join(said)} differ; give one of them")
    return {"thought_tokens": next(iter(said.values()))} if said else {}


def thoughts_shown(asked: ChatRequest) -> bool:
    """Whether the client wants to be told of thoughts."""
    return asked.include_reasoning and not (asked.reasoning and asked.reasoning.exclude)


def _switches(asked: ChatRequest) -> set[bool]:
    thinking = {"enabled": True, "disabled": False}.get(asked.thinking.type) if asked.thinking else None
    enabled = asked.reasoning.enabled if asked.reasoning else None
    return {each for each in (asked.enable_thinking, thinking, enabled) if each is not None}
