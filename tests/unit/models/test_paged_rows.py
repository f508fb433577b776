"""Rows that sequences share: whatever they do, each has what it would have in memory of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf._native import Kernels
from moeinf.models.cpu.paged_rows import PlainPages, RowPages, SequencePages, sequence_pages
from moeinf.models.cpu.weights import HostMemory, NativeWeights
from moeinf.models.layers.attention.token_rows import KVState
from moeinf.models.layers.kv_cache import Cache

CAPACITY, SEQUENCES = 700, 4
WIDTHS = (16, 33, 256)  # of the rows of three layers, in float32: 64 to a page, pages that no row ends with, four

needs_pages = pytest.mark.skipif(
    not isinstance(sequence_pages(), RowPages), reason="the system has no memory that can be shared"
)


def made(pages: SequencePages) -> Cache:
    memory = HostMemory(NativeWeights(Kernels(1), {}), "f32", pages)
    with pages.sequence() as shared:
        return Cache([KVState(memory, 2, width, CAPACITY) for width in WIDTHS], CAPACITY, (), shared)


class Both:
    """Sequences with shared pages, and the same in memory of their own: its slow and obvious counterpart."""

    def __init__(self) -> None:
        self.pages = RowPages()
        self.caches = [(made(self.pages), made(PlainPages())) for _ in range(SEQUENCES)]
        self.numbers = np.random.default_rng(3)

    def add(self, which: int, count: int) -> None:
        one = self.caches[which][0]
        count = min(count, CAPACITY - one.length)
        rows = self.numbers.integers(1, 256, count * one.token_bytes, np.uint8)
        for cache in self.caches[which]:
            cache.load_rows(cache.length, rows, count, 0, count)
            cache.resume(cache.length + count, None)

    def cut(self, which: int, share: float) -> None:
        for cache in self.caches[which]:
            length = int(share * cache.length)
            cache.truncate(length)
            cache.shared.write_from(length)
            cache.shared.trim(length)

    def begin(self, which: int, other: int, share: float) -> None:
        if which != other:
            for cache, theirs in zip(self.caches[which], self.caches[other], strict=True):
                cache.begin_as(theirs, int(share * theirs.length))
                cache.shared.trim(cache.length)

    def renew(self, which: int) -> None:
        self.cut(which, 0.0)

    def check(self) -> None:
        for one, other in self.caches:
            assert one.length == other.length
            np.testing.assert_array_equal(one.save_rows(0, one.length), other.save_rows(0, one.length))

    @property
    def most_bytes(self) -> int:
        """What sequences that share nothing take, with what their pages have room for beside."""
        one = self.caches[0][0]
        planes = sum(state.planes for state in one.states)
        return sum(cache.length * one.token_bytes + 3 * planes * self.pages.page_bytes for cache, _ in self.caches)


which, share = st.integers(0, SEQUENCES - 1), st.floats(0, 1)
STEPS = st.one_of(
    st.tuples(st.just("add"), which, st.integers(1, 300)),
    st.tuples(st.just("cut"), which, share),
    st.tuples(st.just("begin"), which, which, share),
    st.tuples(st.just("renew"), which),
)


@needs_pages
@settings(deadline=None, max_examples=60)
@given(st.lists(STEPS, min_size=3, max_size=25))
def test_each_sequence_has_its_own_rows(steps: Sequence[tuple[Any, ...]]) -> None:
    both = Both()
    for name, *arguments in steps:
        getattr(both, name)(*arguments)
        both.check()
        assert both.pages.file.used_bytes <= both.most_bytes


@needs_pages
def test_what_is_in_common_takes_memory_once() -> None:
    both = Both()
    both.add(0, 600)
    alone = both.pages.file.used_bytes
    for number in range(1, SEQUENCES):
        both.begin(number, number - 1, 1.0)
        both.add(number, 20)
    one = both.caches[0][0]
    planes = sum(state.planes for state in one.states)
    assert both.pages.file.used_bytes - alone <= (SEQUENCES - 1) * (20 * one.token_bytes + 2 * planes * 4096)
    both.check()


@needs_pages
def test_pages_are_given_back_with_the_last_that_has_them() -> None:
    both = Both()
    both.add(0, 600)
    both.begin(1, 0, 1.0)
    both.cut(0, 0.0)
    held = both.pages.file.used_bytes
    assert held >= 600 * both.caches[0][0].token_bytes * 0.9
    both.check()
    both.cut(1, 0.5)
    assert both.pages.file.used_bytes < 0.6 * held
    both.check()
    for number in range(SEQUENCES):
        both.renew(number)
    assert both.pages.file.used_bytes == 0


@needs_pages
def test_rows_are_copied_where_there_would_be_too_many_mappings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moeinf.models.cpu.paged_rows.MOST_MAPPINGS", 20)
    both = Both()
    both.add(0, 600)
    held = both.pages.file.used_bytes
    both.begin(1, 0, 1.0)
    assert both.pages.file.used_bytes >= 2 * held * 0.9
    both.check()
