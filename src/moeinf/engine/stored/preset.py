"""What a name of a model says beside its weights: a system message, options of its own, and a chat that was saved."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from moeinf.config import RuntimeConfig, ollama_value
from moeinf.config.option import Option, http_options, options
from moeinf.errors import StoreError, UsageError
from moeinf.sampling.params import SamplingParams, as_ollama_means
from moeinf.store.files import parse_json_object
from moeinf.store.library import StoredModel
from moeinf.types import Json, JsonMapping, Message

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Preset:
    """options: names and texts as `moeinf create` was given them. Raises UsageError for what is no option.

    messages: of a chat, with which one under this name begins; the members of each are texts.
    """

    system: str = ""
    options: Pairs = ()
    messages: tuple[Message, ...] = ()
    params: JsonMapping = field(init=False)  # fields of SamplingParams
    config: JsonMapping = field(init=False)  # fields of RuntimeConfig

    def __post_init__(self) -> None:
        known = _options()
        values = named_values(self.options, known)
        sampling = {each.name for each in options(SamplingParams)}
        params = as_ollama_means({name: value for name, value in values.items() if name in sampling})
        object.__setattr__(self, "params", params)
        object.__setattr__(self, "config", {name: value for name, value in values.items() if name not in sampling})
        SamplingParams(**self.params)  # refuses what is out of range
        RuntimeConfig.of(**self.config)

    def dumps(self) -> str:
        if not self.system and not self.options and not self.messages:
            return ""
        said = {"messages": self.messages} if self.messages else {}
        value = {"system": self.system, "options": self.options, **said}
        try:
            text = json.dumps(value, ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError:  # of half a pair of surrogates, which JSON can say and a file cannot hold
            text = json.dumps(value)
        return text

    def over(self, other: Preset) -> Preset:
        """This one, and what only the other says."""
        mine = {name for name, _ in self.options}
        kept = tuple(pair for pair in other.options if pair[0] not in mine)
        return Preset(self.system or other.system, kept + self.options, self.messages or other.messages)

    def configured(self, config: RuntimeConfig) -> RuntimeConfig:
        """The configuration with what the preset says of options that were left at their defaults."""
        given = config.given()
        return config.changed(**{name: value for name, value in self._values().items() if name not in given})

    def _values(self) -> JsonMapping:
        typed = RuntimeConfig.of(**self.config)
        return {name: typed.value(name) for name in self.config}


def preset_of(stored: StoredModel) -> Preset:
    """What goes with the model's name. Raises StoreError for a text that is damaged."""
    if not stored.preset_text:
        return NO_PRESET
    where = f"the settings of {stored.name}"
    value = parse_json_object(stored.preset_text.encode(), where, StoreError)
    system, pairs, messages = value.get("system"), value.get("options"), value.get("messages", [])
    try:
        if not isinstance(system, str) or not isinstance(pairs, list):
            raise UsageError("system or options are missing")
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise UsageError("a message is none")
        return Preset(system, tuple((str(name), str(text)) for name, text in pairs), tuple(messages))
    except (UsageError, TypeError, ValueError) as error:
        raise StoreError(f"{where} are damaged ({error}); `moeinf create` makes it anew") from error


def _is_message(value: Json) -> bool:
    held = {"role", "content"} <= value.keys() if isinstance(value, dict) else False
    return held and all(isinstance(text, str) for text in value.values())


def _options() -> dict[str, Option]:
    """ollama's names of options, and ours of those that say how a model is run."""
    ours = {each.name: each for each in options(RuntimeConfig) if each.flags and not each.ollama}
    return ours | http_options("ollama", RuntimeConfig, SamplingParams)


def named_values(pairs: Iterable[tuple[str, str]], known: Mapping[str, Option]) -> dict[str, object]:
    """The values of named options by their fields; what is said of one that takes several adds up.

    Raises UsageError.
    """
    values: dict[str, object] = {}
    for name, text in pairs:
        if name not in known:
            raise UsageError(f"unknown option {name[:100]!r}; known: {', '.join(sorted(known))}")
        value, before = ollama_value(known[name], text), values.get(known[name].name)
        values[known[name].name] = before + value if isinstance(before, tuple) and isinstance(value, tuple) else value
    return values


NO_PRESET = Preset()
