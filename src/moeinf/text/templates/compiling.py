"""Chat templates compiled so that each of their literals is known for the template's own (traced.py)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Final

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from moeinf.text.templates.traced import GIVEN, OWN, Traced, origins_of, traced_concat

# A conversion of Python's operator % on text.
_CONVERSION: Final = re.compile(r"%(?:\(([^()]*)\))?[#0 +-]*(\*|\d+)?(?:\.(\*|\d+))?[hlL]?[diouxXeEfFgGcrsa%]")
_MOST_WIDE: Final = 1 << 12  # characters of a number or text that is padded


@lru_cache(1 << 12)
def own(text: str) -> Traced:
    return Traced(text, OWN)


class TracingGenerator(CodeGenerator):
    """Writes environment.own(...) for literals, and lets the environment join texts.

    The environment must not be optimized: constants that are lists hide their literals.
    """

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:
        if isinstance(node.value, str):
            self.write(f"environment.own({node.value!r})")
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:
        self.write(f"environment.own({node.data!r})")

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("concat((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def _output_const_repr(self, group: Iterable[object]) -> str:
        return f"environment.own({super()._output_const_repr(group)})"


def formatted(
    environment: SandboxedEnvironment, text: Traced, args: Sequence[object], kwargs: Mapping[str, object]
) -> Traced:
    """text.format(*args, **kwargs), in which texts stay what they are."""
    formatter, numbers = SandboxedFormatter(environment), count()
    origin = OWN if set(origins_of(text)) <= {OWN} else GIVEN
    parts: list[object] = []
    for literal, field, spec, conversion in formatter.parse(text):
        parts.append(Traced(literal, origin))
        if field is None:
            continue
        name = field if field and field[0] not in ".[" else f"{next(numbers)}{field}"
        if spec or conversion:
            whole = "{" + name + (f"!{conversion}" if conversion else "") + (f":{spec}" if spec else "") + "}"
            parts.append(formatter.vformat(whole, args, kwargs))
        else:
            parts.append(formatter.get_field(name, args, kwargs)[0])
    return traced_concat(parts)


def percent_formatted(text: str, given: object) -> Traced:
    """text % given, in which texts stay what they are. Raises SecurityError for a width that may take all memory."""
    found = list(_CONVERSION.finditer(text))
    widths = [width for each in found for width in each.group(2, 3) if width]
    if any(width == "*" or int(width) > _MOST_WIDE for width in widths):
        raise SecurityError(f"a conversion that pads to * or to more than {_MOST_WIDE} is not allowed in a template")
    plain = str.__mod__(text, given)
    values = iter(given if isinstance(given, tuple) else (given,))
    parts, at = list[object](), 0
    for each in found:
        parts.append(text[at : each.start()])
        at = each.end()
        if each[0].endswith("%"):
            parts.append(text[each.start()])
        else:
            value = given[each[1]] if each[1] is not None and isinstance(given, Mapping) else next(values)
            whole = each[0].startswith(("%s", "%(")) and each[0].endswith(("%s", ")s")) and isinstance(value, str)
            parts.append(value if whole else each[0] % (given if each[1] is not None else (value,)))
    traced = traced_concat([*parts, text[at:]])
    return traced if traced == plain else Traced(plain)
