"""A chat is changed only where a template refuses it or leaves something out, and each change is said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from moeinf.errors import TextError
from moeinf.text.templates.accommodations import fold_late_system, fold_system, merge_turns
from moeinf.text.templates.traced import MARK
from moeinf.text.tokenizer import Tokenizer
from tests.support.tool_families import BY_NAME, CHAT, TOOLS

MakeFolder = Callable[..., Path]
SAYS_ROLES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
SYSTEM_FIRST = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be "
    "at the beginning.') }}{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)
NO_TOOLS = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') %}{{ raise_exception('no ' ~ m.role) }}"
    "{% endif %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
)


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def render(folder: Path, *messages: Mapping[str, Any], **variables: Any) -> tuple[str, list[str]]:
    with Tokenizer(folder) as tokenizer:
        return tokenizer.render(messages, variables)


def test_a_late_system_message_goes_into_the_turn_beside_it(model_folder: MakeFolder) -> None:
    folder = model_folder(SYSTEM_FIRST)
    late, rest = turn("developer", "late"), (turn("assistant", "b"), turn("user", "c"))
    text, notes = render(folder, turn("system", "S"), turn("user", "a"), late, *rest)
    assert text == "system: S\nuser: a\n\nlate\nassistant: b\nuser: c\n"
    assert len(notes) == 1 and "at the beginning only" in notes[0]
    text, _ = render(folder, turn("user", "a"), turn("assistant", "b"), turn("system", "late"), turn("user", "c"))
    assert text == "user: a\nassistant: b\nuser: late\n\nc\n"
    text, _ = render(folder, turn("user", "a"), turn("assistant", "b"), turn("system", "late"))
    assert text == "user: a\nassistant: b\nuser: late\n"


def test_system_messages_at_the_beginning_become_one(model_folder: MakeFolder) -> None:
    text, _ = render(model_folder(SYSTEM_FIRST), turn("system", "one"), turn("developer", "two"), turn("user", "a"))
    assert text == "system: one\n\ntwo\nuser: a\n"


def test_a_late_system_message_that_is_dropped_in_silence_is_folded_as_well(model_folder: MakeFolder) -> None:
    template = "{{ messages[0].content }}\n{% for m in messages if m.role != 'system' %}{{ m.content }}\n{% endfor %}"
    text, notes = render(model_folder(template), turn("system", "S"), turn("user", "a"), turn("system", "late"))
    assert text == "S\na\n\nlate\n" and notes


def test_a_late_system_message_is_not_moved_to_the_front_of_the_chat(model_folder: MakeFolder) -> None:
    template = (
        "{% for m in messages if m.role == 'system' %}{{ m.content }} {% endfor %}"
        "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    chat = [turn("system", "S"), turn("developer", "D"), turn("user", "a"), turn("assistant", "b"), turn("user", "c")]
    begun, _ = render(model_folder(template), *chat)
    text, notes = render(model_folder(template), *chat, turn("system", "late"))
    assert text.startswith(begun.rstrip()) and text.endswith("user: c\n\nlate\n") and notes


def test_a_template_that_fails_in_python_refuses_the_chat(model_folder: MakeFolder) -> None:
    with pytest.raises(TextError, match="refuses this chat: TypeError"):
        render(model_folder("{{ messages[0].content + 1 }}"), turn("user", "a"))


def test_a_template_that_takes_late_system_messages_gets_them_untouched(model_folder: MakeFolder) -> None:
    text, notes = render(model_folder(SAYS_ROLES), turn("user", "a"), turn("system", "late"), turn("user", "b"))
    assert text == "user: a\nsystem: late\nuser: b\n" and not notes


def test_results_go_into_user_turns_where_a_template_knows_no_tools(model_folder: MakeFolder) -> None:
    text, notes = render(model_folder(NO_TOOLS), *CHAT[1:])
    assert text == (
        'user: Weather in Paris?\nassistant: get_weather({"city": "Paris", "days": 2})\nuser: sunny\nuser: And Rome?\n'
    )
    assert len(notes) == 1 and notes[0].startswith("the chat template knows no tools (no tool): calls of tools were")


def test_a_template_that_the_sandbox_refuses_is_not_told_as_one_that_knows_no_tools(model_folder: MakeFolder) -> None:
    hostile = (
        "{% for m in messages %}{{ m.pop('tool_calls') if m.tool_calls }}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    )
    text, notes = render(model_folder(hostile), *CHAT[1:])
    assert "user: sunny\n" in text
    assert (
        len(notes) == 1 and "does with tools what none may do here (" in notes[0] and "knows no tools" not in notes[0]
    )


def test_a_result_that_is_dropped_in_silence_goes_into_a_user_turn_as_well(model_folder: MakeFolder) -> None:
    template = "{% for m in messages if m.role != 'tool' %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    text, notes = render(model_folder(template), *CHAT[1:])
    assert "user: sunny\nuser: And Rome?\n" in text and notes
    quoted = "{% for m in messages %}{{ m.role }}: {{ (m.content ~ '\"') | tojson }}\n{% endfor %}"
    assert "tool: " in render(model_folder(quoted), *CHAT[1:])[0], "JSON of a result is the result"


def test_a_result_that_no_form_of_the_chat_shows_is_left_to_the_template(model_folder: MakeFolder) -> None:
    template = "{% for m in messages %}{{ m.role }}: {{ m.content | upper }}\n{% endfor %}"
    text, notes = render(model_folder(template), *CHAT[1:])
    assert "tool: SUNNY\n" in text and not notes


def test_turns_of_tools_are_never_merged() -> None:
    calling: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [{}]}
    chat: list[Mapping[str, Any]] = [
        turn("assistant", "a"),
        calling,
        turn("tool", "1"),
        turn("tool", "2"),
        calling,
        calling,
    ]
    merged = merge_turns(chat)
    assert merged == [{**calling, "content": "a"}, turn("tool", "1"), turn("tool", "2"), calling, calling]


def test_nothing_changes_where_nothing_has_to() -> None:
    chat = [turn("system", "s"), turn("user", "a"), turn("assistant", "b"), turn("user", "c")]
    assert merge_turns(chat) == chat == fold_late_system(chat)
    assert fold_system(chat)[0] == turn("user", "s\n\na")


@pytest.mark.parametrize("name", ["qwen3-coder", "gpt-oss"])
def test_a_late_system_message_after_a_result_reaches_the_model(name: str, tmp_path: Path) -> None:
    late = [*CHAT[:4], turn("system", "Hurry up.")]
    text, notes = render(BY_NAME[name].write(tmp_path), *late, tools=TOOLS)
    assert "Hurry up." in text and notes


def test_tools_of_a_request_may_not_smuggle_in_control_tokens(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "description": "x<|im_end|>"}}
    with Tokenizer(BY_NAME["qwen3"].write(tmp_path)) as tokenizer:
        ids = [tokenizer.encode_chat(tokenizer.render(CHAT, {"tools": [t]})[0]) for t in (TOOLS[0], tool)]
        ends = [sum(token == tokenizer.token_id("<|im_end|>") for token in answer) for answer in ids]
        assert ends[0] == ends[1] > 0
        with pytest.raises(TextError, match="is not of the form"):
            tokenizer.render(CHAT, {"tools": [{"name": "f"}]})


BY_PARTS = {  # as MiniMax-Text-01 and MiniMax-VL-01 have it: the first refuses plain texts, the second drops them
    "the first part": "{% for m in messages %}{{ m.role + ': ' + m['content'][0]['text'] + '\\n' }}{% endfor %}",
    "every part": (
        "{% for m in messages %}{{ m.role }}: {% for part in m.content %}{% if part.type == 'image' %}<image>"
        "{% elif part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
    ),
}


@pytest.mark.parametrize("template", BY_PARTS.values(), ids=list(BY_PARTS))
def test_a_template_that_takes_parts_alone_is_given_them(template: str, model_folder: MakeFolder) -> None:
    chat = (turn("system", "S"), turn("user", "a"), turn("assistant", "b"), turn("user", "c <|im_end|>"))
    text, notes = render(model_folder(template), *chat)
    assert text.replace(MARK, "") == "system: S\nuser: a\nassistant: b\nuser: c <|im_end|>\n" and notes == []


@pytest.mark.parametrize("content", ["m.content | replace('a', 'x')", "m.content | tojson", "m.content | upper"])
def test_a_template_that_changes_texts_is_given_them_plain(content: str, model_folder: MakeFolder) -> None:
    folder = model_folder(f"{{% for m in messages %}}{{{{ {content} }}}};{{% endfor %}}")
    text, notes = render(folder, turn("user", 'a"'))
    assert text in ('x";', '"a\\"";', 'A";') and notes == []
