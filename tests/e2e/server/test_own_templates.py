"""Models with chat templates of moeinf's own are told of thoughts, tools and forms by every API."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.pull.pull import pull
from moeinf.server.serve import HttpServer
from moeinf.store.naming.catalogue import DATA
from moeinf.text.templates.file import TEMPLATE_FILE
from moeinf.text.templates.own import own_template
from tests.support.live_server import live_server

MODELS = ("deepseek_v32", "deepseek_v4", "deepseek_v41", "kimi_k3")
SEA = {"sea": {"enum": ["North"]}}
SCHEMA: dict[str, Any] = {"type": "object", "properties": SEA, "required": ["sea"], "additionalProperties": False}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"k": {"type": "string"}}}}
SHORT = {"model": "demo:chat", "stream": False}


@pytest.fixture(scope="module", params=MODELS)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """The embedded model, with the template of another."""
    folder: Path = tmp_path_factory.mktemp("own") / "demo"
    for part in (DATA / "demo", DATA / "demo" / "chat"):
        shutil.copytree(part, folder, dirs_exist_ok=True)
    config = {"config.json": json.dumps({"model_type": request.param}).encode()}
    (folder / TEMPLATE_FILE).write_text(own_template(config, "m"), encoding="utf-8")
    with live_server(pull(str(folder), PullOptions(name="demo:chat"), home=folder.parent / "home")) as running:
        yield running


def asked(server: HttpServer, path: str, **body: Any) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=SHORT | body, timeout=120)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_every_api_writes_the_same_chat(server: HttpServer) -> None:
    arguments = {"k": "v"}
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": json.dumps(arguments)}}
    system, question = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
    turn = {"role": "assistant", "content": "So.", "reasoning_content": "Hm."}
    chat: list[Any] = [system, question, turn | {"tool_calls": [call]}]
    chat += [{"role": "tool", "tool_call_id": "call_1", "content": "red"}]
    tools = [{"type": "function", "function": FUNCTION}]
    written = asked(server, "/apply-template", messages=chat, tools=tools)["prompt"]
    assert all(word in written for word in ("Be brief.", "Hm.", "So.", "red", '"description"'))
    tokens = len(asked(server, "/tokenize", content=written)["tokens"])
    of_openai = asked(server, "/v1/chat/completions", messages=chat, tools=tools, max_tokens=1)
    own = {**call, "function": {"name": "f", "arguments": arguments}}
    of_ollama = asked(
        server,
        "/api/chat",
        messages=[system, question, {**turn, "thinking": "Hm.", "tool_calls": [own]}, {**chat[3], "tool_name": "f"}],
        tools=tools,
        options={"num_predict": 1},
    )
    use = {"type": "tool_use", "id": "call_1", "name": "f", "input": arguments}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": ""}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "red"}
    of_anthropic = asked(
        server,
        "/v1/messages",
        system="Be brief.",
        messages=[
            question,
            {"role": "assistant", "content": [thought, {"type": "text", "text": "So."}, use]},
            {"role": "user", "content": [result]},
        ],
        tools=[{"name": "f", "description": "d", "input_schema": FUNCTION["parameters"]}],
        max_tokens=1,
    )
    of_responses = asked(
        server,
        "/v1/responses",
        instructions="Be brief.",
        input=[
            question,
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"role": "assistant", "content": "So."},
            {"type": "function_call", "call_id": "call_1", "name": "f", "arguments": json.dumps(arguments)},
            {"type": "function_call_output", "call_id": "call_1", "output": "red"},
        ],
        tools=[{"type": "function", **FUNCTION}],
        max_output_tokens=1,
    )
    assert of_openai["usage"]["prompt_tokens"] == tokens
    assert of_ollama["prompt_eval_count"] == tokens
    assert of_anthropic["usage"]["input_tokens"] + of_anthropic["usage"]["cache_read_input_tokens"] == tokens
    assert of_responses["usage"]["input_tokens"] == tokens


def test_a_form_of_the_answer_is_told(server: HttpServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "sea", "schema": SCHEMA}}
    chat = [{"role": "user", "content": "Which sea?"}]
    written = asked(server, "/apply-template", messages=chat, response_format=form)["prompt"]
    assert "North" in written and "North" not in asked(server, "/apply-template", messages=chat)["prompt"]
    answer = asked(server, "/v1/chat/completions", messages=chat, response_format=form, reasoning_effort="none")
    assert json.loads(answer["choices"][0]["message"]["content"]) == {"sea": "North"}
    off = asked(server, "/apply-template", messages=chat, response_format=form, reasoning_effort="none")["prompt"]
    assert answer["usage"]["prompt_tokens"] == len(asked(server, "/tokenize", content=off)["tokens"])
    given = asked(server, "/api/chat", messages=chat, format=SCHEMA, think=False)
    assert given["prompt_eval_count"] == answer["usage"]["prompt_tokens"]
