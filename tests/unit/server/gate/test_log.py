"""A line of the log is one line of text, whatever a client has written."""

from __future__ import annotations

import logging
import os
import sys

from moeinf.server.gate.log import MOST_WAITING, HarmlessFormatter, Lines

WORDS = "\x1b]0;title\x07\x1b[31mred\r\nforged \u202e\x9b"


def test_a_message_is_one_printable_line() -> None:
    record = logging.LogRecord("moeinf.server", logging.INFO, "", 0, "said %s", (WORDS,), None)
    line = HarmlessFormatter("%(message)s").format(record)
    assert line.isprintable() and line.startswith(r"said \x1b]0;title\x07\x1b[31mred\r\nforged ")


def test_so_is_each_line_of_a_traceback() -> None:
    try:
        raise ValueError(WORDS)
    except ValueError:
        record = logging.LogRecord("moeinf.server", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    lines = HarmlessFormatter("%(message)s").format(record).split("\n")
    assert len(lines) > 3 and all(line.isprintable() for line in lines)


def test_a_log_that_nobody_reads_stops_nothing_and_keeps_its_first_lines() -> None:
    reads, writes = os.pipe()
    handler = Lines(writes)
    for at in range(3 * MOST_WAITING):
        handler.emit(logging.LogRecord("moeinf.server", logging.INFO, "", 0, f"line {at}", (), None))
    with os.fdopen(reads, "rb") as said:
        assert [said.readline() for _ in range(MOST_WAITING)] == [b"line %d\n" % at for at in range(MOST_WAITING)]
    handler.flush()
