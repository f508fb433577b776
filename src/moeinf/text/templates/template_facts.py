"""Finds out what a chat template reads and does, without running it."""

from __future__ import annotations

import jinja2
from jinja2 import nodes

from moeinf.text.templates.effort_levels import NO_LEVELS
from moeinf.text.templates.own import is_own
from moeinf.text.templates.sandbox import environment
from moeinf.text.templates.template_levels import levels_of
from moeinf.text.thinking_text import EFFORT_NAMES, TemplateFacts
from moeinf.text.thoughts import tags_of
from moeinf.text.tool_calls.choice import find_syntax
from moeinf.text.tool_calls.syntaxes.harmony_heads import CHANNEL

_ALWAYS_GIVEN = {
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "loop",
    "caller",
    "varargs",
    "kwargs",
}
_SAY_SO = {"enable_thinking", "reasoning_effort", "thinking_mode"}  # variables that only models which think have


def read_facts(source: str) -> TemplateFacts:
    """Reads the facts of a template. One that cannot be parsed has none; rendering it tells why."""
    try:
        tree = environment().parse(source)
    except (jinja2.TemplateError, RecursionError):
        return TemplateFacts(frozenset(), thinks=False, tools=False)
    names = list(tree.find_all(nodes.Name))
    read = {name.name for name in names if name.ctx == "load"}
    made = {name.name for name in names if name.ctx == "store"} - _with_a_default(tree)
    made |= {name.name for name in names if name.ctx == "param"} | {macro.name for macro in tree.find_all(nodes.Macro)}
    variables = frozenset(read - made - _ALWAYS_GIVEN - set(environment().globals))
    thinks = bool(tags_of(source) or _SAY_SO & variables or CHANNEL in source)
    syntax = find_syntax(source)
    tools = syntax is not None and ("tools" in read or syntax.describe is not None)
    off = any(word.value == "no_think" for word in tree.find_all(nodes.Const))
    effort = next((name for name in EFFORT_NAMES if name in variables), None)
    levels = levels_of(tree, effort) if effort else NO_LEVELS
    effort_off = "reasoning_effort" in variables and off
    return TemplateFacts(variables, thinks, tools, effort_off, levels, told_form=is_own(source))


def _with_a_default(tree: nodes.Template) -> set[str]:
    """Returns names that a template sets only where they are not given, such as by x | default(...)."""
    tested = [test.node for test in tree.find_all(nodes.Test) if test.name in ("defined", "undefined")]
    filtered = [use.node for use in tree.find_all(nodes.Filter) if use.name in ("default", "d")]
    return {node.name for node in [*tested, *filtered] if isinstance(node, nodes.Name)}
