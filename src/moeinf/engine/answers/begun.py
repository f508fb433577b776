"""What an answer is computed from: prompt, text, sampler and form, made of a request before anything is computed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from moeinf.engine.answers.model_kind import ModelKind
from moeinf.engine.answers.prompts import Prompts
from moeinf.engine.completion import Hooks, Rendering, Request
from moeinf.engine.vision.encoder import Prompt
from moeinf.errors import UsageError
from moeinf.sampling.constraint import AnswerFormat, GrammarConstraint, Language, calls_held, held_to
from moeinf.sampling.logprobs import ChosenToken, ReportingSampler
from moeinf.sampling.loop import Chooser
from moeinf.sampling.sampler import Sampler, check_token_ids
from moeinf.sampling.thought_budget import BudgetedSampler
from moeinf.text.answer import AnswerText
from moeinf.text.thinking_text import form_variables
from moeinf.text.tokenizer import TextStream


@dataclass(frozen=True, slots=True)
class Begun:
    """A request that can be answered: what its answer is computed from, and how."""

    prompt: Prompt
    text: AnswerText
    sampler: Sampler
    constraint: GrammarConstraint | None

    def reporting(self, num_top: int, hooks: Hooks, ends: Collection[int]) -> Chooser:
        """The sampler, or one that tells the caller how probable each token was, where that is asked for.

        num_top: of the likeliest tokens, that are told too; -1: nothing is. ends: tokens of which it is not told.
        """

        def report(chosen: ChosenToken) -> None:
            if chosen.token_id not in ends:
                hooks.on_token(chosen)

        return ReportingSampler(self.sampler, num_top, report) if num_top >= 0 else self.sampler


def begin(request: Request, kind: ModelKind, prompts: Prompts, isa: str) -> Begun:
    """Raises what is wrong with a request. isa: the instruction set that draws tokens."""
    params, format = request.params, request.format
    kind.check(params, format)
    check_token_ids(params, prompts.num_ids)
    if request.continues and format is not None:
        raise UsageError("format: an answer that was begun is held to no form; leave one of the two out")
    variables = form_variables(None if request.raw else kind.template, format) | dict(request.variables)
    prompt = prompts.encode(request.prompt, Rendering(request.raw, variables, request.continues), request.room)
    stream = kind.text_stream(prompt.text_ids, request, chat=prompts.templated(request.raw), held=_held(format))
    text = AnswerText(stream, prompts.tokenizer.eos_ids, params.stop, params.min_tokens)
    try:
        constraint = None
        if format is not None:
            constraint = held_to(stream, format, prompts.num_ids)
        elif request.tools and not request.continues:
            constraint = calls_held(stream, prompts.num_ids)
        return Begun(prompt, text, _sampler(request, prompts, stream, constraint, isa), constraint)
    except BaseException:
        text.close()
        raise


def _held(format: AnswerFormat | None) -> bool:
    """Whether an answer is to be something else than a call."""
    return isinstance(format, Mapping | Language) or (isinstance(format, str) and format != "call")


def _sampler(
    request: Request, prompts: Prompts, stream: TextStream, constraint: GrammarConstraint | None, isa: str
) -> Sampler:
    params, num_ids, ends = request.params, prompts.num_ids, prompts.tokenizer.eos_ids
    marks = stream.thought_marks() if params.thought_tokens >= 0 else None
    if marks is None:
        return Sampler(params, num_ids=num_ids, ends=ends, constraint=constraint, isa=isa)
    return BudgetedSampler(params, marks, num_ids=num_ids, ends=ends, constraint=constraint, isa=isa)
