"""Calls of models whose chat template knows no tools: the system message tells of these, and of a form for calls.

The form is that of Hermes, which most open models were trained on. Results come back as text of a user.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from moeinf.text.tool_calls.syntax import MessageCall
from moeinf.text.tool_calls.syntaxes.hermes import HERMES
from moeinf.types import JsonMapping

NOTE = "the chat template knows no tools: the system message tells of them, and results come as text of the user"


def _describe(tools: Sequence[JsonMapping], template: str) -> str:
    functions = [json.dumps(tool["function"], ensure_ascii=False) for tool in tools]
    return "\n".join(
        [
            "You can call these functions, each given with the JSON schema of its parameters:",
            "<tools>",
            *functions,
            "</tools>",
            "To call one, answer with its name and arguments as JSON, and with nothing behind it:",
            _written("function-name", {"parameter": "value"}),
            "The result then comes in a <tool_response>. Without need of a function, answer as usual.",
        ]
    )


def _written(name: str, arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments}, ensure_ascii=False)}\n</tool_call>"


def _write(calls: Sequence[MessageCall]) -> str:
    return "\n".join(_written(call["function"]["name"], call["function"]["arguments"]) for call in calls)


def _write_result(result: str) -> str:
    return f"<tool_response>\n{result}\n</tool_response>"


GENERIC = replace(HERMES, known_by=(), describe=_describe, write=_write, write_result=_write_result, result_role="user")
