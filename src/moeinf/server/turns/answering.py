"""One request answered by an open model, told piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import Protocol

from moeinf.engine.answers.embedding import embedding
from moeinf.engine.completion import Completion, GenerationStats, Hooks, Request
from moeinf.engine.model import Model
from moeinf.sampling.logprobs import ChosenToken
from moeinf.sampling.step_queue import Asker
from moeinf.server.ask import Ask, Call, Chance, Chosen, Eta, Event, Inputs, Reading, Text, Thoughts
from moeinf.server.http_errors import StoppingError
from moeinf.server.prompt.embedded_ids import embedded_ids
from moeinf.server.prompt.thinking_field import think_for
from moeinf.text.process import Stopped
from moeinf.text.text_stream import Piece
from moeinf.text.tokenizer import Tokenizer


class Asking(Protocol):
    """Who has asked something, and is told the answer: a client, or a line of a batch."""

    @property
    def ask(self) -> Ask: ...

    @property
    def asker(self) -> Asker: ...

    @property
    def answer_room(self) -> int:
        """Tokens of the answer that the context must have room for."""
        ...

    @property
    def cancelled(self) -> bool: ...

    def put(self, event: Event) -> None: ...


def answer(
    model: Model, job: Asking, stopping: Callable[[], bool], gives_way: Callable[[], bool]
) -> Generator[None, None, Completion]:
    """Tells the job all but the end, which it returns; yields wherever the answer waits for a step of the model.

    stopping: asked between layers; True ends the answer within a token. gives_way: as of Hooks. Raises StoppingError
    for an answer that was ended so, and whatever Model.pieces raises.
    """
    ask = job.ask
    if isinstance(ask.prompt, Inputs):
        return (yield from _embedded(model, job, ask.prompt, stopping))
    assert ask.prompt is not None
    eta: Eta | None = None

    def tell_read(done: int, total: int) -> None:
        nonlocal eta
        if eta is not None:
            left_s = eta.left_s(done, total)
        else:  # a part of the prompt was known before, so that nothing follows from how soon it was done
            rate, eta = model.generator.steps.rate, Eta(done)
            left_s = round((total - done) / rate, 1) if rate else None
        job.put(Reading(done, total, left_s))

    hooks = Hooks(
        should_stop=lambda: job.cancelled or stopping(),
        gives_way=gives_way,
        on_prefill=tell_read,
        on_token=lambda chosen: job.put(_told(chosen, model.tokenizer)),
    )
    think = None
    if ask.thoughts != Thoughts():
        think = think_for(None if ask.raw else model.generator.kind.template, ask.thoughts)
    tools = ask.tools.offered
    told = model.template_variables(think, ask.variables, tools=tools or (), raw=ask.raw)
    params = model.generator.prompts.thinking(model.params(**ask.params), think, raw=ask.raw)
    asker, room, form = job.asker, job.answer_room, ask.format
    begun = model.generator.begin(
        Request(ask.prompt, params, ask.raw, told, tools or (), form, ask.continues, hooks, asker, room)
    )
    completion = begun.completion
    with closing(begun.pieces):
        for piece in begun.pieces:
            if piece is None:
                yield
            elif ask.tools.one_call and piece.call is not None and piece.call.index:
                completion.call_parts.pop()  # of a second call, which nobody wants
                completion.finish_reason = "stop"
                break
            else:
                _tell(piece, job)
    if completion.finish_reason == "interrupted" and not job.cancelled:
        raise StoppingError("the server stopped before the answer was whole; ask again later")
    return completion


def _embedded(
    model: Model, job: Asking, inputs: Inputs, stopping: Callable[[], bool]
) -> Generator[None, None, Completion]:
    """Returns the vectors of texts, and what all cost. One follows the other, so that answers go on beside them."""
    done = Completion("", [], "stop", GenerationStats())
    hooks = Hooks(should_stop=lambda: job.cancelled or stopping())
    gone = "the server stopped before all was embedded; ask again later"
    texts = embedded_ids(inputs, model.tokenizer, model.manifest.info, model.plan.context)
    for at in range(len(inputs.texts)):
        job.put(Reading(at, len(inputs.texts)))
        try:
            with model.tokenizer.until(hooks.should_stop):
                ids = next(texts)
        except Stopped:
            raise StoppingError(gone) from None
        vector, stats = yield from embedding(model.generator, ids, inputs.pooling, hooks, job.asker)
        if vector is None:
            raise StoppingError(gone)
        done.vectors.append(vector)
        done.stats.add_prompt(stats)
    return done


def _tell(piece: Piece, job: Asking) -> None:
    call = piece.call
    job.put(Text(piece.text, piece.thought) if call is None else Call(call.index, call.name, call.arguments))


def _told(chosen: ChosenToken, tokenizer: Tokenizer) -> Chosen:
    """With what the tokens stand for, which takes one question to the tokenizer's process."""
    ids = [chosen.token_id, *(token for token, _ in chosen.top)]
    logprobs = [chosen.logprob, *(logprob for _, logprob in chosen.top)]
    token, *top = (Chance(*each) for each in zip(tokenizer.token_bytes(ids), logprobs, strict=True))
    return Chosen(token, tuple(top))
