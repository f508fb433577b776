"""Threads and processes of the user around one model."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from moeinf.bench.live_bench import load_all
from moeinf.config import RuntimeConfig
from moeinf.engine.completion import Hooks
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.model import Model
from moeinf.errors import StoreError, UsageError
from moeinf.runtime.io.python_reader import PureReader
from moeinf.store.library import StoredModel

PROMPT = "Once upon a time"
OPENED = """
import os, sys, threading
from pathlib import Path
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.store.library import StoredModel

path = Path(sys.argv[1])
model = Model(StoredModel("demo", path.name, path), RuntimeConfig.of(expert_cache="20%", threads=2, reader=sys.argv[2]))
params = model.params(temperature=0.0, num_predict=8)
"""


@pytest.fixture
def model(demo: StoredModel) -> Iterator[Model]:
    with Model(demo, RuntimeConfig.of(expert_cache="20%", threads=2)) as opened:
        yield opened


def ended_script(demo: StoredModel, script: str, reader: str = "native") -> str:
    """What a script prints that has the model, and ends as it should."""
    done = subprocess.run(
        [sys.executable, "-c", OPENED + script, str(demo.path), reader], capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def until(met: Callable[[], bool]) -> bool:
    give_up_s = time.monotonic() + 30
    while not met() and time.monotonic() < give_up_s:
        time.sleep(0.02)
    return met()


def test_a_request_is_refused_while_another_thread_has_the_model(model: Model) -> None:
    params = model.params(temperature=0.0, num_predict=8)
    alone = model.generate(PROMPT, params).text
    refused: list[str] = []

    def ask_meanwhile() -> None:
        for call in (
            lambda: model.generate("Anything", params),
            lambda: model.replay([1], [2]),
            lambda: load_all(model),
        ):
            with pytest.raises(UsageError) as told:
                call()
            refused.append(str(told.value))

    def prefilled(done: int, total: int) -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(ask_meanwhile).result(30)

    assert model.generate(PROMPT, params, hooks=Hooks(on_prefill=prefilled)).text == alone
    assert len(refused) == 3 and len(set(refused)) == 1
    assert refused[0] == f"{model.name} is answering another request; wait until that has ended or is closed"
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(model.generate, PROMPT, params).result(30).text == alone


def test_a_request_ends_an_answer_that_its_thread_has_read_in_part(model: Model) -> None:
    params = model.params(temperature=0.0, num_predict=8)
    alone = model.generate(PROMPT, params).text
    other = model.stream("The dog ran to the park and", params)
    next(other)
    assert model.generate(PROMPT, params).text == alone
    with pytest.raises(UsageError, match="was ended by a later request"):
        next(other)


def test_a_model_is_closed_while_another_thread_computes(demo: StoredModel) -> None:
    model, begun = Model(demo, RuntimeConfig.of(expert_cache="20%", threads=2)), threading.Event()
    hooks = Hooks(on_prefill=lambda done, total: begun.set())
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(model.generate, PROMPT, model.params(num_predict=400), hooks=hooks)
        assert begun.wait(30)
        model.close()
        with pytest.raises(StoreError, match="is closed"):
            answer.result(30)


def test_a_program_ends_while_its_thread_computes(demo: StoredModel) -> None:
    """Python ends the thread where it comes back from the wait, which native code has called: not in the middle."""
    script = """
import time
from moeinf.runtime.io.python_reader import PureReader
begun, wait = threading.Event(), PureReader.wait_any
def wait_long(reader, keys):
    begun.set()
    time.sleep(0.01)
    return wait(reader, keys)
PureReader.wait_any = wait_long
def work():
    while True:
        model.generate("Once upon a time there was a dog and " * 20, params)
threading.Thread(target=work, daemon=True).start()
begun.wait()
print("the end of the program")
"""
    assert ended_script(demo, script, "pure") == "the end of the program\n"


def test_a_forked_process_is_refused_and_harms_neither(demo: StoredModel) -> None:
    script = """
import signal, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
from moeinf.errors import MoeinfError
alone = model.generate("Once upon a time", params).text
half = model.stream("The dog ran to the park and", params)
next(half)
child = os.fork()
if not child:
    signal.alarm(60)
    asked = [lambda: model.generate("Once", params), lambda: model.generate("Once"), lambda: model.encode("Once")]
    for call in asked + [lambda: next(half)]:
        try: call()
        except MoeinfError as error: print(error, flush=True)
    half.close()
    model.close()
    del model, half, asked, call
    sys.exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
assert "".join(half) and model.generate("Once upon a time", params).text == alone
model.close()
"""
    *refusals, status = ended_script(demo, script).splitlines()
    assert status == "7" and len(refusals) == 4
    assert all("that this one was forked from; open it" in line for line in refusals)


@pytest.mark.parametrize("failing", ["prefixes", "watch", "reader"])
def test_each_part_is_closed_whatever_another_raises(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    model = Model(demo, RuntimeConfig.of(expert_cache="20%", threads=2, reader="pure", prefix_memory="64MB"))
    runner, worker = model.runner, model.tokenizer._process._process
    assert isinstance(runner, CpuRunner) and isinstance(runner._reader, PureReader) and worker is not None
    parts: dict[str, Any] = {
        "prefixes": model.generator.sequences.last.prefixes,
        "watch": runner._watch,
        "reader": runner._reader,
    }
    part, close = parts[failing], parts[failing].close

    def close_and_raise(*given: object) -> None:
        close(*given)
        raise MemoryError("no memory for a copy of the prefixes")

    monkeypatch.setattr(part, "close", close_and_raise)
    with pytest.raises(MemoryError, match="copy of the prefixes"):
        model.close()
    assert worker.poll() is not None and runner._reader._closed and not runner._watch._thread.is_alive()
    with pytest.raises(StoreError, match="is closed"):
        model.generate(PROMPT)
    model.close()


def test_a_model_that_cannot_be_opened_whole_leaves_nothing_open(
    demo: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*arguments: object) -> None:
        raise MemoryError("no memory for prefixes")

    before = {thread.name for thread in threading.enumerate()}
    monkeypatch.setattr("moeinf.engine.opening.open_prefixes", refused)
    with pytest.raises(MemoryError):
        Model(demo, RuntimeConfig.of(expert_cache="20%", threads=2, reader="pure"))
    assert {thread.name for thread in threading.enumerate()} == before


@pytest.mark.parametrize("reader", ["native", "pure"])
def test_a_model_that_is_forgotten_is_freed(demo: StoredModel, reader: str) -> None:
    def held() -> tuple[int, int]:
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    def use() -> None:
        model = Model(demo, RuntimeConfig.of(expert_cache="20%", threads=2, reader=reader, prefix_disk="1GB"))
        model.generate(PROMPT * 30, model.params(num_predict=2))

    gc.collect()
    before = held()
    with pytest.warns(ResourceWarning, match="was not closed"):
        use()
        gc.collect()
    assert until(lambda: all(now <= then for now, then in zip(held(), before, strict=True))), (before, held())


@pytest.mark.parametrize("of_stream", [True, False])
def test_an_answer_holds_the_model_that_makes_it(demo: StoredModel, of_stream: bool) -> None:
    def begun() -> tuple[Iterator[object], weakref.ref[Model]]:
        model = Model(demo, RuntimeConfig.of(expert_cache="20%", threads=2))
        params = model.params(num_predict=3)
        return (model.stream if of_stream else model.pieces)(PROMPT, params), weakref.ref(model)

    answer, model = begun()
    gc.collect()
    assert model() is not None
    with pytest.warns(ResourceWarning, match="was not closed"):
        assert list(answer)
        gc.collect()
    assert model() is None
