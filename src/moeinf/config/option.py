"""What users call one option on each surface: as a flag, as a variable, in a chat and over HTTP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Literal, TypeVar, cast

from moeinf.config.size import parse_size
from moeinf.errors import UsageError

T = TypeVar("T")

# The types that a field of options may have, beside None: as the class writes them.
Kind = Literal["bool", "int", "float", "str", "Size", "tuple[str, ...]", "Mapping[str, object]"]
Api = Literal["ollama", "openai"]
_MOST_DIGITS = 19  # of 2**63 - 1; int() refuses thousands of them with an error of its own


@dataclass(frozen=True, slots=True)
class Option:
    """One field of a class of options: RuntimeConfig, SamplingParams or ChatOptions."""

    name: str  # of the field
    kind: Kind
    default: object
    help: str
    metavar: str  # what stands for its value in the help
    flags: tuple[str, ...]  # as typer takes them: ("--num-ctx", "-c"), ("--prefetch/--no-prefetch",)
    ollama: str  # in the options of ollama's HTTP API, and so in -o and /set parameter; "": none
    openai: tuple[str, ...]  # in a request of OpenAI's HTTP API
    chat: Mapping[str, str]  # words of /set, with their help; of a bool, the first is yes and the second no

    @property
    def flag(self) -> str:
        """The one that says yes: `--prefetch`."""
        return self.flags[0].split("/")[0] if self.flags else ""

    @property
    def variable(self) -> str:
        """The environment variable, called as the flag is: MOEINF_EXPERT_CACHE."""
        return f"MOEINF_{self.flag.removeprefix('--') or self.name}".replace("-", "_").upper()

    def parse(self, name: str, text: str) -> object:
        """The value that `text` means. Raises UsageError, which calls the option `name`, for a text that means none."""
        if self.kind == "bool":
            return _parse_bool(name, text)
        if self.kind == "int":
            return _parse_whole(name, text)
        if self.kind == "float":
            return _parse_number(name, text)
        if self.kind == "Size":
            return parse_size(self.flag, text)
        return (text,) if self.kind == "tuple[str, ...]" else text


def option(
    default: T,
    help: str,
    *,
    metavar: str = "",
    flags: tuple[str, ...] | None = None,
    ollama: str = "",
    openai: tuple[str, ...] = (),
    chat: Mapping[str, str] = MappingProxyType({}),
) -> T:
    """A field with this default, and what users call it (see Option); `{default}` in the help stands for the default.

    flags: None for one with the field's name.
    """
    names = {"help": help, "metavar": metavar, "flags": flags, "ollama": ollama, "openai": openai, "chat": chat}
    return field(default=default, metadata=names)


def options(group: type) -> tuple[Option, ...]:
    """The options that a dataclass and its parts list, in their order."""
    parts = parts_of(group)
    return tuple(
        found
        for each in fields(group)
        for found in (options(parts[each.name]) if each.name in parts else (_of_field(each),) if each.metadata else ())
    )


def parts_of(group: type) -> dict[str, type]:
    """The fields of a dataclass that hold options themselves, and the dataclasses that these are."""
    factories: dict[str, object] = {each.name: each.default_factory for each in fields(group)}
    return {name: made for name, made in factories.items() if isinstance(made, type) and is_dataclass(made)}


def value_of(group: object, name: str) -> object:
    """The value of a field of a dataclass or of one of its parts."""
    held = (getattr(group, part) for part, kind in parts_of(type(group)).items() if name in _names(kind))
    return getattr(next(held, group), name)


def changed(group: T, values: Mapping[str, object]) -> T:
    """The dataclass with other values of fields of its own or of its parts."""
    own = dict(values)
    for part, kind in parts_of(type(group)).items():
        if its := {name: own.pop(name) for name in _names(kind) if name in own}:
            own[part] = replace(getattr(group, part), **its)
    return replace(group, **own)  # type: ignore[type-var]


def _names(group: type) -> list[str]:
    return [each.name for each in fields(group)]


def _of_field(each: Field[object]) -> Option:
    kind = cast(Kind, str(each.type).removesuffix(" | None"))
    names = dict(each.metadata)
    names["help"] = names["help"].replace("{default}", _default_text(each.default))
    if names["flags"] is None:
        names["flags"] = (f"--{each.name.replace('_', '-')}",)
    return Option(each.name, kind, each.default, **names)


def option_of(group: type, name: str) -> Option:
    """The option of that field."""
    return next(each for each in options(group) if each.name == name)


def http_options(api: Api, *groups: type) -> dict[str, Option]:
    """The options that a request of an HTTP API may hold, by their names in it."""
    every = [each for group in groups for each in options(group)]
    if api == "ollama":
        return {each.ollama: each for each in every if each.ollama}
    return {name: each for each in every for name in each.openai}


def _default_text(default: object) -> str:
    return {True: "on", False: "off"}[default] if isinstance(default, bool) else str(default)


def _parse_bool(name: str, text: str) -> bool:
    """llama.cpp's spellings of yes and no."""
    if text.lower() in ("1", "on", "true", "yes", "enabled"):
        return True
    if text.lower() in ("0", "off", "false", "no", "disabled"):
        return False
    raise UsageError(f"{name} must be on or off, not {text[:40]!r}")


def _parse_whole(name: str, text: str) -> int:
    if re.fullmatch(rf"-?[0-9]{{1,{_MOST_DIGITS}}}", text):
        return int(text)
    length = f" of at most {_MOST_DIGITS} digits" if len(text) > _MOST_DIGITS else ""
    raise UsageError(f"{name} must be a whole number{length}, not {text[:40]!r}")


def _parse_number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{name} must be a number, not {text[:40]!r}") from None
