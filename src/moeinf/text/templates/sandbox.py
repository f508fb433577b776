"""The sandbox in which chat templates run.

Templates are untrusted code. The sandbox keeps them from Python's internals; only the process of worker.py, which
alone renders them, bounds their time and memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

_MAX_INT_BITS = 4096  # of a product or power in a template: those that count messages stay far below


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also intercepts the operators with which one short expression takes all time or memory."""

    intercepted_binops = frozenset(["**", "*", "%"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        sides = (left, right) if operator == "*" else (left,)
        if any(isinstance(side, str | bytes | list | tuple) for side in sides):
            raise SecurityError(f"operator {operator} on text or lists is not allowed in a template")
        if isinstance(left, int) and isinstance(right, int) and _result_bits(operator, left, right) > _MAX_INT_BITS:
            raise SecurityError(f"operator {operator} gives too large a number for a template")
        return super().call_binop(context, operator, left, right)


def _result_bits(operator: str, left: int, right: int) -> int:
    if operator == "**":
        return left.bit_length() * max(right, 0)
    return left.bit_length() + right.bit_length()


class _GenerationTag(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training; here its body is simply rendered."""

    tags = {"generation"}  # noqa: RUF012 - the type that jinja2 declares

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Callable[[], str]) -> str:
        return caller()


class _Dict:
    """Stands for dict, without the attributes of a class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class _Namespace(Namespace):
    """A jinja2 namespace that refuses underscored names, as transformers does."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} is not allowed in a template")


def environment() -> ImmutableSandboxedEnvironment:
    environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    # jinja2's own filter escapes HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
    )


def _listed(value: Any) -> list[Any]:
    """What filters such as map give, which is no list."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
