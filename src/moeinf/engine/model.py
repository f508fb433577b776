"""A stored model, opened: what its users hold."""

from __future__ import annotations

import sys
import warnings
from collections import abc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from moeinf.config import RuntimeConfig
from moeinf.engine.answers.generator import Generator
from moeinf.engine.completion import NO_HOOKS, Completion, GenerationStats, Hooks, Rendering, Request
from moeinf.engine.opening import ModelParts, OpenOptions, open_model
from moeinf.engine.reporting import Reporting
from moeinf.engine.runner import ModelRunner
from moeinf.errors import StoreError
from moeinf.runtime.cache.stats import CacheStats
from moeinf.sampling.constraint import AnswerFormat
from moeinf.sampling.params import SamplingParams
from moeinf.store.formats import formats_text
from moeinf.store.library import StoredModel
from moeinf.text.quantities import count_text
from moeinf.text.text_stream import Piece
from moeinf.types import Json, JsonMapping, JsonObject, Message, Tool

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Model:
    """A stored model, ready to generate, one request at a time. Close it, or use `with`.

    A request raises UsageError while one of another thread computes or is read. An answer that the same thread has
    read in part ends where its next request begins. `close` may come from any thread: what computes ends within a
    layer, and raises StoreError where it is read. Other threads may look on: at `activity` (None but for a server),
    `plan`, `stats`, `runner.reader.bytes_read`, `tier.states`. In a forked process every request raises UsageError.
    """

    def __init__(
        self,
        stored: StoredModel,
        config: RuntimeConfig,
        reporting: Reporting | None = None,
        **options: Unpack[OpenOptions],
    ) -> None:
        """Opens it: see open_model, for the options too, and for what is raised."""
        self._parts: ModelParts | None = None
        parts = open_model(stored, config, reporting, **options)
        self.name, self.manifest, self.config = stored.name, stored.manifest, config
        self.tokenizer, self.kernels, self.activity = parts.tokenizer, parts.kernels, parts.activity
        self.policy, self.predictor = parts.deciders.policy, parts.deciders.predictor
        self.plan, self.tier = parts.generator.runner.plan, parts.generator.runner.tier
        self.planned_bytes, self.draft_bytes = parts.planned_bytes, parts.draft_bytes  # the second is part of the first
        self.parallel = parts.generator.turns.places  # answers that are made side by side
        self.encoder_decoder = parts.generator.kind.encoder_decoder  # which answers each text on its own
        self._parts = parts

    def _open(self) -> ModelParts:
        if self._parts is None:
            raise StoreError(f"model {self.name} is closed; load it again")
        return self._parts

    @property
    def generator(self) -> Generator:
        """What answers. Raises StoreError once the model is closed."""
        return self._open().generator

    @property
    def runner(self) -> ModelRunner:
        """The network on its device, with its experts. Raises StoreError once the model is closed."""
        return self.generator.runner

    @property
    def stats(self) -> CacheStats:
        """What the caches of all ranks have counted so far. Raises StoreError once the model is closed."""
        return self.runner.stats

    @property
    def last(self) -> Completion | None:
        """The last answer, as far as it has come. Raises StoreError once the model is closed."""
        return self.generator.last

    def warm_up(self) -> None:
        """Begins to read the experts that earlier runs used most, and ends with the first request.

        For whoever opens a model before anybody asks it something. Does nothing on a GPU, without prefetch, and where
        nothing is known or every expert is there.
        """
        parts = self._open()
        if self.config.experts.prefetch:
            parts.generator.warm_up(parts.activations.collection)

    def params(self, **given: Json) -> SamplingParams:
        """Sampling options: `given`, else the model's own, else the checkpoint's generation_config, else the defaults.

        An encoder-decoder model answers greedily unless asked for more, as its checkpoints expect. Raises UsageError.
        """
        parts, said = self._open(), {name: value for name, value in given.items() if value is not None}
        return parts.generator.kind.params({**parts.defaults, **said})

    def generate(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Completion:
        """The whole answer at once; arguments as for `stream`."""
        for _ in self.stream(prompt, params, **options):
            pass
        assert self.last is not None
        return self.last

    def stream(
        self, prompt: str | Sequence[Message], params: SamplingParams | None = None, **options: Any
    ) -> Iterator[str]:
        """Yields the text of the answer as it is made; arguments as for `pieces`, afterwards `last` holds the rest."""
        return _texts(self.pieces(prompt, params, **options))

    def pieces(
        self,
        prompt: str | Sequence[Message],
        params: SamplingParams | None = None,
        *,
        raw: bool = False,
        think: bool | str | None = None,
        variables: JsonMapping | None = None,
        tools: Sequence[Tool] | None = None,
        format: AnswerFormat | None = None,
        continues: bool = False,
        hooks: Hooks = NO_HOOKS,
    ) -> abc.Generator[Piece, None, None]:
        """Yields the answer as it is made, piece by piece: text, thoughts, calls; then `last` holds the Completion.

        prompt: text, or messages with role and content, and calls and results of tools in OpenAI's form. A content is
        text, or a list of {"type": "text", "text": ...} and {"type": "image", "image": bytes of a PNG or JPEG}. raw:
        text is continued as it is, without the chat template.
        think: True, False, "low", "medium", "high" or "max"; None leaves it to the template. Where that has no switch,
        False ends thoughts where they begin. variables: others that it reads.
        tools: those that the model may call. format: "json" for an object, the JSON schema of the answer, or "call" for
        calls of tools, which may also stand instead of JSON. Thoughts before it are free; num_predict or a full context
        may cut it. continues: the last message is the beginning of the answer, which goes on behind it; without a
        format. hooks: what is asked and told while the answer is made.
        A prompt that begins as the one before reuses its keys and values.
        Raises ContextLengthError before anything is computed, UsageError for what the template would ignore and for a
        schema that is not supported, ExpertReadError when a disk fails in the middle.
        """
        told = self.template_variables(think, variables or {}, tools=tools or (), raw=raw)
        given = self.generator.prompts.thinking(params or self.params(), think, raw=raw)
        request = Request(prompt, given, raw, told, tools or (), format, continues, hooks)
        return _holding(self, self.generator.answer(request))

    def template_variables(
        self, think: bool | str | None, given: JsonMapping, *, tools: Sequence[Tool] = (), raw: bool = False
    ) -> JsonObject:
        """What the chat template is told (see `pieces`). Raises UsageError."""
        return self.generator.prompts.variables(think, given, tools, raw=raw)

    def encode(
        self,
        prompt: str | Sequence[Message],
        *,
        raw: bool = False,
        variables: JsonMapping | None = None,
        continues: bool = False,
    ) -> list[int]:
        """The prompt's token ids; variables: for the chat template. continues: as for `pieces`.

        Raises ContextLengthError, TextError, StoreError for a closed model.
        """
        return self.generator.prompts.encode(prompt, Rendering(raw, variables, continues)).ids

    def replay(self, prompt: Sequence[int], continuation: Sequence[int]) -> GenerationStats:
        """Feeds `continuation` token by token behind `prompt` instead of drawing: real text for a benchmark.

        Starts from an empty KV cache; the expert cache stays as it is. Raises UsageError for ids that are no tokens of
        the model and for no prompt, ContextLengthError for too many.
        """
        return self.generator.replay(prompt, continuation)

    def longer_context(self) -> str:
        """How to get a longer context, to be put behind another remedy."""
        return self.generator.prompts.longer_context()

    def describe(self) -> str:
        """One line: what was loaded, and where its memory went."""
        info, moe = self.manifest.info, self.manifest.moe
        active = "" if moe.dense else f"({count_text(info.active_params)} active) "
        return (
            f"{self.name} · {count_text(info.num_params)} {active}"
            f"{formats_text(self.manifest)} · {self.runner.describe(moe)} · "
            f"context {self.plan.context}"
        )

    def close(self) -> None:
        """Ends the reader and the tokenizer's process; a second call does nothing. A disk that hangs is left alone.

        Waits for what computes in another thread, which ends within a layer. Each part is closed, whatever another
        raises. Raises UsageError where a hook of a request calls it.
        """
        parts = self._parts
        forked = parts is not None and parts.generator.turns.forked
        if parts is not None and not forked:
            parts.generator.turns.close()
        self._parts = None
        with ExitStack() as closing_parts:
            closing_parts.callback(self.tokenizer.close)
            if parts is None or forked:  # the reader is that of the other process
                return
            if parts.draft is not None:
                closing_parts.callback(parts.draft.close)
            if parts.generator.close():
                parts.keep()
            else:
                parts.notify("the disk does not answer: what this run learned about routing is not kept")

    def __del__(self) -> None:
        """Nothing holds what a forgotten model had: its threads end with it, and its tokenizer's process here."""
        if self._parts is not None and not sys.is_finalizing():
            warnings.warn(f"model {self.name} was not closed", ResourceWarning, stacklevel=2)
            self.tokenizer.close()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _holding(model: Model, pieces: abc.Generator[T, None, None]) -> abc.Generator[T, None, None]:
    """The answer, with which a model that nobody holds otherwise stays open to its end."""
    yield from pieces
    del model


def _texts(pieces: abc.Generator[Piece, None, None]) -> Iterator[str]:
    with closing(pieces):
        for piece in pieces:
            if piece.text and not piece.thought:
                yield piece.text
