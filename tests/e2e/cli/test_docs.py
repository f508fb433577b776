"""Pages and pictures that scripts of docs/ make are as the scripts make them now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
COLUMNS = 120


def test_the_page_about_the_command_line_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rendered = runpy.run_path(str(DOCS / "generate_cli.py"))["render"]()
    written = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    # Versions of typer wrap lines differently.
    assert written.split() == rendered.split(), "run: python docs/generate_cli.py"


def test_the_page_about_fields_is_what_the_server_does() -> None:
    written = (DOCS / "reference" / "fields.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(DOCS / "generate_fields.py"))["page"](), "run: python docs/generate_fields.py"


def test_the_pictures_are_those_of_the_script() -> None:
    for name, draw in runpy.run_path(str(DOCS / "generate_pictures.py"))["PICTURES"].items():
        written = (DOCS / "contributing" / name).read_text(encoding="utf-8")
        assert written == draw().svg(), "run: python docs/generate_pictures.py"


def test_prose_is_wrapped_at_120_columns() -> None:
    root = DOCS.parent
    for page in (*root.glob("*.md"), *DOCS.rglob("*.md")):
        prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        long = [line for line in prose.splitlines() if len(line) > COLUMNS and not line.startswith("|")]
        assert not long, f"{page.relative_to(root)}: wrap these lines, of which the first is {long[0]!r}"
