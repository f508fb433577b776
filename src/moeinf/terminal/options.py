"""The options that verbs share, and how their words become checked values, before anything is loaded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from moeinf.config import RuntimeConfig, option_from_environment, runtime_fields, variable, with_environment
from moeinf.errors import UsageError

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "num_predict")
OLLAMA_RUNTIME = {"num_ctx": "context", "num_thread": "threads", "num_batch": "prefill_chunk"}  # their names with -o

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="A stored model, org/repo[@rev], or a folder.")]
StoredName = Annotated[str, typer.Argument(metavar="MODEL", help="A stored model.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no line about memory.")]
Device = Annotated[
    str | None,
    typer.Option(metavar="NAME", help=("cpu, cuda, cuda:1, or auto: a GPU, unless the CPU is faster. [default: auto]")),
]
Vram = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help=("What may be used of the GPU's memory: auto, bytes (12GB) or percent of it. [default: auto]"),
    ),
]
Ram = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE", help=("What may be used of the machine's memory: auto, bytes or percent of it. [default: auto]")
    ),
]
ExpertCache = Annotated[
    str | None,
    typer.Option(
        metavar="SIZE",
        help=(
            "Memory for experts, on a GPU its own: auto, bytes (6GiB, 500MB) or percent of all experts (40%). "
            "[default: auto]"
        ),
    ),
]
CpuExperts = Annotated[
    bool | None,
    typer.Option(
        "--cpu-experts/--no-cpu-experts",
        help=("The CPU computes some of the experts that the GPU lacks. [default: off]"),
    ),
]
Policy = Annotated[str | None, typer.Option(metavar="NAME", help="Which expert is evicted: lru, lfu, paper, next-use.")]
Predictor = Annotated[
    str | None, typer.Option(metavar="NAME", help=("What prefetch goes by: look-ahead, cross-layer, eamc, frequency."))
]
Prefetch = Annotated[bool | None, typer.Option("--prefetch/--no-prefetch", help="Read experts ahead of their use.")]
Context = Annotated[
    int | None,
    typer.Option(
        "--num-ctx",
        "-c",
        metavar="TOKENS",
        help=("Context length. [default: the model's, at most 4096, less where memory is short]"),
    ),
]
Threads = Annotated[int | None, typer.Option("--threads", "-t", metavar="N", help="[default: usable physical cores]")]
PrefillChunk = Annotated[
    int | None,
    typer.Option(
        metavar="TOKENS",
        help=(
            "Prompt tokens run together; on the CPU the answer is the same for every number. "
            "[default: 512, on a GPU what its memory allows]"
        ),
    ),
]
ReaderName = Annotated[str | None, typer.Option("--reader", metavar="NAME", help="native, or pure (to find faults).")]
DirectIo = Annotated[bool | None, typer.Option("--direct-io/--no-direct-io", help="Read past the page cache.")]
Quant = Annotated[
    str | None,
    typer.Option(
        "--quant", metavar="FORMAT", help=("Store weights as keep, q8_0, q4_0, q4_k, iq4_nl or mxfp4. [default: keep]")
    ),
]
QuantExperts = Annotated[str | None, typer.Option("--quant-experts", metavar="FORMAT", help="Other format of experts.")]
QuantDense = Annotated[str | None, typer.Option("--quant-dense", metavar="FORMAT", help="Other format of the rest.")]
QueueDepth = Annotated[int | None, typer.Option(metavar="N", help="Reads in flight.")]
VerifyReads = Annotated[
    bool | None,
    typer.Option(
        "--verify-reads/--no-verify-reads",
        help=("Compare every read with its checksum. [default: the first of each expert]"),
    ),
]
SrcLang = Annotated[
    str | None,
    typer.Option(metavar="CODE", help=("Language of the text to translate, as the model calls it: eng_Latn.")),
]
TgtLang = Annotated[str | None, typer.Option(metavar="CODE", help="Language to translate into: fra_Latn.")]
NumBeams = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help=("Answers of an encoder-decoder model side by side; 1: no beam search. [default: the checkpoint's]"),
    ),
]

Think = Annotated[
    str | None,
    typer.Option(
        "--think",
        metavar="WORD",
        help=(
            "--think or --think=true, false, low, medium, high: whether and how hard to think, where the model can be "
            "told. [default: as its chat template has it]"
        ),
    ),
]
HideThinking = Annotated[bool, typer.Option("--hidethinking", help="Do not show thoughts.")]
TemplateVar = Annotated[
    list[str] | None,
    typer.Option(
        "--template-var",
        metavar="NAME=VALUE",
        help=("Another variable of the chat template, JSON or text; repeatable."),
    ),
]


def template_options(think: str | None, pairs: Sequence[str], *, raw: bool) -> dict[str, Any]:
    """The variables of --template-var. Raises UsageError for those, and for a --think, that cannot be meant."""
    from moeinf.text.thinking import THINK_WORDS

    if raw and (think is not None or pairs):
        raise UsageError(
            f"--raw does without the chat template, which {'--think' if think else '--template-var'} is "
            "for; leave one of them out"
        )
    if think is not None and think not in THINK_WORDS:
        raise UsageError(f"--think cannot be {think!r}; it is one of {', '.join(THINK_WORDS)}")
    variables: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(
                f"--template-var {pair!r} is not NAME=VALUE; write for example --template-var enable_thinking=false"
            )
        try:
            variables[name] = json.loads(text)
        except ValueError:
            variables[name] = text
    return variables


def sampling_options(
    params: Mapping[str, Any], pairs: Sequence[str], stop: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampling options and run-time options: of flags, else of -o NAME=VALUE, else (sampling) of MOEINF_* variables."""
    options, runtime = _pairs(pairs)
    options |= {name: params[name] for name in _SAMPLING if params[name] is not None}
    options |= {"stop": tuple(stop)} if stop else {}
    return _checked(options), runtime


