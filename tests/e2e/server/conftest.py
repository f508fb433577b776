"""One server for all tests that leave it as it was."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moeinf.server.serve import HttpServer
from moeinf.store.library import StoredModel
from tests.support.live_server import live_server


@pytest.fixture(scope="session")
def server(demo: StoredModel) -> Iterator[HttpServer]:
    """Serves the embedded model, as `demo`."""
    with live_server(demo) as running:
        yield running
