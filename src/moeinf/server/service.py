"""What the routes of all APIs work with: the store, the thread that runs models, and the counters."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote

from starlette.requests import Request

from moeinf.config.server_options import seconds_of
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.server.ask import Ask
from moeinf.server.errors import Refusal
from moeinf.server.job import Job
from moeinf.server.metrics import Metrics
from moeinf.server.prompt.agent_noise import without_noise
from moeinf.server.prompt.thinking import think_for
from moeinf.server.texts import Texts
from moeinf.server.worker import Worker
from moeinf.store.library import Library, StoredModel
from moeinf.text.thinking import template_variables
from moeinf.types import Message, Tool


@dataclass(frozen=True, slots=True)
class Service:
    library: Library
    worker: Worker
    texts: Texts
    metrics: Metrics
    local: bool = True  # only this machine can reach the server
    keyed: bool = False  # whoever reaches a route has given a key

    def refuse_strangers(self, what: str) -> None:
        """Raises Refusal where anybody in the network could ask for what changes the store."""
        if not (self.local or self.keyed):
            raise Refusal(403, f"{what} over the network needs a key: start the server with --key-file")

    def find(self, name: str) -> StoredModel:
        """The stored model of that name, as a client writes it. Raises ModelNotFoundError."""
        return self.library.find(unquote(name))

    def open_model(self, stored: StoredModel) -> Model | None:
        """The model where it is loaded."""
        loaded = self.worker.loaded
        return loaded.model if loaded is not None and loaded.stored.id == stored.id else None

    def submit(self, request: Request, ask: Ask, user: str | None = None) -> Job:
        """Queues what is asked. user: whom the request names, so that users of one machine take turns.

        Raises BusyError, StoppingError, ModelNotFoundError.
        """
        self.find(ask.model)
        if ask.prompt is not None and not isinstance(ask.prompt, str):
            ask = replace(ask, prompt=without_noise(ask.prompt))
        host = request.client.host if request.client else ""
        key = request.headers.get("authorization") or request.headers.get("x-api-key", "")
        job = Job(ask, f"{key}|{host}|{user or ''}")
        self.worker.submit(job)
        return job

    def count(
        self, stored: StoredModel, messages: Sequence[Message], think: bool | str | None, tools: Sequence[Tool]
    ) -> int:
        """Tokens of a chat as `submit` would have it answered. Blocks. Raises TextError, UsageError."""
        facts = self.texts.template(stored)
        asked = think_for(facts, think)
        variables = {} if asked is None else template_variables(facts, str(asked).lower(), {})
        if tools:
            if not (facts and facts.tools):
                raise UsageError(f"{stored.name} does not support tools; leave them out")
            variables["tools"] = list(tools)
        return self.texts.count(stored, without_noise(messages), variables)


def keep_alive_of(value: str | float | None) -> tuple[float | None, ...]:
    """Ask.keep_alive of a request's field. Raises UsageError."""
    return () if value is None else (seconds_of("keep_alive", value),)
