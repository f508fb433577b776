"""JSON is passed on as it comes, up to where it ends or goes wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.text.tool_calls.json_text import read_json
from moeinf.text.tool_calls.reading import Fragment, NotACallError, Source

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def read(parts: list[str]) -> tuple[str, bool, str]:
    """The fragments together, whether the value was whole, and what is left."""
    source, text = Source(), ""
    reader = read_json(source)
    whole = False
    try:
        for part in [*parts, None]:
            source.text, source.ended = source.text + (part or ""), part is None
            for event in reader:
                if event is None:
                    break
                assert isinstance(event, Fragment)
                text += event.text
            else:
                whole = True
                break
    except NotACallError:
        pass
    return text, whole, "".join(parts)[source.at :]


@settings(max_examples=200, deadline=None)
@given(
    value=st.dictionaries(st.text(), VALUES, max_size=4),
    indent=st.none() | st.integers(0, 2),
    ascii_only=st.booleans(),
    data=st.data(),
)
def test_any_object_comes_through_as_it_is(
    value: Any, indent: int | None, ascii_only: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    at = data.draw(st.integers(0, len(text)))
    assert read([text[:at], text[at:] + " behind"]) == (text, True, " behind") == read([*text, " behind"])


@pytest.mark.parametrize(
    ("text", "passed", "left"),
    [
        ('{"a" 1}', '{"a" ', "1}"),
        ("[1,,2]", "[1", ",2]"),
        ("[1 2]", "[1 ", "2]"),
        ("{a: 1}", "{", "a: 1}"),
        ('{"a": 1]', '{"a": 1', "]"),
        ("[" * 200, "[" * 100, "[" * 100),
        ('["a', '["a', ""),
        ('["\\', '["', "\\"),
        ("[tru", "[", "tru"),
    ],
)
def test_what_is_wrong_stays_behind(text: str, passed: str, left: str) -> None:
    assert read([text]) == (passed, False, left) == read(list(text))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('["a\nb\tc"]', ["a\nb\tc"]),
        (r'["\d+\.\s"]', [r"\d+\.\s"]),
        (r'["it\'s"]', ["it's"]),
        (r'["\u00e9 \u12x"]', ["é \\u12x"]),
        (r'["C:\users"]', [r"C:\users"]),
        ("[True, FALSE, None, null]", [True, False, None, None]),
        ("[1., .5, +7, -.5e1, 0.]", [1.0, 0.5, 7, -5.0, 0.0]),
        ("[NaN, -Infinity, 007, 1.2.3, Rome]", ["NaN", "-Infinity", "007", "1.2.3", "Rome"]),
        ("[1e999, 1e-999]", ["1e999", 0.0]),
        (f"[{'7' * 5000}]", ["7" * 5000]),
        ('{"a": [1, 2 , ], }', {"a": [1, 2]}),
        ("{'a': 'x \"y\" \\'z\\''}", {"a": "x \"y\" 'z'"}),
        (
            r'["\ud83d\ude00", "\ud83d", "\ude00", "\ud83d\u0041", "\ud83d\n"]',
            ["😀", "\ufffd", "\ufffd", "\ufffdA", "\ufffd\n"],
        ),
    ],
)
def test_what_means_one_thing_is_mended(text: str, meant: list[str]) -> None:
    for parts in ([text], list(text)):
        passed, whole, left = read(parts)
        assert (json.loads(passed), whole, left) == (meant, True, "")
