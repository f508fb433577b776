"""The parts of RuntimeConfig: options that belong together, each with its default and all of its names.

Each part raises UsageError for a value of another type or out of range, named by its flag.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from moeinf.config.option import Option, option, options
from moeinf.config.size import Bytes, Share, Size
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class ComputeOptions:
    """Where a model is computed, and by what."""

    device: str = option(
        "auto",
        "Where to compute: cpu, cuda, cuda:1, or auto: a GPU, unless the CPU is faster. Cards given as cuda:0,cuda:1 "
        "share the experts, and the first has all else. [default: {default}]",
        metavar="NAME,...",
        flags=("--device", "--devices"),
        ollama="num_gpu",  # with other values: see ollama_value
    )
    cpu_experts: bool = option(  # rounding then varies with what is resident
        False,
        "Let the CPU compute some of the experts that the GPU lacks. [default: {default}]",
        flags=("--cpu-experts/--no-cpu-experts",),
    )
    threads: int | None = option(  # None: physical cores that this process may use and has the time for
        None,
        "Threads that compute. [default: usable physical cores]",
        metavar="N",
        flags=("--threads", "-t"),
        ollama="num_thread",
    )
    isa: str = option(
        "", "instruction set of the kernels, to find faults; by default the best that this CPU has", flags=()
    )
    workers: str = option(
        "",
        "Other machines that compute some of the experts, by `moeinf worker`; on the CPU alone.",
        metavar="HOST:PORT,...",
    )
    worker_key_file: str = option("", "File with the key that the workers were given.", metavar="PATH")

    def __post_init__(self) -> None:
        _check(self)
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?|cuda:\d+(,cuda:\d+)+", self.device):
            raise UsageError(
                f"unknown device {self.device!r}; known: auto, cpu, cuda, cuda:0 and so on, and several as "
                "cuda:0,cuda:1"
            )
        names = self.device.split(",")
        if len(names) > len({name.partition(":")[2].lstrip("0") for name in names}):
            raise UsageError(f"--devices {self.device} names a card twice; leave it out")
        if len(names) > 1 and self.cpu_experts:
            raise UsageError("--cpu-experts is for a single GPU; leave it out, or name one device")
        if self.workers and self.device not in ("auto", "cpu"):
            raise UsageError(f"--workers share the work of the CPU, and --device {self.device} is a GPU; leave one out")

    @property
    def where(self) -> str:
        """The device as the others leave it: workers share the work of the CPU."""
        return "cpu" if self.workers else self.device

    @property
    def devices(self) -> list[str]:
        """`where` by parts: the device that computes, and further cards that own some of the experts."""
        return self.where.split(",")


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """How much memory a model takes, and what it takes it for."""

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
    context: int | None = option(  # tokens
        None,
        "Length of the context. [default: the model's, at most 4096 (of a server 32768, and more where a prompt "
        "needs it), less where memory is short]",
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
    prefill_chunk: int | None = option(  # bounds the memory of activations
        None,
        "How many tokens of a prompt run together; on the CPU every number gives the same answer. "
        "[default: 512, or up to 4096 in memory that experts lend, or that all of them leave; on a GPU what its "
        "memory allows]",
        metavar="TOKENS",
        ollama="num_batch",
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

    def __post_init__(self) -> None:
        _check(self)
        if self.kv_cache not in _KV_CACHES:
            raise UsageError(f"unknown --kv-cache {self.kv_cache!r}; known: {', '.join(_KV_CACHES)}")
        if self.prefix_disk not in (None, Bytes(0)) and self.prefix_memory == Bytes(0):
            raise UsageError("--prefix-disk is filled through memory, and --prefix-memory 0 leaves none; give some")


@dataclass(frozen=True, slots=True)
class ExpertOptions:
    """Which experts are kept, which are read before they are needed, and which tokens may do without."""

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
    approx: float | None = option(  # nats a token
        None,
        "Let answers differ from the exact ones, so that fewer experts are read: by so much KL divergence, in nats a "
        "token, as is measured on a text before the first answer. On the CPU alone. [default: answers are exact]",
        metavar="KL",
    )
    admission: str = ""  # no option: bench alone says it, see runtime/prefetch.py
    approx_text: str = option(
        "", "Text that --approx is measured on, one like those to come. [default: built in]", metavar="FILE"
    )

    def __post_init__(self) -> None:
        _check(self)
        if self.approx is not None and not 0 <= self.approx <= _MOST_KL:
            raise UsageError(f"--approx must be from 0 to {_MOST_KL:g} nats a token, such as 0.01, not {self.approx:g}")
        if self.approx_text and self.approx is None:
            raise UsageError("--approx-text is measured on for --approx KL; give that, too, or leave it out")


@dataclass(frozen=True, slots=True)
class ReadingOptions:
    """How experts are read from the disk."""

    reader: str = option(
        "native", "What reads the disk: native, or pure (Python, to find faults). [default: {default}]", metavar="NAME"
    )
    direct_io: bool = option(  # by O_DIRECT
        True, "Read past the page cache. [default: {default}]", flags=("--direct-io/--no-direct-io",)
    )
    queue_depth: int = option(16, "Most reads in flight on a disk. [default: {default}]", metavar="N")
    also: str = option(
        "",
        "Folder on another disk that has the experts, too, as `moeinf spread` has copied them; none: read the store's "
        "disk alone. [default: all folders that they were spread to]",
        metavar="DIR",
    )
    verify_reads: bool = option(
        False,
        "Compare every read with its checksum. [default: the first of each expert]",
        flags=("--verify-reads/--no-verify-reads",),
    )

    def __post_init__(self) -> None:
        _check(self)
        if self.reader not in _READERS:
            raise UsageError(f"unknown --reader {self.reader!r}; known: {', '.join(_READERS)}")


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """Which tokens are guessed at, so that a step computes several."""

    speculate: str = option(
        "auto",
        "Guess at the next tokens and check several in one step: auto (where that is faster, on the CPU; not in "
        "bench), off, or always. Answers stay the same. [default: {default}]",
        metavar="WHEN",
    )
    draft_max: int = option(7, "Most tokens that a step guesses at. [default: {default}]", metavar="N")
    draft: str = option(
        "",
        "What guesses, too: a small model of the same vocabulary, or mtp, the layer of the model's own that its makers "
        "trained for it. It stays in memory, beside the model.",
        metavar="MODEL",
    )

    def __post_init__(self) -> None:
        _check(self)
        if self.speculate not in _SPECULATE:
            raise UsageError(f"unknown --speculate {self.speculate!r}; known: {', '.join(_SPECULATE)}")
        if self.draft and self.speculate == "off":
            raise UsageError(
                "--draft names a model that guesses, and --speculate off guesses at nothing; leave one out"
            )


@dataclass(frozen=True, slots=True)
class CallOptions:
    """What counts as a call of a tool."""

    json_calls: bool = option(
        True,
        "Where tools are given, take an answer that is nothing but JSON objects for calls of the tools that they "
        "name, if their arguments fit. [default: {default}]",
        flags=("--json-calls/--no-json-calls",),
    )

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Where the routing of requests is recorded."""

    trace: str = option(
        "", "Record the routing of every request in this folder: new, empty, or of the same model.", metavar="DIR"
    )
    trace_limit: Size | None = option(
        None,
        "How much the folder of --trace may hold: bytes or a percentage of what is free there; then recording ends. "
        "[default: 1GB]",
        metavar="SIZE",
    )

    def __post_init__(self) -> None:
        _check(self)
        if self.trace_limit is not None and not self.trace:
            raise UsageError("--trace-limit bounds the folder of --trace DIR; give one, or leave it out")


