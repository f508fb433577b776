"""Chat templates as published: what they read, and what they make of a chat."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from moeinf.text.templates.effort_levels import NO_LEVELS, EffortLevels
from moeinf.text.templates.template_facts import read_facts
from moeinf.text.thinking_text import TemplateFacts
from moeinf.text.tokenizer import Tokenizer
from tests.support.shown_text import shown
from tests.support.text_models import write_text_model


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


TEMPLATES = [
    "deepseek-v3/chat_template.deepseek-ai-DeepSeek-V3.1.jinja",
    "glm-4.6/chat_template.GLM-4.6.jinja",
    "gpt-oss-20b/chat_template.openai-gpt-oss-120b.jinja",
    "mixtral-8x7b/chat_template.v1_spm.jinja",
    "phi-3.5-moe/chat_template.microsoft-Phi-3.5-mini-instruct.jinja",
    "granite-3.1-1b-a400m-instruct/chat_template.ibm-granite-granite-3.3-2B-Instruct.jinja",
]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_of_other_families_render_a_chat(published: Path, tmp_path: Path, name: str) -> None:
    folder = write_text_model(tmp_path, (published / name).read_text())
    with Tokenizer(folder) as tokenizer:
        text, _ = tokenizer.render(
            [turn("system", "SYS"), turn("user", "U1"), turn("assistant", "A1"), turn("user", "U2")]
        )
    assert text.index("SYS") < text.index("U1") < text.index("A1") < text.index("U2")


PUBLISHED = {  # template -> variables that it reads, whether it knows thoughts, and tools
    "qwen3-30b-a3b/chat_template.Qwen-Qwen3-0.6B.jinja": ({"enable_thinking"}, True, True),
    "deepseek-v3/chat_template.deepseek-ai-DeepSeek-V3.1.jinja": ({"enable_thinking", "thinking"}, True, True),
    "deepseek-r1/chat_template.llama-cpp-deepseek-r1.jinja": (set(), True, True),
    "glm-4.6/chat_template.GLM-4.6.jinja": ({"enable_thinking"}, True, True),
    "gpt-oss-20b/chat_template.openai-gpt-oss-120b.jinja": (
        {"builtin_tools", "model_identity", "reasoning_effort"},
        True,
        True,
    ),
    "granite-3.1-1b-a400m-instruct/chat_template.ibm-granite-granite-3.3-2B-Instruct.jinja": (
        {"controls", "thinking"},
        True,
        True,
    ),
    "mixtral-8x7b/chat_template.v1_spm.jinja": (set(), False, False),
    "phi-3.5-moe/chat_template.microsoft-Phi-3.5-mini-instruct.jinja": (set(), False, False),
}
LEVELS = {"gpt-oss-20b/chat_template.openai-gpt-oss-120b.jinja": EffortLevels(otherwise=("medium",))}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_templates_say_what_they_read(published: Path, name: str) -> None:
    variables, thinks, tools = PUBLISHED[name]
    facts = read_facts((published / name).read_text())
    assert facts == TemplateFacts(frozenset(variables), thinks, tools, levels=LEVELS.get(name, NO_LEVELS))


THOUGHT = "<|channel|>analysis<|message|>They greet.<|end|>"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hello 日本!"


def test_the_template_of_gpt_oss_gets_back_what_was_shown_of_its_answer(published: Path, tmp_path: Path) -> None:
    source = published / "gpt-oss-20b"
    shutil.copy(source / "tokenizer.derived.json", tmp_path / "tokenizer.json")
    shutil.copy(source / "chat_template.openai-gpt-oss-120b.jinja", tmp_path / "chat_template.jinja")
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 200002}))
    thought, answer = shown(tmp_path, THOUGHT + FINAL)
    with Tokenizer(tmp_path) as tokenizer:
        chat = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": answer, "thinking": thought, "reasoning_content": thought},
            {"role": "user", "content": "more"},
        ]
        text, notes = tokenizer.render(chat)
        ends = tokenizer.eos_ids
    assert (
        text.endswith(
            "<|start|>user<|message|>hi<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Hello 日本!<|end|>"
            "<|start|>user<|message|>more<|end|><|start|>assistant"
        )
        and not notes
    )
    assert 200002 in ends and 200007 not in ends, "<|return|> ends an answer, <|end|> a message of it"
