"""The syntaxes of tool calls, and which of them a chat template speaks of."""

from __future__ import annotations

import re

from moeinf.text.channels.xtml_calls import XTML
from moeinf.text.tool_calls.syntax import Syntax
from moeinf.text.tool_calls.syntaxes.deepseek_calls import DEEPSEEK
from moeinf.text.tool_calls.syntaxes.gemma_calls import GEMMA
from moeinf.text.tool_calls.syntaxes.generic_calls import GENERIC
from moeinf.text.tool_calls.syntaxes.glm_calls import GLM, HORIZON, HUNYUAN
from moeinf.text.tool_calls.syntaxes.granite_calls import GRANITE
from moeinf.text.tool_calls.syntaxes.harmony import HARMONY
from moeinf.text.tool_calls.syntaxes.hermes import HERMES
from moeinf.text.tool_calls.syntaxes.invoke_calls import DSML, DSML_V4, DSML_V41, MINIMAX
from moeinf.text.tool_calls.syntaxes.kimi import KIMI
from moeinf.text.tool_calls.syntaxes.marked_calls import HUNYUAN_A13B, NORTH, SOLAR
from moeinf.text.tool_calls.syntaxes.mistral_calls import MISTRAL
from moeinf.text.tool_calls.syntaxes.nested_calls import NESTED
from moeinf.text.tool_calls.syntaxes.python_calls import LFM2, LLAMA4
from moeinf.text.tool_calls.syntaxes.qwen_xml import QWEN_XML

# In this order, as the marks of Hermes stand in the templates of others, too.
_SYNTAXES = (
    *(
        HARMONY,
        XTML,
        NESTED,
        DSML_V41,
        DSML_V4,
        DSML,
        MINIMAX,
        HUNYUAN,
        HORIZON,
        HUNYUAN_A13B,
        QWEN_XML,
        GLM,
        DEEPSEEK,
        KIMI,
        SOLAR,
        NORTH,
        LFM2,
        LLAMA4,
    ),
    *(MISTRAL, GEMMA, GRANITE, HERMES),
)


def syntax_for(template: str) -> Syntax | None:
    """The syntax in which a model is told to call tools; None where there is no chat template.

    GENERIC where the template knows no tools, or asks for calls in a form that is not known.
    """
    syntax = find_syntax(template)
    if syntax is not None and (syntax.describe is not None or re.search(r"\btools\b", template)):
        return syntax
    return GENERIC if template else None


def find_syntax(template: str) -> Syntax | None:
    """The syntax that a chat template asks the model to call tools in; None where it asks for none, or is unknown."""
    return next((syntax for syntax in _SYNTAXES if any(mark in template for mark in syntax.known_by)), None)
