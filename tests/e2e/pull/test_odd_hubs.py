"""What answers in the place of a Hub: each is told in one line, and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from moeinf.errors import HubError
from moeinf.pull.pull import pull
from tests.support.hub_server import point_client_at
from tests.support.odd_server import answering

COMMIT: Final = "a" * 40


def told(**fields: Any) -> bytes:
    return json.dumps({"id": "org/repo", "sha": COMMIT, "siblings": []} | fields).encode()


def of_file(**fields: Any) -> bytes:
    return told(siblings=[{"rfilename": "config.json", "size": 3, "blobId": "b" * 40} | fields])


AS_NO_HUB: Final = "answers for org/repo as no Hub does; check HF_ENDPOINT, and whether a login page"
ANSWERS: Final = {  # status, headers, body, and what is said
    "a login page": (200, {"Content-Type": "text/html"}, b"<html>Welcome to the hotel</html>", AS_NO_HUB),
    "nothing": (200, {}, b"", AS_NO_HUB),
    "a list": (200, {}, b"[]", AS_NO_HUB),
    "a number": (200, {}, b"3", AS_NO_HUB),
    "an object of another kind": (200, {}, b"{}", AS_NO_HUB),
    "lists that never end": (200, {}, b"[" * 200_000, AS_NO_HUB),
    "no UTF-8": (200, {}, b"\xff\xfe{}", AS_NO_HUB),
    "files that are numbers": (200, {}, told(siblings=[3]), AS_NO_HUB),
    "a file without a name": (200, {}, of_file(rfilename=None), AS_NO_HUB),
    "a size that is text": (200, {}, of_file(size="3"), AS_NO_HUB),
    "a size below 0": (200, {}, of_file(size=-3), AS_NO_HUB),
    "a checksum that is a number": (200, {}, of_file(lfs={"size": 3, "sha256": 7, "pointerSize": 1}), AS_NO_HUB),
    "a commit that is a number": (200, {}, told(sha=7), "does not tell the commit of org/repo"),
    "the same address again": (302, {"Location": "/again"}, b"", r"is out of reach \(TooManyRedirects\)"),
    "bytes that are not packed": (200, {"Content-Encoding": "gzip"}, b"plain", r"is out of reach \(DecodingError\)"),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_no_hub_is_told_in_one_line(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, headers, body, said = ANSWERS[name]
    with answering(status, headers, body) as address:
        point_client_at(address, tmp_path / "hf", monkeypatch)
        with pytest.raises(HubError, match=said) as refused:
            pull("org/repo", home=tmp_path / "home")
    assert "\n" not in str(refused.value) and address in str(refused.value)
    assert not (tmp_path / "home" / "names").exists()
