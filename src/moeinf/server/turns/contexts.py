"""How long a context an ask has: a model is opened anew with a longer one where a prompt needs that."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Final

from moeinf.engine.answers.prompts import check_length
from moeinf.errors import ContextLengthError, MoeinfError
from moeinf.server.ask import Ask, Inputs
from moeinf.server.turns.job import Job
from moeinf.server.turns.opened import Loaded, OpenModels
from moeinf.store.library import StoredModel

log = logging.getLogger("moeinf.server")
ANSWER_ROOM: Final = 1024  # tokens of an answer, for want of which a model is opened with a longer context


def context_for(opened: OpenModels, stored: StoredModel, ask: Ask) -> int:
    """Tokens that an ask has room for, if it needs them. Blocks, the first time. Raises StoreError."""
    if "context" in ask.config and (asked := opened.config_for(stored, ask).memory.context) is not None:
        return asked
    loaded, longest = opened.of(stored.id), opened.longest_context(stored)
    return longest if loaded is None or ask.config else max(longest, loaded.model.plan.context)


def room_for_answer(opened: OpenModels, loaded: Loaded, ask: Ask) -> int:
    """Tokens of the answer for want of which the model is to be opened with a longer context; 1: it is as long as it
    may be."""
    at_most = "context" in ask.config or loaded.model.plan.context >= opened.longest_context(loaded.stored)
    if at_most or isinstance(ask.prompt, Inputs):  # which have no answer
        return 1
    asked = ask.params.get("num_predict")
    return min(asked, ANSWER_ROOM) if isinstance(asked, int) and asked > 0 else ANSWER_ROOM


def refusal(opened: OpenModels, job: Job, error: Exception) -> Exception:
    """What a client is told of a prompt that is too long: the longest context, and not that which is open."""
    if not isinstance(error, ContextLengthError) or job.stored is None:
        return error
    if "context" in job.ask.config:
        return in_words_for(job.ask, error)
    try:
        longest = opened.longest_context(job.stored)
        if error.context == longest:
            return error
        check_length(max(1, error.num_tokens), longest, job.stored.manifest.info.context_length)
    except ContextLengthError as told:
        return told
    except (MoeinfError, OSError):
        pass
    return error


def in_words_for(ask: Ask, error: ContextLengthError) -> ContextLengthError:
    """Where a request has said how long its context is, its own option can be raised, not the server's."""
    if "context" not in ask.config:
        return error
    remedy = error.remedy.replace("raise --num-ctx", "raise the option num_ctx")
    message = f"{str(error).removesuffix(error.remedy)}{remedy}"
    return ContextLengthError(message, error.num_tokens, error.context, remedy)


def least_context(opened: OpenModels, job: Job, error: Exception) -> int:
    """The least context in which a job can be answered that was refused for want of room; 0: there is none."""
    if not isinstance(error, ContextLengthError) or job.stored is None or "context" in job.ask.config:
        return 0
    loaded, least = opened.of(job.stored.id), 0
    if loaded is None or not error.num_tokens:
        return 0
    with suppress(MoeinfError, OSError):  # the client is told the first error
        longest = opened.longest_context(job.stored)
        least = min(error.num_tokens + job.answer_room, longest) if error.num_tokens < longest else 0
    if least <= max(loaded.model.plan.context, job.least_context):
        return 0
    log.info("a prompt needs a context of %d tokens: opening %s anew", least, job.stored.name)
    return least
