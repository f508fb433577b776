"""What the routes of all APIs work with: the store, the thread that runs models, and the counters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from moeinf.config.server_options import seconds_of
from moeinf.engine.stored.facts import facts_of
from moeinf.engine.stored.preset import preset_of
from moeinf.engine.vision.parts import without_pictures
from moeinf.sampling.params import SamplingParams
from moeinf.server.ask import Ask
from moeinf.server.blocking.thread_pool import Pools
from moeinf.server.body import body_of
from moeinf.server.gate.guard import key_of
from moeinf.server.http import Answer, Encode, EventStream, json_response, streamed, whole_answer
from moeinf.server.http_errors import Refusal, StoppingError
from moeinf.server.metrics import Metrics
from moeinf.server.prompt.agent_noise import without_noise
from moeinf.server.prompt.prompt_preset import with_preset
from moeinf.server.texts import Texts
from moeinf.server.turns.answer_worker import Worker
from moeinf.server.turns.job import Job
from moeinf.store.library import Library, StoredModel
from moeinf.text.process import Stopped

T = TypeVar("T")
Made = TypeVar("Made")


@dataclass(frozen=True, slots=True)
class Service:
    """What blocks, `find`, `count` and `refuse`, belongs on a thread of the pools, as the coroutines here do it."""

    library: Library
    worker: Worker
    texts: Texts
    metrics: Metrics
    local: bool = True  # only this machine can reach the server
    keyed: bool = False  # whoever reaches a route has given a key
    pools: Pools = field(default_factory=Pools)  # closed by who opened the texts

    def refuse_strangers(self, what: str) -> None:
        """Raises Refusal where anybody in the network could ask for what changes the store."""
        if not (self.local or self.keyed):
            raise Refusal(403, f"{what} over the network needs a key: start the server with --key-file")

    def find(self, name: str) -> StoredModel:
        """The stored model of that name, as a client writes it. Blocks. Raises ModelNotFoundError."""
        return self.worker.opened.find(unquote(name))

    async def read(self, request: Request, kind: type[T], made: Callable[[T], Made]) -> tuple[T, Made]:
        """The request's JSON as this type, and what `made` makes of it. Raises Refusal, and what `made` raises."""
        body = await request.body()

        def both() -> tuple[T, Made]:
            asked = body_of(body, kind)
            return asked, made(asked)

        return await self.pools.compute.run(both)

    async def body(self, request: Request, kind: type[T]) -> T:
        """The request's JSON as this type. Raises Refusal."""
        return (await self.read(request, kind, lambda asked: None))[0]

    async def submit(self, request: Request, ask: Ask, user: str | None = None) -> Job:
        """Queues what is asked. user: whom the request names, so that users of one machine take turns.

        Raises BusyError, StoppingError, ModelNotFoundError, UsageError.
        """
        ask = await self.pools.store.run(lambda: self._checked(ask))
        host = request.client.host if request.client else ""
        client = f"{host} {key_of(request.headers)}" if self.keyed else host  # a key that nobody checks makes no turn
        job = Job(ask, client, user or "")
        self.worker.submit(job)
        return job

    def _checked(self, ask: Ask) -> Ask:
        """With what the model's name says. Raises ModelNotFoundError, UsageError, Refusal."""
        stored = self.find(ask.model)
        ask = with_preset(ask, preset_of(stored))
        _refuse_pictures(ask, stored)
        SamplingParams(**ask.params)  # refuses what is out of range, before anybody waits
        return _quiet(ask)

    async def whole(self, request: Request, job: Job, form: Callable[[Answer], object]) -> Response:
        """The answer in one piece: the JSON of what `form` makes of it. Raises what the job failed with."""
        answer = await whole_answer(request, job)
        return await self.pools.compute.run(lambda: json_response(form(answer)))

    async def streamed(self, request: Request, job: Job, encode: Encode, media_type: str) -> EventStream:
        """See http.streamed."""
        return await streamed(request, job, encode, media_type, lambda: self.pools.texts.run(lambda: self.refuse(job)))

    def count(self, stored: StoredModel, ask: Ask, gone: Callable[[], bool]) -> int:
        """Tokens of a prompt as `submit` would have it answered. Blocks. gone: whether its client has hung up.

        Raises Refusal, TextError, UsageError, StoppingError.
        """
        ask = _quiet(with_preset(ask, preset_of(stored)))
        _refuse_pictures(ask, stored)
        with _given_up():
            return self.texts.count(
                stored, ask, self.worker.opened.config_for(stored, ask), lambda: gone() or self.worker.stopping
            )

    def refuse(self, job: Job) -> None:
        """Raises what would be said against a job whose turn has not come yet. Blocks."""
        ask = job.ask
        stored = self.find(ask.model)
        model = None if ask.config else self.worker.opened.model_of(stored)
        context = stored.manifest.info.context_length if model is None else model.plan.context
        with _given_up():
            self.texts.check(stored, ask, context, self.worker.opened.config_for(stored, ask), lambda: job.cancelled)


@contextmanager
def _given_up() -> Iterator[None]:
    try:
        yield
    except Stopped:
        raise StoppingError("the client has gone, or the server is stopping; ask again later") from None


def _refuse_pictures(ask: Ask, stored: StoredModel) -> None:
    """Raises Refusal for a picture that the model cannot see, before anybody waits."""
    if ask.prompt is None or isinstance(ask.prompt, str) or not without_pictures(ask.prompt)[1]:
        return
    if why := facts_of(stored).why_no_vision:
        raise Refusal(400, f"{why}; leave out images")


def _quiet(ask: Ask) -> Ask:
    if ask.prompt is None or isinstance(ask.prompt, str):
        return ask
    return replace(ask, prompt=without_noise(ask.prompt))


def keep_alive_of(value: str | float | None) -> tuple[float | None, ...]:
    """Ask.keep_alive of a request's field. Raises UsageError."""
    return () if value is None else (seconds_of("keep_alive", value),)
