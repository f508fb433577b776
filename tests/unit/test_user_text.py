"""Text of users' files is the same by whatever editor and system it was written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moeinf.config.server_options import ServerOptions, keys_of
from moeinf.config.user_text import decoded
from moeinf.errors import UsageError
from moeinf.store.naming.aliases import ALIAS_FILE, aliases
from moeinf.terminal.arguments.modelfile_options import read_modelfile
from moeinf.terminal.arguments.values import format_text
from moeinf.terminal.oneshot import prompt_text

MARKED = ("utf-8-sig", "utf-16", "utf-32")
READ = "import sys; from moeinf.config.user_text import open_file as opened; print(opened(sys.argv[1]).read().decode())"
ENCODINGS = (*MARKED, "utf-8", "utf-16-le", "utf-16-be")


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"])), st.sampled_from(MARKED))
@example("", "utf-16")
@example("\ufffe\ufeff", "utf-16")
def test_a_mark_tells_the_encoding_of_any_text(text: str, encoding: str) -> None:
    assert decoded(text.encode(encoding)) == text


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"], exclude_characters="\ufeff")))
def test_text_without_a_mark_is_utf_8(text: str) -> None:
    assert decoded(text.encode()) == text


@given(st.text(st.characters(min_codepoint=1, max_codepoint=0xFF), min_size=1))
def test_latin_text_in_utf_16_needs_no_mark(text: str) -> None:
    text = "The answer: " + text
    assert decoded(text.encode("utf-16-le")) == decoded(text.encode("utf-16-be")) == text


@given(st.binary())
def test_no_bytes_are_refused(data: bytes) -> None:
    decoded(data).encode()


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_prompts_schemas_keys_and_names_are_read(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def written(name: str, text: str) -> Path:
        (tmp_path / name).write_bytes(text.encode(encoding))
        return tmp_path / name

    monkeypatch.setattr("sys.stdin", written("piped", "Name three\r\n").open(encoding="latin-1"))
    assert prompt_text(["seas"], written("file", "of the\n")) == "Name three\nof the\nseas"
    assert format_text(f"@{written('schema', '{}')}") == "{}"
    assert keys_of(ServerOptions(key_file=str(written("keys", "one\r\ntwo\r\n"))), None) == ("one", "two")
    written(ALIAS_FILE, '{"mine": "org/repo"}')
    assert aliases(tmp_path)["mine"].location == "org/repo"


def test_a_pipe_that_nobody_writes_to_is_empty(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert format_text(f"@{tmp_path / 'pipe'}") == ""
    with pytest.raises(UsageError, match="has no FROM line"):
        read_modelfile(tmp_path / "pipe")
    with pytest.raises(UsageError, match="holds no key"):
        keys_of(ServerOptions(key_file=str(tmp_path / "pipe")), None)


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    shell = ["bash", "-c", f"{sys.executable} -c '{READ}' <(sleep 0.2; echo FROM here)"]
    assert subprocess.run(shell, capture_output=True, text=True, check=True).stdout.strip() == "FROM here"


def test_keys_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "keys").write_bytes(b"caf\xe9\n")
    with pytest.raises(UsageError, match="is no UTF-8 text"):
        keys_of(ServerOptions(key_file=str(tmp_path / "keys")), None)
