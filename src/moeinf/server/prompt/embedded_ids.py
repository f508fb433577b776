"""The tokens of texts that are to be embedded."""

from __future__ import annotations

from collections.abc import Iterator

from moeinf.engine.answers.prompts import check_least, check_length
from moeinf.server.ask import Inputs
from moeinf.server.http_errors import Refusal
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import ModelInfo


def embedded_ids(inputs: Inputs, tokenizer: Tokenizer, info: ModelInfo, context: int) -> Iterator[list[int]]:
    """Yields the ids of each text, in which names of control tokens are letters.

    info: of the model. context: tokens that there is room for.
    Raises ContextLengthError for one that is too long, UsageError for an empty one, Refusal for ids that are none.
    """
    longest, end = info.context_length, min(tokenizer.num_ids, info.vocab_size)
    for at, text in enumerate(inputs.texts):
        if isinstance(text, str):
            if inputs.cut is None:
                check_least(tokenizer.least_tokens(text), context, longest)
            ids = tokenizer.encode(text)
            if inputs.cut is not None:
                ids = _cut(ids, (inputs.cut or context) - 1, tokenizer)
        else:
            ids = list(text)
            if wrong := next((each for each in ids if not 0 <= each < end), None):
                raise Refusal(400, f"input[{at}]: {wrong} is no token id; those of this model are below {end}")
        check_length(len(ids), context, longest)
        yield ids


def _cut(ids: list[int], most: int, tokenizer: Tokenizer) -> list[int]:
    """The tokens of a text without what is too much, but with those that the tokenizer puts behind each text.

    Their states are the vector of a model that pools the last one (Qwen3-Embedding).
    """
    if len(ids) <= most:
        return ids
    ends = tokenizer.encode("", bos=False)
    return [*ids[: max(0, most - len(ends))], *ends][:most]
