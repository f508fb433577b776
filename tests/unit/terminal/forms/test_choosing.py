"""The question before much is fetched."""

from __future__ import annotations

import io
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from moeinf.terminal.forms import choosing


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def row(tag: str, num_bytes: int, fault: str = "") -> Any:
    return SimpleNamespace(form=SimpleNamespace(tag=tag, download_bytes=num_bytes), fault=fault)


@pytest.fixture
def choice() -> Any:
    rows = [row("q8_0", 32 * 10**9), row("q4_k_m", 18 * 10**9), row("q2_k", 10**9, fault="needs more memory")]
    by_tag = {each.form.tag: each for each in rows}
    return SimpleNamespace(taken=rows[0], of_tag=by_tag.get, tags=["q8_0", "q4_k_m"])


@pytest.fixture
def asked(choice: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """asked(typed, bytes) -> the tag that is taken, and what was said."""

    def call(typed: str, *, yes: bool = False, taken: int = 0) -> tuple[str, str]:
        choice.taken = list(map(choice.of_tag, choice.tags))[taken]
        monkeypatch.setattr(sys, "stdin", Terminal(typed))
        monkeypatch.setattr(sys, "stderr", said := Terminal())
        monkeypatch.setattr(choosing, "form_lines", lambda *given: ["the forms"])
        found: list[Any] = []

        def settle(meant: Any, library: Any, choose: Any) -> Any:
            found.append(choose(meant.known, meant.asked, None))
            return meant

        monkeypatch.setattr(choosing, "settled", settle)
        monkeypatch.setattr(choosing, "choice_among", lambda *given: choice)
        meant, nothing = SimpleNamespace(known="x", asked="x"), SimpleNamespace(home=None)
        choosing.chosen_form(meant, nothing, nothing, "run", yes=yes, quiet=False)  # type: ignore[arg-type]
        return found[0].tag, said.getvalue()

    return call


@pytest.mark.parametrize("typed", ["\n", "y\n", "YES\n"])
def test_the_usual_form_is_fetched_by_a_key(typed: str, asked: Any) -> None:
    tag, said = asked(typed)
    assert tag == "q8_0" and "fetch 32 GB of q8_0? [Y/n, or another tag]" in said


def test_another_form_is_taken_by_its_tag(asked: Any) -> None:
    assert asked("Q4_K_M\n")[0] == "q4_k_m"


def test_what_is_none_of_them_is_asked_again(asked: Any) -> None:
    tag, said = asked("q2_k\nmaybe\ny\n")
    assert tag == "q8_0" and said.count("is none of them that runs here: q8_0, q4_k_m") == 2


@pytest.mark.parametrize("typed", ["n\n", "No\n", ""])
def test_nothing_is_fetched_without_a_yes(typed: str, asked: Any) -> None:
    with pytest.raises(typer.Exit) as raised:
        asked(typed)
    assert raised.value.exit_code == 1


def test_nobody_is_asked_about_little_or_who_said_yes(asked: Any) -> None:
    assert "fetch" not in asked("", taken=1)[1]
    assert "fetch" not in asked("", yes=True)[1]
