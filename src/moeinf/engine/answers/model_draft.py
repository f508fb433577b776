"""A small model that guesses at the tokens of a larger one, which has the same vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from moeinf.engine.answers.drafting import DraftSource
from moeinf.errors import MALFORMED, UsageError
from moeinf.models.layers.decoder import Decoder
from moeinf.sampling.cached_tokens import CachedTokens, common_length
from moeinf.sampling.speculation.drafts import NOTHING, Drafter, Guess
from moeinf.store.library import StoredModel

_UNUSED: Final = re.compile(r"\[PAD\d+\]")  # as llama.cpp's converter calls them
READ_AT_ONCE: Final = 64  # tokens
MOST_FURTHER: Final = 128  # tokens that one of two like vocabularies may have behind the other's, as llama.cpp has it


class ModelDrafter:
    """moeinf.sampling.speculation.drafts.Drafter. Guesses what the model itself would answer greedily.

    It reads a prompt piece by piece, one before each step, so that nobody waits for all of it.
    """

    kind: str | None = "draft model"

    def __init__(self, network: Decoder, context: int, num_tokens: int) -> None:
        """context: tokens that it has room for. num_tokens: that it may guess."""
        self._network, self._context, self._num_tokens = network, context, num_tokens
        self._cache = network.new_cache(context)
        self._read: list[int] = []  # tokens that the cache holds

    def draft(self, tokens: Sequence[int], most: int) -> Guess:
        if len(tokens) + most > self._context:
            return NOTHING
        common = min(common_length(self._read, tokens), len(tokens) - 1)
        del self._read[self._cache.truncate(common) :]
        new = list(tokens[len(self._read) : len(self._read) + READ_AT_ONCE])
        if max(new) >= self._num_tokens:
            return NOTHING
        found = list[int]()
        while len(found) < most:
            logits = self._network.forward(new, self._cache)
            self._read += new
            if not found and len(self._read) < len(tokens):
                return NOTHING  # it reads on before the next step
            new = [int(logits[-1][: self._num_tokens].argmax())]
            found += new
        return Guess(found, self.kind or "")

    def close(self) -> None:
        pass  # the next answer of the sequence often begins alike


def drafts_by(network: Decoder, context: int, num_tokens: int) -> DraftSource:
    """context: tokens that the model has room for. num_tokens: of the vocabulary that both models have."""
    of_caches: dict[int, ModelDrafter] = {}  # of the model's sequences, which live as long as it does

    def source(sequence: CachedTokens) -> Drafter:
        if id(sequence.cache) not in of_caches:
            of_caches[id(sequence.cache)] = ModelDrafter(network, context, num_tokens)
        return of_caches[id(sequence.cache)]

    return source


def common_tokens(draft: StoredModel, model: StoredModel) -> int:
    """How many tokens, from the first on, both have. Raises UsageError where their vocabularies are others."""
    ours, theirs = _tokens(draft), _tokens(model)
    count = min(max(ours), max(theirs)) + 1
    differ = next((i for i in range(count) if ours.get(i) != theirs.get(i)), None)
    why = "" if differ is None else f"token {differ} is {ours.get(differ)!r:.40} and {theirs.get(differ)!r:.40}"
    if not why and abs(len(ours) - len(theirs)) > MOST_FURTHER:
        why = f"they have {len(ours)} and {len(theirs)} tokens"
    if why:
        raise UsageError(
            f"--draft: {draft.name} and {model.name} have different vocabularies ({why}); draft with a model of the "
            "same family"
        )
    return count


def _tokens(stored: StoredModel) -> dict[int, str]:
    """Of the tokenizer.json of a store, but for those that fill it up to the rows of the embedding."""
    try:
        said = json.loads((stored.path / "tokenizer.json").read_text(encoding="utf-8"))
        vocabulary, added = said["model"]["vocab"], said.get("added_tokens", [])
        if isinstance(vocabulary, dict):
            found = {int(number): str(token) for token, number in vocabulary.items()}
        else:  # of a unigram model: pairs of a token and its score
            found = {number: str(pair[0]) for number, pair in enumerate(vocabulary)}
        found |= {int(each["id"]): str(each["content"]) for each in added}
        return {number: token for number, token in found.items() if not _UNUSED.fullmatch(token)}
    except (OSError, *MALFORMED) as error:
        raise UsageError(
            f"--draft: the tokens of {stored.name} cannot be compared ({type(error).__name__} in its tokenizer.json); "
            "leave --draft out"
        ) from error
