"""Figures of a trace, against slow counts in dictionaries; k-means against its own definition."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import ActivationCollection, cosine_distance, normalise_rows
from moeinf.traces.clusters import cluster_requests, k_means, unit_rows
from moeinf.traces.statistics import (
    DISTANCES,
    activations,
    entropy,
    overlap_of,
    request_matrices,
    reuse_of,
    statistics_of,
    working_set,
)
from moeinf.traces.trace import Trace, load_trace
from moeinf.types import MoeShape
from tests.support.random_traces import a_trace

DEMO = Path(__file__).parents[2] / "support" / "traces" / "demo"
some_traces = st.builds(
    a_trace,
    st.integers(0, 9999),
    st.lists(st.integers(1, 9), min_size=1, max_size=4).map(tuple),
    encoder_layers=st.sampled_from((0, 1, 2)),
)


def uses(trace: Trace) -> list[tuple[int, int, int]]:
    """(token, layer, expert) of every activation, in order."""
    return [
        (token, layer, expert)
        for token, layers in enumerate(trace.experts.tolist())
        for layer, experts in enumerate(layers)
        for expert in experts
        if expert >= 0
    ]


@given(trace=some_traces)
def test_activations_are_counted(trace: Trace) -> None:
    counts = Counter((layer, expert) for _, layer, expert in uses(trace))
    matrix = activations(trace)
    assert {(int(i), int(j)): int(matrix[i, j]) for i, j in np.argwhere(matrix)} == counts
    assert (request_matrices(trace).sum(axis=0) == matrix).all()


@given(trace=some_traces)
def test_reuse_is_what_a_slow_count_says(trace: Trace) -> None:
    last: dict[tuple[int, int], int] = {}
    distances = []
    for token, layer, expert in uses(trace):
        if (layer, expert) in last:
            distances.append(token - last[layer, expert])
        last[layer, expert] = token
    reuse, total = reuse_of(trace), len(uses(trace))
    assert reuse.first_uses == total - len(distances)
    assert reuse.within == tuple(sum(d <= most for d in distances) / total for most in DISTANCES)
    assert reuse.median == (np.median(distances) if distances else 0)
    shared = chance = pairs = 0.0
    for start, end in pairwise(trace.offsets.tolist()):
        for now, after in pairwise(trace.experts[start:end].tolist()):
            for layer, (a, b) in enumerate(zip(now, after, strict=True)):
                if a[0] >= 0 and b[0] >= 0:
                    shared += len({*a} & {*b}) / 2
                    chance += 2 / trace.shape.experts_of(layer)
                    pairs += 1
    assert reuse.by_next == pytest.approx(shared / pairs if pairs else 0)
    assert reuse.chance == pytest.approx(chance / pairs if pairs else 0)


@given(trace=some_traces, window=st.integers(1, 8))
def test_the_working_set_is_what_windows_use(trace: Trace, window: int) -> None:
    found = [
        len({(layer, expert) for token, layer, expert in uses(trace) if start <= token < start + window})
        for start in range(0, trace.num_tokens - window + 1, window)
    ]
    expected = sum(found) / len(found) / 15 if found else None
    assert working_set(trace, window) == (None if expected is None else pytest.approx(expected))


def test_entropy_is_that_of_the_shares() -> None:
    matrix = np.array([[1, 1, 1, 1], [4, 0, 0, 0], [2, 1, 1, 0], [0, 0, 0, 0]])
    assert entropy(matrix).tolist() == [2, 0, 1.5, 0]


@given(trace=some_traces)
def test_overlap_is_the_mean_over_pairs(trace: Trace) -> None:
    overlap = overlap_of(trace)
    if trace.num_requests == 1:
        assert overlap is None
        return
    matrices = request_matrices(trace)
    cosines, shared = [], []
    for i, a in enumerate(matrices):
        for j, b in enumerate(matrices):
            if i != j:
                cosines.append(1 - cosine_distance(normalise_rows(a), normalise_rows(b)))
                tops = [
                    {(n, e) for n, row in enumerate(m) for e in np.argsort(-row, kind="stable")[:2].tolist() if row[e]}
                    for m in (a, b)
                ]
                shared.append(len(tops[0] & tops[1]) / len(tops[0]))
    assert overlap is not None
    assert overlap.cosine == pytest.approx(np.mean(cosines)) and overlap.top_shared == pytest.approx(np.mean(shared))
    assert overlap.chance == pytest.approx((2 / 6 + 2 / 5 + 2 / 4) / 3)


def test_a_recorded_trace_has_figures() -> None:
    trace = load_trace(DEMO)
    stats = statistics_of(trace)
    assert trace.model == "demo:latest" and trace.guesses is not None and trace.num_requests == 2
    assert stats.prefill_tokens == 7 and stats.activations == trace.num_tokens * 6 * 4
    assert (stats.entropy < math.log2(32)).all() and stats.reuse.by_next > 2 * stats.reuse.chance
    assert stats.overlap is not None and stats.overlap.top_shared > 2 * stats.overlap.chance


@given(seed=st.integers(0, 999), number=st.integers(1, 12), k=st.integers(1, 12))
def test_k_means_keeps_the_nearest_to_each_centroid_and_stands_still(seed: int, number: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    k = min(k, number)
    points = unit_rows(rng.integers(0, 3, (number, 4)).astype(np.float64) + 0.01)
    clusters = k_means(points, k, rng)
    assert sorted(set(clusters.members.tolist())) == list(range(k)), "no cluster is empty"
    centroids = np.stack([points[clusters.members == c].sum(axis=0) for c in range(k)])
    centroids /= np.linalg.norm(centroids, axis=1, keepdims=True)
    for point, (member, distance) in enumerate(zip(clusters.members, clusters.distances, strict=True)):
        assert distance == pytest.approx(1 - points[point] @ centroids[member], abs=1e-9)
        alone = (clusters.members == member).sum() == 1
        assert alone or len({*map(tuple, points)}) < k or distance <= (1 - centroids @ points[point]).min() + 1e-9
    for cluster, kept in enumerate(clusters.kept.tolist()):
        assert clusters.members[kept] == cluster
        assert clusters.distances[kept] == clusters.distances[clusters.members == cluster].min()


def test_groups_that_are_apart_are_found() -> None:
    shape = MoeShape(1, 6, 2)
    group = np.array([0, 1, 2] * 5)
    experts = np.stack([[[2 * g, 2 * g + 1]] for g in group for _ in range(3)])
    trace = Trace("t", shape, experts, np.arange(0, 46, 3))
    clusters, collection = cluster_requests(trace, 3)
    assert len({(int(g), int(c)) for g, c in zip(group, clusters.members, strict=True)}) == 3
    assert len(collection) == 3
    for entry, request in enumerate(clusters.kept.tolist()):
        assert (collection.counts(entry) == request_matrices(trace)[request]).all()
    loaded = ActivationCollection.loads(collection.dumps(), shape)
    assert (loaded.rows[:3] == collection.rows[:3]).all()
    with pytest.raises(UsageError, match="t has 15 requests, too few for 16 clusters; lower -k"):
        cluster_requests(trace, 16)
