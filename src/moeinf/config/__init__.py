"""How a stored model is run: the run-time options, each with its default and all of its names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.config.option import Option, option, option_of, options
from moeinf.config.size import Bytes, Share, Size, size_of
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How a stored model is run. `of` makes one from values as users write them.

    Raises UsageError for a value of another type or out of range, named by its flag.
    """

    device: str = option(
        "auto",
        "Where to compute: cpu, cuda, cuda:1, or auto: a GPU, unless the CPU is faster. Cards given as cuda:0,cuda:1 "
        "share the experts, and the first has all else. [default: {default}]",
        metavar="NAME,...",
        flags=("--device", "--devices"),
        ollama="num_gpu",  # with other values: see ollama_value
    )
    vram: Size | None = option(
        None,
        "How much of the GPU's memory to use: auto, bytes (12GB) or a percentage of it. [default: auto]",
        metavar="SIZE",
    )
    ram: Size | None = option(
        None,
        "How much of the machine's memory to use: auto, bytes or a percentage of it. [default: auto]",
        metavar="SIZE",
    )
    expert_cache: Size | None = option(
        None,
        "Memory for experts on the device that computes: auto, bytes (6GiB, 500MB) or a percentage of all experts "
        "(40%). "
        "[default: auto]",
        metavar="SIZE",
    )
    cpu_experts: bool = option(  # rounding then varies with what is resident
        False,
        "Let the CPU compute some of the experts that the GPU lacks. [default: {default}]",
        flags=("--cpu-experts/--no-cpu-experts",),
    )
    policy: str = option(  # see runtime/policy/eviction.py; "": as engine/stored/tuned_file.py chooses
        "",
        "What decides which expert is evicted: lru, paper, next-use, or tuned: by what `moeinf tune` has trained. "
        "[default: next-use, or tuned where that was better]",
        metavar="NAME",
    )
    predictor: str = option(  # see runtime/policy/predictors.py
        "",
        "What predicts the experts to prefetch: look-ahead, eamc, none, or look-ahead+eamc: the second for layers that "
        "the first does not see. [default: look-ahead]",
        metavar="NAME",
    )
    prefetch: bool = option(
        True, "Read experts before they are needed. [default: {default}]", flags=("--prefetch/--no-prefetch",)
    )
    context: int | None = option(  # tokens
        None,
        "Length of the context. [default: the model's, at most 4096, less where memory is short]",
        metavar="TOKENS",
        flags=("--num-ctx", "-c"),
        ollama="num_ctx",
    )
    kv_cache: str = option(
        "auto",
        "How keys and values are kept: auto (as the checkpoint's numbers), f32, f16, bf16, or q8_0, which takes about "
        "half of bf16. On the CPU alone. [default: {default}]",
        metavar="FORMAT",
    )
    threads: int | None = option(  # None: physical cores that this process may use and has the time for
        None,
        "Threads that compute. [default: usable physical cores]",
        metavar="N",
        flags=("--threads", "-t"),
        ollama="num_thread",
    )
    prefill_chunk: int | None = option(  # bounds the memory of activations
        None,
        "How many tokens of a prompt run together; on the CPU every number gives the same answer. "
        "[default: 512, on a GPU what its memory allows]",
        metavar="TOKENS",
        ollama="num_batch",
    )
    reader: str = option(
        "native", "What reads the disk: native, or pure (Python, to find faults). [default: {default}]", metavar="NAME"
    )
    direct_io: bool = option(  # by O_DIRECT
        True, "Read past the page cache. [default: {default}]", flags=("--direct-io/--no-direct-io",)
    )
    queue_depth: int = option(16, "Most reads in flight. [default: {default}]", metavar="N")
    verify_reads: bool = option(
        False,
        "Compare every read with its checksum. [default: the first of each expert]",
        flags=("--verify-reads/--no-verify-reads",),
    )
    prefix_memory: Size | None = option(
        None,
        "Memory for the beginnings of earlier prompts, so that they are not computed again: auto, bytes or a "
        "percentage of the memory; 0: none. [default: 5% where many conversations come, or the model is recurrent]",
        metavar="SIZE",
    )
    prefix_disk: Size | None = option(
        None,
        "Room on disk for the same, which survives a restart: bytes or a percentage of what is free; 0: none. "
        "[default: 4GB for a server where ten times that is free, else none]",
        metavar="SIZE",
    )
    picture_tokens: int | None = option(
        None,
        "Most tokens that a picture takes: more show more of it, and take longer. "
        "[default: the checkpoint's, at most 1024]",
        metavar="N",
    )
    pictures: bool = True  # no option: whoever knows that none will come saves the memory for them
    many_conversations: bool = False  # no option: whoever serves them says so, and prefixes are kept by default
    trace: str = option(
        "", "Record the routing of every request in this folder: new, empty, or of the same model.", metavar="DIR"
    )
    trace_limit: Size | None = option(
        None,
        "How much the folder of --trace may hold: bytes or a percentage of what is free there; then recording ends. "
        "[default: 1GB]",
        metavar="SIZE",
    )
    src_lang: str = option(
        "", "Language of the text to translate, by the model's name for it, such as eng_Latn.", metavar="CODE"
    )
    tgt_lang: str = option("", "Language to translate into, such as fra_Latn.", metavar="CODE")
    num_beams: int | None = option(
        None,
        "How many answers of an encoder-decoder model are tried side by side; 1: no beam search. "
        "[default: the checkpoint's]",
        metavar="N",
    )
    workers: str = option(
        "",
        "Other machines that compute some of the experts, by `moeinf worker`; on the CPU alone.",
        metavar="HOST:PORT,...",
    )
    worker_key_file: str = option("", "File with the key that the workers were given.", metavar="PATH")
    isa: str = option(
        "", "instruction set of the kernels, to find faults; by default the best that this CPU has", flags=()
    )

    def __post_init__(self) -> None:
        _check(self)

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
        return cls(**values)  # type: ignore[arg-type]  # __post_init__ checks the types

    @property
    def where(self) -> str:
        """The device as the others leave it: workers share the work of the CPU."""
        return "cpu" if self.workers else self.device

    @property
    def devices(self) -> list[str]:
        """`where` by parts: the device that computes, and further cards that own some of the experts."""
        return self.where.split(",")

    def given(self) -> dict[str, str]:
        """The options that differ from their defaults, as text."""
        names = [each.name for each in options(RuntimeConfig) if getattr(self, each.name) != each.default]
        return {name: str(getattr(self, name)) for name in names}


