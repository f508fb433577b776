"""The syntaxes of tool calls, and which of them a chat template speaks of."""

from __future__ import annotations

from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.deepseek import DEEPSEEK
from moeinf.text.tool_calls.syntaxes.glm_calls import GLM
from moeinf.text.tool_calls.syntaxes.granite_calls import GRANITE
from moeinf.text.tool_calls.syntaxes.harmony import HARMONY
from moeinf.text.tool_calls.syntaxes.hermes import HERMES
from moeinf.text.tool_calls.syntaxes.kimi import KIMI
from moeinf.text.tool_calls.syntaxes.mistral_calls import MISTRAL
from moeinf.text.tool_calls.syntaxes.qwen_xml import QWEN_XML

# In this order, as the marks of Hermes stand in the templates of others, too.
_SYNTAXES = (HARMONY, QWEN_XML, GLM, DEEPSEEK, KIMI, MISTRAL, GRANITE, HERMES)
_UNREAD = '<invoke name="'  # MiniMax-M3's calls stand between the marks of Hermes, but are no JSON


def find_syntax(template: str) -> Syntax | None:
    """The syntax that a chat template asks the model to call tools in; None where it asks for none, or is unknown."""
    if _UNREAD in template:
        return None
    return next((syntax for syntax in _SYNTAXES if any(mark in template for mark in syntax.known_by)), None)
