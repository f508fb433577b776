"""Traces: what is written is read again, and what is damaged, ragged or of another model is refused in one line."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeinf.errors import UsageError
from moeinf.traces.folder import TraceFacts, add_request, open_folder
from moeinf.traces.trace import Trace, cut, dumps, joined, load_trace, passes_of, read_trace, visits
from tests.support.random_traces import SHAPE, a_trace

FACTS = TraceFacts("some/model:latest", SHAPE, "ab12")


def same(a: Trace, b: Trace) -> bool:
    left, right = ({each.name: getattr(t, each.name) for each in fields(Trace)} for t in (a, b))
    return all(np.array_equal(left[name], right[name]) for name in left if name not in ("name", "model"))


def one_request(trace: Trace, number: int) -> Trace:
    start, end = trace.offsets[number : number + 2].tolist()
    rows: dict[str, Any] = {
        name: None if (array := getattr(trace, name)) is None else array[start:end]
        for name in ("experts", "weights", "guesses", "guess_weights")
    }
    passes, prompts = trace.passes, trace.prompt_tokens
    return replace(
        trace,
        **rows,
        offsets=np.array([0, end - start]),
        passes=None if passes is None else passes[(passes >= start) & (passes <= end)] - start,
        prompt_tokens=None if prompts is None else prompts[number : number + 1],
    )


traces = st.builds(
    a_trace,
    st.integers(0, 10_000),
    st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple),
    encoder_layers=st.sampled_from((0, 1, 2)),
    guessed=st.booleans(),
    whole=st.booleans(),
)


@settings(deadline=None)
@given(trace=traces)
def test_what_was_written_is_read_again(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    folder = tmp_path_factory.mktemp("written")
    (folder / "routing.npz").write_bytes(dumps(trace))
    assert same(load_trace(folder), trace)


@settings(deadline=None)
@given(trace=traces)
def test_requests_recorded_one_by_one_are_the_whole(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    folder = tmp_path_factory.mktemp("recorded")
    open_folder(folder, FACTS)
    for number in range(trace.num_requests):
        add_request(folder, dumps(one_request(trace, number)))
    loaded = load_trace(folder)
    assert same(loaded, trace) and loaded.model == FACTS.model and loaded.name == folder.name


@settings(deadline=None)
@given(trace=traces, num_tokens=st.integers(1, 20))
def test_a_trace_that_is_cut_is_the_beginning_of_the_whole(trace: Trace, num_tokens: int) -> None:
    short = cut(trace, num_tokens)
    assert short.num_tokens == min(num_tokens, trace.num_tokens)
    assert (short.experts == trace.experts[:num_tokens]).all()
    whole = [(begins, first) for begins, first, _ in passes_of(trace) if first < num_tokens]
    assert [(begins, first) for begins, first, _ in passes_of(short)] == whole


def test_guesses_that_some_requests_lack_are_absent_there() -> None:
    with_guesses, without = a_trace(1), a_trace(2, guessed=False)
    both = joined([with_guesses, without])
    assert both.guesses is not None and with_guesses.guesses is not None and both.guess_weights is not None
    assert (both.guesses[:8] == with_guesses.guesses).all() and (both.guesses[8:] == -1).all()
    assert not both.guess_weights[8:].any()


def test_visits_follow_the_passes_that_ran() -> None:
    trace = replace(a_trace(3, (5, 2)), passes=np.array([0, 2, 3, 4, 5, 6, 7]), prompt_tokens=np.array([3, 1]))
    seen = [(begins, layer, len(ids)) for begins, layer, ids in visits(trace)]
    ones = [(None, 1, 1), (None, 2, 1)]
    assert seen[:3] == [("prefill", 0, 2), (None, 1, 2), (None, 2, 2)]
    assert seen[3:6] == [(None, 0, 1), *ones] and seen[6:9] == [("decode", 0, 1), *ones]
    assert [begins for begins, _, _ in seen if begins] == ["prefill", "decode", "prefill", "decode"]


def test_an_encoder_and_its_decoder_visit_their_own_layers() -> None:
    experts = np.broadcast_to(np.arange(2), (4, 3, 2)).copy()
    experts[:2, 1:] = -1
    experts[2:, :1] = -1
    trace = Trace("t", SHAPE, experts, np.array([0, 4]), np.array([0, 2, 3, 4]), np.array([3]))
    phases = [(begins, layer, len(ids)) for begins, layer, ids in visits(trace)]
    assert phases == [("encode", 0, 2), ("prefill", 1, 1), (None, 2, 1), ("decode", 1, 1), (None, 2, 1)]


def test_without_passes_the_first_tokens_go_through_together() -> None:
    trace = a_trace(4, (4, 1), whole=False)
    assert list(passes_of(trace, 3)) == [("prefill", 0, 3), ("decode", 3, 4), ("prefill", 4, 5)]
    assert [phase for phase, _, _ in passes_of(trace)] == ["prefill", "decode", None, None, "prefill"]


WRONG = [
    ({"passes": np.array([0, 4, 8])}, "a pass runs tokens of two requests"),
    ({"passes": np.array([0, 5, 5, 8])}, "a pass has no tokens"),
    ({"passes": np.array([0, 5])}, "passes do not ascend from 0 to the 8 tokens"),
    ({"offsets": np.array([0, 5, 9])}, "offsets do not ascend from 0 to the 8 tokens"),
    ({"offsets": np.array([0, 5])}, "offsets do not ascend from 0 to the 8 tokens"),
    ({"prompt_tokens": np.array([1])}, "prompt_tokens are not one for each request"),
    ({"prompt_tokens": np.array([1, 4])}, "a prompt is longer than its request"),
    ({"weights": np.zeros((8, 3, 1), np.float32)}, "weights do not fit experts"),
    ({"guesses": np.full((8, 3, 2), 5)}, "guesses do not fit n_experts and top_k"),
    ({"guesses": None}, "guesses do not fit n_experts and top_k"),
    ({"guess_weights": None}, "guess_weights do not fit guesses"),
    ({"experts": np.full((8, 3, 2), -1)}, "a token visits no layer"),
    ({"experts": np.full((8, 3, 2), [-1, 0])}, "a token has only some of its experts of a layer"),
    ({"experts": np.full((8, 3, 2), 4)}, "experts do not fit n_experts and top_k"),
]


@pytest.mark.parametrize(("changed", "fault"), WRONG, ids=[f"{fault} {n}" for n, (_, fault) in enumerate(WRONG)])
def test_arrays_that_do_not_fit_are_refused(tmp_path: Path, changed: dict[str, object], fault: str) -> None:
    (tmp_path / "routing.npz").write_bytes(dumps(replace(a_trace(5), **changed)))  # type: ignore[arg-type]
    with pytest.raises(UsageError) as refused:
        load_trace(tmp_path)
    assert str(refused.value) == f"{tmp_path}/routing.npz is not a routing trace ({fault})"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.99])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, share: float) -> None:
    data = dumps(a_trace(6))
    (tmp_path / "routing.npz").write_bytes(data[: int(share * len(data))])
    with pytest.raises(UsageError, match=r"routing\.npz is not a routing trace") as refused:
        load_trace(tmp_path)
    assert "\n" not in str(refused.value)


@settings(deadline=None)
@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_flipped_bit_changes_nothing_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int
) -> None:
    trace, path = a_trace(7), tmp_path_factory.mktemp("flipped") / "routing.npz"
    data = bytearray(dumps(trace))
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    try:
        read = read_trace(path)
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        known = [each.name for each in fields(Trace) if getattr(read, each.name) is not None]
        assert all(
            np.array_equal(getattr(read, n), getattr(trace, n)) for n in known if n not in ("name", "model")
        )  # a name of an array that changed leaves that array out


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "routing.npz").mkdir()
    with pytest.raises(UsageError, match=r"routing\.npz: not a regular file"):
        load_trace(tmp_path)
    np.save(tmp_path / "array.npy", np.zeros(3))
    with pytest.raises(UsageError, match="is not a routing trace"):
        read_trace(tmp_path / "array.npy")