DEFAULT_CONTEXT = 4096
READERS = ("native", "pure")
KV_CACHES = ("auto", "f32", "f16", "bf16", "q8_0")
# Upper bounds are far beyond what helps, and below what a kernel refuses in words that help nobody.
_RANGES: Mapping[str, tuple[int, int | None]] = {
    "context": (1, None),
    "threads": (1, 1024),
    "prefill_chunk": (1, None),
    "queue_depth": (1, 1024),
    "num_beams": (1, 1024),
    "picture_tokens": (4, 16384),
}
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {  # of each kind, and how an error calls it
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "str": (str, "text"),
    "Size": ((Share, Bytes), "Share or Bytes"),
}


def _check(config: RuntimeConfig) -> None:
    for each in options(RuntimeConfig):
        _check_type(each, getattr(config, each.name))
    if config.reader not in READERS:
        raise UsageError(f"unknown --reader {config.reader!r}; known: {', '.join(READERS)}")
    if config.kv_cache not in KV_CACHES:
        raise UsageError(f"unknown --kv-cache {config.kv_cache!r}; known: {', '.join(KV_CACHES)}")
    for name, (low, high) in _RANGES.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= (high or value):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UsageError(f"{option_of(RuntimeConfig, name).flag} must be {allowed}, not {value}")
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|cuda:\d+(,cuda:\d+)+", config.device):
        raise UsageError(
            f"unknown device {config.device!r}; known: auto, cpu, cuda, cuda:0 and so on, and several as cuda:0,cuda:1"
        )
    _check_devices(config)
    if config.prefix_disk not in (None, Bytes(0)) and config.prefix_memory == Bytes(0):
        raise UsageError("--prefix-disk is filled through memory, and --prefix-memory 0 leaves none; give some")
    if config.trace_limit is not None and not config.trace:
        raise UsageError("--trace-limit bounds the folder of --trace DIR; give one, or leave it out")
    if config.workers and config.device not in ("auto", "cpu"):
        raise UsageError(f"--workers share the work of the CPU, and --device {config.device} is a GPU; leave one out")
    if config.device == "cpu" and (said := gpu_option(config)):
        raise UsageError(f"{said} is for a GPU, and --device cpu uses none; leave one of them out")


def _check_devices(config: RuntimeConfig) -> None:
    names = config.device.split(",")
    if len(names) > len({name.partition(":")[2].lstrip("0") for name in names}):
        raise UsageError(f"--devices {config.device} names a card twice; leave it out")
    if len(names) > 1 and config.cpu_experts:
        raise UsageError("--cpu-experts is for a single GPU; leave it out, or name one device")


def _check_type(asked: Option, value: object) -> None:
    """Raises UsageError for a value that is not of the field's type, as Python callers may give one."""
    wanted, words = _TYPES[asked.kind]
    if value is None and asked.default is None:
        return
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise UsageError(f"{asked.name} must be {words}, not {value!r}")


def gpu_option(config: RuntimeConfig) -> str | None:
    """The option that was given and means nothing without a GPU, as it is written; None where there is none."""
    if config.vram is not None:
        return f"--vram {config.vram}"
    return "--cpu-experts" if config.cpu_experts else None


def ollama_value(asked: Option, text: str) -> object:
    """The value that an option has when ollama's name for it is given this text. Raises UsageError."""
    if asked.ollama == "num_gpu":
        return _device_of_num_gpu(text)
    return ollama_meaning(asked, asked.parse(asked.ollama, text))


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
