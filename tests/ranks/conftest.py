"""Tests that take minutes, or need root: every family and format on two ranks, and ranks in network namespaces.

They run by themselves: `make ranks-test`. tests/e2e/distributed has what runs every time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.ranks.workers import Workers


@pytest.fixture(autouse=True, scope="session")
def asked_for() -> None:
    if not os.environ.get("ALL_RANKS"):
        pytest.skip("`make ranks-test` runs these by themselves")


@pytest.fixture(scope="session")
def workers(asked_for: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    with Workers(tmp_path_factory.mktemp("ranks")) as started:
        yield started


@pytest.fixture(autouse=True)
def ended(workers: Workers) -> Iterator[None]:
    yield
    workers.end_all()
