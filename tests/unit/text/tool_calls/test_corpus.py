"""Each family's template is given tools, calls and results, and its answers are read, wherever a token ends."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Library

from moeinf.text.templates.template_facts import read_facts
from moeinf.text.text_stream import TOKEN_MARK, Piece
from moeinf.text.thoughts import answer_tags_of, tags_of
from moeinf.text.tokenizer import Tokenizer
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.open_stream import open_stream
from tests.support.tool_families import BY_NAME, CALLS, CHAT, FAMILIES, TOOLS, Family

by_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def told(pieces: Iterable[Piece]) -> tuple[str, str, list[tuple[str, str]]]:
    """What was thought, what was said, and what was called with which text of arguments."""
    thought, said = "", ""
    names: dict[int, str | None] = {}
    arguments: dict[int, str] = {}
    for piece in pieces:
        if piece.call is not None:
            assert not piece.text and not piece.thought
            index = piece.call.index
            assert (piece.call.name is not None) == (index not in names), "the name comes once, and first"
            names.setdefault(index, piece.call.name)
            arguments[index] = arguments.get(index, "") + piece.call.arguments
        elif piece.thought:
            thought += piece.text
        else:
            said += piece.text
    assert list(names) == list(range(len(names)))
    return thought, said, [(str(name), arguments[index]) for index, name in names.items()]


def expected(family: Family, calls: list[tuple[str, dict[str, Any]]] = CALLS) -> tuple[str, str, list[Any]]:
    return family.thought, family.text, calls


def parsed(found: tuple[str, str, list[tuple[str, str]]]) -> tuple[str, str, list[Any]]:
    return found[0], found[1], [(name, json.loads(text)) for name, text in found[2]]


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def of_family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Family, Tokenizer]]:
    family: Family = request.param
    with Tokenizer(family.write(tmp_path_factory.mktemp("family"))) as tokenizer:
        yield family, tokenizer


def test_the_template_gets_tools_calls_and_results(of_family: tuple[Family, Tokenizer]) -> None:
    family, tokenizer = of_family
    assert tokenizer.template is not None and tokenizer.template.tools
    text, notes = tokenizer.render(CHAT, {"tools": TOOLS})
    assert text == family.rendered and not notes


def test_an_answer_to_the_rendered_chat_comes_apart(of_family: tuple[Family, Tokenizer]) -> None:
    family, tokenizer = of_family
    prompt = tokenizer.encode_chat(tokenizer.render(CHAT, {"tools": TOOLS})[0])
    stream = tokenizer.stream(prompt, chat=True, tools=TOOLS)
    ids = tokenizer.encode(family.answer, control_tokens=True, bos=False, added=False)
    ids = [token for token in ids if token not in tokenizer.eos_ids]
    pieces = [piece for token in ids for piece in stream.step(token)]
    assert parsed(told([*pieces, *stream.flush()])) == expected(family)


def test_a_call_streams_its_name_first_and_its_arguments_in_fragments(of_family: tuple[Family, Tokenizer]) -> None:
    family, tokenizer = of_family
    prompt = tokenizer.encode_chat(tokenizer.render(CHAT, {"tools": TOOLS})[0])
    stream = tokenizer.stream(prompt, chat=True, tools=TOOLS)
    ids = tokenizer.encode(family.answer, control_tokens=True, bos=False, added=False)
    parts = [(at, piece.call) for at, token in enumerate(ids) for piece in stream.step(token) if piece.call]
    assert parts[0][1].name == "get_weather" and parts[0][1].arguments == ""
    fragments = [at for at, part in parts if part.index == 0 and part.name is None]
    assert len(set(fragments)) > 1 and parts[0][0] <= fragments[0] < fragments[-1] < len(ids) - 1


def test_without_tools_an_answer_has_no_calls(of_family: tuple[Family, Tokenizer]) -> None:
    family, tokenizer = of_family
    prompt = tokenizer.encode_chat(tokenizer.render(CHAT[:2])[0])
    stream = tokenizer.stream(prompt, chat=True)
    ids = tokenizer.encode(family.answer, control_tokens=True, bos=False, added=False)
    _, said, calls = told([*(piece for token in ids for piece in stream.step(token)), *stream.flush()])
    assert not calls and said.startswith(family.text) and "Rome" in said


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        ("<think>I call:\n<tool_call>{}</tool_call>", 1),
        ("<think>I call: <tool_call>{}</tool_call></think>", 1),
        ("<think>I may call <tool_call>{}</tool_call> later.</think>Hello", 0),
        ("<think>I call <tool_call>{}</tool_call></think><tool_call>{}</tool_call>", 1),
        ('<think>I call <tool_call>{"name": "note", "arguments": {"text": "cut', 0),
        ("<think>There is <tool_call> and its end", 0),
    ],
)
def test_a_call_in_a_thought_counts_where_nothing_follows(tmp_path: Path, answer: str, calls: int) -> None:
    call = '{"name": "note", "arguments": {}}'
    with Tokenizer(BY_NAME["qwen3"].write(tmp_path)) as tokenizer:
        prompt = tokenizer.encode_chat(tokenizer.render(CHAT, {"tools": TOOLS})[0])
        stream = tokenizer.stream(prompt, chat=True, tools=TOOLS)
        ids = tokenizer.encode(answer.replace("{}", call), control_tokens=True, bos=False, added=False)
        found = told([*(piece for token in ids for piece in stream.step(token)), *stream.flush()])
    assert found[2] == [("note", "{}")] * calls
    assert found[0].startswith(("I ", "There is <tool_call>")) and "\ufdd1" not in found[0]


def ids_of(tokenizer: Library, family: Family, answer: str, cuts: Iterable[int]) -> list[int]:
    """The ids of an answer whose text is cut into tokens anew at each of these places, but not within its tokens."""
    whole = re.compile("|".join(map(re.escape, (*family.specials, *family.tokens))))
    inside = {at for match in whole.finditer(answer) for at in range(match.start() + 1, match.end())}
    places = [0, *sorted(set(cuts) - inside), len(answer)]
    parts = (answer[start:end] for start, end in itertools.pairwise(places))
    return [token for part in parts for token in tokenizer.encode(part, add_special_tokens=False).ids]


@by_family
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_parse_is_the_same_wherever_tokens_end(family: Family, data: st.DataObject) -> None:
    tokenizer = _tokenizer(family)
    cuts = data.draw(st.lists(st.integers(1, len(family.answer) - 1), max_size=30))
    stream = open_stream(
        tokenizer,
        tokenizer.encode(family.rendered, add_special_tokens=False).ids[-8:],
        skip_special=True,
        tags=tags_of(family.template),
        syntax=find_syntax(family.template),
        tools=TOOLS,
    )
    pieces = [p for token in ids_of(tokenizer, family, family.answer, cuts) for p in stream.step([token])]
    assert parsed(told([*pieces, *stream.flush()])) == expected(family)


@by_family
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_no_tokens_in_any_order_break_the_stream(family: Family, data: st.DataObject) -> None:
    tokenizer = _tokenizer(family)
    controls = tokenizer.encode("".join((*family.specials, *family.tokens)), add_special_tokens=False).ids
    answer = tokenizer.encode(family.answer, add_special_tokens=False).ids
    start = data.draw(st.integers(0, len(answer)))
    some = data.draw(st.lists(st.sampled_from(controls) | st.sampled_from(answer), max_size=20))
    stream = open_stream(
        tokenizer,
        tokenizer.encode(family.rendered, add_special_tokens=False).ids[-8:],
        skip_special=True,
        tags=tags_of(family.template),
        answer_tags=answer_tags_of(family.template),
        syntax=find_syntax(family.template),
        tools=TOOLS,
    )
    ids = [*answer[:start], *some, *answer[data.draw(st.integers(0, len(answer))) :]]
    thought, said, calls = told([*(piece for token in ids for piece in stream.step([token])), *stream.flush()])
    assert TOKEN_MARK not in thought + said + str(calls)


def _tokenizer(family: Family, made: dict[str, Library] = {}) -> Library:  # noqa: B006 - made once a family
    if family.name not in made:
        made[family.name] = family.tokenizer()
    return made[family.name]


@by_family
def test_a_template_that_speaks_of_a_syntax_knows_tools(family: Family) -> None:
    assert read_facts(family.template).tools
    told_in_system_message = family.name.startswith("deepseek")
    assert read_facts(family.template.replace("tools", "utensils")).tools == told_in_system_message


def test_a_template_with_tools_in_an_unknown_syntax_does_not_support_them() -> None:
    assert not read_facts("{% for tool in tools %}{{ tool }}{% endfor %} call as <<name>>").tools
