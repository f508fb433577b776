"""A request in the terms of no API: what is asked of a model, and what happens until it is answered."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from moeinf.config.server_options import seconds_of
from moeinf.engine.completion import Completion, Pooling, TokenIds
from moeinf.sampling.constraint import AnswerFormat
from moeinf.types import JsonMapping, Message, Tool

ADAPTIVE = "adaptive"  # thoughts are welcome, but not asked for


@dataclass(frozen=True, slots=True)
class Need:
    """What a model must be able to do, or must not where `wanted` is False, and what is said of any other model."""

    capability: str  # as StoredFacts has it
    refusal: str
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Thoughts:
    """Whether and how hard a model is to think; None leaves it to the chat template.

    think: as for Model.stream, or ADAPTIVE. effort: OpenAI's word for how hard, instead of `think`.
    level: Anthropic's, which says nothing of whether to think, and nothing to a template without levels.
    """

    think: bool | str | None = None
    effort: str | None = None
    level: str | None = None


@dataclass(frozen=True, slots=True)
class Tools:
    """offered: those that the model may call. forced: the one that it must call; "": any; None: it decides.

    one_call: only its first call counts.
    """

    offered: Sequence[Tool] = ()
    forced: str | None = None
    one_call: bool = False


@dataclass(frozen=True, slots=True)
class Inputs:
    """Texts, or the ids of their tokens, of which a vector each is wanted.

    cut: what is too long loses its end, behind so many tokens as there is room for at most; 0: it is not known yet.
    pooling: how the states of tokens become one, which the model says.
    """

    texts: Sequence[str | Sequence[int]]
    cut: int | None = None
    pooling: Pooling = "mean"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants, of whatever model has that name. `model` is the name by which the client knows it.

    prompt: a text, or its tokens, or the messages of a chat, or what is to be embedded; None only loads the model.
    raw: the text is continued as it is.
    continues: the last message is the beginning of the answer. format: as for Model.pieces.
    params: fields of SamplingParams that the client gave. variables: of the chat template.
    config: fields of RuntimeConfig, with which the model is opened anew where they differ.
    keep_alive: (seconds,), or (None,) for ever; () is the server's own.
    needs: what the request takes for granted of the model.
    """

    model: str
    prompt: str | TokenIds | Sequence[Message] | Inputs | None = None
    raw: bool = False
    continues: bool = False
    params: JsonMapping = field(default_factory=dict)
    thoughts: Thoughts = Thoughts()
    tools: Tools = Tools()
    format: AnswerFormat | None = None
    variables: JsonMapping = field(default_factory=dict)
    config: JsonMapping = field(default_factory=dict)
    keep_alive: tuple[float | None, ...] = ()
    needs: Sequence[Need] = ()

    @property
    def chat(self) -> Sequence[Message]:
        """The messages of a chat; none of another prompt."""
        return () if self.prompt is None or isinstance(self.prompt, str | TokenIds | Inputs) else self.prompt

    @property
    def only_closes(self) -> bool:
        """Whether nothing is wanted but that the model is closed."""
        return self.prompt is None and self.keep_alive == (0.0,)


@dataclass(frozen=True, slots=True)
class Queued:
    """The request waits for its turn. position: 1 for the next one. eta_s: seconds until then; None: not known yet."""

    position: int
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes of weights that are read, and of all. eta_s: seconds until they are; None: not known yet."""

    done: int
    total: int
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of the prompt that were read, and all of them. eta_s: seconds until they are; None: not known yet."""

    done: int
    total: int
    eta_s: float | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer, or of what the model thought before it."""

    text: str
    thought: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A part of a call of a tool: see moeinf.text.text_stream.CallPart."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Chance:
    """A token, by the bytes that it stands for, and the natural logarithm of its probability."""

    token: bytes
    logprob: float


@dataclass(frozen=True, slots=True)
class Chosen:
    """A token of the answer, thoughts and tags included, told before its text; top: the likeliest ones, best first.

    It comes where top_logprobs among the params asks for it.
    """

    token: Chance
    top: tuple[Chance, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """The answer is whole, or was cut. completion: None where the model was only loaded."""

    completion: Completion | None
    load_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Failed:
    """There is no (more) answer. The error is one line for the client."""

    error: Exception


class Eta:
    """Tells from how far something is how long it still takes."""

    def __init__(self, done: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """done: so much was done before."""
        self._clock, self._began = clock, (clock(), done)

    def left_s(self, done: int, total: int) -> float | None:
        """Seconds until all is done; None: not known."""
        began_s, before = self._began
        passed_s = self._clock() - began_s
        return None if done <= before else round(passed_s * (total - done) / (done - before), 1)


Event = Queued | Loading | Reading | Text | Call | Chosen | Ended | Failed


def drawn_anew(ask: Ask, at: int) -> Ask:
    """The same for one more answer, whose seed, where one is given, is so many behind that of the first."""
    seed = ask.params.get("seed")
    return ask if seed is None or seed < 0 else replace(ask, params={**ask.params, "seed": seed + at})


def keep_alive_of(value: str | float | None) -> tuple[float | None, ...]:
    """Ask.keep_alive of a request's field. Raises UsageError."""
    return () if value is None else (seconds_of("keep_alive", value),)
