"""Run-time options: every default is written here once, and only this module reads MOEINF_* variables."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from moeinf.errors import UsageError

ReaderKind = Literal["native", "pure"]

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}
_UNITS |= {f"{letter}{suffix}": 1024**power for power, letter in enumerate("kmgt", start=1) for suffix in ("", "ib")}


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """How a stored model is run. Sizes are text as the user writes them: `auto`, `6GiB`, `40%`.

    Raises UsageError for a value of another type or out of range, named by its flag.
    """

    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto: the first GPU if there is one, else the CPU
    vram: str = "auto"  # what may be used of the GPU's memory: bytes, percent of it, or all that is free
    ram: str = "auto"  # what this process may use of the machine's memory: bytes, percent of it, or all available
    expert_cache: str = "auto"  # of the device: bytes, percent of all experts, or what fits into its memory
    cpu_experts: bool = False  # the CPU computes some experts that the GPU lacks; rounding then varies with residency
    policy: str = "next-use"  # eviction; see runtime/policies.py
    predictor: str = "look-ahead"  # what prefetch is based on; see runtime/predict.py
    prefetch: bool = True
    context: int | None = None  # tokens; None: the model's own, at most DEFAULT_CONTEXT, less where memory is short
    threads: int | None = None  # None: physical cores that this process may use and has the time for
    prefill_chunk: int | None = None  # tokens; bounds activation memory; None: 512, on a GPU what its memory allows
    reader: ReaderKind = "native"  # the Python twin is for tests and for finding faults
    direct_io: bool = True  # O_DIRECT; False reads through the page cache
    queue_depth: int = 16  # reads in flight
    verify_reads: bool = False  # compare every read with its checksum, not only the first of each expert and row
    src_lang: str = ""  # of the text and of its translation, as the model's tokenizer calls them: "eng_Latn"
    tgt_lang: str = ""
    num_beams: int | None = None  # of an encoder-decoder model; 1: no beam search; None: what the checkpoint asks for
    isa: str = ""  # instruction set of the kernels; "": the best that this CPU has

    def __post_init__(self) -> None:
        _check(self)


DEFAULT_CONTEXT = 4096
SIZES = ("vram", "ram", "expert_cache")  # options whose text is a size
# Upper bounds are far beyond what helps, and below what a kernel refuses in words that help nobody.
_RANGES: Mapping[str, tuple[int, int | None]] = {
    "context": (1, None),
    "threads": (1, 1024),
    "prefill_chunk": (1, None),
    "queue_depth": (1, 1024),
    "num_beams": (1, 1024),
}
_FLAGS = {"context": "--num-ctx"}  # where it is not the field's name
OTHER_VARIABLES = {  # those that belong to no flag, and what each does
    "MOEINF_HOME": "folder of the store, ~/.moeinf by default",
    "MOEINF_NOHISTORY": "1 keeps no history of the chat",
    "MOEINF_DEBUG": "1 shows tracebacks",
    "MOEINF_ISA": "instruction set of the kernels, to find faults; by default the best that this CPU has",
}
_RENAMED = {"MOEINF_CONTEXT": "MOEINF_NUM_CTX"}  # they did something once, so that a note would not suffice
_OF_TESTS = ("MOEINF_TEST_DATA",)
_MEBIBYTE = 1 << 20


def flag(name: str) -> str:
    """What a field is called on the command line: `--expert-cache`."""
    return _FLAGS.get(name) or f"--{name.replace('_', '-')}"


def variable(name: str) -> str:
    """The environment variable of a field or of a sampling option, which is its flag's name: MOEINF_EXPERT_CACHE."""
    return f"MOEINF_{flag(name)[2:].replace('-', '_').upper()}"


def runtime_fields() -> list[str]:
    """The fields that have a flag."""
    return [field.name for field in fields(RuntimeConfig) if field.name != "isa"]


def unknown_variables(sampling: Collection[str]) -> list[str]:
    """A line for each MOEINF_* variable that nothing reads. sampling: names of the sampling options."""
    known = [*map(variable, [*runtime_fields(), *sampling]), *OTHER_VARIABLES]
    lines = []
    for name in sorted(os.environ):
        if name.startswith("MOEINF_") and name not in (*known, *_RENAMED, *_OF_TESTS):
            close = difflib.get_close_matches(name[7:], [each[7:] for each in known], n=1)  # behind MOEINF_
            hint = f"did you mean MOEINF_{close[0]}?" if close else "docs/cli.md lists those that are"
            lines.append(f"{name} is no variable of moeinf, and changes nothing; {hint}")
    return lines


def with_environment(**given: object) -> RuntimeConfig:
    """RuntimeConfig from `given`, else from MOEINF_* variables, else the default. None counts as not given.

    A whole number for a size is one of bytes.
    Raises UsageError for an unknown field, for a variable whose text is not of the field's type, and for options of
    which one would make the other mean nothing.
    """
    known = {field.name: str(field.type) for field in fields(RuntimeConfig)}
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; known: {', '.join(sorted(known))}")
    for old, new in _RENAMED.items():
        if os.environ.get(old):
            raise UsageError(f"{old} is called {new} now, as the flag is; set that instead")
    said: dict[str, object] = {}
    for name, kind in known.items():
        if given.get(name) is not None:
            said[name] = _in_bytes(given[name]) if name in SIZES else given[name]
        elif text := os.environ.get(variable(name)):
            said[name] = _parse(variable(name), text, kind)
    config = RuntimeConfig(**said)  # type: ignore[arg-type]
    _refuse_what_would_mean_nothing(config, said)
    return config


