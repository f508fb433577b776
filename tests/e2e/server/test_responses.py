"""The Responses API by OpenAI's own client, with a model that calls a tool and tells what it found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from moeinf.server.serve import HttpServer
from tests.support.caller import ARGUMENTS, LOOK_UP
from tests.support.live_server import server_of_callers

RECORDED = Path(__file__).parent / "fixtures" / "responses_requests.json"
TOOL: dict[str, Any] = {"type": "function", "strict": False, **LOOK_UP["function"]}
CUSTOM: dict[str, Any] = {"type": "custom", "name": "look_up", "description": "Looks a word up"}


@pytest.fixture(scope="module")
def responding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    with server_of_callers(tmp_path_factory.mktemp("responding")) as running:
        yield running


@pytest.fixture
def client(responding: HttpServer) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{responding.url}/v1", api_key="any", max_retries=0) as client:
        yield client


def kinds(events: list[Any]) -> list[str]:
    return [kind for kind, _ in groupby(event.type.removeprefix("response.") for event in events)]


def test_a_text_whole_and_streamed(client: Any) -> None:
    asked: dict[str, Any] = {"model": "demo:chat", "input": "Tell me of a dog", "temperature": 0}
    whole = client.responses.create(**asked, max_output_tokens=9, metadata={"a": "b"})
    assert whole.status == "incomplete" and whole.incomplete_details is not None
    assert whole.incomplete_details.reason == "max_output_tokens" and whole.metadata == {"a": "b"}
    assert whole.usage is not None and whole.usage.output_tokens == 9
    assert whole.usage.total_tokens == whole.usage.input_tokens + 9
    assert whole.output[0].type == "message" and whole.output[0].status == "incomplete"
    events = list(client.responses.create(**asked, max_output_tokens=9, stream=True))
    assert events[-1].type == "response.incomplete"
    final = events[-1].response
    assert final.output_text == whole.output_text != ""
    assert [event.sequence_number for event in events] == list(range(len(events)))
    told = ["output_item.added", "content_part.added", "output_text.delta", "output_text.done", "content_part.done"]
    assert kinds(events) == ["created", "in_progress", *told, "output_item.done", "incomplete"]
    assert final.usage is not None and final.usage.input_tokens_details.cached_tokens > 0


def test_a_call_and_its_result_behind_it(client: Any) -> None:
    asked: dict[str, Any] = {"model": "caller", "tools": [TOOL]}
    first = client.responses.create(**asked, input="user")
    assert [item.type for item in first.output] == ["reasoning", "message", "function_call"]
    thought, said, call = first.output
    assert thought.type == "reasoning" and thought.content is not None and thought.content[0].text == "Hm."
    assert first.output_text == "Looking." and said.type == "message" and said.status == "completed"
    assert call.type == "function_call" and json.loads(call.arguments) == ARGUMENTS
    assert first.usage is not None and 0 < first.usage.output_tokens_details.reasoning_tokens < 5
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "red."}
    behind = client.responses.create(**asked, input=[result], previous_response_id=first.id)
    assert behind.output_text.strip() == "It is red." and behind.status == "completed"
    plain: Any = [item.to_dict() for item in first.output]
    whole = client.responses.create(**asked, store=False, input=[{"role": "user", "content": "user"}, *plain, result])
    assert whole.output_text.strip() == "It is red."
    referred: Any = [{"type": "item_reference", "id": item.id} for item in first.output]
    again = client.responses.create(**asked, input=[{"role": "user", "content": "user"}, *referred, result])
    assert again.output_text.strip() == "It is red." and again.usage is not None and whole.usage is not None
    assert again.usage.input_tokens == whole.usage.input_tokens


def test_a_call_streamed(client: Any) -> None:
    events = list(client.responses.create(model="caller", tools=[TOOL], input="user", stream=True))
    deltas = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
    assert len(deltas) > 1 and json.loads("".join(deltas)) == ARGUMENTS
    done = next(event for event in events if event.type == "response.function_call_arguments.done")
    assert json.loads(done.arguments) == ARGUMENTS
    assert events[-1].type == "response.completed" and len(events[-1].response.output) == 3
    with client.responses.stream(model="caller", tools=[TOOL], input="user") as stream:
        assert stream.get_final_response().output[-1].type == "function_call"
    (text,) = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert text == "Hm."


def test_thoughts_as_a_summary(client: Any) -> None:
    answer = client.responses.create(model="caller", tools=[TOOL], input="user", reasoning={"summary": "auto"})
    thought = answer.output[0]
    assert thought.type == "reasoning" and thought.content is None and thought.summary[0].text == "Hm."


def test_a_custom_tool(client: Any) -> None:
    asked: dict[str, Any] = {"model": "caller", "tools": [CUSTOM]}
    events = list(client.responses.create(**asked, input="user", stream=True))
    done = next(event for event in events if event.type == "response.custom_tool_call_input.done")
    assert done.input == "a fox" and events[-1].type == "response.completed"
    call = events[-1].response.output[-1]
    assert call.type == "custom_tool_call" and (call.name, call.input) == ("look_up", "a fox")
    result: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "red."}
    answer = client.responses.create(**asked, input=[result], previous_response_id=events[-1].response.id)
    assert answer.output_text.strip() == "It is red."


def test_a_model_that_may_not_call_does_not(client: Any) -> None:
    for choice in ("none", {"type": "allowed_tools", "mode": "auto", "tools": []}):
        answer = client.responses.create(model="caller", tools=[TOOL], tool_choice=choice, input="user")
        assert answer.output_text.strip() == "Hello there" and answer.tool_choice is not None


def test_json_of_a_schema(client: Any) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    answer = client.responses.create(model="demo:chat", input="Hi", text=form, max_output_tokens=60)
    assert json.loads(answer.output_text) == {"a": 1} and answer.text is not None
    assert answer.text.to_dict()["format"]["name"] == "x"


def test_what_is_kept_and_what_is_not(client: Any) -> None:
    asked: dict[str, Any] = {"model": "demo:chat", "max_output_tokens": 3}
    kept = client.responses.create(**asked, input="Hi", instructions="Be kind.")
    assert client.responses.retrieve(kept.id).output_text == kept.output_text
    behind = client.responses.create(**asked, input="And?", previous_response_id=kept.id)
    listed = [item.to_dict()["content"] for item in client.responses.input_items.list(behind.id, order="asc")]
    texts = [content[0]["text"] for content in listed]
    assert texts == ["Hi", kept.output_text, "And?"]
    client.responses.delete(kept.id)
    for gone in (kept.id, client.responses.create(**asked, input="Hi", store=False).id):
        with pytest.raises(openai.NotFoundError, match="is not kept") as missing:
            client.responses.retrieve(gone)
        assert (missing.value.code, missing.value.type) == (None, "invalid_request_error"), "the route is known"
        with pytest.raises(openai.BadRequestError, match="is not kept") as missing_before:
            client.responses.create(**asked, input="And?", previous_response_id=gone)
        assert missing_before.value.code == "previous_response_not_found"
    with pytest.raises(openai.BadRequestError, match="in the background"):
        client.responses.cancel(behind.id)


def test_a_conversation_that_is_too_long_loses_its_oldest_turns(client: Any) -> None:
    turns: Any = [{"role": "user", "content": f"{turn}: {'dog ' * 300}"} for turn in range(12)]
    asked: dict[str, Any] = {"model": "demo:chat", "input": turns, "max_output_tokens": 3, "temperature": 0}
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**asked)
    assert error.value.code == "context_length_exceeded"
    shorter = client.responses.create(**asked, truncation="auto")
    assert shorter.usage is not None and shorter.usage.input_tokens < 2048 and shorter.truncation == "auto"
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**asked | {"input": "dog " * 5000}, truncation="auto")


def test_tokens_of_an_input(client: Any) -> None:
    asked: dict[str, Any] = {"model": "demo:chat", "input": "Tell me of a dog", "instructions": "Be kind."}
    used = client.responses.create(**asked, max_output_tokens=1).usage
    assert used is not None and client.responses.input_tokens.count(**asked).input_tokens == used.input_tokens


WRONG: list[tuple[dict[str, Any], int, str]] = [
    ({"input": None}, 400, "give input, or a previous_response_id"),
    ({"input": []}, 400, "give input"),
    ({"background": True}, 400, "background is not supported"),
    ({"conversation": "conv_1"}, 400, "give previous_response_id"),
    ({"messages": []}, 400, "give input"),
    ({"max_output_tokens": 0}, 400, "at least 1"),
    ({"top_logprobs": 21}, 400, "between 0 and 20"),
    ({"reasoning": {"effort": "much"}}, 400, "reasoning_effort cannot be 'much'"),
    ({"text": {"format": {"type": "xml"}}}, 400, "text.format cannot be 'xml'"),
    ({"text": {"verbosity": "low"}}, 400, "text.verbosity is not supported"),
    ({"truncation": "some"}, 400, "truncation"),
    ({"tools": [{"type": "mcp", "server_label": "x"}]}, 400, "'mcp' does not run here"),
    ({"tools": [CUSTOM], "tool_choice": {"type": "custom", "name": "f"}}, 400, "no tool is called 'f'"),
    ({"model": "nobody"}, 404, "not found"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, 404, "'msg_1' is not kept"),
    ({"previous_response_id": "resp_1"}, 400, "previous_response_id: response 'resp_1' is not kept"),
    ({"inputs": "Hi"}, 400, "is input meant?"),
]


@pytest.mark.parametrize(("change", "status", "named"), WRONG)
def test_what_cannot_be_is_refused(responding: HttpServer, change: dict[str, Any], status: int, named: str) -> None:
    answer = httpx.post(f"{responding.url}/v1/responses", json={"model": "caller", "input": "user"} | change)
    assert answer.status_code == status and named in answer.json()["error"]["message"], answer.text
