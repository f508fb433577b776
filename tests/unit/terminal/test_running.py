"""What `moeinf ps` prints of what a server tells."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from moeinf.terminal.remote.running import running_lines

NOW = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)


def a_model(**told: Any) -> dict[str, Any]:
    own = {"slots": 34, "experts": 256, "hit_rate": 0.382, "answering": False}
    return {
        "name": "mixtral:latest",
        "digest": "0123456789abcdef" * 4,
        "size": 26_400_000_000,
        "size_vram": 0,
        "context_length": 4096,
        "expires_at": (NOW + timedelta(minutes=4, seconds=30)).isoformat(),
        "moeinf": own,
    } | told


def test_a_row_has_every_column() -> None:
    head, row = running_lines([a_model()], NOW)
    assert head.split() == ["NAME", "ID", "SIZE", "PROCESSOR", "CONTEXT", "UNTIL", "EXPERTS"]
    cells = [cell.strip() for cell in row.split("   ") if cell.strip()]
    assert cells == [
        "mixtral:latest", "0123456789ab", "26 GB", "100% CPU", "4096", "4 minutes from now", "34/256, 38% hit"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "vram", "shown"),
    [(100, 0, "100% CPU"), (100, 100, "100% GPU"), (100, 52, "48%/52% CPU/GPU"), (1000, 999, "0%/100% CPU/GPU")],
)
def test_the_processor_says_where_the_bytes_are(size: int, vram: int, shown: str) -> None:
    assert f"   {shown}   " in running_lines([a_model(size=size, size_vram=vram)], NOW)[1]


def test_until_knows_for_ever_and_an_answer_that_outlasts_the_time() -> None:
    for_ever = datetime(9999, 12, 31, tzinfo=timezone.utc).isoformat()
    assert "   Forever   " in running_lines([a_model(expires_at=for_ever)], NOW)[1]
    told = a_model()["moeinf"] | {"answering": True}
    assert "   Answering   " in running_lines([a_model(expires_at=NOW.isoformat(), moeinf=told)], NOW)[1]


def test_a_model_that_has_not_answered_yet_has_no_hit_rate() -> None:
    told = a_model()["moeinf"] | {"hit_rate": None}
    assert running_lines([a_model(moeinf=told)], NOW)[1].endswith("   34/256")
