"""Memory that was freed, and goes back to the system."""

from __future__ import annotations

import ctypes
import platform

import pytest

from moeinf.hardware import return_freed_memory
from moeinf.server.turns.freed_memory import BUSY_S, IDLE_S, FreedMemory
from tests.support.resident import resident_bytes


def test_it_goes_back_when_nobody_waits_and_now_and_then_when_somebody_does() -> None:
    now, given = 100.0, list[float]()
    freed = FreedMemory(lambda: given.append(now), lambda: now)
    for after_s, idle in ((IDLE_S / 2, True), (IDLE_S, True), (IDLE_S, False), (IDLE_S, True), (BUSY_S, False)):
        now += after_s
        freed.answer_ended(idle=idle)
    assert given == [100 + 1.5 * IDLE_S, 100 + 3.5 * IDLE_S, 100 + 3.5 * IDLE_S + BUSY_S]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries of C keep what they like")
def test_what_lies_between_memory_in_use_goes_back() -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    size, count = 100_000, 640
    blocks = [libc.malloc(ctypes.c_size_t(size)) for _ in range(count)]
    for block in blocks:
        ctypes.memset(block, 1, size)
    for number, block in enumerate(blocks):
        if number % 8:
            libc.free(block)
    before = resident_bytes()
    return_freed_memory()
    assert before - resident_bytes() > size * count // 2
    for block in blocks[::8]:
        libc.free(block)
