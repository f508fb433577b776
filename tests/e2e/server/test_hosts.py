"""By which names and addresses a server is known, going by where it listens."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from moeinf.store.library import Library
from tests.support.live_server import live_server

PORT_OF_ANOTHER_HOST = 11435  # of a container's host, which hands connections on from a port of its own


@pytest.mark.parametrize(
    ("listens_on", "by_address"), [("127.0.0.1:0", 403), ("0.0.0.0:0", 200)], ids=["this machine", "all addresses"]
)
def test_who_listens_on_all_addresses_is_known_by_each(tmp_path: Path, listens_on: str, by_address: int) -> None:
    with live_server(Library(tmp_path / "home"), host=listens_on, no_auth=True) as server:
        url = f"http://127.0.0.1:{server.url.rpartition(':')[2]}/api/tags"

        def status(name: str) -> int:
            return httpx.get(url, headers={"host": f"{name}:{PORT_OF_ANOTHER_HOST}"}, timeout=60).status_code

        assert status("192.168.1.5") == by_address
        assert status("host.docker.internal") == status("moeinf.localhost") == 200
        assert status("evil.example") == 403
