"""Run-time options: every default is written here once, and only this module reads MOEINF_* variables."""

from __future__ import annotations

import os
import re
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
    """How a stored model is run. Sizes are text as the user writes them: `auto`, `6GiB`, `40%`."""

    device: str = "auto"  # "cpu", "cuda", "cuda:1"; auto: the first GPU if there is one, else the CPU
    vram: str = "auto"  # what may be used of the GPU's memory: bytes, percent of it, or all that is free
    ram: str = "auto"  # what this process may use of the machine's memory: bytes, percent of it, or all available
    expert_cache: str = "auto"  # of the device: bytes, percent of all experts, or what fits into its memory
    cpu_experts: bool = False  # the CPU computes some experts that the GPU lacks; rounding then varies with residency
    policy: str = "next-use"  # eviction; see runtime/policies.py
    predictor: str = "look-ahead"  # what prefetch is based on; see runtime/predict.py
    prefetch: bool = True
    context: int | None = None  # tokens; None: the model's own, at most DEFAULT_CONTEXT, less where memory is short
    threads: int | None = None  # None: physical cores this process may use
    prefill_chunk: int | None = None  # tokens; bounds activation memory; None: 512, on a GPU what its memory allows
    reader: ReaderKind = "native"  # the Python twin is for tests and for finding faults
    direct_io: bool = True  # O_DIRECT; False reads through the page cache
    queue_depth: int = 16  # reads in flight
    src_lang: str = ""  # of the text and of its translation, as the model's tokenizer calls them: "eng_Latn"
    tgt_lang: str = ""
    num_beams: int | None = None  # of an encoder-decoder model; 1: no beam search; None: what the checkpoint asks for
    isa: str = ""  # instruction set of the kernels; "": the best that this CPU has


DEFAULT_CONTEXT = 4096
SIZES = ("vram", "ram", "expert_cache")  # options whose text is a size


def with_environment(**given: object) -> RuntimeConfig:
    """RuntimeConfig from `given`, else from MOEINF_<FIELD>, else the default. None counts as not given.

    Raises UsageError for an unknown field and for a variable whose text is not of the field's type.
    """
    values: dict[str, object] = {}
    known = {field.name: field for field in fields(RuntimeConfig)}
    for name in given:
        if name not in known:
            raise UsageError(f"unknown option {name!r}; known: {', '.join(sorted(known))}")
    for name, field in known.items():
        text = os.environ.get(f"MOEINF_{name.upper()}")
        if given.get(name) is not None:
            values[name] = given[name]
        elif text:
            values[name] = _parse(f"MOEINF_{name.upper()}", text, str(field.type))
    config = RuntimeConfig(**values)  # type: ignore[arg-type]
    _check(config)
    return config


def _parse(variable: str, text: str, kind: str) -> object:
    if kind == "bool":
        return parse_bool(variable, text)
    if kind.startswith("int"):
        if not re.fullmatch(r"\d+", text):
            raise UsageError(f"{variable}={text!r} is not a whole number")
        return int(text)
    return text


def _check(config: RuntimeConfig) -> None:
    if config.reader not in ("native", "pure"):
        raise UsageError(f"unknown reader {config.reader!r}; known: native, pure")
    for name in ("context", "threads", "prefill_chunk", "queue_depth", "num_beams"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise UsageError(f"{name.replace('_', '-')} must be at least 1, not {value}")
    for name in SIZES:
        if getattr(config, name) != "auto":
            parse_size(f"--{name.replace('_', '-')}", getattr(config, name), 0)
    if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", config.device):
        raise UsageError(f"unknown device {config.device!r}; known: auto, cpu, cuda, cuda:0 and so on")
    if config.device == "cpu" and (said := gpu_option(config)):
        raise UsageError(f"{said} is for a GPU, and --device cpu uses none; leave one of them out")


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
    """Bytes meant by `6GiB`, `500MB`, `1073741824` or `40%` (of total_bytes). Raises UsageError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(%|[a-zA-Z]*)\s*", text)
    unit = match.group(2).lower() if match else "?"
    if match and unit == "%" and float(match.group(1)) <= 100:
        return int(total_bytes * float(match.group(1)) / 100)
    if match and unit in _UNITS:
        return int(float(match.group(1)) * _UNITS[unit])
    raise UsageError(f"{option} {text!r} is not a size; write auto, bytes (6GiB, 500MB) or percent (40%)")


def store_home() -> Path:
    """Folder of the store: MOEINF_HOME, else ~/.moeinf."""
    return Path(os.environ.get("MOEINF_HOME") or Path.home() / ".moeinf").expanduser()


def debug_wanted() -> bool:
    """MOEINF_DEBUG: tracebacks instead of one-line errors."""
    return os.environ.get("MOEINF_DEBUG", "") not in ("", "0")


def history_wanted() -> bool:
    """MOEINF_NOHISTORY switches the REPL's history file off."""
    return os.environ.get("MOEINF_NOHISTORY", "") in ("", "0")


def option_from_environment(name: str) -> str | None:
    """Text of MOEINF_<NAME> for a sampling option, None where it is not set."""
    return os.environ.get(f"MOEINF_{name.upper()}") or None
