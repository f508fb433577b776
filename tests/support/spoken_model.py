"""A stand-in for an open model, for tests of the server: it says the words of its script, and counts what is done."""

from __future__ import annotations

import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from moeinf.config import RuntimeConfig
from moeinf.engine.answers.generator import Answer
from moeinf.engine.completion import Completion, GenerationStats, Hooks, Request
from moeinf.engine.reporting import Reporting
from moeinf.errors import ModelNotFoundError
from moeinf.hardware import Machine
from moeinf.store.library import Library
from moeinf.text.text_stream import Piece


@dataclass(frozen=True)
class NamedModel:
    """As much of a StoredModel as a worker asks for."""

    name: str
    id: str
    manifest: Any = field(default_factory=lambda: SimpleNamespace(info=SimpleNamespace(context_length=2048)))


class NamedModels(Library):
    """A store without a folder, which finds these."""

    def __init__(self, *names: str) -> None:
        super().__init__(Path("no such folder"))
        self._models = {name: NamedModel(name, f"id of {name}") for name in names}

    def find(self, reference: str) -> Any:
        if reference not in self._models:
            raise ModelNotFoundError(f"model '{reference}' not found")
        return self._models[reference]


class SpokenModel:
    """Says `words`. gate: before each word it waits for that semaphore. fault: is raised at the second word."""

    words = ("one ", "two ", "three")
    gate: threading.Semaphore | None = None
    fault: Exception | None = None
    parallel = 1
    planned_bytes = 110

    def __init__(self, stored: NamedModel, config: RuntimeConfig, reporting: Reporting, on: Machine | None) -> None:
        self.stored, self.config, self.on, self.closed, self.warm = stored, config, on, False, False
        self.plan = SimpleNamespace(context=config.memory.context or 512)
        self.last: Completion | None = None
        self.answering = self.most_at_once = 0
        kind, steps = SimpleNamespace(template=None), SimpleNamespace(rate=0.0)
        prompts = SimpleNamespace(thinking=lambda params, think, raw: params)
        self.generator = SimpleNamespace(begin=self.begin, step=self.step, kind=kind, steps=steps, prompts=prompts)
        reporting.progress(1, 1)

    def step(self) -> None:
        pass

    def describe(self) -> str:
        return f"{self.stored.name} of words"

    def warm_up(self) -> None:
        self.warm = True

    def params(self, **given: Any) -> dict[str, Any]:
        return given

    def template_variables(self, *asked: object, **told: object) -> dict[str, Any]:
        return {}

    def begin(self, request: Request) -> Answer:
        self.last = Completion("", [], "interrupted", GenerationStats())
        return Answer(self.pieces(self.last, request.hooks), self.last)

    def pieces(self, answer: Completion, hooks: Hooks) -> Generator[Piece | None, None, None]:
        self.answering += 1
        self.most_at_once = max(self.most_at_once, self.answering)
        try:
            yield from self._said(answer, hooks)
        finally:
            self.answering -= 1

    def _said(self, answer: Completion, hooks: Hooks) -> Generator[Piece | None, None, None]:
        hooks.on_prefill(1, 1)
        yield Piece("hm", thought=True)
        for number, word in enumerate(self.words):
            if self.gate is not None:
                self.gate.acquire()
            while hooks.gives_way() and not hooks.should_stop():
                yield None
            if hooks.should_stop():
                return
            if number == 1 and self.fault is not None:
                raise self.fault
            answer.text += word
            yield Piece(word)
            yield None
        answer.finish_reason = "stop"

    def close(self) -> None:
        assert not self.closed
        self.closed = True
