"""Chat templates compiled so that each of their literals is known for the template's own (traced.py)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

from moeinf.text.templates.traced import GIVEN, OWN, Traced, origins_of, traced_concat


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
