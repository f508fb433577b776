"""Models whose encoder reads the prompt, and whose decoder answers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Sequence

from moeinf.config import RuntimeConfig
from moeinf.config.size import Bytes
from moeinf.engine.answers.model_kind import Generation, finite
from moeinf.engine.completion import Rendering, Request
from moeinf.engine.runner import ModelRunner
from moeinf.errors import UsageError
from moeinf.sampling.beam_search import BeamSearch, num_beams_asked, search_beams
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.generation_config import not_done
from moeinf.sampling.loop import Monitor, generate
from moeinf.sampling.params import SamplingParams, resolve_params
from moeinf.sampling.sampler import Sampler
from moeinf.sampling.step_queue import Interrupted
from moeinf.text.tokenizer import TextStream, Tokenizer
from moeinf.types import EncoderInput, JsonMapping, Message


class EncoderDecoder:
    """A model whose encoder reads the prompt, and whose decoder writes the answer from a start of its own."""

    encoder_decoder = True
    template = None

    def __init__(
        self,
        form: EncoderInput,
        tokenizer: Tokenizer,
        config: RuntimeConfig,
        config_json: JsonMapping,
        notify: Callable[[str], None],
    ) -> None:
        """config_json asks for what generation_config.json would, where that is missing.

        Raises UsageError for languages that are missing, unknown, or that this model is not told.
        """
        self.encoder_layers = form.encoder_layers
        self._tokenizer = tokenizer
        # T5 marks gaps and what fills them by special tokens, <extra_id_0> and so on; a translator's are not text.
        self._has_gaps = not form.languages
        self._asked = tokenizer.generation_config or config_json
        said = config.translation
        self._input_start, self._input_end = list[int](), [form.eos_id]
        first = self._asked.get("forced_bos_token_id")
        if form.languages:
            self._input_start = [_language(tokenizer, "--src-lang", said.src_lang)]
            first = _language(tokenizer, "--tgt-lang", said.tgt_lang)
        elif said.src_lang or said.tgt_lang:
            raise UsageError(
                f"--{'src' if said.src_lang else 'tgt'}-lang: this model is told the languages in the text "
                'itself, as in "translate English to German: ..."; leave it out'
            )
        self._start = [form.start_id, *([first] if isinstance(first, int) else [])]
        self.num_beams: int = said.num_beams or num_beams_asked(self._asked)
        for note in not_done(self._asked, encoder=True, num_beams=self.num_beams):
            notify(note)

    def longest_answer(self, prompt: Sequence[int]) -> int:
        """max_length counts the tokens that the answer begins with, too."""
        forced = len(self._start) - 1
        if self._asked.get("max_new_tokens") is not None:
            return max(0, int(finite(self._asked["max_new_tokens"], 0)) - forced)
        longest = int(finite(self._asked.get("max_length"), 0))
        return max(0, longest - len(self._start)) if longest else -1

    def params(self, given: JsonMapping) -> SamplingParams:
        """Such a model answers greedily unless asked for more, as its checkpoints expect."""
        unused = [
            name
            for name, value in given.items()
            if value is not None and name not in ("num_predict", "stop") and (name, value) != ("temperature", 0)
        ]
        if self.num_beams > 1 and unused:
            raise UsageError(f"{unused[0]}: a beam search draws nothing; leave it out, or give --num-beams 1")
        return resolve_params(given, generation_config={"do_sample": False} | dict(self._asked))

    def check(self, params: SamplingParams, format: AnswerFormat | None) -> None:
        if format is not None:
            raise UsageError("format: an encoder-decoder model writes no JSON; leave it out")
        if params.top_logprobs >= 0 and self.num_beams > 1:
            raise UsageError(
                "top_logprobs: a beam search reports no probabilities; leave it out, or set num_beams to 1"
            )

    def encode(
        self, prompt: str | Sequence[Message], rendering: Rendering, check_length: Callable[[int], None]
    ) -> list[int]:
        """Every text stands for itself: of a chat, the last message alone is encoded."""
        if rendering.continues:
            raise UsageError("an encoder-decoder model continues no answer: end the chat with the user's message")
        text = prompt if isinstance(prompt, str) else str(prompt[-1]["content"])
        check_length(self._tokenizer.least_tokens(text))
        token_ids = self._tokenizer.encode(text, control_tokens="gaps" if self._has_gaps else False, added=False)
        return [*self._input_start, *token_ids, *self._input_end] if token_ids else []

    def decoder_prompt(self, prompt: Sequence[int]) -> Sequence[int]:
        return self._start

    def generate(self, runner: ModelRunner, asked: Generation) -> Generator[int | None, None, None]:
        """Of a beam search, yields the tokens of the best answer when it ends. A text to follow is not searched for."""
        sequence, chooser, monitor, max_tokens = asked.sequence, asked.chooser, asked.monitor, asked.max_tokens
        sequence.clear()
        if not _read(runner, asked.prompt, monitor):
            return
        if isinstance(chooser, Sampler) and self.num_beams > 1:
            yield from search_beams(runner, self._start, self._search(chooser.num_ids), monitor, max_tokens=max_tokens)
        else:
            chunk = len(self._start)
            yield from generate(asked.seat, sequence, self._start, chooser, monitor, max_tokens=max_tokens, chunk=chunk)

    def _search(self, num_ids: int | None) -> BeamSearch:
        early = self._asked.get("early_stopping")
        return BeamSearch(
            self.num_beams,
            self._tokenizer.eos_ids,
            float(finite(self._asked.get("length_penalty"), 1.0)),
            early if early is True or early == "never" else False,
            num_ids,
        )

    def text_stream(self, prompt: Sequence[int], request: Request, *, chat: bool, held: bool = False) -> TextStream:
        return self._tokenizer.stream(skip_special=not self._has_gaps, stops=request.params.stop)


def _read(runner: ModelRunner, prompt: Sequence[int], monitor: Monitor) -> bool:
    """Runs the encoder over the prompt; False where the request was stopped meanwhile."""
    started = time.perf_counter()
    monitor.begin("encode")
    try:
        runner.encode(prompt, monitor.check)
    except Interrupted:
        return False
    monitor.timing.encode_s = time.perf_counter() - started
    monitor.prefilled(len(prompt), len(prompt))
    return True


def _language(tokenizer: Tokenizer, option: str, code: str) -> int:
    """The token of a language. Raises UsageError for one that was not given, or that the model does not know."""
    if not code:
        raise UsageError(
            f"this model translates between languages that it is told: give {option}, such as "
            f"{'eng_Latn' if option == '--src-lang' else 'fra_Latn'}"
        )
    token = tokenizer.token_id(code)
    if token is None or token not in tokenizer.special_ids:
        raise UsageError(
            f"{option} {code!r} is no language of this model; it knows them as eng_Latn, fra_Latn, deu_Latn and so on"
        )
    return token


def refuse_prefixes(config: RuntimeConfig, name: str) -> None:
    """Raises UsageError for an option that only a decoder-only model has a use for."""
    for option, size in (("prefix-memory", config.memory.prefix_memory), ("prefix-disk", config.memory.prefix_disk)):
        if size not in (None, Bytes(0)):
            raise UsageError(f"--{option}: {name} is an encoder-decoder model, which keeps no prefixes; leave it out")
