from __future__ import annotations

import runpy
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_about_the_command_line_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rendered = runpy.run_path(str(DOCS / "generate_cli.py"))["render"]()
    written = (DOCS / "cli.md").read_text(encoding="utf-8")
    # Versions of typer wrap lines differently.
    assert written.split() == rendered.split(), "run: python docs/generate_cli.py"
