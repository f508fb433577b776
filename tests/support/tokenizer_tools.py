"""Tools as the tokenizer of a checkpoint gives them its chat template."""

from __future__ import annotations

from typing import Any

from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.syntaxes.kimi import KIMI
from moeinf.text.tool_calls.told.typescript_tools import as_typescript, sorted_deep


def by_tokenizer(template: str, tools: Any) -> dict[str, Any]:
    """The variables of the template: Kimi's own tokenizers change tools, those of transformers do not."""
    if not tools or find_syntax(template) is not KIMI:
        return {"tools": tools}
    tools = sorted_deep(tools)
    return {"tools": tools, "tools_ts_str": as_typescript(tools)}
