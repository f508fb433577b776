"""A stand-in for an open model, for tests of the server: it says the words of its script, and counts what is done."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import NO_HOOKS, Completion, GenerationStats, Hooks
from moeinf.engine.reporting import Reporting
from moeinf.errors import ModelNotFoundError
from moeinf.text.text_stream import Piece


@dataclass(frozen=True)
class NamedModel:
    """As much of a StoredModel as a worker asks for."""

    name: str
    id: str
    manifest: Any = field(default_factory=lambda: SimpleNamespace(info=SimpleNamespace(context_length=2048)))


class NamedModels:
    """As much of a Library as a worker asks for."""

    def __init__(self, *names: str) -> None:
        self._models = {name: NamedModel(name, f"id of {name}") for name in names}

    def find(self, name: str) -> NamedModel:
        if name not in self._models:
            raise ModelNotFoundError(f"model '{name}' not found")
        return self._models[name]


class SpokenModel:
    """Says `words`. gate: before each word it waits for that semaphore. fault: is raised at the second word."""

    words = ("one ", "two ", "three")
    gate: threading.Semaphore | None = None
    fault: Exception | None = None

    def __init__(self, stored: NamedModel, config: RuntimeConfig, reporting: Reporting) -> None:
        self.stored, self.config, self.closed, self.warm = stored, config, False, False
        self.last: Completion | None = None
        reporting.progress(1, 1)

    def describe(self) -> str:
        return f"{self.stored.name} of words"

    def warm_up(self) -> None:
        self.warm = True

    def params(self, **given: Any) -> dict[str, Any]:
        return given

    def pieces(self, prompt: object, params: object, *, hooks: Hooks = NO_HOOKS, **told: object) -> Iterator[Piece]:
        self.last = Completion("", [], "interrupted", GenerationStats())
        hooks.on_prefill(1, 1)
        yield Piece("hm", thought=True)
        for number, word in enumerate(self.words):
            if self.gate is not None:
                self.gate.acquire()
            if hooks.should_stop():
                return
            if number == 1 and self.fault is not None:
                raise self.fault
            self.last.text += word
            yield Piece(word)
        self.last.finish_reason = "stop"

    def close(self) -> None:
        assert not self.closed
        self.closed = True
