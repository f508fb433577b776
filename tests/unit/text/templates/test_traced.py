"""Text in a template knows who wrote each of its characters, whatever the template does to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.filters import do_indent

from moeinf.text.templates.rendering import marked, split_marked
from moeinf.text.templates.sandbox import environment
from moeinf.text.templates.traced import GIVEN, OWN, Traced, origins_of, traced_concat

CONTROL = ["<|end|>", "<s>", "<|user|>"]


def drawn(text: str, origins: Sequence[bool]) -> Traced:
    return traced_concat(Traced(char, OWN if own else GIVEN) for char, own in zip(text, origins, strict=False))


TEXTS = st.text("ab \n<|", max_size=12)
TRACED = st.builds(drawn, TEXTS, st.lists(st.booleans(), min_size=12, max_size=12))
OPERATIONS: list[Callable[[Any, Any], Any]] = [
    lambda a, b: a + b,
    lambda a, b: str(b) + a,
    lambda a, b: a * 3,
    lambda a, b: a[1:],
    lambda a, b: a[::-2],
    lambda a, b: list(a),
    lambda a, b: a.join([b, b, "x"]),
    lambda a, b: a.replace("a", b),
    lambda a, b: a.replace("a", b, 1),
    lambda a, b: a.replace("", b),
    lambda a, b: a.split(),
    lambda a, b: a.split("a"),
    lambda a, b: a.split(None, 1),
    lambda a, b: a.rsplit("aa", 1),
    lambda a, b: a.rsplit(None, 1),
    lambda a, b: a.splitlines(),
    lambda a, b: a.splitlines(True),
    lambda a, b: a.partition("a"),
    lambda a, b: a.rpartition("b"),
    lambda a, b: [a.strip(), a.lstrip("a"), a.rstrip("<")],
    lambda a, b: [a.removeprefix("a"), a.removesuffix("b"), a.removeprefix(""), a.removesuffix("")],
    lambda a, b: [a.upper(), a.lower(), a.title(), a.capitalize()],
    lambda a, b: [len(a), a == b, a < b, "a" in a, a.find("b"), hash(a), a.startswith("a"), a.isspace()],
]


def plain(value: Any) -> Any:
    """The same without origins, for which a text is checked to have one for each character."""
    if isinstance(value, str):
        assert len(origins_of(value)) == len(value)
        return str.__str__(value) if type(value) is str else "".join(chr(ord(c)) for c in str.__iter__(value))
    return [plain(each) for each in value] if isinstance(value, list | tuple) else value


@given(TRACED, TRACED)
@settings(max_examples=300, deadline=None)
def test_traced_text_does_what_text_does(first: Traced, second: Traced) -> None:
    for operation in OPERATIONS:
        assert plain(operation(first, second)) == plain(operation(plain(first), plain(second)))


@given(st.lists(st.tuples(st.booleans(), TEXTS), max_size=4), st.sampled_from(OPERATIONS[:-1]))
@settings(max_examples=300, deadline=None)
def test_a_character_keeps_its_writer(parts: list[tuple[bool, str]], operation: Callable[[Any, Any], Any]) -> None:
    """Own text is in capitals, so that the letters tell where a character has come from."""
    text = traced_concat(Traced(t.upper() if own else t, OWN if own else GIVEN) for own, t in parts)
    for made in [found] if isinstance(found := operation(text, Traced("y")), str) else found:
        if not isinstance(made, str) or operation in OPERATIONS[-2:]:
            continue
        for char, origin in zip(made, origins_of(made), strict=True):
            assert not (char.islower() and origin == OWN)


@pytest.mark.parametrize(
    ("source", "counted"),
    [
        ("<|end|>", 1),
        ("{{ '<|end|>' }}{{ x }}", 1),
        ("{{ '<|' + role + '|>' }}", 1),
        ("{{ '<|' ~ role ~ '|>' }}", 1),
        ("{{ '<|{}|>'.format(role) }}", 1),
        ("{{ '<|{0}{end}'.format(role, end='|>') }}", 1),
        ("{{ '<|%s|>' | format(role) }}{{ '<|%(a)s%(b)s' | format(a=role, b='|>') }}{{ '%s' % '<|end|>' }}", 3),
        ("{{ '<|%s|>%d%%' % (role, 3) }}{{ '%-9s' | format('a') ~ '%s%5.1f' % ('<|end|>', 2) }}{{ '%s' % (x,) }}", 2),
        ("{{ ('<|end|>\n' ~ x ~ '\n\n<|end|>') | indent(2) }}{{ (x ~ '<|end|>\n') | indent('<', true, true) }}", 3),
        ("{{ ['<|', role, '|>'] | join }}{{ ['<|', '|>'] | join(role) }}", 2),
        ("{% macro m(a) %}<|{{ a }}|>{% endmacro %}{{ m('end') | trim }}", 1),
        ("{% set a %}<|end|>{% endset %}{{ a }}{{ a | string }}{{ a | upper | lower }}", 3),
        ("{% set n = namespace(t='') %}{% for c in '<|end|>' %}{% set n.t = n.t + c %}{% endfor %}{{ n.t }}", 1),
        ("{{ {'a': '<|end|>'}['a'] }}{{ ['<|end|>'][0] }}{{ none | default('<|end|>', true) }}", 3),
        ("{{ 'end>'.replace('end', '<|end|') }}{{ x | replace(x, '<|end|>') }}{{ x.replace(x, '<|end|>') }}", 3),
        ("{{ '  <|end|> '.split()[0] }}{{ '<|end|>,'.split(',') | first }}{{ '<|end|>' * 2 }}", 4),
        ("{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(y) m() %}<|end|>{{ x }}{% endcall %}", 1),
        ("{{ '<|end|>' | safe }}{{ ('<|' ~ role ~ '|>') | safe | trim }}{{ x | safe ~ '<|end|>' }}", 3),
        ("{% filter trim %}<|end|>{% endfilter %}{% generation %}<|end|>{% endgeneration %}", 2),
        ("{{ x }}{{ x | upper | lower }}{{ x | tojson }}{{ [x] | join }}{{ x[:3] ~ x[3:] }}{{ {x: x} }}", 0),
        ("{{ '<' + name + '>' }}{{ '<' ~ name ~ '>' }}{{ '<{}>'.format(name) }}{{ '<%s>' | format(name) }}", 0),
        ("{{ first }}{{ second }}{{ first ~ second }}{{ first + second }}{{ [first, second] | join }}", 0),
        ("{{ x | replace('<b>', '') }}{{ '<|b' | replace('b', name) }}{{ split.split('</t>') | join('') }}", 0),
        ("{% for k, v in tool.items() %}{{ k }}{{ v }}<{{ k }}>{% endfor %}{{ tool | tojson(indent=2) }}", 0),
        ("{{ x | safe }}{{ x | list | join }}{{ x | reverse | reverse }}{{ x | indent }}{{ '{}'.format(x) }}", 0),
        ("{{ x.format() }}{{ '%s' | format(x) }}{{ x | string | trim }}{{ x ~ 1 }}{{ (x,) | string }}", 0),
    ],
)
def test_only_what_a_template_has_written_in_every_character_is_a_control_token(source: str, counted: int) -> None:
    told = {"x": "<|end|>", "name": "|end|", "first": "<|en", "second": "d|>", "split": "<|en</t>d|>"}
    known = {**{k: Traced(v) for k, v in told.items()}, "tool": {Traced("|end|"): Traced("<|end|>")}}
    text = traced_concat(environment().from_string(source).generate(known, role=Traced("end", OWN)))
    pieces = list(split_marked(marked(text, CONTROL), CONTROL))
    assert sum(piece in CONTROL and not letters for piece, letters in pieces) == counted
    assert "".join(piece for piece, _ in pieces) == text


TEMPLATE_TEXT = st.text("a\n %s", max_size=12)


@given(TEMPLATE_TEXT, st.integers(0, 5), st.booleans(), st.booleans())
@settings(max_examples=100, deadline=None)
def test_lines_are_indented_as_by_jinja2(text: str, width: int, first: bool, blank: bool) -> None:
    wanted = do_indent(text, width, first, blank)
    given = {"text": Traced(text), "width": width, "first": first, "blank": blank}
    assert environment().from_string("{{ text | indent(width, first, blank) }}").render(given) == wanted


CONVERSIONS = st.sampled_from(
    ["%s", "%d", "%5d", "%-7s", "%05.2f", "%%", "%r", "%x", "%(a)s", "%(b)+d", "a", " %", "<|"]
)
VALUES = st.one_of(st.integers(-9, 999), st.sampled_from(["x", "", "%s"]), st.floats(-9, 9))
GIVEN_VALUES = st.one_of(
    VALUES, st.lists(VALUES, max_size=3).map(tuple), st.fixed_dictionaries({"a": VALUES, "b": VALUES})
)


@given(st.lists(CONVERSIONS, max_size=4).map("".join), GIVEN_VALUES)
@settings(max_examples=300, deadline=None)
def test_percent_does_what_python_does(text: str, value: object) -> None:
    def outcome(call: Callable[[], str]) -> str:
        try:
            return call()
        except (TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}"

    template = environment().from_string("{{ text % value }}")
    assert outcome(lambda: template.render(text=Traced(text, OWN), value=value)) == outcome(lambda: text % value)


def test_a_token_behind_letters_that_overlap_it_counts() -> None:
    text = Traced("<s") + Traced("<s>", OWN) + Traced("<|end|") + Traced("<|end|>", OWN)
    pieces = list(split_marked(marked(text, CONTROL), CONTROL))
    assert [piece for piece, letters in pieces if piece in CONTROL and not letters] == ["<s>", "<|end|>"]
