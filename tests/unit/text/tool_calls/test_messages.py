"""Chats with calls are put into the form that templates read, and into their own where they want one."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.errors import TextError
from moeinf.text.tool_calls.syntaxes.deepseek_calls import DEEPSEEK
from moeinf.text.tool_calls.syntaxes.granite_calls import GRANITE
from moeinf.text.tool_calls.syntaxes.kimi import KIMI
from moeinf.text.tool_calls.syntaxes.mistral_calls import MISTRAL
from moeinf.text.tool_calls.told.call_messages import checked, described, fitted, in_templates_form, told_of


def call(name: str = "f", arguments: Any = "{}", call_id: str | None = "call_1") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(calls), **more}


def result(content: str, call_id: str | None = "call_1", **more: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, **({"tool_call_id": call_id} if call_id else {}), **more}


def test_roles_contents_and_thoughts_get_one_form() -> None:
    made = in_templates_form(
        [
            {"role": "developer", "content": "d"},
            {"role": "user", "content": None},
            {"role": "assistant", "content": "a", "reasoning": "t", "tool_calls": []},
            {"role": "assistant", "content": "a", "thinking": "", "reasoning_content": "r"},
            {"role": "assistant", "content": "a", "thinking": ""},
        ],
        None,
    )
    assert made == [
        {"role": "system", "content": "d"},
        {"role": "user", "content": ""},
        {"role": "assistant", "content": "a", "reasoning_content": "t", "thinking": "t", "reasoning": "t"},
        {"role": "assistant", "content": "a", "reasoning_content": "r", "thinking": "r", "reasoning": "r"},
        {"role": "assistant", "content": "a"},
    ]


@pytest.mark.parametrize("arguments", ['{"a": 1}', {"a": 1}])
def test_arguments_are_objects(arguments: Any) -> None:
    (made,) = in_templates_form([calling(call(arguments=arguments))], None)
    assert made["content"] == "" and made["tool_calls"] == [call(arguments={"a": 1})]
    nothings: list[Any] = ["", None, {}]
    for nothing in nothings:
        assert in_templates_form([calling(call(arguments=nothing))], None)[0]["tool_calls"] == [call(arguments={})]


@pytest.mark.parametrize("wrong", ["{a: 1", "[]", '"a"', 5, "[" * 100_000, "not JSON", '{"a": 1} x', '"[]"'])
def test_arguments_that_are_no_object_are_refused(wrong: Any) -> None:
    with pytest.raises(TextError, match="arguments of a call of 'f' in this chat are no JSON object"):
        in_templates_form([calling(call(arguments=wrong))], None)


@pytest.mark.parametrize("wrong", [{"id": "1"}, "a", None, 5, {"function": {"name": ""}}, {"function": {"name": 5}}])
def test_calls_that_are_none_are_named(wrong: Any) -> None:
    with pytest.raises(TextError, match="no function with a name"):
        in_templates_form([calling(wrong)], None)
    if wrong:
        with pytest.raises(TextError, match="tool_calls of a message in this chat are no list"):
            in_templates_form([{"role": "assistant", "content": "", "tool_calls": {"a": wrong}}], None)


@pytest.mark.parametrize(
    ("cut", "object"),
    [
        ("{", {}),
        ('{"a": "so fa', {"a": "so fa"}),
        ('{"a": 1, "b": [1, {"c": "x\\', {"a": 1, "b": [1, {"c": "x"}]}),
        ('{"a": 1, "be', {"a": 1}),
        ('{"a": 1, "b": 12', {"a": 1}),
        ('{"a": tru', {}),
        ('"{\\"a\\": {\\"b\\": 1}}"', {"a": {"b": 1}}),
        ('{"a": True}', {"a": True}),
        ("null", {}),
        ('""', {}),
        (" ", {}),
    ],
)
def test_arguments_that_were_cut_or_encoded_twice_are_what_came_of_them(cut: str, object: Any) -> None:
    assert in_templates_form([calling(call(arguments=cut))], None)[0]["tool_calls"] == [call(arguments=object)]


def test_openais_old_form_of_a_call_is_a_call() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    made = in_templates_form([old, {"role": "function", "name": "f", "content": "r"}], None)
    assert made == in_templates_form([calling(call(arguments={"a": 1}, call_id=None)), result("r", None)], None)


def test_results_know_their_call_by_its_id_or_their_place() -> None:
    chat = [calling(call("f", call_id="1"), call("g", call_id="2")), result("b", "2"), result("a", None)]
    assert [(m["tool_call_id"], m["name"]) for m in in_templates_form(chat, None)[1:]] == [("2", "g"), ("1", "f")]
    assert in_templates_form([result("a", "lost")], None) == [result("a", "lost")]
    assert in_templates_form([result("a", None, tool_name="f")], None)[0]["name"] == "f"
    unnamed = in_templates_form([calling(call(call_id=None)), result("a", None)], None)
    assert unnamed[0]["tool_calls"][0]["id"] == unnamed[1]["tool_call_id"] == "call_0"


NO_ID: str | None = None
SYNTAXES = [None, MISTRAL, KIMI]
# Calls of a turn as name and id; results as the number of the call that they belong to, id and name.
TURNS: list[list[tuple[list[tuple[str, str | None]], list[tuple[int, str | None, str | None]]]]] = [
    [([("f", "c0"), ("g", "c1")], [(0, "c0", None), (1, "c1", None)]), ([("f", "c0")], [(2, "c0", None)])],
    [([("f", "c0"), ("g", "c1")], [(1, "c1", None), (0, "c0", None)]), ([("g", "c1"), ("f", "c0")], [(3, "c0", "f")])],
    [([("f", "c0"), ("f", "c0")], [(0, "c0", None), (1, "c0", None)])],
    [([("f", "c0"), ("g", "c0")], [(1, "c0", "g"), (0, "c0", "f")])],
    [([("f", NO_ID), ("g", NO_ID)], [(1, NO_ID, "g"), (0, NO_ID, "f")])],
    [([("f", NO_ID), ("f", NO_ID)], [(0, NO_ID, "f"), (1, NO_ID, "f")])],
    [([("f", NO_ID), ("g", NO_ID)], [(0, NO_ID, None), (1, NO_ID, None)]), ([("f", NO_ID)], [(2, NO_ID, None)])],
    [([("f", "c0")], []), ([("f", "c0")], [(1, "c0", None), (0, "c0", None)])],
    [([("f", "abcDEF123")], [(0, "abcDEF123", None)]), ([("f", "abcDEF123")], [(1, "abcDEF123", None)])],
    [([("f", "c0"), ("g", "c0_1")], [(1, "c0_1", None)]), ([("f", "c0")], [(2, "c0", None), (0, "c0", None)])],
]


@pytest.mark.parametrize("syntax", SYNTAXES, ids=["any", "mistral", "kimi"])
@pytest.mark.parametrize("turns", TURNS)
def test_each_result_goes_to_its_call_though_ids_come_again_or_lack(turns: Any, syntax: Any) -> None:
    chat = []
    for calls, results in turns:
        chat.append(calling(*(call(name, call_id=call_id) for name, call_id in calls)))
        chat += [result(str(n), call_id, **({"name": name} if name else {})) for n, call_id, name in results]
    made = in_templates_form(chat, syntax)
    calls = [call for message in made for call in message.get("tool_calls", ())]
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == len(ids)
    results = [message for message in made if message["role"] == "tool"]
    right = [int(message["content"]) for message in results]
    assert [ids.index(message["tool_call_id"]) for message in results] == right
    assert [message["name"] for message in results] == [calls[at]["function"]["name"] for at in right]
    fewer = in_templates_form(chat[:1], syntax)
    assert fewer == made[:1], "a chat that goes on keeps its beginning"


def test_a_result_of_a_tool_that_no_open_call_has_is_given_to_none() -> None:
    made = in_templates_form([calling(call("f", call_id=None)), result("r", None, tool_name="g")], None)
    assert "tool_call_id" not in made[1] and made[1]["name"] == "g"


def test_a_template_that_shows_one_call_a_turn_loses_no_result() -> None:
    chat = [
        calling(call("f", call_id="1"), call("g", call_id="1")),
        result("a", "1"),
        result("b", "1"),
        result("c", "1"),
    ]
    made = fitted(in_templates_form(chat, None), "message.tool_calls[0]", None)
    assert [m["content"] for m in made] == ["", "a", "c", "", "b"]


def test_mistral_has_ids_of_nine_letters_and_digits_which_stay_the_same() -> None:
    chat = [calling(call(call_id="call_very_long")), result("a", "call_very_long")]
    made, again = in_templates_form(chat, MISTRAL), in_templates_form([*chat, calling(call())], MISTRAL)
    call_id = made[0]["tool_calls"][0]["id"]
    assert len(call_id) == 9 and call_id.isalnum() and made[1]["tool_call_id"] == call_id
    assert again[:2] == made
    kept = [calling(call(call_id="abcDEF123")), result("a", "abcDEF123")]
    assert in_templates_form(kept, MISTRAL)[1]["tool_call_id"] == "abcDEF123"


def test_kimi_numbers_the_calls_of_a_chat() -> None:
    chat = [calling(call("f", call_id="a"), call("g", call_id="b")), result("1", "b"), calling(call("f", call_id="c"))]
    made = in_templates_form(chat, KIMI)
    ids = [made_call["id"] for message in made for made_call in message.get("tool_calls", ())]
    assert ids == ["functions.f:0", "functions.g:1", "functions.f:2"]
    assert made[1]["tool_call_id"] == "functions.g:1"


def test_a_template_that_leaves_calls_out_gets_them_as_the_model_writes_them() -> None:
    chat = in_templates_form([calling(call(arguments='{"a": "é"}'), content="See:"), result("ok")], GRANITE)
    written = fitted(chat, "{{ message.content }}", GRANITE)
    assert written[0]["content"] == 'See:\n<|tool_call|>[{"name": "f", "arguments": {"a": "é"}}]'
    assert "tool_calls" not in written[0] and written[1]["role"] == "tool_response"
    assert fitted(chat, "{{ message.tool_calls }}", GRANITE) == chat
    assert fitted(chat, "{{ message.content }}", None)[0]["content"] == 'See:\nf({"a": "é"})'


def test_a_template_that_shows_one_call_a_turn_gets_them_one_by_one() -> None:
    chat = [
        calling(call("f", call_id="1"), call("g", call_id="2"), content="Now.", thinking="Hm."),
        result("a", "1"),
        result("b", "2"),
        {"role": "user", "content": "more"},
    ]
    made = fitted(in_templates_form(chat, None), "message.tool_calls[0]", None)
    assert [(m["role"], m["content"]) for m in made] == [
        ("assistant", ""),
        ("tool", "a"),
        ("assistant", ""),
        ("tool", "b"),
        ("user", "more"),
    ]
    assert [m.get("thinking") for m in made] == ["Hm.\n\nNow.", None, None, None, None]
    assert [len(m["tool_calls"]) for m in made if "tool_calls" in m] == [1, 1]


def test_the_system_message_tells_of_tools_where_deepseeks_template_does_not() -> None:
    tools = described([{"type": "function", "function": {"name": "f", "description": "Does it"}}])
    user = [{"role": "user", "content": "hi"}]
    told = told_of(tools, [{"role": "system", "content": "S"}, *user], "<｜tool▁call▁begin｜>", DEEPSEEK)
    assert told[0]["content"].startswith("S\n\n## Tools\n") and told[1:] == user
    assert "### f\nDescription: Does it\n\nParameters: {" in told[0]["content"]
    assert (
        "<｜tool▁call▁begin｜>tool_call_name<｜tool▁sep｜>tool_call_arguments<｜tool▁call▁end｜>" in told[0]["content"]
    )
    fenced = told_of(tools, user, "<｜tool▁call▁begin｜> ```json", DEEPSEEK)
    assert "<｜tool▁sep｜>tool_call_name\n```json\ntool_call_arguments\n```<" in fenced[0]["content"]
    assert told_of(tools, user, "{% if tools %}", DEEPSEEK) == user == told_of(tools, user, "", KIMI)


def test_tools_have_what_templates_read_unasked() -> None:
    (given,) = checked([{"type": "function", "function": {"name": "f", "description": None, "strict": True}}])
    (made,) = described([given])
    assert given["function"] == {"name": "f", "strict": True}
    assert made["function"] == {
        "name": "f",
        "description": "",
        "parameters": {"type": "object", "properties": {}},
        "strict": True,
    }
    with pytest.raises(TextError, match="is not of the form"):
        checked([{"name": "f"}])
