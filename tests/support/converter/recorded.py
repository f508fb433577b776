"""The record of the converter's files, as record.py has written it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).with_name("recorded.json")


@cache
def recorded() -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(RECORDED.read_text())
    return found
