"""Writes sizes, counts and times for people."""

from __future__ import annotations

import math
from datetime import datetime

_STEPS = ("B", "KB", "MB", "GB", "TB", "PB")


def size_text(num_bytes: float) -> str:
    """SI: 4.7 GB, 42 GB."""
    step = 0
    while num_bytes >= 999.5 and step < len(_STEPS) - 1:
        num_bytes /= 1000
        step += 1
    return f"{num_bytes:.0f} {_STEPS[step]}" if step == 0 or num_bytes >= 9.95 else f"{num_bytes:.1f} {_STEPS[step]}"


def told_apart(one: float, other: float) -> tuple[str, str]:
    """Both sizes, to the byte where they would look the same and are not."""
    texts = size_text(one), size_text(other)
    return texts if texts[0] != texts[1] or one == other else (f"{one:.0f} B", f"{other:.0f} B")


def shortage_text(needed_bytes: float, free_bytes: float) -> str:
    """`1.2 GB needed, 1.1 GB free`."""
    needed, free = told_apart(needed_bytes, free_bytes)
    return f"{needed} needed, {free} free"


def binary_size_text(num_bytes: float) -> str:
    """GiB, MiB or KiB, as memory is counted: 3.62 GiB, 44.1 MiB."""
    for power, unit in ((3, "GiB"), (2, "MiB")):
        if num_bytes >= 1024**power:
            return f"{num_bytes / 1024**power:.{power - 1}f} {unit}"
    return f"{num_bytes / 1024:.1f} KiB"


def at_least_text(num_bytes: int) -> str:
    """The same of a lower bound, so that what is shown suffices: rounded up."""
    power = 3 if num_bytes >= 1 << 30 else 2
    step = 1024**power / 10 ** (power - 1)  # what the last digit shown counts
    return binary_size_text(math.ceil(num_bytes / step) * step) if num_bytes >= 1 << 20 else binary_size_text(num_bytes)


def count_text(number: int) -> str:
    """46.7B, 5.56M, 512K."""
    for size, digits, letter in ((1e9, 1, "B"), (1e6, 2, "M"), (1e3, 0, "K")):
        if number >= size:
            text = f"{number / size:.{digits}f}"
            return (text.rstrip("0").rstrip(".") if "." in text else text) + letter
    return str(number)


def ago_text(moment: datetime, now: datetime) -> str:
    """`2 weeks ago`, as ollama says it."""
    seconds = int((now - moment).total_seconds())
    return f"{_span_text(max(0, seconds))} ago"


def from_now_text(moment: datetime, now: datetime) -> str:
    """`4 minutes from now`, as ollama says it."""
    seconds = int((moment - now).total_seconds())
    return f"{_span_text(max(0, seconds))} from now"


def _span_text(seconds: int) -> str:
    minutes, hours = seconds // 60, seconds // 3600
    if seconds < 1:
        return "Less than a second"
    if seconds < 60:
        return _plural(seconds, "second")
    if hours < 1:
        return "About a minute" if minutes == 1 else f"{minutes} minutes"
    if hours < 48:
        return "About an hour" if hours == 1 else f"{hours} hours"
    for unit_hours, unit in ((24, "day"), (24 * 7, "week"), (24 * 30, "month")):
        if hours < {"day": 24 * 14, "week": 24 * 60, "month": 24 * 730}[unit]:
            return _plural(hours // unit_hours, unit)
    return _plural(hours // (24 * 365), "year")


def _plural(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def duration_text(seconds: float) -> str:
    """As Go prints durations: 4.102ms, 41.231s, 1m3.2s, 1h0m5s."""
    if seconds < 1:
        return f"{seconds * 1000:.6g}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    text = f"{rest:.3f}".rstrip("0").rstrip(".") + "s"
    hours, minutes = divmod(int(minutes), 60)
    return f"{hours}h{minutes}m{text}" if hours else f"{minutes}m{text}" if minutes else text


def eta_text(seconds: float) -> str:
    """1h5m, 4m28s, 99h+."""
    whole = int(seconds)
    if whole >= 99 * 3600:
        return "99h+"
    if whole >= 3600:
        return f"{whole // 3600}h{whole % 3600 // 60}m"
    return f"{whole // 60}m{whole % 60}s" if whole >= 60 else f"{whole}s"
