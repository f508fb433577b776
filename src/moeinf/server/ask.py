"""A request in the terms of no API: what is asked of a model, and what happens until it is answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from moeinf.engine.completion import Completion
from moeinf.sampling.constraint import AnswerFormat
from moeinf.types import JsonMapping, Message, Tool


@dataclass(frozen=True, slots=True)
class Ask:
    """What a request wants. `model` is the name by which the client knows it.

    prompt: a text, or the messages of a chat; None only loads the model. raw: the text is continued as it is.
    continues: the last message is the beginning of the answer.
    tools: those that the model may call; one_call: only its first call counts.
    format: as for Model.pieces. effort: OpenAI's word for how hard to think, instead of `think`.
    level: Anthropic's, which says nothing of whether to think, and nothing to a template without levels.
    params: fields of SamplingParams that the client gave. think: as for Model.stream, or thinking.ADAPTIVE.
    config: fields of RuntimeConfig, with which the model is opened anew where they differ.
    keep_alive: (seconds,), or (None,) for ever; () is the server's own.
    """

    model: str
    prompt: str | Sequence[Message] | None = None
    raw: bool = False
    continues: bool = False
    params: JsonMapping = field(default_factory=dict)
    think: bool | str | None = None
    tools: Sequence[Tool] = ()
    one_call: bool = False
    format: AnswerFormat | None = None
    effort: str | None = None
    level: str | None = None
    variables: JsonMapping = field(default_factory=dict)
    config: JsonMapping = field(default_factory=dict)
    keep_alive: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Loading:
    """Bytes of weights that are read, and of all."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Reading:
    """Tokens of the prompt that were read, and all of them."""

    done: int
    total: int


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


Event = Loading | Reading | Text | Call | Chosen | Ended | Failed
