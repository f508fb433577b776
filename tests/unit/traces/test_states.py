"""Recorded hidden states: whole passes alone, within the limit; a file that is damaged or ragged is refused."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.errors import StoreError, UsageError
from moeinf.runtime.policy.state_maps import unit_state
from moeinf.traces.folder import TraceFacts, add_request, open_folder, request_files
from moeinf.traces.recorder import TraceRecorder, open_recorder
from moeinf.traces.stored_states import JoinedStates, StoredStates
from moeinf.traces.trace import Trace, cut, dumps, joined, load_trace, read_trace, without_first
from tests.support.random_traces import SHAPE, a_trace

FACTS = TraceFacts("some/model:latest", SHAPE, "ab12")
HIDDEN = 5


def with_states(trace: Trace, hidden: int = HIDDEN) -> Trace:
    rng = np.random.default_rng(trace.num_tokens)
    return replace(trace, states=rng.standard_normal((trace.num_tokens, 3, hidden)).astype(np.float16))


def run(recorder: TraceRecorder, rng: np.random.Generator, tokens: int, ends_at: int | None) -> Any:
    """A pass, as a model tells it; ends_at: the layer behind whose attention it is given up."""
    states = rng.standard_normal((3, tokens, HIDDEN)).astype(np.float32)
    for layer, state in enumerate(states):
        recorder.before_attention(layer, state)
        if layer == ends_at:
            return None
        recorder.routed(layer, np.tile(np.arange(2), (tokens, 1)), np.ones((tokens, 2), np.float32))
    return states.transpose(1, 0, 2).astype(np.float16)


passes = st.lists(st.tuples(st.integers(1, 3), st.one_of(st.none(), st.integers(0, 2))), min_size=1, max_size=6)


@given(seed=st.integers(0, 9999), requests=st.lists(passes, min_size=1, max_size=3), notes=st.sampled_from((1, 4096)))
def test_states_of_whole_passes_are_kept(
    tmp_path_factory: pytest.TempPathFactory, seed: int, requests: Any, notes: int
) -> None:
    folder, rng, wanted = tmp_path_factory.mktemp("live"), np.random.default_rng(seed), []
    recorder = TraceRecorder(folder, FACTS, notes_at_once=notes, states=True)
    for request in requests:
        recorder.begin("prefill")
        wanted += [states for each in request if (states := run(recorder, rng, *each)) is not None]
        recorder.finish()
    if wanted:
        recorded = load_trace(folder, states=True).states
        assert recorded is not None and np.array_equal(recorded, np.concatenate(wanted))
        assert load_trace(folder).states is None


def test_memory_and_folder_stay_within_the_limit(tmp_path: Path) -> None:
    notices: list[str] = []
    recorder = TraceRecorder(tmp_path, FACTS, limit_bytes=3000, notify=notices.append, states=True)
    rng = np.random.default_rng(0)
    for _ in range(200):
        if recorder.wants_states:
            run(recorder, rng, 1, None)
            assert recorder._states.num_bytes <= 3000
    assert len(notices) == 1 and "no more routing is recorded" in notices[0]
    recorder.finish()
    assert not request_files(tmp_path)


def test_states_come_back_and_go_with_their_tokens(tmp_path: Path) -> None:
    trace = with_states(a_trace(1, (4, 3)))
    open_folder(tmp_path, FACTS)
    add_request(tmp_path, dumps(trace))
    read = load_trace(tmp_path, states=True)
    assert read.states is not None and trace.states is not None and read.hidden_size == HIDDEN
    assert np.array_equal(read.states, trace.states)
    for part, rows in ((cut(read, 5), slice(5)), (without_first(read, 1), slice(4, None))):
        assert part.states is not None and np.array_equal(part.states, trace.states[rows])
    both = joined([read, read]).states
    assert both is not None and np.array_equal(both, np.concatenate([trace.states, trace.states]))
    assert joined([read, a_trace(2)]).states is None


@pytest.mark.parametrize(
    ("states", "fault"),
    [
        (np.zeros((6, 3, 2), np.float16), "states do not fit experts"),
        (np.zeros((7, 2, 2), np.float16), "states do not fit experts"),
        (np.zeros((7, 3), np.float16), "states do not fit experts"),
        (np.zeros((7, 3, 0), np.float16), "states are no numbers"),
        (np.full((7, 3, 2), np.inf, np.float16), "states are no numbers"),
        (np.zeros((7, 3, 2), np.float32), "states of type float32 where float16 belongs"),
    ],
)
def test_states_that_do_not_fit_are_refused(tmp_path: Path, states: Any, fault: str) -> None:
    path = tmp_path / "routing.npz"
    path.write_bytes(dumps(replace(a_trace(1, (4, 3)), states=states)))
    with pytest.raises(UsageError) as refused:
        read_trace(path, states=True)
    assert str(refused.value) == f"{path} is not a routing trace ({fault})"
    assert read_trace(path).states is None, "who does not ask for states is not stopped by them"


@given(share=st.floats(0, 0.999))
def test_a_file_that_was_cut_off_is_refused(tmp_path_factory: pytest.TempPathFactory, share: float) -> None:
    data, path = dumps(with_states(a_trace(1, (4, 3)))), tmp_path_factory.mktemp("cut") / "routing.npz"
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UsageError, match="is not a routing trace"):
        read_trace(path, states=True)


def test_a_flipped_bit_of_the_states_is_noticed(tmp_path: Path) -> None:
    path, data = tmp_path / "routing.npz", bytearray(dumps(with_states(a_trace(1, (4, 3)))))
    data[data.index(b"states.npy") + 300] ^= 1
    path.write_bytes(data)
    with pytest.raises(UsageError, match=r"not a routing trace \(Bad CRC-32 for file 'states.npy'\)"):
        read_trace(path, states=True)


def test_a_file_that_is_cut_while_its_states_are_used_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "routing.npz"
    path.write_bytes(dumps(with_states(a_trace(1, (4, 3)))))
    states = read_trace(path, states=True).states
    assert states is not None
    os.truncate(path, 0)
    for index in (slice(1, 3), (slice(0, 7), 1)):
        with pytest.raises(StoreError, match=rf"^{path} ends at 0, [^\n]* truncated; record the trace again, [^\n]*$"):
            np.asarray(states[index])


def test_states_of_a_recording_stay_in_their_files_and_are_indexed_as_one_array(tmp_path: Path) -> None:
    requests = [with_states(a_trace(seed, (length,)), HIDDEN) for seed, length in enumerate((4, 1, 3))]
    open_folder(tmp_path, FACTS)
    for request in requests:
        add_request(tmp_path, dumps(request))
    states = load_trace(tmp_path, states=True).states
    assert isinstance(states, JoinedStates) and all(isinstance(part, StoredStates) for part in states.parts())
    whole = np.concatenate([np.asarray(request.states) for request in requests])
    for start, stop in itertools.combinations_with_replacement(range(len(whole) + 1), 2):
        assert np.array_equal(states[start:stop], whole[start:stop]) and len(states[start:stop]) == stop - start
        assert np.array_equal(states[start:stop, 1], whole[start:stop, 1])
        assert np.array_equal(states[start:][: stop - start], whole[start:][: stop - start])
    assert np.array_equal(states[[7, 0, 4, 4, 5]], whole[[7, 0, 4, 4, 5]])


def test_states_of_another_model_are_refused(tmp_path: Path) -> None:
    open_folder(tmp_path, FACTS)
    for hidden in (HIDDEN, HIDDEN + 1):
        add_request(tmp_path, dumps(with_states(a_trace(1, (4, 3)), hidden)))
    with pytest.raises(UsageError, match=r"request-000002\.npz is of another model"):
        load_trace(tmp_path, states=True)


def test_options_that_cannot_be_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--trace-states adds to what --trace DIR records"):
        RuntimeConfig.of(trace_states=True)
    config = RuntimeConfig.of(trace=str(tmp_path), trace_states=True)
    with pytest.raises(UsageError, match="has an encoder"):
        open_recorder(config, FACTS, print, encoder_layers=1)
    recorder = open_recorder(config, FACTS, print, 0)
    assert recorder is not None and recorder.wants_states


def test_a_unit_state_has_a_mean_square_of_one() -> None:
    rows = np.array([[3.0, 4.0], [3e9, -4e9], [0.0, 0.0]], np.float32)
    wanted = np.array([[3.0, 4.0], [3.0, -4.0], [0.0, 0.0]]) / np.sqrt(12.5)
    np.testing.assert_allclose(unit_state(rows), wanted, rtol=1e-6)
