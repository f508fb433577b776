"""From the words of a command line to checked options, before anything is loaded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from moeinf.config import RuntimeConfig
from moeinf.config.batch_options import BatchOptions
from moeinf.config.bench_options import BenchOptions
from moeinf.config.compare_options import CompareOptions
from moeinf.config.environment import history_wanted, variables_set, with_environment
from moeinf.config.fit_options import FitOptions
from moeinf.config.guess_options import GuessOptions
from moeinf.config.option import http_options, options
from moeinf.config.pull_options import PullOptions
from moeinf.config.server_options import ServerOptions
from moeinf.config.simulate_options import SimulateOptions
from moeinf.config.user_text import decoded, open_file
from moeinf.engine.stored.preset import named_values
from moeinf.errors import UsageError
from moeinf.sampling.params import SamplingParams, as_ollama_means
from moeinf.terminal.arguments.chat_options import ChatOptions

_MOST_FORMAT_BYTES = 1 << 20  # the engine refuses large schemas; this keeps a device file from being read for ever


def values_of(groups: Sequence[type], flags: Mapping[str, object], pairs: Sequence[str]) -> dict[type, object]:
    """The value of each group of options: of flags, else of `-o` pairs, else of MOEINF_* variables.

    flags: by the names of fields; None, and a list without elements, was not given. Raises UsageError, and DeviceError
    for a GPU that was asked for and cannot be used: before a model is pulled for it.
    """
    given = option_pairs(pairs) | {name: value for name, value in flags.items() if value not in (None, [], ())}
    makers: Mapping[type, Callable[[dict[str, object]], object]] = {
        SamplingParams: sampling_options,
        RuntimeConfig: runtime_config,
        ChatOptions: chat_options,
        PullOptions: lambda given: PullOptions(**given),  # type: ignore[arg-type]
        ServerOptions: server_options,
        BatchOptions: lambda given: BatchOptions(**given),  # type: ignore[arg-type]
        BenchOptions: lambda given: BenchOptions(**given),  # type: ignore[arg-type]
        FitOptions: lambda given: FitOptions(**given),  # type: ignore[arg-type]
        CompareOptions: lambda given: CompareOptions(**given),  # type: ignore[arg-type]
        SimulateOptions: lambda given: SimulateOptions(**given),  # type: ignore[arg-type]
        GuessOptions: lambda given: GuessOptions(**given),  # type: ignore[arg-type]
    }
    names = {group: [each.name for each in options(group)] for group in groups}
    return {
        group: make({name: given[name] for name in names[group] if name in given})
        for group, make in makers.items()
        if group in groups
    }


def option_pairs(pairs: Sequence[str]) -> dict[str, object]:
    """The values of -o NAME=VALUE by the names of their fields; the names are ollama's. Raises UsageError."""
    named = []
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UsageError(f"-o {pair!r} is not NAME=VALUE; write for example -o top_k=20")
        named.append((name, text))
    return named_values(named, http_options("ollama", RuntimeConfig, SamplingParams))


def runtime_config(given: Mapping[str, object]) -> RuntimeConfig:
    """How the model is run. Raises as values_of does."""
    from moeinf.gpu.cuda import check_cuda

    config = with_environment(**given)
    _check_policy(config.experts.policy)
    if config.experts.predictor:
        _check_predictor(config.experts.predictor)
    for name in config.compute.devices:
        check_cuda(name)
    return config


def _check_policy(name: str) -> None:
    from moeinf.runtime.policy.eviction import BASELINES, POLICIES, TUNED

    offered = [each for each in (*POLICIES, TUNED) if each not in BASELINES]
    if name in BASELINES:
        raise _to_compare_with("--policy", name, offered)
    if name not in ("", *offered):
        raise UsageError(f"unknown --policy {name!r}; known: {', '.join(offered)}")


def _check_predictor(name: str) -> None:
    from moeinf.runtime.policy.predictors import BASELINES, PREDICTORS, check_predictor

    offered = [each for each in PREDICTORS if each not in BASELINES]
    if not set(BASELINES).isdisjoint(name.split("+")):
        raise _to_compare_with("--predictor", name, offered)
    check_predictor(name, offered)


def _to_compare_with(flag: str, name: str, offered: Sequence[str]) -> UsageError:
    return UsageError(
        f"{flag} {name} is there to compare with, in `moeinf bench` and `moeinf simulate`; known here: "
        f"{', '.join(offered)}"
    )


def sampling_options(given: Mapping[str, object]) -> dict[str, object]:
    """The sampling options that the user gave, by a flag or a variable; the checkpoint has a say in the others."""
    values = dict(given)
    if isinstance(stops := values.get("stop"), list):
        values["stop"] = tuple(stops)
    for name, value in variables_set(SamplingParams).items():
        if name not in values:
            _refuse_variable_out_of_range(name, value)
            values[name] = value
    SamplingParams(**values)  # type: ignore[arg-type]  # refuses what is out of range
    return as_ollama_means(values)


def _refuse_variable_out_of_range(name: str, value: object) -> None:
    try:
        SamplingParams(**{name: value})  # type: ignore[arg-type]
    except UsageError as error:
        [asked] = [each for each in options(SamplingParams) if each.name == name]
        raise UsageError(f"{asked.variable}: {error}") from error


def chat_options(given: Mapping[str, object]) -> ChatOptions:
    """How a conversation is held and shown. Raises UsageError."""
    values = {"history": history_wanted()} | dict(given)
    if isinstance(pairs := values.get("variables"), list):
        values["variables"] = dict(map(_template_variable, pairs))
    if isinstance(format := values.get("format"), str):
        values["format"] = format_text(format)
    return ChatOptions(**values)  # type: ignore[arg-type]


def server_options(given: Mapping[str, object]) -> ServerOptions:
    """How models are served: by flags, else by MOEINF_* variables. Raises UsageError."""
    values = variables_set(ServerOptions) | dict(given)
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return ServerOptions(**(values | lists))  # type: ignore[arg-type]


def format_text(text: str) -> str:
    """What --format or /set format was given; of @FILE, what the file holds. Raises UsageError."""
    if not text.startswith("@"):
        return text
    try:
        with open_file(text[1:]) as file:
            data = file.read(_MOST_FORMAT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"--format {text} cannot be read: {error.strerror}") from error
    if len(data) > _MOST_FORMAT_BYTES:
        raise UsageError(f"--format {text}: the file is longer than {_MOST_FORMAT_BYTES >> 10} KiB")
    return decoded(data).strip()


def _template_variable(pair: str) -> tuple[str, object]:
    name, equals, text = pair.partition("=")
    if not equals:
        raise UsageError(
            f"--template-var {pair!r} is not NAME=VALUE; write for example --template-var enable_thinking=false"
        )
    try:
        return name, json.loads(text)
    except (ValueError, RecursionError):
        return name, text


def refuse_template_options(chat: ChatOptions) -> None:
    """Raises UsageError for what --raw, which does without the chat template, makes meaningless."""
    if chat.think is not None or chat.variables:
        said = "--think" if chat.think is not None else "--template-var"
        raise UsageError(f"--raw does without the chat template, which {said} is for; leave one of them out")