@dataclass(frozen=True, slots=True)
class TranslationOptions:
    """What an encoder-decoder model is told of every text."""

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

    def __post_init__(self) -> None:
        _check(self)


_SPECULATE = ("auto", "off", "always")
_READERS = ("native", "pure")
_MOST_KL = 10.0  # beyond it answers have nothing to do with the exact ones
_KV_CACHES = ("auto", "f32", "f16", "bf16", "q8_0")
# Upper bounds are far beyond what helps, and below what a kernel refuses in words that help nobody.
_RANGES: Mapping[str, tuple[int, int | None]] = {
    "context": (1, None),
    "threads": (1, 1024),
    "prefill_chunk": (1, None),
    "queue_depth": (1, 1024),
    "num_beams": (1, 1024),
    "picture_tokens": (4, 16384),
    "draft_max": (1, 7),
}
_TYPES: Mapping[str, tuple[type | tuple[type, ...], str]] = {  # of each kind, and how an error calls it
    "bool": (bool, "True or False"),
    "int": (int, "a whole number"),
    "float": ((int, float), "a number"),
    "str": (str, "text"),
    "Size": ((Share, Bytes), "Share or Bytes"),
}


def _check(part: object) -> None:
    for each in options(type(part)):
        value = getattr(part, each.name)
        _check_type(each, value)
        low, high = _RANGES.get(each.name, (None, None))
        if low is not None and value is not None and not low <= value <= (high or value):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UsageError(f"{each.flag} must be {allowed}, not {value}")


def _check_type(asked: Option, value: object) -> None:
    """Raises UsageError for a value that is not of the field's type, as Python callers may give one."""
    wanted, words = _TYPES[asked.kind]
    if value is None and asked.default is None:
        return
    if not isinstance(value, wanted) or (wanted is not bool and isinstance(value, bool)):
        raise UsageError(f"{asked.name} must be {words}, not {value!r}")
