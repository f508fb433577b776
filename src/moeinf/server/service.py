"""What the routes of all APIs work with: the store, the thread that runs models, and the counters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from moeinf.engine.stored.facts import facts_of
from moeinf.errors import ContextLengthError
from moeinf.server.admission import admitted
from moeinf.server.ask import Ask, Inputs
from moeinf.server.blocking.thread_pool import Pools
from moeinf.server.body import body_of
from moeinf.server.gate.guard import key_of
from moeinf.server.http import cancelling, json_response, streamed, whole_answer
from moeinf.server.http_errors import Refusal, StoppingError
from moeinf.server.metrics import Metrics
from moeinf.server.prompt.background_work import in_background
from moeinf.server.question import Question
from moeinf.server.texts import Texts
from moeinf.server.turns.answer_worker import Worker
from moeinf.server.turns.contexts import context_for, in_words_for
from moeinf.server.turns.job import Job, Who
from moeinf.store.library import Library, StoredModel
from moeinf.text.process import Stopped

T = TypeVar("T")
Made = TypeVar("Made")
MOST_NAME: Final = 64  # letters of the name that a client gives to its request


@dataclass(frozen=True, slots=True)
class Service:
    """What blocks, `find` and `count`, belongs on a thread of the pools, as the coroutines here do it."""

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

    async def read(self, request: Request, kind: type[T], made: Callable[[T], Made]) -> Made:
        """What `made` makes of the request's JSON as this type. Raises Refusal, and what `made` raises."""
        body = await request.body()
        return await self.pools.compute.run(lambda: made(body_of(body, kind)))

    async def body(self, request: Request, kind: type[T]) -> T:
        """The request's JSON as this type. Raises Refusal."""
        return await self.read(request, kind, lambda asked: asked)

    async def answer(self, request: Request, kind: type[T], question_of: Callable[[T], Question]) -> Response:
        """Reads a request, queues what it asks, and answers it.

        question_of: says what a body of this type asks; it looks at nothing else. Raises Refusal, BusyError,
        StoppingError, ModelNotFoundError, UsageError, and what the job failed with.
        """
        question = await self.read(request, kind, question_of)
        jobs, writer = await self._queued(request, question), question.writer
        if question.streamed:
            refuse = partial(self.pools.texts.run, partial(self._refuse, jobs[0]))
            return await streamed(request, jobs, writer.encode, writer.media_type, refuse)
        answer = await whole_answer(request, jobs)
        return await self.pools.compute.run(lambda: json_response(writer.whole(answer)))

    async def _queued(self, request: Request, question: Question) -> list[Job]:

        def looked_up() -> tuple[StoredModel, list[Ask]]:
            stored = self.find(question.ask.model)
            asks = [admitted(ask, stored) for ask in (question.ask, *question.others)]
            return stored, [self._cut(ask, stored) for ask in asks]

        stored, asks = await self.pools.store.run(looked_up)
        host = request.client.host if request.client else ""
        client = f"{host} {key_of(request.headers)}" if self.keyed else host  # a key that nobody checks makes no turn
        background = in_background(asks[0], request.headers) if question.background is None else question.background
        who = Who(client, question.user, background, request.headers.get("x-request-id", "")[:MOST_NAME])
        jobs = [Job(ask, who, stored) for ask in asks]
        try:
            for job in jobs:
                self.worker.submit(job)
        except BaseException:
            cancelling(jobs)()
            raise
        return jobs

    def _cut(self, ask: Ask, stored: StoredModel) -> Ask:
        """The ask, where texts may lose their ends, with the tokens that they may have. Blocks. Raises StoreError."""
        if not isinstance(ask.prompt, Inputs) or ask.prompt.cut is None:
            return ask
        return replace(ask, prompt=replace(ask.prompt, cut=context_for(self.worker.opened, stored, ask)))

    def count(self, ask: Ask, gone: Callable[[], bool]) -> int:
        """Tokens of a prompt as it would be answered. Blocks. gone: whether its client has hung up.

        Raises Refusal, TextError, UsageError, StoppingError, ModelNotFoundError.
        """
        stored = self.find(ask.model)
        ask = admitted(ask, stored)
        config = self.worker.opened.config_for(stored, ask)
        with _given_up():
            return self.texts.count(stored, ask, config, lambda: gone() or self.worker.stopping)

    def _refuse(self, job: Job) -> None:
        """Raises what would be said against a job whose turn has not come yet. Blocks."""
        ask, opened = job.ask, self.worker.opened
        stored = self.find(ask.model)
        facts = facts_of(stored)
        if ask.prompt is None or facts.family.encoder_input is not None:
            return
        context = context_for(opened, stored, ask)
        with _given_up():
            try:
                self.texts.check(stored, ask, context, opened.config_for(stored, ask), lambda: job.cancelled)
            except ContextLengthError as error:
                raise in_words_for(ask, error) from None


@contextmanager
def _given_up() -> Iterator[None]:
    try:
        yield
    except Stopped:
        raise StoppingError("the client has gone, or the server is stopping; ask again later") from None


Handler = Callable[[Service, Request], Awaitable[Response]]


def asking(kind: type[T], question_of: Callable[[T], Question]) -> Handler:
    """The handler of a route on which a model is asked: see Service.answer."""

    async def handle(service: Service, request: Request) -> Response:
        return await service.answer(request, kind, question_of)

    return handle
