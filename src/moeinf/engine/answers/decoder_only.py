"""Models that go on with their prompt: decoders without an encoder."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

from moeinf.config import RuntimeConfig
from moeinf.engine.answers.model_kind import Generation, finite
from moeinf.engine.completion import Rendering, Request, TokenIds
from moeinf.engine.runner import ModelRunner
from moeinf.engine.vision.parts import text_alone
from moeinf.errors import UsageError
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.generation_config import not_done
from moeinf.sampling.loop import generate
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.text.thinking_text import TemplateFacts
from moeinf.text.tokenizer import TextStream, Tokenizer
from moeinf.types import JsonMapping, Message


class DecoderOnly:
    """A model that continues its prompt, or answers a chat that its template has written out."""

    encoder_decoder = False
    num_beams = 1
    encoder_layers = 0

    def __init__(self, tokenizer: Tokenizer, notify: Callable[[str], None], *, json_calls: bool = False) -> None:
        """json_calls: whether an answer that is nothing but JSON objects may call the tools that they name."""
        self._tokenizer, self._notify, self._json_calls = tokenizer, notify, json_calls

    def longest_answer(self, prompt: Sequence[int]) -> int:
        """max_length counts the prompt, too; a prompt that is no shorter by itself is answered all the same."""
        asked = self._tokenizer.generation_config
        if asked.get("max_new_tokens") is not None:
            return int(finite(asked["max_new_tokens"], -1))
        left = int(finite(asked.get("max_length"), 0)) - len(prompt)
        return left if left > 0 else -1

    @property
    def template(self) -> TemplateFacts | None:
        return self._tokenizer.template

    def params(self, given: JsonMapping) -> SamplingParams:
        asked = self._tokenizer.generation_config
        for note in not_done(asked, encoder=False):
            self._notify(note)
        return resolve_params(given, generation_config=asked)

    def check(self, params: SamplingParams, format: AnswerFormat | None) -> None:
        pass

    def encode(
        self, prompt: str | Sequence[Message], rendering: Rendering, check_length: Callable[[int], None]
    ) -> list[int]:
        tokenizer = self._tokenizer
        chat = tokenizer.has_template and not (rendering.raw and isinstance(prompt, str))
        if chat:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
            text, notes = tokenizer.render(
                messages, rendering.variables, own=rendering.own, continues=rendering.continues
            )
            for note in notes:
                self._notify(note)
        else:
            text = prompt if isinstance(prompt, str) else "\n".join(str(each["content"]) for each in prompt)
        check_length(tokenizer.least_tokens(text))
        if chat:
            return tokenizer.encode_chat(text)
        return tokenizer.encode(text, control_tokens=rendering.raw and isinstance(prompt, str))

    def decoder_prompt(self, prompt: Sequence[int]) -> Sequence[int]:
        return prompt

    def generate(self, runner: ModelRunner, asked: Generation) -> Generator[int | None, None, None]:
        return generate(
            asked.seat,
            asked.sequence,
            asked.prompt,
            asked.chooser,
            asked.monitor,
            max_tokens=asked.max_tokens,
            chunk=runner.plan.most_at_once,
            speculation=asked.speculation,
        )

    def text_stream(self, prompt: Sequence[int], request: Request, *, chat: bool, held: bool = False) -> TextStream:
        return self._tokenizer.stream(
            prompt,
            chat=chat,
            tools=request.tools,
            json_calls=self._json_calls and not held,
            begun=_begun(request),
            stops=request.params.stop,
        )


def _begun(request: Request) -> str:
    """The text with which the answer begins, that of the last message."""
    chat = () if isinstance(request.prompt, str | TokenIds) else request.prompt
    return text_alone(chat[-1:]) if request.continues else ""


def refuse_translation(config: RuntimeConfig, name: str) -> None:
    """Raises UsageError for an option that only an encoder-decoder model has a use for."""
    for option, value in (
        ("src-lang", config.translation.src_lang),
        ("tgt-lang", config.translation.tgt_lang),
        ("num-beams", config.translation.num_beams not in (None, 1)),
    ):
        if value:
            raise UsageError(f"--{option} is for encoder-decoder models, and {name} is none; leave it out")
