"""--format and /set format."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli.commands import Done

Command = Callable[..., Done]
SCHEMA = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}'


@pytest.mark.parametrize("words", [("--temperature", "0"), ("--seed", "4"), ("--raw", "--seed", "4")])
def test_an_answer_is_json_of_the_schema(command: Command, words: tuple[str, ...]) -> None:
    done = command("run", "demo", "The king:", "--format", SCHEMA, *words)
    assert (done.code, list(json.loads(done.out))) == (0, ["a"])


def test_a_file_may_hold_the_schema(command: Command, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(SCHEMA + "\n")
    done = command("run", "demo", "The king:", "--format", f"@{tmp_path}/schema.json", "--json")
    assert json.loads(json.loads(done.out)["response"])["a"] in (1, 2)


@pytest.mark.parametrize(
    ("format", "said"),
    [
        ("yaml", "--format is neither json nor a JSON schema"),
        ("[1]", "--format '[1]' is no JSON schema"),
        ("@missing.json", "--format @missing.json cannot be read: No such file or directory"),
        ('{"not": {"type": "null"}}', 'format: Unimplemented keys: ["not"]; change the schema'),
    ],
)
def test_a_wrong_format_is_one_line(command: Command, format: str, said: str) -> None:
    done = command("run", "demo", "hi", "--format", format)
    assert (done.code, done.out) == (2, "") and done.err.splitlines()[-1].startswith(f"Error: {said}")
