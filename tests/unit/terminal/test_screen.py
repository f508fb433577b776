from __future__ import annotations

import io
from datetime import datetime, timedelta, timezone

import pytest

from moeinf.config.size import parse_size
from moeinf.terminal import screen
from moeinf.terminal.screen import WordWrap
from moeinf.text import quantities

NOW = datetime(2026, 1, 31, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KB"),
        (4_700_000_000, "4.7 GB"),
        (9_949_999, "9.9 MB"),
        (9_960_000, "10 MB"),
        (42_000_000_000, "42 GB"),
        (999_600_000, "1.0 GB"),
        (3e15, "3.0 PB"),
    ],
)
def test_sizes_are_decimal_with_one_digit_below_ten(num_bytes: float, text: str) -> None:
    assert quantities.size_text(num_bytes) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [(46_700_000_000, "46.7B"), (8_000_000_000, "8B"), (5_560_000, "5.56M"), (999, "999"), (512_000, "512K")],
)
def test_counts_are_short(number: int, text: str) -> None:
    assert quantities.count_text(number) == text


@pytest.mark.parametrize(
    ("span", "text"),
    [
        (timedelta(0), "Less than a second ago"),
        (timedelta(seconds=1), "1 second ago"),
        (timedelta(seconds=5), "5 seconds ago"),
        (timedelta(seconds=70), "About a minute ago"),
        (timedelta(minutes=4), "4 minutes ago"),
        (timedelta(minutes=70), "About an hour ago"),
        (timedelta(hours=47), "47 hours ago"),
        (timedelta(days=2), "2 days ago"),
        (timedelta(weeks=3), "3 weeks ago"),
        (timedelta(days=90), "3 months ago"),
        (timedelta(days=800), "2 years ago"),
        (timedelta(seconds=-5), "Less than a second ago"),
    ],
)
def test_moments_are_said_as_ollama_says_them(span: timedelta, text: str) -> None:
    assert quantities.ago_text(NOW - span, NOW) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (41.231, "41.231s"),
        (0.004102331, "4.10233ms"),
        (63.2, "1m3.2s"),
        (3605, "1h0m5s"),
        (40, "40s"),
        (59.9999, "1m0s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert quantities.duration_text(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(28, "28s"), (268, "4m28s"), (3900, "1h5m"), (400_000, "99h+")])
def test_remaining_time_is_coarse(seconds: float, text: str) -> None:
    assert quantities.eta_text(seconds) == text


def test_columns_are_four_spaces_apart_and_lines_end_without_spaces() -> None:
    assert screen.table([("NAME", "SIZE"), ("日本:latest", "4 B"), ("b", "")]) == [
        "NAME           SIZE",
        "日本:latest    4 B",
        "b",
    ]


@pytest.mark.parametrize(
    "text", ["\x1b[2Ja", "\x1b]52;c;eA==\x07a", "\x9b31ma", "a\r", "\u202ea", "\x00a\x7f", "a\u2066"]
)
def test_nothing_that_drives_a_terminal_is_left_in_model_text(text: str) -> None:
    shown = screen.harmless(text)
    assert "a" in shown
    assert not any(ord(char) < 32 or 0x7F <= ord(char) < 0xA0 or char in "\u202e\u2066" for char in shown)


def test_newlines_tabs_emoji_and_joiners_stay() -> None:
    text = "a\n\tb 👩‍👩‍👧 עברית"
    assert screen.harmless(text) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (44 << 20, "44.0 MiB"),
        ((44 << 20) + 1, "44.1 MiB"),
        (1 << 30, "1.00 GiB"),
        ((1 << 30) + 1, "1.01 GiB"),
        (48 << 10, "48.0 KiB"),
    ],
)
def test_a_lower_bound_is_rounded_so_that_it_suffices(num_bytes: int, text: str) -> None:
    assert quantities.at_least_text(num_bytes) == text
    size = parse_size("--ram", text)
    assert size is not None and size.of(0) >= num_bytes


