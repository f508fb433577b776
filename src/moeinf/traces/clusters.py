"""The EAMC of arXiv 2401.14361 v1: k-means over the matrices of past requests, each cluster kept as its nearest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeinf.errors import UsageError
from moeinf.runtime.policy.eamc import ActivationCollection, normalise_rows
from moeinf.runtime.policy.policy_trace import ActivationMatrix
from moeinf.traces.statistics import request_matrices
from moeinf.traces.trace import Trace
from moeinf.types import FloatArray, IntArray

ROUNDS = 100  # k-means has come to its end long before


@dataclass(frozen=True, slots=True)
class Clusters:
    kept: IntArray  # [k] the request nearest to each centroid
    members: IntArray  # [requests] the cluster that each belongs to
    distances: FloatArray  # [requests] 1 - cosine to the centroid of its cluster, at least 0


def cluster_requests(trace: Trace, num_clusters: int, seed: int = 0) -> tuple[Clusters, ActivationCollection]:
    """Clusters of the requests, and the collection of the matrices that are kept. Raises UsageError for too few."""
    if trace.num_requests < num_clusters:
        requests = f"{trace.num_requests} request{'' if trace.num_requests == 1 else 's'}"
        raise UsageError(f"{trace.name} has {requests}, too few for {num_clusters} clusters; lower -k")
    matrices = request_matrices(trace)
    points = unit_rows(normalise_rows(matrices).reshape(len(matrices), -1))
    clusters = k_means(points, num_clusters, np.random.default_rng(seed))
    collection = ActivationCollection(trace.shape, num_clusters)
    for request in clusters.kept.tolist():
        matrix = ActivationMatrix(trace.shape)
        matrix.counts[:] = matrices[request]
        collection.add(matrix)
    return clusters, collection


def unit_rows(points: FloatArray) -> FloatArray:
    """Rows of length 1, so that the squared distance of two is twice their 1 - cosine (v3, 4.3)."""
    unit: FloatArray = points / np.sqrt((points * points).sum(axis=1, keepdims=True))
    return unit


def k_means(points: FloatArray, num_clusters: int, rng: np.random.Generator) -> Clusters:
    """Lloyd's, begun by k-means++, on rows of length 1 with centroids of length 1; no cluster is left empty."""
    centroids = points[_starts(points, num_clusters, rng)]
    members = np.full(len(points), -1)
    for _ in range(ROUNDS):
        similar = points @ centroids.T
        nearest = similar.argmax(axis=1)
        for cluster in np.setdiff1d(np.arange(num_clusters), nearest).tolist():  # takes the point that fits worst
            loners = np.bincount(nearest, minlength=num_clusters)[nearest] == 1
            own = np.where(loners, np.inf, similar[np.arange(len(points)), nearest])
            nearest[own.argmin()] = cluster
        if (nearest == members).all():
            break
        members = nearest
        sums = np.zeros_like(centroids)
        np.add.at(sums, members, points)
        centroids = unit_rows(sums)
    distances = np.maximum(0, 1 - (points * centroids[members]).sum(axis=1))
    kept = [np.flatnonzero(members == c)[distances[members == c].argmin()] for c in range(num_clusters)]
    return Clusters(np.array(kept), members, distances)


def _starts(points: FloatArray, num_clusters: int, rng: np.random.Generator) -> list[int]:
    """k-means++: each further start is drawn with the squared distance to those before."""
    starts = [int(rng.integers(len(points)))]
    far = 1 - points @ points[starts[0]]
    while len(starts) < num_clusters:
        weights = np.maximum(far, 0)
        weights[starts] = 0
        if not weights.sum():
            weights = np.ones(len(points))
            weights[starts] = 0
        starts.append(int(rng.choice(len(points), p=weights / weights.sum())))
        far = np.minimum(far, 1 - points @ points[starts[-1]])
    return starts
