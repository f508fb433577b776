"""Makes token ids of prompts: text and chats, with the pictures that a model sees in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from moeinf.engine.answers.model_kind import ModelKind
from moeinf.engine.completion import Rendering, TokenIds
from moeinf.engine.vision.encoder import Prompt, VisionEncoder, required
from moeinf.engine.vision.parts import GivenPicture, text_alone, without_pictures
from moeinf.errors import ContextLengthError, UsageError
from moeinf.sampling.params import SamplingParams
from moeinf.text.thinking_text import ends_thoughts, template_variables
from moeinf.text.tokenizer import Tokenizer
from moeinf.types import JsonMapping, JsonObject, Message, ModelInfo, Tool


class Prompts:
    """The prompts of one model, in a context of so many tokens."""

    def __init__(
        self,
        model: str,
        kind: ModelKind,
        tokenizer: Tokenizer,
        info: ModelInfo,
        context: int,
        vision_encoder: VisionEncoder | str = "this model takes text alone",
    ) -> None:
        """model: its name, for errors. vision_encoder: how the model sees, or why it does not."""
        self._model, self._kind, self.tokenizer, self.info, self._context = model, kind, tokenizer, info, context
        self.vision_encoder = vision_encoder

    @property
    def num_ids(self) -> int:
        """Ids that mean something; the others are padding rows of the model."""
        return min(self.tokenizer.num_ids, self.info.vocab_size)

    def templated(self, raw: bool) -> bool:
        """Whether a prompt goes through the chat template."""
        return self.tokenizer.has_template and not raw

    def variables(
        self, think: bool | str | None, given: JsonMapping, tools: Sequence[Tool], *, raw: bool
    ) -> JsonObject:
        """See Model.template_variables."""
        if think is None and not given and not tools:
            return {}
        facts = None if raw else self._kind.template
        if tools and facts is None:
            raise UsageError(f"{'a raw prompt' if raw else self._model} does not support tools; leave them out")
        told = template_variables(facts, None if think is None else str(think).lower(), given)
        return told | ({"tools": list(tools)} if tools else {})

    def thinking(self, params: SamplingParams, think: bool | str | None, *, raw: bool) -> SamplingParams:
        """With a budget of no thoughts for a model that is told not to think, and has no switch."""
        if raw or not ends_thoughts(self._kind.template, think):
            return params
        return replace(params, thought_tokens=0)

    def encode(self, prompt: str | Sequence[Message] | TokenIds, rendering: Rendering, room: int = 1) -> Prompt:
        """The ids of a prompt, and its pictures; arguments and errors as Model.encode; UsageError for no ids.

        room: tokens of the answer that the context must have room for, too.
        """

        def ids_of(shown: str | Sequence[Message], own: Mapping[str, Sequence[str]] | None = None) -> list[int]:
            return self._kind.encode(shown, replace(rendering, own=own), self._check_least)

        if isinstance(prompt, TokenIds):
            made = Prompt(checked_ids(prompt, self.num_ids))
        elif isinstance(prompt, str):
            made = Prompt(ids_of(prompt))
        else:
            messages, given = without_pictures(prompt)
            made = self._seen(messages, given, ids_of, raw=rendering.raw) if given else Prompt(ids_of(messages))
        check_length(len(made.ids), self._context, self.info.context_length, room)
        return made

    def _seen(
        self, messages: Sequence[Message], given: Sequence[GivenPicture], ids_of: Callable[..., list[int]], *, raw: bool
    ) -> Prompt:
        """A prompt with pictures, which stand in front of a text that no template has placed them in."""
        encoder = required(self.vision_encoder)
        pictures = [encoder.prepared(each) for each in given]
        if self.templated(raw):
            return encoder.placed(ids_of(messages, encoder.variables(len(given))), pictures, None)
        ids = ids_of(text_alone(messages))
        return encoder.placed(ids, pictures, int(ids[:1] == [self.tokenizer.bos_id]))

    def _check_least(self, num_tokens: int) -> None:
        """Refuses early what the model has no room for, however long its context is made."""
        if num_tokens >= self.info.context_length:
            check_least(num_tokens, self._context, self.info.context_length)

    def longer_context(self) -> str:
        """How to get a longer context, to be put behind another remedy."""
        return longer_context(self._context, self.info.context_length)


def checked_ids(prompt: TokenIds, end: int) -> list[int]:
    """The ids of a prompt. end: the first number that is none. Raises UsageError."""
    if (wrong := next((each for each in prompt.ids if not 0 <= each < end), None)) is not None:
        raise UsageError(f"prompt: {wrong} is no token id; those of this model are below {end}")
    return list(prompt.ids)


def check_least(num_tokens: int, context: int, longest: int) -> None:
    """Raises ContextLengthError for a prompt of at least num_tokens that a context has no room for.

    longest: the context that the model allows.
    """
    if num_tokens >= context:
        raise _no_room(f"at least {num_tokens}", num_tokens, context, longest)


def check_length(num_tokens: int, context: int, longest: int, room: int = 1) -> None:
    """Raises UsageError for a prompt of no tokens, ContextLengthError for one that a context has no room for.

    longest: the context that the model allows. room: tokens of the answer that must have room, too.
    """
    if not num_tokens:
        raise UsageError("the prompt is empty: give at least one word")
    if num_tokens + room > context:
        raise _no_room(str(num_tokens), num_tokens, context, longest)


def _no_room(tokens: str, num_tokens: int, context: int, longest: int) -> ContextLengthError:
    remedy = f"shorten it{longer_context(context, longest)}"
    message = f"the prompt has {tokens} tokens, the context {context}: {remedy}"
    return ContextLengthError(message, num_tokens, context, remedy)


def longer_context(context: int, longest: int) -> str:
    """How to get a longer context than this, to be put behind another remedy."""
    if context < longest:
        return f", or raise --num-ctx (the model allows {longest})"
    return f"; this model has no longer context than {longest} tokens"
