"""The coding agents that `moeinf launch` knows: what installs each, and what tells it of a model here.

Nothing is written into a user's files: an agent is told by variables and words of its own command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_PROVIDER: Final = "moeinf"  # what agents that name providers call this one
_WAIT_MS: Final = "3600000"  # for an answer: a long first prompt may take minutes


@dataclass(frozen=True, slots=True)
class Served:
    """A model that a server has. folder: for files that live as long as the agent runs."""

    url: str
    key: str  # any text where the server wants none
    model: str
    context: int  # tokens
    folder: Path

    @property
    def answer_tokens(self) -> int:
        """What an agent may ask for at most, so that a long prompt still fits."""
        return min(8192, self.context // 4)


@dataclass(frozen=True, slots=True)
class Telling:
    """What an agent is told. unset: variables that would say otherwise."""

    variables: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    unset: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Agent:
    """title: what people call it. tokens: of its first prompt, about."""

    title: str
    command: str
    install: str
    tokens: int
    tell: Callable[[Served], Telling]


def _claude(served: Served) -> Telling:
    models = ("OPUS", "SONNET", "HAIKU", "FABLE")
    return Telling(
        {
            "ANTHROPIC_BASE_URL": served.url,
            "ANTHROPIC_AUTH_TOKEN": served.key,
            "ANTHROPIC_MODEL": served.model,
            **{f"ANTHROPIC_DEFAULT_{name}_MODEL": served.model for name in models},
            "CLAUDE_CODE_SUBAGENT_MODEL": served.model,
            "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(served.answer_tokens),
            "CLAUDE_CODE_AUTO_COMPACT_WINDOW": str(served.context),
            "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # a line that changes with each request
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "API_TIMEOUT_MS": _WAIT_MS,
        },
        unset=("ANTHROPIC_API_KEY", "CLAUDE_CODE_USE_BEDROCK", "CLAUDE_CODE_USE_VERTEX"),
    )


def _codex(served: Served) -> Telling:
    key = "MOEINF_API_KEY"
    provider = f"model_providers.{_PROVIDER}"
    settings = {
        "model": served.model,
        "model_provider": _PROVIDER,
        f"{provider}.name": _PROVIDER,
        f"{provider}.base_url": f"{served.url}/v1",
        f"{provider}.wire_api": "responses",
        f"{provider}.env_key": key,
        f"{provider}.stream_idle_timeout_ms": int(_WAIT_MS),
        "model_context_window": served.context,
    }
    words = [f"{name}={json.dumps(value)}" for name, value in settings.items()]
    return Telling({key: served.key}, tuple(word for each in words for word in ("-c", each)))


def _opencode(served: Served) -> Telling:
    limit = {"context": served.context, "output": served.answer_tokens}
    config = {
        "provider": {
            _PROVIDER: {
                "npm": "@ai-sdk/openai-compatible",
                "name": _PROVIDER,
                "options": {"baseURL": f"{served.url}/v1", "apiKey": served.key, "timeout": int(_WAIT_MS)},
                "models": {served.model: {"name": served.model, "tool_call": True, "limit": limit}},
            }
        },
        "model": f"{_PROVIDER}/{served.model}",
        "small_model": f"{_PROVIDER}/{served.model}",
    }
    return Telling({"OPENCODE_CONFIG_CONTENT": json.dumps(config)})


def _qwen(served: Served) -> Telling:
    variables = {"OPENAI_BASE_URL": f"{served.url}/v1", "OPENAI_API_KEY": served.key, "OPENAI_MODEL": served.model}
    return Telling(variables, ("--auth-type", "openai", "--model", served.model))


def _aider(served: Served) -> Telling:
    name = f"openai/{served.model}"
    facts = served.folder / "model-metadata.json"
    limits = {"max_input_tokens": served.context, "max_output_tokens": served.answer_tokens}
    facts.write_text(json.dumps({name: limits | {"input_cost_per_token": 0, "output_cost_per_token": 0}}))
    settings = served.folder / "model-settings.json"  # which is YAML, too
    settings.write_text(json.dumps([{"name": name, "extra_params": {"max_tokens": served.answer_tokens}}]))
    variables = {
        "OPENAI_API_BASE": f"{served.url}/v1",
        "OPENAI_API_KEY": served.key,
        "AIDER_MODEL_METADATA_FILE": str(facts),
        "AIDER_MODEL_SETTINGS_FILE": str(settings),
        "AIDER_TIMEOUT": str(int(_WAIT_MS) // 1000),
    }
    return Telling(variables, ("--model", name, "--no-show-model-warnings", "--no-check-update"))


def _cline(served: Served) -> Telling:
    provider = "openai-compatible"
    settings = {
        "provider": provider,
        "baseUrl": f"{served.url}/v1",
        "apiKey": served.key,
        "model": served.model,
        "contextWindow": served.context,
        "maxTokens": served.answer_tokens,
        "timeout": int(_WAIT_MS),
    }
    providers = served.folder / "providers.json"
    written = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    told = {"version": 1, "lastUsedProvider": provider, "modes": {}, "providers": {provider: written}}
    providers.write_text(json.dumps(told))
    variables = {
        "CLINE_PROVIDER_SETTINGS_PATH": str(providers),
        "CLINE_SESSION_BACKEND_MODE": "local",  # else a daemon answers, which stays, and may have other variables
    }
    return Telling(variables, ("-P", provider, "-m", served.model))


def _pi(served: Served) -> Telling:
    provider = {
        "baseUrl": f"{served.url}/v1",
        "apiKey": served.key,
        "api": "openai-completions",
        "models": [
            {
                "id": served.model,
                "name": served.model,
                "reasoning": False,
                "input": ["text", "image"],
                "cost": dict.fromkeys(("input", "output", "cacheRead", "cacheWrite"), 0),
                "contextWindow": served.context,
                "maxTokens": served.answer_tokens,
            }
        ],
    }
    extension = served.folder / "moeinf.js"
    extension.write_text(
        f"export default (pi) => pi.registerProvider({json.dumps(_PROVIDER)}, {json.dumps(provider)});"
    )
    return Telling(words=("--extension", str(extension), "--provider", _PROVIDER, "--model", served.model))


AGENTS: Final[Mapping[str, Agent]] = {
    "claude": Agent("Claude Code", "claude", "npm install -g @anthropic-ai/claude-code", 18_800, _claude),
    "codex": Agent("Codex", "codex", "npm install -g @openai/codex", 9_000, _codex),
    "opencode": Agent("opencode", "opencode", "npm install -g opencode-ai", 7_200, _opencode),
    "qwen": Agent("Qwen Code", "qwen", "npm install -g @qwen-code/qwen-code", 17_500, _qwen),
    "aider": Agent("aider", "aider", "python -m pip install aider-install && aider-install", 2_300, _aider),
    "cline": Agent("cline", "cline", "npm install -g cline", 5_400, _cline),
    "pi": Agent("pi", "pi", "npm install -g @mariozechner/pi-coding-agent", 1_600, _pi),
}
