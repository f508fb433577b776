"""Finds the levels of thinking that a chat template knows by name."""

from __future__ import annotations

from collections.abc import Iterable

from jinja2 import nodes

from moeinf.text.templates.effort_levels import SCALE, EffortLevels


def levels_of(tree: nodes.Template, variable: str) -> EffortLevels:
    """What the template compares the variable with, or what it made of it, and what it puts in its place."""
    names, found = {variable}, {variable}
    assignments = list(tree.find_all(nodes.Assign))
    while found:
        found = {
            made.target.name
            for made in assignments
            if isinstance(made.target, nodes.Name) and _names(made.node) & names and _is_value(made.node)
        } - names
        names |= found
    compared = [test for test in tree.find_all(nodes.Compare) if _names(test) & names]
    put = [made for made in assignments if isinstance(made.target, nodes.Name) and made.target.name in names]
    return EffortLevels(_words(compared), _words(made.node for made in put))


def _names(node: nodes.Node) -> set[str]:
    own = {node.name} if isinstance(node, nodes.Name) else set[str]()
    return own | {name.name for name in node.find_all(nodes.Name)}


def _is_value(node: nodes.Node) -> bool:
    """Whether an expression is the word itself, maybe another in its place, and no text that has it within."""
    return isinstance(node, (nodes.Name, nodes.Filter, nodes.CondExpr, nodes.Or))


def _words(parts: Iterable[nodes.Node]) -> tuple[str, ...]:
    said = {const.value for part in parts for const in _consts(part)}
    return tuple(word for word in SCALE if word in said)


def _consts(node: nodes.Node) -> list[nodes.Const]:
    return [node] if isinstance(node, nodes.Const) else list(node.find_all(nodes.Const))
