"""Writes docs/reference/fields.md: of each published field of the three APIs, whether it is obeyed.

.venv/bin/python docs/generate_fields.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from moeinf.config import RuntimeConfig
from moeinf.config.option import http_options
from moeinf.sampling.params import SamplingParams
from moeinf.server.anthropic import fields as anthropic_fields
from moeinf.server.anthropic import requests as anthropic
from moeinf.server.body_fields import Refused
from moeinf.server.ollama import embeddings_asked
from moeinf.server.ollama import fields as ollama_fields
from moeinf.server.ollama import requests as ollama
from moeinf.server.openai import embeddings
from moeinf.server.openai import requests as openai
from moeinf.server.responses import response_request as responses

OPTIONS = tuple(http_options("ollama", SamplingParams, RuntimeConfig))
PAGE = Path(__file__).parent / "reference" / "fields.md"
HEAD = """# Fields of requests

This page is for those who look up what moeinf does with a field of a request: with each that OpenAI, Anthropic and
ollama publish, and with those that vLLM, SGLang, llama.cpp's server and others have added to OpenAI's API.
[server.md](../server.md) and [apis.md](../apis.md) say what the obeyed ones do. `python docs/generate_fields.py` writes
this page; do not edit it.

A refused field is status 400 with its name and the reason. A field that is null or empty, or that has a value in
brackets below, asks for nothing and passes. A field that no API knows is logged and ignored, as vLLM and ollama do; but
at `/v1` a name that is nearly spelt as a field is refused with the name of that field, and at `/api` a field of another
API that says what an answer has to be is refused.
"""
ROUTES: list[tuple[str, Any]] = [
    ("POST /v1/chat/completions", openai.ChatRequest),
    ("its messages", openai.ChatMessage),
    ("its stream_options", openai.StreamOptions),
    ("its structured_outputs", openai.StructuredOutputs),
    ("its reasoning", openai.Reasoning),
    ("its thinking", openai.Thinking),
    ("POST /v1/completions", openai.CompletionRequest),
    ("POST /v1/responses", responses.ResponseRequest),
    ("its reasoning", responses.Reasoning),
    ("its text", responses.TextOptions),
    ("POST /v1/embeddings", embeddings.EmbeddingRequest),
    ("POST /v1/messages", anthropic.MessageRequest),
    ("its thinking", anthropic.Thinking),
    ("its output_config", anthropic.OutputConfig),
    ("its tools", anthropic_fields.TOOL),
    ("POST /v1/messages/count_tokens", anthropic.Prompted),
    ("POST /api/chat", ollama.ChatRequest),
    ("its messages", ollama.ChatMessage),
    ("its options, those of POST /api/generate too", ollama_fields.OPTIONS),
    ("POST /api/generate", ollama.GenerateRequest),
    ("POST /api/embed", embeddings_asked.EmbedRequest),
    ("POST /api/embeddings", embeddings_asked.EmbeddingsRequest),
    ("POST /api/show", ollama.ShowRequest),
    ("POST /api/pull", ollama.PullRequest),
    ("DELETE /api/delete", ollama.NamedRequest),
    ("POST /api/copy", ollama.CopyRequest),
    ("POST /api/create", ollama.CreateRequest),
]


def page() -> str:
    return "\n".join([HEAD, *(line for name, kind in ROUTES for line in section(name, kind))])


def section(name: str, kind: Any) -> Iterator[str]:
    rules = getattr(kind, "published", kind)
    known = {id(anthropic_fields.TOOL): anthropic.TOOL_FIELDS, id(ollama_fields.OPTIONS): OPTIONS}
    obeyed = known.get(id(kind)) or tuple(f.encode_name for f in msgspec.structs.fields(kind))
    yield f"## {name}"
    yield ""
    yield "| field | |"
    yield "|---|---|"
    fates: dict[str, list[str]] = {"obeyed": sorted(obeyed)}
    told = {each: rule for each, rule in rules.refused.items() if each not in obeyed}
    for each in sorted(told):
        fates.setdefault(f"refused{passing(told[each])}: {told[each].why}", []).append(each)
    for each in sorted(set(rules.silent) - set(obeyed)):
        fates.setdefault(f"changes no answer: {rules.silent[each]}", []).append(each)
    for fate, names in fates.items():
        yield f"| {', '.join(f'`{each}`' for each in names)} | {fate} |"
    yield ""


def passing(rule: Refused) -> str:
    """The values that pass, but for those that are empty."""
    values = [value for value in rule.nothing if value not in ("", [], {})]
    if not values or rule.nothing == Refused("").nothing:
        return ""
    return f" (`{'`, `'.join(msgspec.json.encode(value).decode() for value in values)}`)"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
