"""Tokenizers of stored models: what can be told of a prompt without waiting for the model."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from moeinf.config import RuntimeConfig
from moeinf.engine.answers.decoder_only import DecoderOnly
from moeinf.engine.answers.prompts import check_least, check_length, checked_ids
from moeinf.engine.completion import Rendering, TokenIds
from moeinf.engine.vision.parts import text_alone, without_pictures
from moeinf.engine.vision.tower_sizes import added_tokens, picture_variables, vision_of
from moeinf.errors import UsageError
from moeinf.models.layers.soft_tokens import SOFT_IDS
from moeinf.sampling.constraint import held_to
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.sampler import check_token_ids
from moeinf.server.ask import Ask, Inputs
from moeinf.server.prompt.embedded_ids import embedded_ids
from moeinf.server.prompt.thinking_field import think_for
from moeinf.store.library import StoredModel
from moeinf.text.templates.traced import MARK
from moeinf.text.thinking_text import form_variables, template_variables
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import JsonObject

T = TypeVar("T")
_MOST_OPEN = 2  # each is a process of its own


class Texts:
    """Opens tokenizers when they are asked for, and keeps the last ones. Thread-safe; close it."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, Tokenizer] = OrderedDict()
        self._lock = threading.Lock()

    def count(self, stored: StoredModel, ask: Ask, config: RuntimeConfig, should_stop: Callable[[], bool]) -> int:
        """Tokens of the prompt of an ask, as the model would be given it. Blocks.

        config: with which the model is opened. should_stop: whether nobody waits for it any longer.
        Raises TextError, UsageError, Stopped.
        """
        with self._tokenizer(stored, should_stop) as tokenizer:
            return len(_token_ids(tokenizer, stored, ask, config, lambda least: None))

    def check(
        self, stored: StoredModel, ask: Ask, context: int, config: RuntimeConfig, should_stop: Callable[[], bool]
    ) -> None:
        """Raises what a model, no encoder-decoder, would say against an ask before it reads the prompt. Blocks.

        context: tokens that there is room for, as far as that is known. config: with which the model is opened.
        should_stop: whether nobody waits for it any longer, which raises Stopped.
        """
        longest = stored.manifest.info.context_length
        with self._tokenizer(stored, should_stop) as tokenizer:
            if isinstance(ask.prompt, Inputs):
                for _ in embedded_ids(ask.prompt, tokenizer, stored.manifest.info, context):
                    pass
                return
            ids = _token_ids(tokenizer, stored, ask, config, lambda least: check_least(least, context, longest))
            check_length(len(ids), context, longest)
            check_token_ids(SamplingParams(**ask.params), min(tokenizer.num_ids, stored.manifest.info.vocab_size))
            if ask.format is not None:
                stream = tokenizer.stream(ids, chat=tokenizer.has_template and not ask.raw, tools=ask.tools.offered)
                try:
                    held_to(stream, ask.format, tokenizer.num_ids)
                finally:
                    stream.flush()

    def asked(self, stored: StoredModel, should_stop: Callable[[], bool], call: Callable[[Tokenizer], T]) -> T:
        """What `call` finds with the tokenizer of a model. Blocks. Raises TextError, Stopped, and what `call` does."""
        with self._tokenizer(stored, should_stop) as tokenizer:
            return call(tokenizer)

    def rendered(self, stored: StoredModel, ask: Ask, should_stop: Callable[[], bool]) -> str:
        """The text of a chat as the template writes it, control tokens by their names. Blocks.

        Raises UsageError for a model without a template, TextError, Stopped.
        """

        def render(tokenizer: Tokenizer) -> str:
            if not tokenizer.has_template:
                raise UsageError(f"{stored.name} has no chat template; ask /v1/completions")
            assert ask.prompt is not None and not isinstance(ask.prompt, str | TokenIds | Inputs)
            messages, _ = without_pictures(ask.prompt)
            text, _ = tokenizer.render(messages, _variables(tokenizer, stored, ask), continues=ask.continues)
            return text.replace(MARK, "")

        return self.asked(stored, should_stop, render)

    @contextmanager
    def _tokenizer(self, stored: StoredModel, should_stop: Callable[[], bool]) -> Iterator[Tokenizer]:
        """Under the lock, as one that is in use must not be closed."""
        with self._lock:
            tokenizer = self._open.pop(stored.id, None) or Tokenizer(
                stored.path, where=stored.name, num_embeddings=stored.manifest.info.vocab_size
            )
            self._open[stored.id] = tokenizer
            while len(self._open) > _MOST_OPEN:
                self._open.popitem(last=False)[1].close()
            with tokenizer.until(should_stop):
                yield tokenizer

    def close(self) -> None:
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()


def _token_ids(
    tokenizer: Tokenizer, stored: StoredModel, ask: Ask, config: RuntimeConfig, check: Callable[[int], None]
) -> list[int]:
    """check: as check_length of ModelKind.encode. Raises TextError, UsageError, Stopped."""
    assert ask.prompt is not None and not isinstance(ask.prompt, Inputs)
    if isinstance(ask.prompt, TokenIds):
        return checked_ids(ask.prompt, min(tokenizer.num_ids, stored.manifest.info.vocab_size))
    variables = _variables(tokenizer, stored, ask)
    kind = DecoderOnly(tokenizer, lambda line: None)
    if isinstance(ask.prompt, str):
        return kind.encode(ask.prompt, Rendering(ask.raw, variables), check)
    messages, given = without_pictures(ask.prompt)
    if not given:
        return kind.encode(messages, Rendering(ask.raw, variables, ask.continues), check)
    vision = vision_of(stored)
    own = picture_variables(vision, tokenizer, len(given))
    prompt = text_alone(messages) if ask.raw else messages
    ids = kind.encode(prompt, Rendering(ask.raw, variables, ask.continues, own), check)
    return [*ids, *[SOFT_IDS] * added_tokens(vision, tokenizer, stored, given, config)]


def _variables(tokenizer: Tokenizer, stored: StoredModel, ask: Ask) -> JsonObject:
    """Of the chat template. Raises UsageError."""
    facts = None if ask.raw else tokenizer.template
    think = think_for(facts, ask.thoughts)
    variables = form_variables(facts, ask.format)
    variables |= template_variables(facts, None if think is None else str(think).lower(), ask.variables)
    if ask.tools.offered:
        if facts is None:
            raise UsageError(f"{stored.name} does not support tools; leave them out")
        variables["tools"] = list(ask.tools.offered)
    return variables
