"""Responses that are kept, within bounds."""

from __future__ import annotations

from typing import Any

import pytest

from moeinf.server.http_errors import Refusal
from moeinf.server.responses.kept_responses import KeptResponses


def response(name: str, **item: Any) -> dict[str, Any]:
    return {"id": name, "output": [{"id": f"msg_{name}", "text": "x" * 100, **item}]}


ASKED = {"id": "item_1", "role": "user", "content": "Hi"}


def test_what_is_kept_is_found_until_it_is_removed() -> None:
    kept = KeptResponses()
    kept.put(response("a"), [ASKED])
    assert kept.get("a").conversation == [ASKED, *response("a")["output"]]
    assert kept.item("item_1") == ASKED and kept.item("msg_a") == response("a")["output"][0]
    kept.remove("a")
    assert kept.item("msg_a") is None
    for asked in (kept.get, kept.remove):
        with pytest.raises(Refusal, match="'a' is not kept"):
            asked("a")


def test_those_used_longest_ago_go_first() -> None:
    kept = KeptResponses(most=2)
    for name in ("a", "b"):
        kept.put(response(name), [ASKED])
    kept.get("a")
    kept.put(response("c"), [])
    assert [kept.get(name).response["id"] for name in ("a", "c")] == ["a", "c"]
    with pytest.raises(Refusal):
        kept.get("b")
    assert kept.item("item_1") == ASKED and kept.item("msg_b") is None


def test_their_bytes_are_bounded() -> None:
    kept = KeptResponses(most_bytes=500)
    for name in "abcdef":
        kept.put(response(name), [])
    with pytest.raises(Refusal):
        kept.get("a")
    assert kept.get("f")
    kept.put(response("large", more="x" * 1000), [])
    assert kept.get("f"), "one that is larger than all may be takes nothing away"
    with pytest.raises(Refusal):
        kept.get("large")