def _in_bytes(size: object) -> object:
    return f"{size}B" if isinstance(size, int) and not isinstance(size, bool) else size


def _parse(name: str, text: str, kind: str) -> object:
    if kind == "bool":
        return parse_bool(name, text)
    if kind.startswith("int"):
        if not re.fullmatch(r"\d{1,18}", text):
            raise UsageError(f"{name}={text!r} is not a whole number")
        return int(text)
    return text


def _check(config: RuntimeConfig) -> None:
    for field in fields(RuntimeConfig):
        _check_type(field.name, str(field.type), getattr(config, field.name))
    if config.reader not in ("native", "pure"):
        raise UsageError(f"unknown --reader {config.reader!r}; known: native, pure")
    for name, (low, high) in _RANGES.items():
        value = getattr(config, name)
        if value is not None and not low <= value <= (high or value):
            allowed = f"at least {low}" if high is None else f"from {low} to {high}"
            raise UsageError(f"{flag(name)} must be {allowed}, not {value}")
    for name in SIZES:
        if getattr(config, name) != "auto":
            parse_size(flag(name), getattr(config, name), 0)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise UsageError(f"unknown device {config.device!r}; known: auto, cpu, cuda, cuda:0 and so on")
    if config.device == "cpu" and (said := gpu_option(config)):
        raise UsageError(f"{said} is for a GPU, and --device cpu uses none; leave one of them out")


def _check_type(name: str, kind: str, value: object) -> None:
    """Raises UsageError for a value that is not of the field's type, as Python callers may give one."""
    if value is None and kind.endswith("None"):
        return
    wanted, words = (
        (bool, "True or False")
        if kind == "bool"
        else (int, "a whole number")
        if kind.startswith("int")
        else (str, "text")
    )
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        words = "text such as '6GiB' or '40%', or a number of bytes" if name in SIZES else words
        raise UsageError(f"{name} must be {words}, not {value!r}")


def _refuse_what_would_mean_nothing(config: RuntimeConfig, said: Mapping[str, object]) -> None:
    idle = []
    if config.reader == "pure":
        idle += [
            (f"--queue-depth {config.queue_depth}", "queue_depth" in said, "one read at a time"),
            ("--direct-io", said.get("direct_io") is True, "through the page cache"),
        ]
    for option, was_said, way in idle:
        if was_said:
            raise UsageError(f"{option} means nothing to --reader pure, which reads {way}; leave one of them out")
    if not config.prefetch and "predictor" in said:
        raise UsageError(f"--predictor {config.predictor} means nothing with --no-prefetch; leave one of them out")


def gpu_option(config: RuntimeConfig) -> str | None:
    """What was asked for that means nothing without a GPU, as it is written."""
    if config.vram != "auto":
        return f"--vram {config.vram}"
    return "--cpu-experts" if config.cpu_experts else None


def parse_bool(name: str, text: str) -> bool:
    """llama.cpp's spellings of yes and no; raises UsageError for any other."""
    if text.lower() in ("1", "on", "true", "yes", "enabled"):
        return True
    if text.lower() in ("0", "off", "false", "no", "disabled"):
        return False
    raise UsageError(f"{name}={text!r} is neither on nor off")


def parse_size(option: str, text: str, total_bytes: int) -> int:
    """Bytes meant by `6GiB`, `500MB`, `1073741824` or `40%` (of total_bytes). Raises UsageError.

    A small number alone is refused: it would mean a few bytes, and those who are used to llama.cpp mean MiB.
    """
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d+)?)\s*(%|[a-zA-Z]*)\s*", text)
    unit = match.group(2).lower() if match else "?"
    if match and unit == "%" and float(match.group(1)) <= 100:
        return int(total_bytes * float(match.group(1)) / 100)
    if match and unit == "" and 0 < float(match.group(1)) < _MEBIBYTE:
        number = match.group(1)
        raise UsageError(f"{option} {text!r} may mean {number} MiB or {number} bytes; write {number}MiB or {number}B")
    if match and unit in _UNITS:
        return int(float(match.group(1)) * _UNITS[unit])
    raise UsageError(f"{option} {text!r} is not a size; write auto, bytes (6GiB, 500MB) or percent (40%)")


def store_home() -> Path:
    """Folder of the store: MOEINF_HOME, else ~/.moeinf. Raises UsageError where a file is in its place."""
    home = Path(os.environ.get("MOEINF_HOME") or Path.home() / ".moeinf").expanduser()
    if home.exists() and not home.is_dir():
        raise UsageError(f"{home}, where models are stored, is no folder; set MOEINF_HOME to one")
    return home


def debug_wanted() -> bool:
    """MOEINF_DEBUG: tracebacks instead of one-line errors."""
    return os.environ.get("MOEINF_DEBUG", "") not in ("", "0")


def history_wanted() -> bool:
    """MOEINF_NOHISTORY switches the REPL's history file off."""
    return os.environ.get("MOEINF_NOHISTORY", "") in ("", "0")


def option_from_environment(name: str) -> str | None:
    """Text of MOEINF_<NAME> for a sampling option, None where it is not set."""
    return os.environ.get(variable(name)) or None
