"""How each family of models is asked to call tools, and calls them: a corpus for tests of templates and readers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from tests.support.text_models import byte_level_tokenizer, write_text_model

TEMPLATES = Path(__file__).with_name("tool_templates")
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
NOTE = {
    "type": "function",
    "function": {
        "name": "note",
        "parameters": {
            "type": "object",
            "properties": {"text": {"type": "string"}, "tags": {"type": "array"}, "pinned": {"type": "boolean"}},
        },
    },
}
TOOLS: list[dict[str, Any]] = [WEATHER, NOTE]
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": '{"city":"Paris","days":2}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "user", "content": "And Rome?"},
]
# What every answer of the corpus calls, in this order.
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("get_weather", {"city": 'Rome, "日本" </tool_call>', "days": 3}),
    ("note", {"text": "a\n  b", "tags": ["x", 1], "pinned": True}),
]
ARGUMENTS = [json.dumps(arguments, ensure_ascii=False) for _, arguments in CALLS]


@dataclass(frozen=True)
class Family:
    """One syntax. specials and tokens: control tokens and others of its vocabulary.

    answer: what the model writes behind the rendered chat; it thinks `thought`, says `text` and calls CALLS.
    """

    name: str
    specials: tuple[str, ...]
    tokens: tuple[str, ...]
    answer: str
    thought: str = ""
    text: str = "Let me see."

    @cached_property
    def template(self) -> str:
        return (TEMPLATES / f"{self.name}.jinja").read_text(encoding="utf-8")

    @cached_property
    def rendered(self) -> str:
        """CHAT with TOOLS, as the template is to write them."""
        return (TEMPLATES / "rendered" / f"{self.name}.txt").read_text(encoding="utf-8")

    def tokenizer(self) -> Tokenizer:
        tokenizer = byte_level_tokenizer(["<s>", "</s>", *self.specials])
        tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in self.tokens])
        return tokenizer

    def write(self, folder: Path) -> Path:
        """Writes a model folder with its template and tokenizer, and returns it."""
        return write_text_model(folder, self.template, tokenizer=self.tokenizer())


_TAGS = ("<think>", "</think>")
_CALL_TAGS = ("<tool_call>", "</tool_call>")
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
_KIMI = (
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
)
_XTML = ("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
_DSML = "｜DSML｜"
_LIST = json.dumps([{"name": name, "arguments": arguments} for name, arguments in CALLS], ensure_ascii=False)
_QWEN3 = "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>'
    for (name, _), text in zip(CALLS, ARGUMENTS, strict=True)
)
FAMILIES = (
    Family(
        "qwen3",
        ("<|im_start|>", "<|im_end|>"),
        _TAGS + _CALL_TAGS,
        f"<think>\nHm.\n</think>\n\nLet me see.\n{_QWEN3}",
        "Hm.",
    ),
    Family(
        "qwen3-coder",
        ("<|im_start|>", "<|im_end|>"),
        _CALL_TAGS,
        "Let me see.\n<tool_call>\n<function=get_weather>\n"
        '<parameter=city>\nRome, "日本" </tool_call>\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n'
        "</tool_call>\n<tool_call>\n<function=note>\n<parameter=text>\na\n  b\n</parameter>\n"
        '<parameter=tags>\n["x", 1]\n</parameter>\n<parameter=pinned>\ntrue\n</parameter>\n</function>\n</tool_call>',
    ),
    Family(
        "glm",
        ("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
        (*_TAGS, *_CALL_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
        "\n<think>Hm.</think>\nLet me see.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
        '<arg_value>Rome, "日本" </tool_call></arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n'
        "</tool_call>\n<tool_call>note\n<arg_key>text</arg_key>\n<arg_value>a\n  b</arg_value>\n"
        '<arg_key>tags</arg_key>\n<arg_value>["x", 1]</arg_value>\n'
        "<arg_key>pinned</arg_key>\n<arg_value>true</arg_value>\n</tool_call>",
        "Hm.",
    ),
    Family("mistral", ("[INST]", "[/INST]", "[TOOL_CALLS]"), (), f"Let me see.[TOOL_CALLS]{_LIST}"),
    Family(
        "magistral",
        ("[INST]", "[/INST]", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        (),
        "[THINK]Hm.[/THINK]Let me see."
        + "".join(f"[TOOL_CALLS]{name}[ARGS]{text}" for (name, _), text in zip(CALLS, ARGUMENTS, strict=True)),
        "Hm.",
    ),
    Family(
        "deepseek-r1",
        ("<｜User｜>", "<｜Assistant｜>"),
        _TAGS + _DEEPSEEK,
        "Hm.\n</think>\n\nLet me see.<｜tool▁calls▁begin｜>"
        + "\n".join(
            f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{text}\n```<｜tool▁call▁end｜>"
            for (name, _), text in zip(CALLS, ARGUMENTS, strict=True)
        )
        + "<｜tool▁calls▁end｜>",
        "Hm.",
    ),
    Family(
        "deepseek-v3",
        ("<｜User｜>", "<｜Assistant｜>"),
        _TAGS + _DEEPSEEK,
        "Let me see.<｜tool▁calls▁begin｜>"
        + "".join(
            f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{text}<｜tool▁call▁end｜>"
            for (name, _), text in zip(CALLS, ARGUMENTS, strict=True)
        )
        + "<｜tool▁calls▁end｜>",
    ),
    Family(
        "kimi",
        ("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
        _KIMI,
        "Let me see.<|tool_calls_section_begin|>"
        + "".join(
            f"<|tool_call_begin|>functions.{name}:{at}<|tool_call_argument_begin|>{ARGUMENTS[at]}<|tool_call_end|>"
            for at, (name, _) in enumerate(CALLS)
        )
        + "<|tool_calls_section_end|>",
    ),
    Family(
        "kimi-k3",
        _XTML,
        (),
        "Hm.<|close|>think<|sep|><|open|>response<|sep|>Let me see.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument key="city" type="string"<|sep|>'
        'Rome, "日本" </tool_call><|close|>argument<|sep|><|open|>argument key="days" type="number"<|sep|>3'
        '<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool="note" index="2"<|sep|>'
        '<|open|>argument key="text" type="string"<|sep|>a\n  b<|close|>argument<|sep|>'
        '<|open|>argument key="tags" type="array"<|sep|>["x", 1]<|close|>argument<|sep|>'
        '<|open|>argument key="pinned" type="boolean"<|sep|>true<|close|>argument<|sep|><|close|>call<|sep|>'
        "<|close|>tools<|sep|><|close|>message<|sep|>",
        "Hm.",
    ),
    Family(
        "dsml-v4.1",
        ("<｜System｜>", "<｜User｜>", "<｜Assistant｜>"),
        (*_TAGS, _DSML),
        f'Let me see.\n\n<{_DSML} calls>\n<{_DSML} invoke name="get_weather">\n'
        f'<{_DSML} parameter name="city" string="true">Rome, "日本" </tool_call></{_DSML} parameter>\n'
        f'<{_DSML} parameter name="days" string="false">3</{_DSML} parameter>\n</{_DSML} invoke>\n'
        f'<{_DSML} invoke name="note">\n<{_DSML} parameter name="text" string="true">a\n  b</{_DSML} parameter>\n'
        f'<{_DSML} parameter name="tags" string="false">["x", 1]</{_DSML} parameter>\n'
        f'<{_DSML} parameter name="pinned" string="false">true</{_DSML} parameter>\n</{_DSML} invoke>\n'
        f"</{_DSML} calls>",
    ),
    Family(
        "granite",
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<|tool_call|>"),
        (),
        f"Let me see.<|tool_call|>{_LIST}",
    ),
    Family(
        "gpt-oss",
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|constrain|>", "<|return|>"),
        (),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>Let me see.<|end|>"
        f"<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS[0]}"
        f"<|end|><|start|>assistant to=functions.note<|channel|>commentary json<|message|>{ARGUMENTS[1]}<|call|>",
        "Hm.",
    ),
)
BY_NAME = {family.name: family for family in FAMILIES}
