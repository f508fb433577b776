"""A model whose answers are a script."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from moeinf.engine.completion import Completion, CutBy, GenerationStats, Hooks, Made
from moeinf.runtime.cache.stats import DecodeStats
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.text.thinking_text import TemplateFacts, template_variables
from moeinf.types import MoeShape

SWITCH = TemplateFacts(frozenset({"enable_thinking"}), thinks=True, tools=False)


class Thought(str):
    """A piece of an answer that the model only thinks."""


@dataclass
class ScriptedModel:
    """Answers every prompt with the pieces of `answers`, in turn, and notes what it was asked."""

    answers: list[Sequence[str]] = field(default_factory=lambda: [["Hello", " there"]])
    has_template: bool = True
    context_turns: int = 99  # prompts of more messages do not fit
    on_piece: Callable[[int], None] = lambda number: None
    encoder_decoder: bool = False
    cut_by: CutBy | None = None
    facts: TemplateFacts | None = SWITCH
    name: str = "scripted:latest"
    prompts: list[Any] = field(default_factory=list)
    params_used: list[SamplingParams] = field(default_factory=list)
    told: list[dict[str, Any]] = field(default_factory=list)  # variables of the chat template
    formats: list[AnswerFormat | None] = field(default_factory=list)
    last: Completion | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        self.tokenizer = SimpleNamespace(has_template=self.has_template)
        self.plan, self.tier = SimpleNamespace(context=128), SimpleNamespace(num_experts=4)
        info, source = SimpleNamespace(architecture="scripted"), SimpleNamespace(location="scripted", file="")
        self.manifest = SimpleNamespace(moe=MoeShape(2, 4, 2), source=source, info=info)

    def params(self, **given: Any) -> SamplingParams:
        return resolve_params(given)

    def template_variables(self, think: str | None, given: Mapping[str, Any]) -> dict[str, Any]:
        return template_variables(self.facts, think, given)

    def stream(
        self,
        prompt: Any,
        params: SamplingParams,
        *,
        raw: bool,
        think: str | None,
        variables: dict[str, Any],
        format: AnswerFormat | None,
        hooks: Hooks,
    ) -> Iterator[str]:
        from moeinf.errors import ContextLengthError

        if not isinstance(prompt, str) and len(prompt) > self.context_turns:
            raise ContextLengthError("the prompt has too many tokens")
        self.prompts.append(prompt if isinstance(prompt, str) else [dict(message) for message in prompt])
        self.params_used.append(params)
        self.formats.append(format)
        self.told.append(self.template_variables(think, variables))
        return self._answer(self.answers[(len(self.prompts) - 1) % len(self.answers)], hooks)

    def _answer(self, pieces: Sequence[str], hooks: Hooks) -> Iterator[str]:
        stats = GenerationStats(
            prompt_tokens=26,
            prompt_s=1.204,
            generated_tokens=3,
            token_s=[0.5, 0.5],
            total_s=2.5,
            decode_cache=DecodeStats(hits=3, misses=5, demand_bytes=1 << 20),
            made=Made(seed=7),
        )
        self.last = Completion("", [], "length" if self.cut_by else "stop", stats, cut_by=self.cut_by)
        for number, piece in enumerate(pieces):
            if hooks.should_stop():
                self.last.finish_reason = "interrupted"
                return
            if isinstance(piece, Thought):
                self.last.thinking += piece
                hooks.on_thought(piece)
            else:
                self.last.text += piece
                yield piece
            self.on_piece(number)

    def longer_context(self) -> str:
        return ", or raise --num-ctx"

    def describe(self) -> str:
        return f"{self.name} · described"

    def close(self) -> None:
        self.closed = True