def test_a_long_line_breaks_between_words_and_no_figure_is_torn_apart() -> None:
    text = "demo · 2.6B (293.10M active) bf16 · CPU, RAM 600 MB: dense 4.1 MB, KV 12 KB, experts 192/192 (9.4 MB)"
    lines = screen.wrapped(text, 80).splitlines()
    assert len(lines) == 2 and all(len(line) < 80 for line in lines)
    assert " ".join(line.strip() for line in lines) == text
    for columns in range(30, 110):
        shown = screen.wrapped(text, columns)
        assert "experts 192/192 (9.4 MB)" in shown and "RAM 600 MB:" in shown


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("short\n\n  lines", 40, "short\n\n  lines"),
        ("Error: model 'x' not found; see the list", 20, "Error: model 'x' not\n  found; see the\n  list"),
        ("  /save <name>    Keep this chat", 24, "  /save <name>    Keep\n    this chat"),
        ("  /set    Set the variables", 20, "  /set    Set the\n          variables"),
        ("NAME       ID     SIZE", 14, "NAME       ID\n  SIZE"),
        ("a-hyphen/and-a-path-that-is-long", 10, "a-hyphen/and-a-path-that-is-long"),
    ],
)
def test_lines_that_are_too_wide_break_between_words(text: str, columns: int, shown: str) -> None:
    assert screen.fitted(text, columns) == shown


def test_only_a_terminal_has_its_lines_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "20")
    text = "\x1b[2J" + "words " * 9
    assert screen.for_terminal(text, io.StringIO()) == text
    fitted = screen.for_terminal(text, Terminal())
    assert "\x1b" not in fitted and max(map(len, fitted.splitlines())) <= 20


def shown_by_terminal(written: str, columns: int) -> list[str]:
    """The lines that a terminal would show: text, newlines, and the sequence that takes a word back."""
    lines, at = [""], 0
    while at < len(written):
        if written[at] == "\n":
            lines.append("")
        elif written[at] == "\x1b":
            end = written.index("D\x1b[K", at)
            lines[-1] = lines[-1][: len(lines[-1]) - int(written[at + 2 : end])]
            at = end + 3
        else:
            lines[-1] += written[at]
        at += 1
    assert all(screen.text_width(line) <= columns for line in lines)
    return lines


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_word_that_does_not_fit_moves_to_the_next_line(cut: int) -> None:
    text = "the quick brown fox jumps over it\nand on"
    wrap = WordWrap(lambda: 12)
    written = "".join(wrap.push(text[at : at + cut]) for at in range(0, len(text), cut))
    lines = [line.rstrip() for line in shown_by_terminal(written, 12)]
    assert lines == ["the quick", "brown fox", "jumps over", "it", "and on"]


def test_a_word_longer_than_a_line_is_broken_and_nothing_of_it_is_lost() -> None:
    wrap = WordWrap(lambda: 10)
    assert "".join(shown_by_terminal(wrap.push("ab " + "x" * 35), 10)).replace(" ", "") == "ab" + "x" * 35


def test_wide_characters_break_anywhere_and_never_leave_the_line() -> None:
    wrap = WordWrap(lambda: 10)
    assert (
        "".join(shown_by_terminal(wrap.push("日本語のテキストはどこでも切れる"), 10))
        == "日本語のテキストはどこでも切れる"
    )


def test_lines_follow_a_terminal_that_is_made_narrower_meanwhile() -> None:
    columns = [40]
    wrap = WordWrap(lambda: columns[0])
    wrap.push("the quick brown fox jumps ov")
    columns[0] = 12  # the terminal has laid the line out anew: "the quick br", "own fox jump", "s ov"
    written = wrap.push("er the lazy dog and runs away")
    lines = [line.rstrip() for line in shown_by_terminal("s ov" + written, 12)]
    assert lines == ["s over the", "lazy dog", "and runs", "away"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("\u1112\u1161\u11ab", 2),  # one syllable, written as its three letters
        ("a\xadb", 3),  # a soft hyphen is shown
        ("e\u0301", 1),
        ("\u200b", 0),
    ],
)
def test_characters_take_the_columns_that_terminals_give_them(text: str, columns: int) -> None:
    assert screen.text_width(text) == columns
