"""A browser and a server for the page. Without Chromium, these tests are skipped and say so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import missing
from tests.support.chromium import Browser, chromium
from tests.support.page_server import PageServer, page_server


@pytest.fixture(scope="session")
def window() -> Iterator[Browser]:
    if reason := missing():
        pytest.skip(reason)
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="session")
def one_server() -> Iterator[PageServer]:
    with page_server() as page:
        yield page


@pytest.fixture
def server(one_server: PageServer) -> PageServer:
    one_server.forget()
    return one_server


@pytest.fixture
def browser(window: Browser, server: PageServer) -> Iterator[Browser]:
    """A window of usual size, which leaves before the server ends; no test may leave a complaint in its console."""
    window.prefer("light")
    window.resize(1280, 860)
    yield window
    complaints = window.complaints()
    window.driver.get("about:blank")
    assert complaints == []
