"""What depends on the kind of a model: a decoder alone goes on with its prompt, an encoder-decoder answers it."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol

from moeinf.engine.completion import Rendering, Request
from moeinf.engine.runner import ModelRunner
from moeinf.sampling.cached_tokens import CachedTokens
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.loop import Chooser, Monitor
from moeinf.sampling.params import SamplingParams
from moeinf.sampling.speculation.depth import Speculation
from moeinf.sampling.step_queue import Seat
from moeinf.text.thinking_text import TemplateFacts
from moeinf.text.tokenizer import TextStream
from moeinf.types import JsonMapping, Message


@dataclass(frozen=True, slots=True)
class Generation:
    """What the tokens of one answer are generated from."""

    seat: Seat
    sequence: CachedTokens
    prompt: Sequence[int]
    chooser: Chooser
    monitor: Monitor
    max_tokens: int
    speculation: Speculation | None = None


class ModelKind(Protocol):
    """All that depends on the kind of a model, from a prompt to the tokens of its answer."""

    encoder_decoder: bool  # whether it answers each text on its own instead of going on with it
    num_beams: int  # answers that are decoded side by side
    encoder_layers: int  # MoE layers, the first ones, that only the encoder visits

    @property
    def template(self) -> TemplateFacts | None:
        """What the chat template can be told; None where there is none."""
        ...

    def longest_answer(self, prompt: Sequence[int]) -> int:
        """The most tokens of an answer to it that the checkpoint asks for; -1: it does not say."""
        ...

    def params(self, given: JsonMapping) -> SamplingParams:
        """The sampling options: those given, else the checkpoint's, else the defaults. Raises UsageError."""
        ...

    def check(self, params: SamplingParams, format: AnswerFormat | None) -> None:
        """Raises UsageError for what the answers of this kind cannot have."""
        ...

    def encode(
        self, prompt: str | Sequence[Message], rendering: Rendering, check_length: Callable[[int], None]
    ) -> list[int]:
        """The token ids of a prompt, [] for an empty one. Raises TextError, UsageError.

        check_length: called before a text is encoded, which may take minutes, with a number of tokens that it has at
        least; may raise.
        """
        ...

    def decoder_prompt(self, prompt: Sequence[int]) -> Sequence[int]:
        """The token ids that the answer follows in the KV cache."""
        ...

    def generate(self, runner: ModelRunner, asked: Generation) -> Generator[int | None, None, None]:
        """Yields the answer's token ids as they are chosen, and None where it waits for a step (step_queue.py)."""
        ...

    def text_stream(self, prompt: Sequence[int], request: Request, *, chat: bool, held: bool = False) -> TextStream:
        """Turns the answer's token ids into text, thoughts and calls.

        chat: the prompt went through the chat template. held: whether the answer is held to a form of its own, so that
        JSON is no call.
        """
        ...


def finite(value: object, default: float) -> float:
    """The value, where it is a finite number."""
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < math.inf:
        return value
    return default
