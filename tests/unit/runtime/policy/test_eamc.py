"""The collection of past activation matrices, against brute force."""

from __future__ import annotations

import io
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import StoreError
from moeinf.runtime.policy.eamc import MOST_BYTES, ActivationCollection, Match, cosine_distance, normalise_rows
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.types import IntArray, MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=6, top_k=2)


def matrix(counts: object, shape: MoeShape = SHAPE) -> ActivationMatrix:
    made = ActivationMatrix(shape)
    made.counts[:] = np.array(counts)
    return made


def random_routing(rng: np.random.Generator, tokens: int, shape: MoeShape = SHAPE) -> IntArray:
    """[layers, tokens, top_k], the experts of a token distinct."""
    order = rng.random((shape.num_layers, tokens, shape.num_experts)).argsort(axis=2)
    return order[:, :, : shape.top_k]


def random_matrix(rng: np.random.Generator, tokens: int) -> ActivationMatrix:
    made = ActivationMatrix(SHAPE)
    for layer, ids in enumerate(random_routing(rng, tokens)):
        made.record(layer, ids)
    return made


def filled(num_entries: int, capacity: int = 8, seed: int = 0) -> ActivationCollection:
    collection = ActivationCollection(SHAPE, capacity)
    rng = np.random.default_rng(seed)
    for _ in range(num_entries):
        collection.add(random_matrix(rng, tokens=3))
    return collection


def distance(a: IntArray, b: IntArray) -> float:
    return cosine_distance(normalise_rows(a), normalise_rows(b))


def contents(collection: ActivationCollection) -> list[list[list[int]]]:
    return [collection.counts(entry).tolist() for entry in range(len(collection))]


def test_a_collection_that_is_not_full_grows() -> None:
    assert len(filled(5, capacity=8)) == 5


def test_a_long_request_weighs_no_more_than_a_short_one() -> None:
    short = normalise_rows(np.array([[1, 1, 0], [0, 1, 1]]))
    long = normalise_rows(np.array([[7, 7, 0], [0, 9, 9]]))
    assert cosine_distance(short, long) == pytest.approx(0)


def test_matrices_without_a_common_expert_are_at_distance_one() -> None:
    assert cosine_distance(np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])) == 1
    assert cosine_distance(np.zeros((1, 2)), np.array([[0.0, 1.0]])) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.integers(1, 12))
def test_a_full_collection_gives_up_the_most_similar_entry(seed: int, capacity: int, additions: int) -> None:
    rng = np.random.default_rng(seed)
    collection = ActivationCollection(SHAPE, capacity)
    for _ in range(additions):
        before = contents(collection)
        new = random_matrix(rng, tokens=int(rng.integers(1, 5)))
        collection.add(new)
        if len(before) < capacity:
            assert contents(collection) == [*before, new.counts.tolist()]
        else:
            distances = [distance(np.array(old), new.counts) for old in before]
            closest = [at for at in range(capacity) if distances[at] < min(distances) + 1e-6]
            assert contents(collection) in [[*before[:at], new.counts.tolist(), *before[at + 1 :]] for at in closest]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_the_incremental_match_equals_the_obvious_one(seed: int, tokens: int) -> None:
    rng = np.random.default_rng(seed)
    collection = filled(7, capacity=5, seed=seed)
    match = Match(collection)
    for _ in range(2):
        running = ActivationMatrix(SHAPE)
        for layer, ids in enumerate(random_routing(rng, tokens)):
            match.record(layer, ids)
            running.record(layer, ids)
            rows = running.row_sums() > 0
            distances = [distance(running.counts[rows], collection.counts(entry)[rows]) for entry in range(5)]
            for nearest in (match.nearest(3), collection.nearest(running.counts, 3)):
                assert [distances[entry] for entry in nearest] == pytest.approx(sorted(distances)[:3], abs=1e-6)


def test_a_match_under_way_is_dropped_when_the_collection_changes() -> None:
    collection = filled(4)
    match = Match(collection)
    match.record(0, np.array([[2, 3]]))
    collection.add(matrix([[0, 0, 0, 0, 1, 1]] * 3))
    assert len(match.nearest(3)) == 0
    match.record(1, np.array([[4, 5]]))
    assert match.nearest(1).tolist() == [4]


def test_a_match_compares_only_the_rows_seen() -> None:
    collection = ActivationCollection(SHAPE)
    collection.add(matrix([[1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]))
    collection.add(matrix([[0, 0, 1, 1, 0, 0], [1, 1, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0]]))
    match = Match(collection)
    match.record(0, np.array([[2, 3]]))
    assert match.nearest(1).tolist() == [1]
    match.restart()
    match.record(0, np.array([[0, 1]]))
    assert match.nearest(2).tolist() == [0, 1]


def test_there_is_no_match_without_entries_or_without_a_query() -> None:
    empty, unasked = Match(ActivationCollection(SHAPE)), Match(filled(3))
    empty.record(0, np.array([[0, 1]]))
    assert len(empty.nearest(3)) == len(unasked.nearest(3)) == 0


def test_a_stored_collection_comes_back_whole() -> None:
    collection = filled(6)
    back = ActivationCollection.loads(collection.dumps(), SHAPE)
    assert contents(back) == contents(collection)
    assert back.dumps() == collection.dumps()


def test_a_stored_collection_larger_than_the_capacity_is_cut() -> None:
    back = ActivationCollection.loads(filled(6).dumps(), SHAPE, capacity=2)
    assert contents(back) == contents(filled(6))[-2:]


@pytest.mark.parametrize("other", [MoeShape(4, 6, 2), MoeShape(3, 5, 2), MoeShape(3, 6, 1)])
def test_a_collection_of_another_model_is_refused(other: MoeShape) -> None:
    with pytest.raises(StoreError, match="another model"):
        ActivationCollection.loads(filled(2).dumps(), other)
    with pytest.raises(ValueError):
        ActivationCollection(other).add(ActivationMatrix(SHAPE))


@pytest.mark.parametrize("data", [b"", b"not a zip", filled(3).dumps()[:-30], filled(3).dumps()[:40]])
def test_a_damaged_collection_is_a_store_error(data: bytes) -> None:
    with pytest.raises(StoreError, match="damaged"):
        ActivationCollection.loads(data, SHAPE)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(filled(3).dumps()) - 1), st.integers(0, 7))
def test_a_flipped_bit_is_noticed_or_harmless(at: int, bit: int) -> None:
    data = bytearray(filled(3).dumps())
    data[at] ^= 1 << bit
    try:
        back = ActivationCollection.loads(bytes(data), SHAPE)
    except StoreError:
        return
    assert contents(back) == contents(filled(3))


def test_a_collection_has_room_for_one_matrix_at_least() -> None:
    with pytest.raises(ValueError, match="capacity"):
        ActivationCollection(SHAPE, capacity=0)


def test_a_collection_that_unpacks_to_gigabytes_is_refused_unread() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        for name in ("shape.npy", "counts.npy"):
            packed.writestr(name, bytes(MOST_BYTES // 2 + 1))
    tracemalloc.start()
    try:
        with pytest.raises(StoreError, match=r"damaged \(more than"):
            ActivationCollection.loads(buffer.getvalue(), MoeShape(2, 4, 2))
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
