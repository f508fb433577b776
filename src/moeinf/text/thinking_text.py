"""The variables of a chat template: whether and how hard to think, and whatever else it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.errors import UsageError
from moeinf.text.templates.effort_levels import NO_LEVELS, EffortLevels
from moeinf.types import Json, JsonMapping, JsonObject

THINK_WORDS = ("true", "false", "low", "medium", "high", "max")
_SWITCHES: Mapping[str, tuple[Json, Json]] = {  # their values for thoughts, and for none
    "enable_thinking": (True, False),  # Qwen, GLM, ...
    "thinking": (True, False),  # DeepSeek, Granite
    "thinking_mode": ("enabled", "disabled"),  # MiniMax-M3
    "reasoning": (True, False),  # Cohere
}
_EFFORT = "reasoning_effort"  # gpt-oss
EFFORT_NAMES = (_EFFORT, "thinking_effort")  # Kimi K3's
# OpenAI's words for how hard to think, in those of THINK_WORDS.
_EFFORTS = {
    "none": "false",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "max",
    "max": "max",
}


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    variables: frozenset[str]  # that it reads, beside those that every template is given
    thinks: bool  # whether it knows of thoughts
    tools: bool  # whether it takes tools, and asks for calls in a syntax that is known
    effort_off: bool = False  # whether reasoning_effort is low, high or no_think, which it is unless told (Hunyuan 3)
    levels: EffortLevels = NO_LEVELS
    told_form: bool = False  # whether response_format tells it the form of the answer: of moeinf's own templates

    @property
    def has_levels(self) -> bool:
        """Whether it can be told how hard to think."""
        return self.effort is not None

    @property
    def effort(self) -> str | None:
        """The variable that says how hard to think."""
        return next((name for name in EFFORT_NAMES if name in self.variables), None)

    @property
    def switchable(self) -> bool:
        """Whether thoughts can be switched off, where there are any."""
        return bool(self.switches)

    @property
    def switches(self) -> dict[str, tuple[Json, Json]]:
        """The variables that switch thoughts, with their values for on and off."""
        found = {name: values for name, values in _SWITCHES.items() if name in self.variables}
        return found | ({_EFFORT: ("high", "no_think")} if self.effort_off else {})


def template_variables(facts: TemplateFacts | None, think: str | None, given: JsonMapping) -> JsonObject:
    """Returns the variables for a template: those `given` by name, and those that mean `think`, one of THINK_WORDS.

    facts: None where there is no template. Not to think is what a model without thoughts does anyway, and one that
    always has some is made to (see ends_thoughts). Raises UsageError for what else the template would ignore.
    """
    known = facts.variables if facts else frozenset[str]()
    for name in given:
        if name not in known:
            raise UsageError(
                f"the chat template reads no variable {name!r}; it reads: "
                f"{', '.join(sorted(known)) or 'none that can be given'}"
            )
    return (_think_variables(facts, think) if think is not None else {}) | dict(given)


def form_variables(facts: TemplateFacts | None, format: object) -> JsonObject:
    """What a template is told of the form that the answer is held to, where it has words for it.

    format: as for Model.pieces; other forms than JSON have no words.
    """
    if facts is None or not facts.told_form:
        return {}
    if isinstance(format, Mapping):
        return {"response_format": dict(format)}
    return {"response_format": "json_object"} if format == "json" else {}


def ends_thoughts(facts: TemplateFacts | None, think: bool | str | None) -> bool:
    """Whether thoughts are to be ended where they begin: of a model that is told not to think, and has no switch."""
    return str(think).lower() == "false" and facts is not None and facts.thinks and not facts.switchable


def think_of_effort(facts: TemplateFacts | None, effort: str) -> bool | str | None:
    """What OpenAI's reasoning_effort means as `think` of Model.stream.

    Where a template has no levels, every level means True. "none" means nothing to a model that does not think.
    Raises UsageError for another word.
    """
    if effort not in _EFFORTS:
        raise UsageError(f"reasoning_effort cannot be {effort!r}; it is one of {', '.join(_EFFORTS)}")
    think = _EFFORTS[effort]
    if think == "false":
        return False if facts is not None and facts.thinks else None
    return think if facts is None or facts.effort is not None else True


def _think_variables(facts: TemplateFacts | None, think: str) -> JsonObject:
    if think not in THINK_WORDS:
        raise UsageError(f"think cannot be {think!r}; it is one of {', '.join(THINK_WORDS)}")
    if facts is None or not facts.thinks:
        if think == "false":
            return {}
        raise UsageError("this model does not think: its chat template has no switch for it")
    switches = {name: values[think == "false"] for name, values in facts.switches.items()}
    if think in ("true", "false"):
        return switches  # where there is none, its thoughts are ended: see ends_thoughts
    if facts.effort is None:
        raise UsageError(f"this model knows no levels of thinking, only {'true and false' if switches else 'true'}")
    return switches | {facts.effort: facts.levels.nearest(think, facts.effort)}
