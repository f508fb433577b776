"""A model is given tools, calls one, and gets its result, from its checkpoint to what Python users hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Hooks, ToolCall
from moeinf.engine.model import Model
from moeinf.errors import UsageError
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.text.text_stream import CallPart, Piece
from tests.support.caller import ARGUMENTS, LOOK_UP, write_caller

ASKED = [{"role": "user", "content": "hi"}]
CALLED = ToolCall("look_up", json.dumps(ARGUMENTS))


@pytest.fixture(scope="module")
def caller(demo: StoredModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    home = demo.path.parents[1]
    pull(str(write_caller(tmp_path_factory.mktemp("source") / "caller")), home=home)
    with Model(Library(home).find("caller"), RuntimeConfig()) as model:
        yield model
    Library(home).remove("caller")


def test_pieces_are_thoughts_text_and_calls_in_their_order(caller: Model) -> None:
    pieces = list(caller.pieces(ASKED, tools=[LOOK_UP]))
    kinds = ["thought" if piece.thought else "call" if piece.call else "text" for piece in pieces]
    assert list(dict.fromkeys(kinds)) == ["thought", "text", "call"]
    assert pieces[kinds.index("call")] == Piece("", call=CallPart(0, "look_up", ""))
    assert "".join(piece.call.arguments for piece in pieces if piece.call) == CALLED.arguments
    assert kinds.count("call") > 2, "arguments come in fragments"
    last = caller.last
    assert last is not None
    assert (last.thinking, last.text, last.tool_calls, last.finish_reason) == ("Hm.", "Looking.", [CALLED], "stop")


def test_a_result_goes_back_and_the_answer_follows(caller: Model) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": CALLED.arguments}}
    chat: list[dict[str, Any]] = [
        *ASKED,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "fox"},
    ]
    answer = caller.generate(chat, tools=[LOOK_UP])
    assert (answer.text, answer.tool_calls) == (" It is red.", [])


def test_text_alone_is_what_stream_yields_as_before(caller: Model) -> None:
    thoughts: list[str] = []
    assert "".join(caller.stream(ASKED, hooks=Hooks(on_thought=thoughts.append))) == " Hello there"
    assert "".join(caller.stream(ASKED, tools=[LOOK_UP], hooks=Hooks(on_thought=thoughts.append))) == "Looking."
    assert "".join(thoughts) == "Hm."


def test_without_tools_nothing_is_a_call(caller: Model) -> None:
    answer = caller.generate("<|im_start|> assistant tools", raw=True)
    assert "<tool_call>" in answer.text and not answer.tool_calls


def test_a_thought_that_the_client_has_begun_goes_on(caller: Model) -> None:
    for begun, thinking in (("<think> Hm.", ""), ("<think>", "Hm.")):
        chat = [*ASKED, {"role": "assistant", "content": begun}]
        answer = caller.generate(chat, tools=[LOOK_UP], continues=True)
        assert (answer.thinking, answer.text, answer.tool_calls) == (thinking, "Looking.", [CALLED])


def test_a_call_that_is_cut_off_is_none_but_its_parts_are_told(caller: Model) -> None:
    parts = [
        piece.call
        for piece in caller.pieces(ASKED, caller.params(num_predict=10), tools=[LOOK_UP])
        if piece.call is not None
    ]
    assert parts[0].name == "look_up" and parts[-1].arguments
    assert caller.last is not None and (caller.last.finish_reason, caller.last.tool_calls) == ("length", [])


def test_an_answer_that_is_cut_anywhere_leaks_no_markup(caller: Model) -> None:
    num_tokens = len(caller.generate(ASKED, tools=[LOOK_UP]).token_ids)
    for num_predict in range(1, num_tokens + 1):
        answer = caller.generate(ASKED, caller.params(num_predict=num_predict), tools=[LOOK_UP])
        assert "Looking.".startswith(answer.text.strip()) and "Hm.".startswith(answer.thinking)
        assert answer.finish_reason == "length" and answer.tool_calls in ([], [CALLED])


def test_stop_strings_end_text_and_leave_calls_alone(caller: Model) -> None:
    answer = caller.generate(ASKED, caller.params(stop=("fox", "arguments")), tools=[LOOK_UP])
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("Looking.", [CALLED], "stop")
    answer = caller.generate(ASKED, caller.params(stop=("king",)), tools=[LOOK_UP])
    assert (answer.text, answer.tool_calls) == ("Loo", [])


def test_leaving_in_the_middle_ends_the_request(caller: Model) -> None:
    with closing(caller.pieces(ASKED, tools=[LOOK_UP])) as pieces:
        next(pieces)
    assert caller.last is not None and caller.last.finish_reason == "interrupted"
    assert caller.generate(ASKED).text == " Hello there"


def test_tools_that_a_model_would_ignore_are_refused(caller: Model, demo: StoredModel) -> None:
    with pytest.raises(UsageError, match="a raw prompt does not support tools"):
        caller.pieces("hi", raw=True, tools=[LOOK_UP])
    with Model(demo, RuntimeConfig()) as model, pytest.raises(UsageError, match=r"demo.* does not support tools"):
        model.pieces(ASKED, tools=[LOOK_UP])


def test_the_prompt_with_tools_can_be_counted(caller: Model) -> None:
    assert len(caller.encode(ASKED, variables={"tools": [LOOK_UP]})) == len(caller.encode(ASKED)) + 1
