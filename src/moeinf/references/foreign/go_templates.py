"""Chat templates of ollama, which are written in Go: each is told by its marks, and has a published Jinja twin.

The marks of a family are what its makers publish, and a twin writes what their chat_template makes of plain messages. A
twin knows no tools: a model that is to call tools has a template of its own in its file.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class GoTemplate:
    """marks: regular expressions, all of which a template of ollama's has. jinja: "" for what continues text."""

    family: str
    marks: tuple[str, ...]
    jinja: str


def _turns(user: str, assistant: str, asks: str, *, system: str = "", start: str = "bos_token") -> str:
    """A template of Jinja, by the expressions that write its parts: a turn, and what asks for an answer.

    `text` is what the turn says. Without a turn of the system's own, its text is `told`, once, in the next turn.
    """
    own = f"{{{{ {system} }}}}" if system else "{% set ns.told = message.content %}"
    return (
        f"{{% set ns = namespace(told='') %}}{{{{ {start} }}}}{{% for message in messages %}}"
        "{% set text, told = message.content, ns.told %}"
        f"{{% if message.role == 'system' %}}{own}"
        f"{{% elif message.role == 'assistant' %}}{{{{ {assistant} }}}}"
        f"{{% else %}}{{{{ {user} }}}}{{% set ns.told = '' %}}{{% endif %}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ {asks} }}}}{{% endif %}}"
    )


def _named(before: str, after: str, end: str, *, start: str = "''") -> str:
    """Turns that begin with their role between marks, and end alike."""
    user, assistant, system = (f"'{before}{role}{after}' + text + {end}" for role in ("user", "assistant", "system"))
    return _turns(user, assistant, f"'{before}assistant{after}'", system=system, start=start)


_TOLD: Final = r"(told + '\n\n' if told else '') + text"
KNOWN: Final = (
    GoTemplate("text alone", (r"^\s*\{\{-?\s*\.Prompt\s*-?\}\}\s*$",), ""),
    GoTemplate("ChatML", (r"<\|im_start\|>", r"<\|im_end\|>"), _named("<|im_start|>", r"\n", r"'<|im_end|>\n'")),
    GoTemplate(
        "Llama 3",
        (r"<\|start_header_id\|>", r"<\|eot_id\|>"),
        _named("<|start_header_id|>", r"<|end_header_id|>\n\n", "'<|eot_id|>'", start="bos_token"),
    ),
    GoTemplate(
        "Granite",
        (r"<\|start_of_role\|>", r"<\|end_of_role\|>"),
        _named("<|start_of_role|>", "<|end_of_role|>", r"'<|end_of_text|>\n'"),
    ),
    GoTemplate("GLM-4", (r"\[gMASK\]\s*<sop>", r"<\|user\|>"), _named("<|", r"|>\n", "''", start="'[gMASK]<sop>'")),
    GoTemplate("Phi-3", (r"<\|user\|>", r"<\|end\|>"), _named("<|", r"|>\n", r"'<|end|>\n'")),
    GoTemplate("Zephyr", (r"<\|user\|>", r"<\|assistant\|>", "</s>"), _named("<|", r"|>\n", r"eos_token + '\n'")),
    GoTemplate(
        "Llama 2",
        (r"\[INST\]", "<<SYS>>"),
        _turns(
            r"bos_token + '[INST] ' + ('<<SYS>>\n' + told + '\n<</SYS>>\n\n' if told else '') + text + ' [/INST]'",
            "' ' + text + ' ' + eos_token",
            "''",
            start="''",
        ),
    ),
    GoTemplate(
        "Mistral with tools",
        (r"\[INST\]", r"\[AVAILABLE_TOOLS\]", r"(?s)^(?!.*\[SYSTEM_PROMPT\])"),
        _turns(f"'[INST] ' + {_TOLD} + '[/INST]'", "' ' + text + eos_token", "''"),
    ),
    GoTemplate(
        "Mixtral",
        (r"\[INST\]", r"(?s)^(?!.*\[SYSTEM_PROMPT\])"),
        _turns(f"' [INST] ' + {_TOLD} + ' [/INST]'", "' ' + text + eos_token", "''"),
    ),
    GoTemplate(
        "Gemma",
        ("<start_of_turn>", "<end_of_turn>"),
        _turns(
            rf"'<start_of_turn>user\n' + {_TOLD} + '<end_of_turn>\n'",
            r"'<start_of_turn>model\n' + text + '<end_of_turn>\n'",
            r"'<start_of_turn>model\n'",
        ),
    ),
    GoTemplate(
        "DeepSeek-V3",
        ("<｜User｜>", "<｜Assistant｜>"),
        _turns("told + '<｜User｜>' + text", "'<｜Assistant｜>' + text + eos_token", "'<｜Assistant｜>'"),
    ),
    GoTemplate(
        "DeepSeek-V2",
        ("User: ", "Assistant:"),
        _turns(
            r"(told + '\n\n' if told else '') + 'User: ' + text + '\n\n'",
            "'Assistant: ' + text + eos_token",
            "'Assistant:'",
        ),
    ),
)


def twin_of(template: str) -> GoTemplate | None:
    """The known template that one of ollama's is; None where it has no marks that are known."""
    return next((known for known in KNOWN if all(re.search(mark, template) for mark in known.marks)), None)
