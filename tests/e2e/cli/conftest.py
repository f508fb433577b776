"""Running the command inside this process or as one of its own, and a model whose answers are a script."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from moeinf import cli
from moeinf.engine.completion import Completion, CutBy, GenerationStats, Hooks
from moeinf.runtime.cache.stats import CacheStats
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.store.library import StoredModel
from moeinf.text.thinking import TemplateFacts, template_variables
from moeinf.types import MoeShape

COMMAND = [sys.executable, "-m", "moeinf"]


@dataclass
class Done:
    code: int
    out: str
    err: str


@pytest.fixture
def home(demo: StoredModel) -> Path:
    """The store that holds the embedded model."""
    return demo.path.parents[1]


@pytest.fixture
def environment(home: Path) -> dict[str, str]:
    return os.environ | {"MOEINF_HOME": str(home), "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}


@pytest.fixture
def command(home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """command(*words, stdin="") -> Done, in this process: torch is imported but once."""

    def call(*words: str, stdin: str = "") -> Done:
        monkeypatch.setenv("MOEINF_HOME", os.environ.get("MOEINF_HOME", str(home)))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = cli.run_command(list(words))
        captured = capfd.readouterr()
        return Done(code, captured.out, captured.err)

    return call


def run_process(environment: dict[str, str], *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command as a process of its own, with stdin from nowhere unless said otherwise."""
    defaults: dict[str, Any] = {"stdin": subprocess.DEVNULL} if "input" not in options else {}
    return subprocess.run(
        [*COMMAND, *words],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **defaults,
        **options,
    )


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
    last: Completion | None = None
    closed: bool = False

    def __post_init__(self) -> None:
        self.tokenizer = SimpleNamespace(has_template=self.has_template)
        self.plan, self.tier = SimpleNamespace(context=128), SimpleNamespace(num_slots=4)
        self.manifest = SimpleNamespace(moe=MoeShape(2, 4, 2))

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
        hooks: Hooks,
    ) -> Iterator[str]:
        from moeinf.errors import ContextLengthError

        if not isinstance(prompt, str) and len(prompt) > self.context_turns:
            raise ContextLengthError("the prompt has too many tokens")
        self.prompts.append(prompt if isinstance(prompt, str) else [dict(message) for message in prompt])
        self.params_used.append(params)
        self.told.append(self.template_variables(think, variables))
        return self._answer(self.answers[(len(self.prompts) - 1) % len(self.answers)], hooks)

    def _answer(self, pieces: Sequence[str], hooks: Hooks) -> Iterator[str]:
        stats = GenerationStats(
            prompt_tokens=26,
            prompt_s=1.204,
            generated_tokens=3,
            token_s=[0.5, 0.5],
            total_s=2.5,
            decode_cache=CacheStats(hits=3, misses=5, demand_bytes=1 << 20),
            seed=7,
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