def runtime_config(params: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> RuntimeConfig:
    """Of flags, else of `others`, else of MOEINF_* variables.

    Raises UsageError, and DeviceError for a GPU that was asked for and cannot be used: before a model is pulled for it.
    """
    from moeinf.gpu.cuda import check_cuda
    from moeinf.runtime.policy.eviction import POLICIES
    from moeinf.runtime.policy.predictors import PREDICTORS

    given = {name: params[name] for name in runtime_fields() if params.get(name) is not None}
    config = with_environment(**{**(others or {}), **given})
    for option, value, known in (("--policy", config.policy, POLICIES), ("--predictor", config.predictor, PREDICTORS)):
        if value not in known:
            raise UsageError(f"unknown {option} {value!r}; known: {', '.join(known)}")
    check_cuda(config.device)
    return config


def _pairs(pairs: Sequence[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sampling and run-time options of -o NAME=VALUE. Raises UsageError."""
    from moeinf.sampling.sampler import option_kinds, parse_option

    known = {*option_kinds(), *OLLAMA_RUNTIME, "num_gpu"}
    sampling: dict[str, Any] = {}
    runtime: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals:
            raise UsageError(f"-o {pair!r} is not NAME=VALUE; write for example -o top_k=20")
        if name not in known:
            raise UsageError(f"unknown option {name!r}; known: {', '.join(sorted(known))}")
        if name == "num_gpu":
            runtime["device"] = device_of_num_gpu(value)
        elif name in OLLAMA_RUNTIME:
            runtime[OLLAMA_RUNTIME[name]] = whole_number(name, value)
        elif name == "stop":
            sampling["stop"] = (*sampling.get("stop", ()), value)
        else:
            sampling[name] = parse_option(name, value)
    return sampling, runtime


def whole_number(name: str, text: str) -> int:
    """Raises UsageError, also for more digits than anything here can have: int() refuses thousands of them."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise UsageError(f"{name} must be a whole number of at most 18 digits, not {text[:40]!r}")
    return int(text)


def device_of_num_gpu(text: str) -> str:
    """What --device is for ollama's number of layers on a GPU: only none and "as you see fit" mean something here.

    Raises UsageError.
    """
    device = {"0": "cpu", "-1": "auto"}.get(text)
    if device is None:
        raise UsageError(
            f"num_gpu counts layers, and experts are placed here one by one: 0 is the CPU, -1 chooses; "
            f"--vram SIZE bounds what is used of a GPU, so num_gpu cannot be {text!r}"
        )
    return device


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    """With what MOEINF_* variables add. Raises UsageError for a value out of range, before anything is loaded."""
    from moeinf.sampling.sampler import SamplingParams, option_kinds, parse_option

    for name in option_kinds().keys() - options.keys():
        if text := option_from_environment(name):
            try:
                options[name] = parse_option(name, text)
                SamplingParams(**{name: options[name]})
            except UsageError as error:
                raise UsageError(f"{variable(name)}={text!r}: {error}") from error
    SamplingParams(**options)
    return options
