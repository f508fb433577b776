"""Templates of ollama are told by their marks, and their twins write what the published templates make of a chat."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from moeinf.references.foreign.go_templates import KNOWN, twin_of
from moeinf.text.templates.file import TEMPLATE_FILE
from tests.support.published_data import PUBLISHED_DATA
from tests.support.true_configs import PUBLISHED

TWINS = {known.family: known.jinja for known in KNOWN}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello 日本"},
    {"role": "assistant", "content": "Hi."},
    {"role": "user", "content": "Weather?"},
]
# As ollama's library has them, shortened.
GO = {
    "text alone": "{{ .Prompt }}",
    "ChatML": "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}<|im_start|>user\n{{ .Prompt }}",
    "Llama 3": "<|start_header_id|>system<|end_header_id|>\n\n{{ .System }}<|eot_id|>{{ range .Messages }}",
    "Llama 2": "[INST] <<SYS>>{{ .System }}<</SYS>>\n\n{{ .Prompt }} [/INST]",
    "Mistral with tools": "{{- range .Messages }}[AVAILABLE_TOOLS] {{ $.Tools }}[/AVAILABLE_TOOLS][INST] ",
    "Mixtral": "[INST] {{ if .System }}{{ .System }} {{ end }}{{ .Prompt }} [/INST]",
    "Gemma": "<start_of_turn>user\n{{ .Prompt }}<end_of_turn>\n<start_of_turn>model\n",
    "Granite": "<|start_of_role|>system<|end_of_role|>{{ .System }}<|end_of_text|>",
    "GLM-4": "[gMASK]<sop>{{ if .System }}<|system|>\n{{ .System }}{{ end }}<|user|>\n{{ .Prompt }}<|assistant|>",
    "Phi-3": "<|system|>\n{{ .System }}<|end|>\n<|user|>\n{{ .Prompt }}<|end|>\n<|assistant|>\n",
    "Zephyr": "<|system|>\n{{ .System }}</s>\n<|user|>\n{{ .Prompt }}</s>\n<|assistant|>\n",
    "DeepSeek-V3": "{{ .System }}<｜User｜>{{ .Prompt }}<｜Assistant｜>{{ .Response }}<｜end▁of▁sentence｜>",
    "DeepSeek-V2": "{{ if .System }}{{ .System }}\n\n{{ end }}User: {{ .Prompt }}\n\nAssistant:",
}
# Of families whose template is not among the published ones here, as their model cards write it.
WRITTEN = {
    "Llama 3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nHello 日本<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nHi.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nWeather?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "Llama 2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHello 日本 [/INST] Hi. </s><s>[INST] Weather? [/INST]",
    "Mistral with tools": "<s>[INST] Be brief.\n\nHello 日本[/INST] Hi.</s>[INST] Weather?[/INST]",
    "Gemma": "<s><start_of_turn>user\nBe brief.\n\nHello 日本<end_of_turn>\n<start_of_turn>model\nHi.<end_of_turn>\n"
    "<start_of_turn>user\nWeather?<end_of_turn>\n<start_of_turn>model\n",
    "GLM-4": "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHello 日本<|assistant|>\nHi.<|user|>\nWeather?<|assistant|>\n",
    "Zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nHello 日本</s>\n<|assistant|>\nHi.</s>\n<|user|>\nWeather?</s>\n"
    "<|assistant|>\n",
    "DeepSeek-V3": "<s>Be brief.<｜User｜>Hello 日本<｜Assistant｜>Hi.</s><｜User｜>Weather?<｜Assistant｜>",
    "DeepSeek-V2": "<s>Be brief.\n\nUser: Hello 日本\n\nAssistant: Hi.</s>User: Weather?\n\nAssistant:",
}


def rendered(template: str) -> str:
    made: Any = render_jinja_template(
        conversations=[CHAT], chat_template=template, add_generation_prompt=True, bos_token="<s>", eos_token="</s>"
    )
    return str(made[0][0])


@pytest.mark.parametrize("family", GO)
def test_a_template_is_told_by_its_marks(family: str) -> None:
    found = twin_of(GO[family])
    assert found is not None and found.family == family
    assert GO.keys() == TWINS.keys(), "each has an example here"


@pytest.mark.parametrize(
    "unknown", ["{{ . }}", "", "<|start|>user<|message|>{{ .Prompt }}<|end|>", "[SYSTEM_PROMPT]x[INST]"]
)
def test_others_are_not_taken_for_one(unknown: str) -> None:
    assert twin_of(unknown) is None


@pytest.mark.parametrize("family", WRITTEN)
def test_a_twin_writes_what_its_makers_do(family: str) -> None:
    assert rendered(TWINS[family]) == WRITTEN[family]


@pytest.mark.parametrize(
    ("family", "model"), [("ChatML", "qwen3-coder-480b"), ("Granite", "granite-3.1-1b-a400m-instruct")]
)
def test_a_twin_makes_of_a_chat_what_the_published_template_does(family: str, model: str) -> None:
    theirs = rendered((PUBLISHED / model / TEMPLATE_FILE).read_text(encoding="utf-8"))
    assert rendered(TWINS[family]) == theirs


@pytest.mark.parametrize(
    ("family", "file"),
    [
        ("Phi-3", "phi-3.5-moe/chat_template.microsoft-Phi-3.5-mini-instruct.jinja"),
        ("Mixtral", "mixtral-8x7b/chat_template.v1_spm.jinja"),
    ],
)
def test_a_twin_makes_of_a_chat_what_a_large_models_template_does(family: str, file: str) -> None:
    path = PUBLISHED_DATA / "models" / file
    if not path.is_file():
        pytest.skip(f"{path} is not here")
    assert rendered(TWINS[family]) == rendered(path.read_text(encoding="utf-8"))
