"""Calls as Python writes them: <|tool_call_start|>[name(key="text", other=3)]<|tool_call_end|>, of LFM2.

LFM2's templates know no calls in messages. Llama 4's ask for a bare JSON object with name and parameters, which
whole_json.py reads; some of its answers are such a list, or an object, between <|python_start|> and <|python_end|>.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from moeinf.text.text_stream import TOKEN_MARK
from moeinf.text.tool_calls.call_objects import checked_name, read_calls, whole_call
from moeinf.text.tool_calls.json_text import text_as_json
from moeinf.text.tool_calls.reading import NotACallError, Reading, Source
from moeinf.text.tool_calls.schema_values import ToolSchemas
from moeinf.text.tool_calls.syntax import MessageCall, Syntax
from moeinf.types import Json

_MAX_CHARS = 1 << 20  # of a list of calls
_WORDS = {"true": True, "false": False, "null": None}


def _read(close: str, source: Source, opened: str, tools: ToolSchemas) -> Reading[None]:
    """A list of calls, of which some answers forget the brackets, or JSON objects; none is certain before the end."""
    yield from source.space()
    if (yield from source.follows("{", "[{")):
        yield from read_calls(source)
        yield from source.space()
        yield from source.accept(close)
        return
    for name, arguments in (yield from _read_list(source, close)):
        yield from whole_call(name, json.dumps(arguments, ensure_ascii=False))


def _read_list(source: Source, close: str) -> Reading[list[tuple[str, dict[str, Json]]]]:
    """The calls up to a mark of the end that stands in none of their texts, or to the end of an answer that the model
    itself ended."""
    start = source.at
    while True:
        try:
            yield from source.until(close)
            end = source.at - len(source.written(close))
        except NotACallError:
            if source.cut:
                raise
            source.at = end = len(source.text)
        try:
            return _calls_of(source.text[start:end].replace(TOKEN_MARK, ""))
        except NotACallError:
            if source.at == len(source.text) and source.ended:
                raise


def _calls_of(text: str) -> list[tuple[str, dict[str, Json]]]:
    """Raises NotACallError for anything but calls with named arguments."""
    bare = text.strip()
    if len(bare) > _MAX_CHARS:
        raise NotACallError
    try:
        tree = ast.parse(bare if bare.startswith("[") else f"[{bare}]", mode="eval").body
        calls = tree.elts if isinstance(tree, ast.List) else []
        return [_call_of(each) for each in calls] or _no_call()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise NotACallError from None


def _no_call() -> list[tuple[str, dict[str, Json]]]:
    raise NotACallError


def _call_of(node: ast.expr) -> tuple[str, dict[str, Json]]:
    if not isinstance(node, ast.Call) or node.args:
        raise NotACallError
    members = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise NotACallError
        members[keyword.arg] = _value_of(keyword.value)
    return checked_name(ast.unparse(node.func)), members


def _value_of(node: ast.expr) -> Json:
    """A literal of Python, in which the words of JSON may stand as well."""
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Dict):
        keys = [ast.literal_eval(key) if key is not None else None for key in node.keys]
        if not all(isinstance(key, str) for key in keys):
            raise NotACallError
        return {str(key): _value_of(value) for key, value in zip(keys, node.values, strict=True)}
    if isinstance(node, ast.List | ast.Tuple):
        return [_value_of(each) for each in node.elts]
    value = ast.literal_eval(node)
    if not (value is None or isinstance(value, bool | int | float | str)):
        raise NotACallError
    found: Json = value if isinstance(value, str) else text_as_json(repr(value))
    return None if value is None else found


def _write(opens: str, closes: str, calls: Sequence[MessageCall]) -> str:
    functions = [call["function"] for call in calls]
    written = [
        f"{each['name']}({', '.join(f'{key}={_literal(value)}' for key, value in each['arguments'].items())})"
        for each in functions
    ]
    return f"{opens}[{', '.join(written)}]{closes}"


def _literal(value: Json) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # which is a literal of Python, too
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_literal(key)}: {_literal(item)}' for key, item in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return repr(value)


def _bare_frame(name: str, template: str) -> tuple[str, str]:
    return f'{{"name": {json.dumps(name)}, "parameters": ', "}"


def _frame(opens: str, closes: str, name: str, template: str) -> tuple[str, str]:
    """A call as a JSON object, which these models are trained on, too."""
    return f'{opens}[{{"name": {json.dumps(name)}, "arguments": ', f"}}]{closes}"


def _syntax(known_by: Sequence[str], opens: str, closes: str) -> Syntax:
    return Syntax(
        known_by=tuple(known_by),
        opens=(opens,),
        marks=(opens, closes),
        closes=(closes,),
        read=partial(_read, closes),
        frame=partial(_frame, opens, closes),
        write=partial(_write, opens, closes),
    )


LFM2 = _syntax(["<|tool_list_start|>"], "<|tool_call_start|>", "<|tool_call_end|>")
LLAMA4 = replace(
    _syntax(
        ["<|python_start|>", 'Respond in the format {"name": function name, "parameters"'],
        "<|python_start|>",
        "<|python_end|>",
    ),
    frame=_bare_frame,
)
