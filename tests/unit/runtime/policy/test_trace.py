"""Expert activation matrices and the recorder of requests."""

from __future__ import annotations

import numpy as np
import pytest

from moeinf.runtime.policy.policy_trace import ActivationMatrix, RequestRecorder
from moeinf.types import MoeShape

SHAPE = MoeShape(num_layers=3, num_experts=5, top_k=2)


def ids(*tokens: tuple[int, int]) -> np.ndarray:
    return np.array(tokens, np.int64)


def recorded() -> tuple[RequestRecorder, list[ActivationMatrix]]:
    finished: list[ActivationMatrix] = []
    return RequestRecorder(SHAPE, finished.append), finished


def test_a_row_counts_the_tokens_of_each_expert() -> None:
    matrix = ActivationMatrix(SHAPE)
    matrix.record(1, ids((0, 4), (4, 2), (4, 1)))
    matrix.record(1, ids((4, 3)))
    assert matrix.counts.tolist() == [[0] * 5, [1, 1, 1, 1, 4], [0] * 5]


def test_a_row_sums_to_tokens_times_top_k() -> None:
    matrix = ActivationMatrix(SHAPE)
    for layer in range(3):
        matrix.record(layer, ids((0, 1), (1, 2)))
        matrix.record(layer, ids((3, 4)))
    assert matrix.row_sums().tolist() == [3 * SHAPE.top_k] * 3


def test_prefill_and_decode_are_handed_on_apart() -> None:
    recorder, finished = recorded()
    recorder.begin("prefill")
    recorder.observe(0, ids((0, 1), (0, 2)))
    recorder.begin("decode")
    recorder.observe(0, ids((3, 4)))
    recorder.begin("decode")
    recorder.observe(0, ids((3, 2)))
    recorder.finish()
    assert [matrix.counts[0].tolist() for matrix in finished] == [[2, 1, 1, 0, 0], [0, 0, 1, 2, 1]]


@pytest.mark.parametrize("end", ["finish", "next request"])
def test_a_request_ends_once(end: str) -> None:
    recorder, finished = recorded()
    recorder.begin("prefill")
    recorder.observe(2, ids((0, 1)))
    for _ in range(2):
        if end == "finish":
            recorder.finish()
        else:
            recorder.begin("prefill")
    assert len(finished) == 1


def test_a_phase_without_tokens_is_not_handed_on() -> None:
    recorder, finished = recorded()
    recorder.begin("prefill")
    recorder.begin("decode")
    recorder.finish()
    assert finished == []


def test_what_is_counted_together_is_what_is_recorded_one_by_one() -> None:
    finished: list[ActivationMatrix] = []
    recorder = RequestRecorder(SHAPE, finished.append, rows_at_once=4)
    expected = ActivationMatrix(SHAPE)
    rng = np.random.default_rng(0)
    for number in range(11):
        layer, routed = number % 3, rng.random((1 + number % 4, 5)).argsort(axis=1)[:, :2]
        expected.record(layer, routed)
        recorder.observe(layer, routed)
        routed[:] = 0  # the caller's array is its own again
    recorder.finish()
    assert finished[0].counts.tolist() == expected.counts.tolist()


def test_a_routing_that_no_memory_is_left_for_spoils_no_later_one() -> None:
    class Full:
        def copy(self) -> np.ndarray:
            raise MemoryError

    finished: list[ActivationMatrix] = []
    recorder = RequestRecorder(MoeShape(2, 4, 1), finished.append)
    recorder.begin("prefill")
    with pytest.raises(MemoryError):
        recorder.observe(0, Full())  # type: ignore[arg-type]
    recorder.observe(1, np.array([[3]]))
    recorder.finish()
    assert finished[0].counts.tolist() == [[0, 0, 0, 0], [0, 0, 0, 1]]


def test_requests_side_by_side_are_kept_apart() -> None:
    recorder, finished = recorded()
    recorder.begin_of("a", "prefill")
    recorder.pass_begins([("a", 2)])
    recorder.observe(0, ids((0, 1), (0, 1)))
    recorder.pass_ends(whole=True)
    recorder.begin_of("a", "decode")
    recorder.begin_of("b", "prefill")
    recorder.pass_begins([("b", 1)])
    recorder.observe(0, ids((2, 3)))
    recorder.pass_ends(whole=True)
    recorder.begin_of("b", "decode")
    recorder.pass_begins([("a", 1), ("b", 2)])
    recorder.observe(0, ids((0, 1), (3, 4), (3, 2)))
    recorder.pass_ends(whole=True)
    recorder.finish("a")
    recorder.finish("a")
    recorder.finish("b")
    assert [matrix.counts[0].tolist() for matrix in finished] == [
        [2, 2, 0, 0, 0],
        [0, 0, 1, 1, 0],
        [1, 1, 0, 0, 0],
        [0, 0, 1, 2, 1],
    ]


def test_a_pass_that_is_given_up_does_not_count() -> None:
    recorder, finished = recorded()
    recorder.begin("prefill")
    recorder.observe(0, ids((0, 1)))
    recorder.pass_begins([(None, 1)])
    recorder.observe(0, ids((2, 3)))
    recorder.pass_ends(whole=False)
    recorder.observe(1, ids((0, 1)))
    recorder.finish()
    assert [matrix.counts.sum(axis=0).tolist() for matrix in finished] == [[2, 2, 0, 0, 0]]
