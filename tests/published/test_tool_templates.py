"""Chat templates as published are given tools, calls and results; real vocabularies, the answers of the corpus."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from moeinf.text.tokenizer import Tokenizer
from tests.support.text_models import write_text_model
from tests.support.tool_families import BY_NAME, CALLS, CHAT, TOOLS

ARGUMENTS = '{"city": "Paris", "days": 2}'
FAMILIES = {  # template -> how it writes the call, and its result
    "qwen3-30b-a3b/chat_template.Qwen-Qwen3-0.6B.jinja": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "<tool_response>\nsunny\n</tool_response>",
    ),
    "qwen1.5-moe-a2.7b/chat_template.Qwen-Qwen2.5-7B-Instruct.jinja": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "<tool_response>\nsunny\n</tool_response>",
    ),
    "deepseek-v3/chat_template.deepseek-ai-DeepSeek-V3.1.jinja": (
        f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{ARGUMENTS}<｜tool▁call▁end｜>",
        "<｜tool▁output▁begin｜>sunny<｜tool▁output▁end｜>",
    ),
    "deepseek-r1/chat_template.llama-cpp-deepseek-r1.jinja": (
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{ARGUMENTS}\n```<｜tool▁call▁end｜>",
        "<｜tool▁output▁begin｜>sunny<｜tool▁output▁end｜>",
    ),
    "glm-4.6/chat_template.GLM-4.6.jinja": (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n<arg_key>days</arg_key>\n"
        "<arg_value>2</arg_value>\n</tool_call>",
        "<|observation|>\n<tool_response>\nsunny\n</tool_response>",
    ),
    "gpt-oss-20b/chat_template.openai-gpt-oss-120b.jinja": (
        f"<|start|>assistant to=functions.get_weather<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>",
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"sunny"<|end|>',
    ),
    "granite-3.1-1b-a400m-instruct/chat_template.ibm-granite-granite-3.3-2B-Instruct.jinja": (
        f'<|tool_call|>[{{"name": "get_weather", "arguments": {ARGUMENTS}}}]<|end_of_text|>',
        "<|start_of_role|>tool_response<|end_of_role|>sunny<|end_of_text|>",
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_tools_calls_and_results_reach_the_model(published: Path, tmp_path: Path, name: str) -> None:
    call, result = FAMILIES[name]
    with Tokenizer(write_text_model(tmp_path, (published / name).read_text())) as tokenizer:
        assert tokenizer.template is not None and tokenizer.template.tools
        text, notes = tokenizer.render(CHAT, {"tools": TOOLS})
    places = [text.index(part) for part in ("The weather of a city", "Weather in Paris?", call, result, "And Rome?")]
    assert places == sorted(places) and not notes


@pytest.mark.parametrize("name", [*FAMILIES, "mixtral-8x7b/chat_template.v1_spm.jinja"])
def test_a_chat_that_goes_on_keeps_its_beginning_whatever_role_comes_late(
    published: Path, tmp_path: Path, name: str
) -> None:
    late = {"role": "developer", "content": "A late word."}
    with Tokenizer(write_text_model(tmp_path, (published / name).read_text())) as tokenizer:
        before, _ = tokenizer.render(CHAT)
        text, _ = tokenizer.render([*CHAT, late])
    until = before.index("And Rome?") + len("And Rome?")
    assert text[:until] == before[:until] and "A late word." in text[until:]


REAL = {
    "qwen3": ("qwen3-30b-a3b", "tokenizer.derived.json", "chat_template.Qwen-Qwen3-0.6B.jinja"),
    "gpt-oss": ("gpt-oss-20b", "tokenizer.derived.json", "chat_template.openai-gpt-oss-120b.jinja"),
    "granite": (
        "granite-3.1-1b-a400m-instruct",
        "tokenizer.json",
        "chat_template.ibm-granite-granite-3.3-2B-Instruct.jinja",
    ),
}


@pytest.mark.parametrize("name", REAL)
def test_answers_are_read_from_the_tokens_of_the_real_vocabulary(published: Path, tmp_path: Path, name: str) -> None:
    folder, vocabulary, template = REAL[name]
    shutil.copy(published / folder / vocabulary, tmp_path / "tokenizer.json")
    shutil.copy(published / folder / template, tmp_path / "chat_template.jinja")
    family, names, arguments = BY_NAME[name], dict[int, str](), dict[int, str]()
    with Tokenizer(tmp_path) as tokenizer:
        prompt = tokenizer.encode_chat(tokenizer.render(CHAT, {"tools": TOOLS})[0])
        stream = tokenizer.stream(prompt, chat=True, tools=TOOLS)
        ids = [i for i in tokenizer.encode(family.answer, control_tokens=True, bos=False) if i not in tokenizer.eos_ids]
        pieces = [*(piece for token in ids for piece in stream.step(token)), *stream.flush()]
    for piece in pieces:
        if piece.call:
            names.setdefault(piece.call.index, piece.call.name or "")
            arguments[piece.call.index] = arguments.get(piece.call.index, "") + piece.call.arguments
    called: list[Any] = [(names[index], json.loads(arguments[index])) for index in names]
    assert called == CALLS
    assert "".join(piece.text for piece in pieces if not piece.thought) == family.text
    assert "".join(piece.text for piece in pieces if piece.thought) == family.thought
