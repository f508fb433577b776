"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moeinf.pull.pull import ensure
from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server


@pytest.fixture(scope="session")
def server(demo: StoredModel) -> Iterator[HttpServer]:
    """Serves the embedded model, as `demo`."""
    with live_server(demo) as running:
        yield running


@pytest.fixture(scope="session")
def storyteller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpServer]:
    """Serves the embedded model with its chat template, as `demo:chat`."""
    with live_server(ensure("demo:chat", home=tmp_path_factory.mktemp("storyteller"))) as running:
        yield running
