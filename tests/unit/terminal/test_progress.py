from __future__ import annotations

import io

import pytest

from moeinf.pull.steps import PlannedFile, PullPlan
from moeinf.store.manifest import ModelSource
from moeinf.terminal.progress import ByteCount, LoadBar, PrefillCount, StatusLine
from moeinf.terminal.pull_progress import BarView, ByteMeter, PullDisplay, plan_lines


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_status_line_redraws_itself_ten_times_a_second_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    clock, stream = Clock(), io.StringIO()
    line = StatusLine(stream, enabled=True, clock=clock)
    line.show("first\x1b")
    line.show("too soon")
    clock.now += 0.2
    line.show("second " + "x" * 50)
    line.clear()
    line.clear()
    assert stream.getvalue() == "\rfirst\x1b[K" + "\rsecond xxxxxxxxxxxx\x1b[K" + "\r\x1b[K"


def test_a_status_line_that_is_off_writes_nothing() -> None:
    stream = io.StringIO()
    line = StatusLine(stream, enabled=False)
    line.show("text")
    line.clear()
    assert stream.getvalue() == ""


def test_loading_shows_percent_bytes_and_the_rate_since_reading_began(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    clock, stream = Clock(), io.StringIO()
    bar = LoadBar(StatusLine(stream, enabled=True, clock=clock), "loading m:latest", clock)
    clock.now += 5
    bar(0, 9_300_000_000)
    clock.now += 2
    bar(6_200_000_000, 9_300_000_000)
    assert "loading m:latest:   0% ▕                    ▏ 0 B/9.3 GB   0.00 GB/s" in stream.getvalue()
    assert "loading m:latest:  66% ▕█████████████       ▏ 6.2 GB/9.3 GB   3.10 GB/s" in stream.getvalue()


def test_prefill_is_silent_for_two_seconds() -> None:
    clock, stream = Clock(), io.StringIO()
    count = PrefillCount(StatusLine(stream, enabled=True, clock=clock), clock)
    clock.now += 1.9
    count(512, 8192)
    assert stream.getvalue() == ""
    clock.now += 0.2
    count(1024, 8192)
    assert "prefill 1024/8192 tokens" in stream.getvalue()


def test_bytes_are_added_up() -> None:
    clock, stream = Clock(), io.StringIO()
    count = ByteCount(StatusLine(stream, enabled=True, clock=clock), "verifying m", 4000)
    count(1000)
    clock.now += 1
    count(1000)
    assert "verifying m:  50%" in stream.getvalue() and "2.0 KB/4.0 KB" in stream.getvalue()


def test_rate_and_time_left_are_of_the_last_ten_seconds() -> None:
    clock = Clock()
    meter = ByteMeter(9_300_000_000, 0, clock)
    for rate in [1_000_000] * 20 + [11_000_000] * 12:
        clock.now += 1
        meter.advance(rate)
    assert meter.bytes_per_s == pytest.approx(11_000_000)
    assert meter.line("pulling x") == "pulling x:   1% ▕                    ▏ 152 MB/9.3 GB   11 MB/s   13m51s"


def test_off_a_terminal_a_pull_says_start_end_and_every_tenth() -> None:
    clock, stream = Clock(), io.StringIO()
    with PullDisplay(stream, clock=clock) as display:
        display.stage("pulling manifest")
        display.total("pulling", 1000, 0)
        display.start("pulling", "a.safetensors", 1000, 0)
        for _ in range(100):
            display.advance(10)
        display.finish()
        display.start("converting", "a.safetensors", 1000, 500)
        clock.now += 31
        display.advance(10)
        display.finish()
    lines = stream.getvalue().splitlines()
    assert lines[:2] == ["pulling manifest", "pulling a.safetensors (1.0 KB)"]
    assert lines[2] == "pulling a.safetensors: 10% 100 B/1.0 KB"
    assert len(lines) == 1 + 1 + 9 + 1 + 3
    assert lines[-2:] == ["converting a.safetensors: 51% 510 B/1.0 KB", "converting a.safetensors: done"]


def test_each_step_of_a_pull_is_counted_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the network, of conversion and of reading back add up to nothing that a user knows."""
    clock, lines = Clock(), list[list[str]]()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    with PullDisplay(Terminal(), clock=clock) as display:
        view = display._view
        assert isinstance(view, BarView)
        display.total("pulling", 2_000_000, 500_000)
        display.total("converting", 2_000_000, 0)
        display.total("verifying", 1_000_000, 0)
        for verb, size, rate in (
            ("pulling", 1_000_000, 10_000),
            ("converting", 1_000_000, 1_000_000),
            ("pulling", 500_000, 10_000),
            ("verifying", 1_000_000, 1_000_000),
        ):
            display.start(verb, "a", size, 0)
            for _ in range(3):
                clock.now += 1
                display.advance(rate // 4)
            lines.append(str(view._render()).splitlines())
            display.finish()
            clock.now += 60  # the time of other steps is in no rate
    assert "pulling in all:  25%" in lines[0][1] and "508 KB/2.0 MB" in lines[0][1] and "2.5 KB/s" in lines[0][1]
    assert "converting in all:  37%" in lines[1][1] and "750 KB/2.0 MB   250 KB/s" in lines[1][1]
    assert "515 KB/2.0 MB   2.5 KB/s" in lines[2][1]
    assert [line.partition(":")[0] for line in lines[3]] == ["verifying a"]


def test_the_sizes_of_a_pull_come_with_what_four_bits_would_take() -> None:
    stream = io.StringIO()
    with PullDisplay(stream) as display:
        display.sizes(93_400_000_000, 93_000_000_000, 26_000_000_000)
        display.sizes(13_000_000_000, 12_000_000_000, 12_000_000_000)
    assert stream.getvalue().splitlines() == [
        "93 GB to download, 93 GB in the store; --quant q4_k makes it 26 GB",
        "13 GB to download, 12 GB in the store",
    ]


def test_a_quiet_pull_says_only_notes() -> None:
    stream = Terminal()
    with PullDisplay(stream, quiet=True) as display:
        display.stage("pulling manifest")
        display.start("pulling", "a", 10, 0)
        display.advance(10)
        display.finish()
        display.note("another pull is under way\x1b")
    assert stream.getvalue() == "note: another pull is under way\n"


def test_file_names_and_notes_cannot_drive_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    stream = Terminal()
    with PullDisplay(stream) as display:
        display.total("pulling", 10, 0)
        display.start("pulling", "a\x1b]52;c;eA==\x07b", 10, 0)
        display.advance(10)
        display.finish()
        display.stage("done\x9b2J")
    assert "\x1b]" not in stream.getvalue() and "\x9b" not in stream.getvalue() and "\x07" not in stream.getvalue()


def test_a_plan_names_files_bytes_and_room() -> None:
    plan = PullPlan(
        "m:latest",
        ModelSource("hub", "org/m", "abc"),
        (PlannedFile("a.safetensors", 5000, 3000),),
        6000,
        7000,
        8_000_000,
        False,
        (),
    )
    assert plan_lines(plan) == [
        "m:latest: to be pulled",
        "FILE             SIZE      TO FETCH",
        "a.safetensors    5.0 KB    3.0 KB",
        "",
        "fetch 3.0 KB, store 6.0 KB, disk needed 7.0 KB, free 8.0 MB",
    ]
