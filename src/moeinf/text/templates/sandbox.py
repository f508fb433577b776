"""The sandbox in which chat templates run.

Templates are untrusted code. The sandbox keeps them from Python's internals; only the process of worker.py, which
alone renders them, bounds their time and memory. What a template writes knows that the template wrote it (traced.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import FilterArgumentError, SecurityError
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import SandboxedEnvironment, modifies_known_mutable
from jinja2.utils import Namespace
from markupsafe import Markup, soft_str

from moeinf.text.templates.compiling import TracingGenerator, formatted, own, percent_formatted
from moeinf.text.templates.traced import OWN, Traced, origins_of, traced_concat

_MAX_INT_BITS = 4096  # of a product or power in a template: those that count messages stay far below
_MAX_REPEATED = 1 << 20  # characters or items of a text or list times a number


class GivenList(list[Any]):
    """A list that a template is given, and cannot change."""


class GivenDict(dict[Any, Any]):
    """A mapping that a template is given, and cannot change."""


class Sandbox(SandboxedEnvironment):
    """Intercepts the operators with which one short expression takes all time or memory.

    A template may change the lists and mappings that it made itself: some keep a queue of calls.
    """

    code_generator_class = TracingGenerator
    concat = staticmethod(traced_concat)
    own = staticmethod(own)
    intercepted_binops = frozenset(["**", "*", "%"])

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        if operator == "*":
            if max(_num_repeated(left, right), _num_repeated(right, left)) > _MAX_REPEATED:
                raise SecurityError("operator * gives too long a text or list for a template")
        elif operator == "%" and isinstance(left, str):
            return percent_formatted(left, right)
        elif isinstance(left, str | bytes):
            raise SecurityError(f"operator {operator} on text is not allowed in a template")
        if isinstance(left, int) and isinstance(right, int) and _result_bits(operator, left, right) > _MAX_INT_BITS:
            raise SecurityError(f"operator {operator} gives too large a number for a template")
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        given = isinstance(obj, GivenList | GivenDict) and modifies_known_mutable(obj, attr)
        return super().is_safe_attribute(obj, attr, value) and not given

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        text, wrapped = getattr(value, "__self__", None), super().wrap_str_format(value)
        if wrapped is None or not isinstance(text, Traced) or getattr(value, "__name__", "") != "format":
            return wrapped
        return lambda *args, **kwargs: formatted(self, text, args, kwargs)


def _num_repeated(repeated: object, count: object) -> int:
    if isinstance(repeated, str | bytes | list | tuple) and isinstance(count, int):
        return len(repeated) * count
    return 0


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

    def __setitem__(self, name: str, value: object) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} is not allowed in a template")


def environment() -> Sandbox:
    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
        optimized=False,  # which would hide literals of the template in constants
    )
    environment.filters |= {"tojson": _tojson, "join": _join, "safe": _safe, "format": _format, "indent": _indent}
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": _strftime_now,
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    return environment


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML
    return Traced(
        json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys, default=_listed
        )
    )


def _safe(value: object) -> str:
    """jinja2's own, which loses who wrote a text, for what the template has not written."""
    return value if isinstance(value, str) and OWN in origins_of(value) else Markup(value)


@jinja2.pass_environment
def _join(
    environment: jinja2.Environment, value: Iterable[object], d: str = "", attribute: str | int | None = None
) -> str:
    parts = value if attribute is None else map(make_attrgetter(environment, attribute), value)
    return (d if isinstance(d, Traced) else Traced(str(d))).join(map(str, parts))


def _format(value: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise FilterArgumentError("format takes values by their order or by their names, not both")
    return percent_formatted(soft_str(value), kwargs or args)


def _indent(text: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    """jinja2's own joins lines by a text of its own, which does not know who wrote them."""
    before = width if isinstance(width, str) else " " * width
    head, *rest = (soft_str(text) + "\n").splitlines()
    lines = [head, *(before + line if line or blank else line for line in rest)]
    return (before if first else "") + Traced("\n").join(lines)


def _listed(value: object) -> list[object]:
    """What filters such as map give, which is no list."""
    if isinstance(value, Iterator):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON")


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)
