"""The flags of a verb, made of the fields of the option classes that it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, get_args

import typer

from moeinf.config import RuntimeConfig
from moeinf.config.batch_options import BatchOptions
from moeinf.config.bench_options import BenchOptions
from moeinf.config.compare_options import CompareOptions
from moeinf.config.fit_options import FitOptions
from moeinf.config.guess_options import GuessOptions
from moeinf.config.option import Kind, Option, options
from moeinf.config.pull_options import PullOptions
from moeinf.config.server_options import ServerOptions
from moeinf.config.simulate_options import SimulateOptions
from moeinf.sampling.params import SamplingParams
from moeinf.terminal.arguments.chat_options import ChatOptions
from moeinf.terminal.arguments.values import values_of

# What the user gave of SamplingParams: the checkpoint has a say in the others.
SamplingOptions = Annotated[dict[str, object], SamplingParams]

_GROUPS = (
    *(RuntimeConfig, SamplingParams, ChatOptions, PullOptions, ServerOptions),
    *(BatchOptions, BenchOptions, CompareOptions, FitOptions, SimulateOptions, GuessOptions),
)
_FLAG_TYPES: Mapping[Kind, object] = {  # a flag that may be repeated gives a list
    "bool": bool | None,
    "int": int | None,
    "float": float | None,
    "tuple[str, ...]": list[str] | None,
    "Mapping[str, object]": list[str] | None,
}
_PAIRS = inspect.Parameter(
    "option",
    inspect.Parameter.KEYWORD_ONLY,
    default=typer.Option(
        None,
        "--option",
        "-o",
        metavar="NAME=VALUE",
        help="An option by the name that ollama gives it, such as num_ctx; repeatable.",
    ),
    annotation=list[str] | None,
)

Verb = Callable[..., None]


def with_flags(*, without: Collection[str] = ()) -> Callable[[Verb], Verb]:
    """A verb whose parameters of option classes (RuntimeConfig, SamplingOptions, ChatOptions, ...) become flags.

    The flags of a class stand where the parameter stood, but for the fields in `without`; the verb is called with
    the checked values. One that takes SamplingOptions also has -o NAME=VALUE.
    """

    def decorate(verb: Verb) -> Verb:
        # Not by typing.get_type_hints, which before Python 3.11 buries the annotation of a default None in an Optional.
        own_parameters = inspect.signature(verb, eval_str=True).parameters
        hints = {name: parameter.annotation for name, parameter in own_parameters.items()}
        groups = {name: group for name, hint in hints.items() if (group := _group(hint)) is not None}
        flags: dict[str, inspect.Parameter] = {}
        for name, parameter in own_parameters.items():
            own = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            added = _parameters(groups[name], without) if name in groups else [own]
            flags |= {each.name: each for each in added}

        def command(**given: Any) -> None:
            own = {name: given.pop(name) for name in hints if name in given}
            pairs = given.pop("option", None) or []
            values = values_of(list(groups.values()), given, pairs)
            verb(**own, **{name: values[group] for name, group in groups.items()})

        command.__name__, command.__doc__ = verb.__name__, verb.__doc__
        command.__signature__ = inspect.Signature(list(flags.values()))  # type: ignore[attr-defined]
        command.__annotations__ = {name: flag.annotation for name, flag in flags.items()}
        return command

    return decorate


def _group(hint: object) -> type | None:
    """The class of options that a parameter of this type stands for."""
    return next((group for group in _GROUPS if group in (hint, *get_args(hint)[1:])), None)


def _parameters(group: type, without: Collection[str]) -> list[inspect.Parameter]:
    flags = [_parameter(each) for each in options(group) if each.flags and each.name not in without]
    return [_PAIRS, *flags] if group is SamplingParams else flags


def _parameter(option: Option) -> inspect.Parameter:
    flag = typer.Option(None, *option.flags, metavar=option.metavar or None, help=option.help)
    kind = _FLAG_TYPES.get(option.kind, str | None)
    return inspect.Parameter(option.name, inspect.Parameter.KEYWORD_ONLY, default=flag, annotation=kind)
