"""What all tests share: a clean environment, and a store with the embedded model for those that only read it."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis
import pytest

from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.pull.gguf import index
from moeinf.store.library import StoredModel
from moeinf.text import tokenizer
from tests.support.browser import missing
from tests.support.published_data import PUBLISHED_DATA
from tests.support.sample import SAMPLED, sample

# Tensors of tests are small, and two workers share the cores: more threads of torch would only wait for each other. It
# is read when torch is imported, by commands that tests start as well.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A busy machine must not fail a test: nothing here asserts times.
hypothesis.settings.register_profile(
    "unhurried",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    max_examples=30 if SAMPLED else 100,
)
hypothesis.settings.load_profile("unhurried")


# A shell that starts the tests in the background, or nohup, has them ignore what asks for their end, and so would every
# command that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


_MANY_MODULES = 50
_frozen_modules = 0


def _freeze() -> None:
    """What was imported stays: to look through it anew took a fifth of the time of tests that close an emulated GPU."""
    global _frozen_modules
    if len(sys.modules) >= _frozen_modules + _MANY_MODULES:
        gc.collect()
        gc.freeze()
        _frozen_modules = len(sys.modules)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if SAMPLED:
        chosen = sample(item.nodeid for item in items)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]


def pytest_collection_finish() -> None:
    _freeze()


def pytest_runtest_logfinish() -> None:
    """Much of transformers is imported by the tests of its families."""
    _freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not PUBLISHED_DATA.is_dir():
        terminalreporter.write_line(
            f"tests/published is left out: {PUBLISHED_DATA} is no folder of published tokenizers and templates "
            "(MOEINF_TEST_DATA names another)"
        )
    if reason := missing():
        terminalreporter.write_line(f"tests/e2e/page is left out: {reason}")


@pytest.fixture(scope="session", autouse=True)
def no_environment_of_the_user() -> Iterator[None]:
    """MOEINF_* and HF_* of whoever runs the tests must not change what they test."""
    taken = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(("MOEINF_", "HF_"))}
    os.environ["MOEINF_HOST"] = "127.0.0.1:1"  # where nobody listens: `run` would use a server of the user
    os.environ["MOEINF_FOREIGN"] = "0"  # the user's own models of other programs
    yield
    del os.environ["MOEINF_HOST"], os.environ["MOEINF_FOREIGN"]
    os.environ.update(taken)


@pytest.fixture(scope="session", autouse=True)
def text_files_checked_once() -> Iterator[None]:
    """Hundreds of pulls bring the same tokenizer: the process that loads it is started once for each content."""
    seen = dict[tuple[tuple[str, object], ...], int]()

    def check(files: Mapping[str, bytes], where: str) -> int:
        content = tuple(sorted({**files, "config.json": _told_of_text(files.get("config.json", b""))}.items()))
        if content not in seen:
            seen[content] = tokenizer.check_text_files(files, where)
        return seen[content]

    with pytest.MonkeyPatch.context() as patch:
        for module in (steps, index):
            patch.setattr(module, "check_text_files", check)
        yield


def _told_of_text(config: bytes) -> object:
    """What the text process takes from config.json: the numbers of tokens; all of it where that is no object."""
    try:
        whole = json.loads(config)
    except ValueError:
        return config
    return json.dumps(_token_numbers(whole), sort_keys=True) if isinstance(whole, dict) else config


def _token_numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    parts = {name: _token_numbers(value) for name, value in fields.items() if isinstance(value, dict)}
    return parts | {name: value for name, value in fields.items() if name.endswith("_token_id")}


@pytest.fixture(scope="session", autouse=True)
def nothing_outlives_a_power_cut() -> Iterator[None]:
    """Files of tests wait for no disk; tests of what comes before what put a function of their own there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def memory_measured_quickly() -> Iterator[None]:
    """A benchmark reads half a gigabyte five times: what it tells is asked for in tests, and not how exact it is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeinf.forecast.bandwidth._SPAN_BYTES", 128 << 20)
        patch.setattr("moeinf.forecast.bandwidth._REPEATS", 1)
        patch.setattr("moeinf.engine.speed.kernel_rates._READING_REPEATS", 1)
        yield


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    """The embedded model, pulled into a store of its own."""
    from moeinf.pull.pull import ensure

    return ensure("demo", home=tmp_path_factory.mktemp("home"))
