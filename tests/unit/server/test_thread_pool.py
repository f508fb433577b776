"""What blocks leaves the event loop free, and what hangs in one pool fills that one alone."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest

from moeinf.server.blocking.thread_pool import ThreadPool
from moeinf.server.http_errors import BusyError


def on_a_loop(talk: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(talk(), 60))


def test_a_call_is_made_on_another_thread_and_its_result_or_error_handed_back() -> None:
    async def talk() -> None:
        pool = ThreadPool("x", 1)
        assert await pool.run(threading.current_thread) is not threading.current_thread()
        for error in (ValueError("no"), TimeoutError("its own"), SystemExit(3)):

            def fail(error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)) as caught:
                await pool.run(fail)
            assert caught.value is error
        pool.close()

    on_a_loop(talk)


def test_beyond_its_bounds_it_is_busy_until_a_call_ends() -> None:
    async def talk() -> None:
        pool, go_on = ThreadPool("the disk", 2, most_waiting=1), threading.Event()
        hanging = [asyncio.create_task(pool.run(go_on.wait)) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(BusyError, match="the disk takes too long"):
            await pool.run(int)
        go_on.set()
        assert await asyncio.gather(*hanging) == [True] * 3
        assert await pool.run(int) == 0
        pool.close()

    on_a_loop(talk)


def test_a_caller_waits_no_longer_than_it_may_while_the_call_keeps_its_place() -> None:
    async def talk() -> None:
        pool, go_on = ThreadPool("the disk", 1, most_waiting=0, wait_s=0.05), threading.Event()
        for _ in range(2):  # it waits, and then there is no room
            with pytest.raises(BusyError):
                await pool.run(go_on.wait)
        go_on.set()
        while True:
            try:
                assert await pool.run(int) == 0
                break
            except BusyError:
                await asyncio.sleep(0.01)
        pool.close()

    on_a_loop(talk)


def test_no_more_threads_are_started_than_calls_wait_and_all_end() -> None:
    async def talk() -> None:
        others, pool = set(threading.enumerate()), ThreadPool("x", 8)
        for _ in range(20):
            await pool.run(int)
        assert len(set(threading.enumerate()) - others) == 1
        pool.close()
        while set(threading.enumerate()) - others:
            await asyncio.sleep(0.01)

    on_a_loop(talk)
