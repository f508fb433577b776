"""The API of ollama, asked by the client that its makers publish."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import httpx
import ollama
import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.preset import Preset
from moeinf.pull.pull import ensure
from moeinf.server.serve import HttpServer
from moeinf.store.library import Library, StoredModel
from moeinf.terminal.arguments.modelfile_options import parse_modelfile
from moeinf.terminal.stored.show import parameters_text, show_lines
from tests.support.live_server import live_server

GREEDY = {"temperature": 0, "num_predict": 8}
QUESTION = [{"role": "user", "content": "The king said"}]


@pytest.fixture
def client(server: HttpServer) -> ollama.Client:
    return ollama.Client(server.url)


@pytest.fixture
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """A server over a store that the test may change."""
    home = tmp_path_factory.mktemp("own")
    ensure("demo", home=home)
    with live_server(Library(home)) as started:
        yield started


def test_a_chat_streams_the_words_of_the_whole_answer(client: ollama.Client) -> None:
    whole = client.chat("demo", QUESTION, options=GREEDY)
    pieces = list(client.chat("demo", QUESTION, options=GREEDY, stream=True))
    assert whole.message.content
    assert "".join(piece.message.content or "" for piece in pieces) == whole.message.content
    assert [piece.done for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert {piece.message.role for piece in pieces} == {"assistant"}


def test_the_last_piece_has_the_figures(client: ollama.Client) -> None:
    last = list(client.generate("demo", "The king said", options=GREEDY, stream=True))[-1]
    assert (last.done_reason, last.eval_count, last.response) == ("length", 8, "")
    assert last.prompt_eval_count and last.prompt_eval_duration and last.eval_duration
    assert last.total_duration and last.total_duration >= last.prompt_eval_duration + last.eval_duration
    assert last.load_duration is not None
    datetime.fromisoformat((last.created_at or "").replace("Z", "+00:00"))


def test_answers_carry_what_the_expert_cache_did(server: HttpServer) -> None:
    body = {"model": "demo", "prompt": "The king said", "options": GREEDY, "stream": False}
    told = httpx.post(f"{server.url}/api/generate", json=body, timeout=60).json()["moeinf"]
    assert 0 <= told["hit_rate"] <= 1
    assert told["hits"] + told["misses"] > 0 and told["stall_s"] >= 0 and told["read_bytes"] >= 0


def test_generate_and_raw_continue_a_base_model_alike(client: ollama.Client) -> None:
    answers = [client.generate("demo", "The king said", raw=raw, options=GREEDY).response for raw in (False, True)]
    assert answers[0] == answers[1] != ""


def test_a_stop_string_ends_the_answer_before_it(client: ollama.Client) -> None:
    whole = client.generate("demo", "The king said", options=GREEDY).response or ""
    stop = whole[2:4]
    cut = client.generate("demo", "The king said", options={**GREEDY, "stop": [stop]})
    assert cut.response == whole[: whole.index(stop)] and cut.done_reason == "stop"


def test_an_empty_prompt_loads_and_keep_alive_0_unloads(client: ollama.Client) -> None:
    assert client.generate("demo", "").done_reason == "load"
    assert [model.name for model in client.ps().models] == ["demo:latest"]
    assert client.chat("demo", [], keep_alive=0).done_reason == "unload"
    assert client.ps().models == []


def test_ps_tells_how_much_memory_the_loaded_model_takes_and_until_when(client: ollama.Client) -> None:
    client.generate("demo", "", keep_alive=-1)
    [model] = client.ps().models
    assert model.expires_at is not None and model.expires_at.year == 9999
    assert model.size is not None and model.size > 0 and model.size_vram == 0
    assert model.context_length and model.details is not None and model.details.family


def test_num_ctx_opens_the_model_with_that_context(client: ollama.Client) -> None:
    client.generate("demo", "", options={"num_ctx": 64})
    [model] = client.ps().models
    assert model.context_length == 64
    with pytest.raises(ollama.ResponseError, match=r"the prompt has \d+ tokens, the context 64"):
        client.generate("demo", "king " * 100, options={"num_ctx": 64})
    client.generate("demo", "", keep_alive=0)


def test_a_num_ctx_beyond_the_models_context_gets_all_of_that(client: ollama.Client) -> None:
    client.generate("demo", "", options={"num_ctx": 1 << 20})
    (running,) = client.ps().models
    assert running.context_length == 2048


@pytest.mark.parametrize("asked", [2049, 32768, 1 << 40])
def test_the_context_of_the_server_is_an_upper_bound(demo: StoredModel, asked: int) -> None:
    with live_server(demo, config=RuntimeConfig.of(device="cpu", context=asked)) as running:
        client = ollama.Client(running.url)
        assert client.generate("demo", "The king said", options={"num_predict": 2}).eval_count == 2
        (model,) = client.ps().models
        assert model.context_length == 2048
        (loaded,) = running.worker.opened.loaded
        told = httpx.post(
            f"{running.url}/v1/completions", json={"model": "demo", "prompt": "The king", "max_tokens": 2}, timeout=60
        )
        assert told.status_code == 200
        client.generate("demo", "The king said", options={"num_predict": 1, "num_ctx": asked})
        (now,) = running.worker.opened.loaded
        assert now.model is loaded.model, "it was not opened again"
        client.generate("demo", "The king said", options={"num_predict": 1, "num_ctx": 64})
        (model,) = client.ps().models
        assert model.context_length == 64


def test_list_and_show_tell_of_the_model(client: ollama.Client) -> None:
    [model] = [each for each in client.list().models if each.model == "demo:latest"]
    assert model.size and len(model.digest or "") == 64
    shown = client.show("demo")
    assert shown.modelinfo is not None and shown.capabilities == ["completion"]
    [context] = [value for name, value in shown.modelinfo.items() if name.endswith(".context_length")]
    assert context > 0 and shown.modelinfo["general.parameter_count"] > 0
    assert shown.details is not None and shown.details.format == "safetensors"


def test_what_the_model_cannot_do_is_refused_in_ollamas_form(client: ollama.Client) -> None:
    refused: dict[str, Callable[[], object]] = {
        "does not support thinking": lambda: client.chat("demo", QUESTION, think=True),
        "does not support tools": lambda: client.chat(
            "demo", QUESTION, tools=[{"type": "function", "function": {"name": "f"}}]
        ),
        "does not support insert": lambda: client.generate("demo", "def f", suffix="end"),
        "template is not supported": lambda: client.generate("demo", "a", template="{{ .Prompt }}"),
        "context is not supported": lambda: client.generate("demo", "a", context=[1, 2]),
        "raw mode does not support system": lambda: client.generate("demo", "a", raw=True, system="b"),
        'option "top_k" must be of type integer': lambda: client.generate("demo", "a", options={"top_k": "many"}),
        "temperature must be between": lambda: client.generate("demo", "a", options={"temperature": -1}),
        "template is not supported: each": lambda: client.create("other", from_="demo", template="{{ .Prompt }}"),
        "files is not supported": lambda: client.create("other", files={"a.gguf": "sha256:00"}),
        "from is required": lambda: client.create("other"),
        "unknown option 'heat'": lambda: client.create("other", from_="demo", parameters={"heat": 1}),
        "push is not supported": lambda: client.push("demo"),
    }
    for words, ask in refused.items():
        with pytest.raises(ollama.ResponseError, match=words) as caught:
            ask()
        assert caught.value.status_code == 400


def test_format_holds_the_answer_to_a_schema(client: ollama.Client) -> None:
    for schema in (
        {"enum": ["yes", "no"]},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    ):
        told = client.generate("demo", "The king said", format=schema, options={"temperature": 0}).response or ""
        assert json.loads(told) in ("yes", "no") if "enum" in schema else len(json.loads(told)) == 2
    with pytest.raises(ollama.ResponseError):
        client.generate("demo", "a", format={"type": "no such type"})


def test_logprobs_come_with_each_token(client: ollama.Client) -> None:
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "options": GREEDY}
    whole = client.generate("demo", "The king said", **asked)
    assert whole.logprobs is not None and len(whole.logprobs) == whole.eval_count
    assert "".join(token.token for token in whole.logprobs).startswith((whole.response or "")[:4])
    for token in whole.logprobs:
        assert token.logprob <= 0 and token.top_logprobs is not None
        assert token.top_logprobs[0].token == token.token, "the likeliest one, as it is greedy"
    pieces = client.generate("demo", "The king said", stream=True, **asked)
    assert [token for piece in pieces for token in piece.logprobs or ()] == whole.logprobs


def test_think_false_is_no_fault_of_a_model_that_does_not_think(client: ollama.Client) -> None:
    assert client.chat("demo", QUESTION, think=False, options=GREEDY).message.content


def test_an_unknown_model_is_told_in_the_words_that_clients_compare(client: ollama.Client) -> None:
    for ask in (
        lambda: client.show("nobody"),
        lambda: client.chat("nobody", QUESTION),
        lambda: client.delete("nobody"),
    ):
        with pytest.raises(ollama.ResponseError) as caught:
            ask()
        assert (caught.value.error, caught.value.status_code) == ("model 'nobody' not found", 404)


def test_no_line_of_a_stream_is_empty_and_each_is_json(server: HttpServer) -> None:
    body = {"model": "demo", "messages": QUESTION, "options": GREEDY}
    with httpx.stream("POST", f"{server.url}/api/chat", json=body, timeout=60) as response:
        text = "".join(response.iter_text())
    assert response.headers["content-type"].startswith("application/x-ndjson")
    assert text.endswith("\n") and "" not in text.removesuffix("\n").split("\n")


def test_probes_find_what_they_look_for(server: HttpServer) -> None:
    for path in ("/", "/api/version", "/api/tags"):
        assert httpx.head(f"{server.url}{path}").status_code == 200
    version = httpx.get(f"{server.url}/api/version").json()["version"]
    assert [int(part) for part in version.split(".")] >= [0, 13, 4], "some clients refuse what is older"
    assert httpx.get(f"{server.url}/api/chat").status_code == 405


UNKNOWN = ["/v1/nothing", "/v1", "/nothing", "/api/nothing", "/api", "/v1/messages/batches"]


@pytest.mark.parametrize("path", UNKNOWN)
@pytest.mark.parametrize("slashes", ["", "/", "//"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
def test_an_unknown_route_is_told_apart_from_a_model_in_each_form(
    server: HttpServer, path: str, slashes: str, method: str
) -> None:
    answer = httpx.request(method, f"{server.url}{slashes}{path}", json={"model": "demo"} if method == "POST" else None)
    told, words = answer.json(), f"no such route: {method} {path}"
    assert answer.status_code == 404
    if path.startswith("/api"):
        assert told == {"error": words}
    elif path.startswith("/v1/messages"):
        assert (told["type"], told["error"]) == ("error", {"type": "not_found_error", "message": words})
    else:
        assert told["error"] == {
            "message": words,
            "type": "invalid_request_error",
            "param": None,
            "code": "unknown_url",
        }


def test_a_base_url_may_end_in_a_slash(server: HttpServer) -> None:
    options = {"num_predict": 1}
    for path, body in {
        "//api/generate": {"model": "demo", "prompt": "The king", "options": options},
        "///api/chat": {"model": "demo", "messages": QUESTION, "options": options},
        "//v1/chat/completions": {"model": "demo", "messages": QUESTION, "max_tokens": 1},
        "/v1//completions": {"model": "demo", "prompt": "The king", "max_tokens": 1},
        "//v1/messages": {"model": "demo", "messages": QUESTION, "max_tokens": 1},
        "//v1//messages/count_tokens": {"model": "demo", "messages": QUESTION},
        "/v1/chat/completions/": {"model": "demo", "messages": QUESTION, "max_tokens": 1},
        "/api/chat//": {"model": "demo", "messages": QUESTION, "stream": False, "options": {"num_predict": 1}},
    }.items():
        assert httpx.post(f"{server.url}{path}", json=body, timeout=60).status_code == 200, path
    for path in ("//api/tags", "//v1/models", "/v1/models/", "//health", "//"):
        assert httpx.get(f"{server.url}{path}").status_code == 200, path
    missing = httpx.get(f"{server.url}//v1//models/nobody").json()["error"]
    assert (missing["code"], missing["type"]) == ("model_not_found", "not_found_error")


def test_copy_and_delete_change_names(own: HttpServer) -> None:
    client = ollama.Client(own.url)
    client.generate("demo", "")
    client.copy("demo", "other:tag")
    assert {model.model for model in client.list().models} == {"demo:latest", "other:tag"}
    client.copy("demo", "third")
    client.delete("third")
    assert client.ps().models[0].model == "demo:latest", "only a name of it went"
    client.delete("demo")
    assert [model.model for model in client.list().models] == ["other:tag"]
    assert client.ps().models == [], "the model that is deleted is closed first"
    assert client.generate("other:tag", "The king said", options=GREEDY).response
    with pytest.raises(ollama.ResponseError, match="is not a model name"):
        client.copy("other:tag", "../outside")


def test_pull_streams_how_far_it_is(own: HttpServer) -> None:
    client = ollama.Client(own.url)
    client.delete("demo")
    steps = list(client.pull("demo", stream=True))
    assert steps[0].status == "pulling manifest" and steps[-1].status == "success"
    converted = [step for step in steps if step.digest is not None]
    assert converted and converted[-1].completed == converted[-1].total
    assert [model.model for model in client.list().models] == ["demo:latest"]
    assert client.pull("demo").status == "success", "a second pull finds it up to date"


def test_a_tag_of_a_format_pulls_into_that_format(own: HttpServer) -> None:
    client = ollama.Client(own.url)
    assert client.pull("demo:q8_0").status == "success"
    assert "demo:q8_0" in {model.model for model in client.list().models}


def test_no_folder_of_the_servers_machine_is_pulled(own: HttpServer) -> None:
    client = ollama.Client(own.url)
    for name in ("/etc", "./here", "~"):
        with pytest.raises(ollama.ResponseError, match="a folder can be pulled with `moeinf pull` only"):
            client.pull(name)
    with pytest.raises(ollama.ResponseError, match="`moeinf list --available` shows the names"):
        client.pull("nobody")


def test_show_tells_of_each_stop_and_of_the_system_message(own: HttpServer) -> None:
    stops, system = ["<|a|>", "User:", "x y", 'say "no"'], "You are a cat."
    preset = Preset(system, (*(("stop", text) for text in stops), ("temperature", "0.5")))
    stored = own.worker.opened.library.copy("demo", "cat", preset.dumps())
    shown = ollama.Client(own.url).show("cat")
    told = httpx.post(f"{own.url}/api/show", json={"model": "cat"}).json()
    assert told["system"] == system
    rows = [line.split(None, 1) for line in (shown.parameters or "").splitlines()]
    assert [json.loads(value) for name, value in rows if name == "stop"] == stops
    assert [value for name, value in rows if name == "temperature"] == ["0.5"]
    made = parse_modelfile(shown.modelfile or "", "Modelfile")
    assert (made.source, made.preset) == ("demo:latest", preset), "a script copies a model by it"
    for printed in (parameters_text(stored).splitlines(), show_lines(stored)):
        rows = [line.split(None, 1) for line in printed]
        assert [json.loads(each[1]) for each in rows if each[:1] == ["stop"]] == stops
