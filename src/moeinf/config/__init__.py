"""How a stored model is run: the run-time options, each with its default and all of its names."""

from __future__ import annotations

from dataclasses import dataclass, field

from moeinf.config.option import Option, changed, options, value_of
from moeinf.config.run_options import (
    CallOptions,
    ComputeOptions,
    ExpertOptions,
    MemoryOptions,
    ReadingOptions,
    RecordingOptions,
    SpeculationOptions,
    TranslationOptions,
)
from moeinf.config.size import size_of
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How a stored model is run. `of` makes one from values as users write them.

    Raises UsageError for options of which one makes the other mean nothing, as its parts do for one value.
    """

    compute: ComputeOptions = field(default_factory=ComputeOptions)
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    experts: ExpertOptions = field(default_factory=ExpertOptions)
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    speculation: SpeculationOptions = field(default_factory=SpeculationOptions)
    calls: CallOptions = field(default_factory=CallOptions)
    recording: RecordingOptions = field(default_factory=RecordingOptions)
    translation: TranslationOptions = field(default_factory=TranslationOptions)
    pictures: bool = True  # no option: whoever knows that none will come saves the memory for them
    parallel: int = 1  # no option: answers that are made side by side; 0: as the memory has room for
    in_bulk: bool = False  # no option: answers that nobody waits for, but for the last one
    many_conversations: bool = False  # no option: whoever serves them says so, and prefixes are kept by default

    def __post_init__(self) -> None:
        if self.compute.device == "cpu" and (said := gpu_option(self)):
            raise UsageError(f"{said} is for a GPU, and --device cpu uses none; leave one of them out")

    @classmethod
    def of(cls, **given: object) -> RuntimeConfig:
        """From values as users write them: a size is text (`6GiB`, `40%`, `auto`) or a number of bytes.

        None counts as not given. Raises UsageError for an unknown field as well.
        """
        known = {each.name: each for each in options(cls)}
        for name in given:
            if name not in known:
                raise UsageError(f"unknown option {name!r}; known: {', '.join(sorted(known))}")
        values = {
            name: size_of(known[name].flag, name, value) if known[name].kind == "Size" else value
            for name, value in given.items()
            if value is not None
        }
        return cls().changed(**values)

    def changed(self, **values: object) -> RuntimeConfig:
        """The same with other values of these options. Raises UsageError."""
        return changed(self, values)

    def value(self, name: str) -> object:
        """Of the option of that name."""
        return value_of(self, name)

    def given(self) -> dict[str, str]:
        """The options that differ from their defaults, as text."""
        values = {each.name: (self.value(each.name), each.default) for each in options(RuntimeConfig)}
        return {name: str(value) for name, (value, default) in values.items() if value != default}


DEFAULT_CONTEXT = 4096


def gpu_option(config: RuntimeConfig) -> str | None:
    """The option that was given and means nothing without a GPU, as it is written; None where there is none."""
    if config.memory.vram is not None:
        return f"--vram {config.memory.vram}"
    return "--cpu-experts" if config.compute.cpu_experts else None


def ollama_value(asked: Option, text: str) -> object:
    """The value that an option has when ollama's name for it is given this text. Raises UsageError."""
    if asked.ollama == "num_gpu":
        return _device_of_num_gpu(text)
    return ollama_meaning(asked, asked.parse(asked.ollama or asked.name, text))


def ollama_meaning(asked: Option, value: object) -> object:
    """What a value under ollama's name means: 0 leaves the choice to the program (None), is no bound, or is off."""
    return _AT_0.get(asked.ollama, value) if value == 0 else value


_AT_0 = {"num_ctx": None, "num_thread": None, "num_batch": None, "num_predict": -1, "repeat_penalty": 1.0}


def _device_of_num_gpu(text: str) -> str:
    """ollama counts the layers on a GPU: here only none, and as many as fit, mean something."""
    device = {"0": "cpu", "-1": "auto"}.get(text)
    if device is None:
        raise UsageError(
            f"num_gpu counts layers, and experts are placed here one by one: 0 is the CPU, -1 chooses; "
            f"--vram SIZE bounds what is used of a GPU, so num_gpu cannot be {text!r}"
        )
    return device
