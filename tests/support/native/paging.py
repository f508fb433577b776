"""Rows of the table: memory whose pages lie at several addresses."""

from __future__ import annotations

from typing import Any

import numpy as np

from moeinf import _native
from tests.support.native.table import Arguments, World, call, plain

PAGES = 12


@call("SharedPages", "OSError where the system has none", OSError)
def _shared(world: World) -> Arguments:
    return {}


plain("SharedPages", "page_bytes", "num_bytes", "used_bytes")

_WHOLE = "no whole pages, what is not inside, planes that there cannot be"


def _page(world: World) -> int:
    pages = world.get("SharedPages")
    if pages.num_bytes == 0:
        pages.grow(PAGES * pages.page_bytes)
    return int(pages.page_bytes)


@call("SharedPages.grow", "no whole pages")
def _grow(world: World) -> Arguments:
    return {"num_bytes": world.rng.randrange(1, 4) * _page(world)}


def _planes(world: World) -> Arguments:
    page = _page(world)
    return {
        "offset": 4 * page,
        "start": page,
        "num_bytes": page,
        "stride": 3 * page,
        "count": world.rng.randrange(1, 3),
    }


@call("SharedPages.release", _WHOLE)
def _release(world: World) -> Arguments:
    return _planes(world)


@call("MappedPages", "no whole pages, or none; what is not inside")
def _mapped(world: World) -> Arguments:
    return {"pages": world.get("SharedPages"), "offset": 0, "num_bytes": 8 * _page(world)}


def _seen(given: Arguments, result: Any) -> bool:
    """Two arrays over the same pages have the same bytes."""
    pages = _native.SharedPages()
    offset = pages.grow(4 * pages.page_bytes)
    one, other = (_native.MappedPages(pages, offset, 4 * pages.page_bytes) for _ in range(2))
    one.map(offset + pages.page_bytes, 0, pages.page_bytes, 2 * pages.page_bytes, 2)
    one.array()[:] = np.arange(4 * pages.page_bytes) // pages.page_bytes
    return bool(other.array()[:: pages.page_bytes].tolist() == [0, 1, 0, 3])


@call("MappedPages.map", _WHOLE, holds=_seen)
def _map(world: World) -> Arguments:
    return _planes(world)


plain("MappedPages", "array")
