"""What is recorded, against a slow and obvious recorder, however passes end; and the folder it is written to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.config import RuntimeConfig
from moeinf.errors import UsageError
from moeinf.traces.folder import TraceFacts, add_request, open_folder, request_files
from moeinf.traces.recorder import TraceRecorder, open_recorder
from moeinf.traces.trace import load_trace
from moeinf.types import MoeShape, Phase, Routing

SHAPE = MoeShape(num_layers=4, num_experts=6, top_k=2)
FACTS = TraceFacts("some/model:latest", SHAPE, "ab12")
ENCODER = 2


def routing(rng: np.random.Generator, tokens: int) -> Routing:
    return Routing(
        rng.random((tokens, SHAPE.num_experts)).argsort(axis=1)[:, : SHAPE.top_k], rng.random((tokens, 2), np.float32)
    )


class Live:
    """Calls a recorder as a model does, and keeps the passes that came to their end, token by token."""

    def __init__(self, recorder: TraceRecorder, seed: int, ahead: bool) -> None:
        self.recorder, self.rng, self.ahead = recorder, np.random.default_rng(seed), ahead
        self.passes: list[tuple[Phase, list[dict[str, dict[int, Any]]]]] = []

    def begin(self, phase: Phase) -> None:
        self.phase = phase
        self.recorder.begin(phase)

    def run(self, layers: range, num_tokens: int, ends_at: int | None) -> None:
        """A pass; ends_at: the layer before which it is given up."""
        tokens: list[dict[str, dict[int, Any]]] = [{"routed": {}, "guessed": {}} for _ in range(num_tokens)]
        for layer in layers:
            guess = routing(self.rng, num_tokens)
            if self.ahead and layer + 1 < layers.stop:
                self.recorder.expect(layer + 1, guess.ids, guess.weights)
            if layer == ends_at:
                return
            routed = routing(self.rng, num_tokens)
            self.recorder.routed(layer, routed.ids, routed.weights)
            for number, token in enumerate(tokens):
                token["routed"][layer] = routed.ids[number].copy(), routed.weights[number].copy()
                if self.ahead and layer + 1 < layers.stop:
                    token["guessed"][layer + 1] = guess.ids[number].copy(), guess.weights[number].copy()
            for array in (routed.ids, routed.weights, guess.ids, guess.weights):
                array[:] = 0  # it is the caller's again
        self.passes.append((self.phase, tokens))


passes = st.lists(st.tuples(st.integers(1, 3), st.one_of(st.none(), st.integers(0, 3))), min_size=1, max_size=5)


@given(
    seed=st.integers(0, 9999),
    requests=st.lists(st.tuples(passes, passes), min_size=1, max_size=3),
    encodes=st.booleans(),
    ahead=st.booleans(),
    notes=st.sampled_from((1, 7, 4096)),
)
def test_what_came_to_its_end_is_recorded_as_it_was(
    tmp_path_factory: pytest.TempPathFactory, seed: int, requests: Any, encodes: bool, ahead: bool, notes: int
) -> None:
    folder = tmp_path_factory.mktemp("live")
    recorder = TraceRecorder(folder, FACTS, encoder_layers=ENCODER * encodes, notes_at_once=notes)
    wanted = []
    for prompt, answer in requests:
        live = Live(recorder, seed, ahead)
        if encodes:
            live.begin("encode")
            live.run(range(ENCODER), 3, None)
        for phase, phase_passes in (("prefill", prompt), ("decode", answer)):
            live.begin(phase)  # type: ignore[arg-type]
            for num_tokens, ends_at in phase_passes:
                live.run(range(ENCODER if encodes else 0, SHAPE.num_layers), num_tokens, ends_at)
        recorder.finish()
        recorder.finish()
        wanted += [live.passes] if live.passes else []
    assert len(request_files(folder)) == len(wanted)
    if not wanted:
        return
    trace = load_trace(folder)
    assert trace.passes is not None and trace.prompt_tokens is not None and trace.weights is not None
    lengths = [sum(len(tokens) for _, tokens in request) for request in wanted]
    assert np.diff(trace.offsets).tolist() == lengths
    assert np.diff(trace.passes).tolist() == [len(tokens) for request in wanted for _, tokens in request]
    prompts = [sum(len(tokens) for phase, tokens in request if phase != "decode") for request in wanted]
    assert trace.prompt_tokens.tolist() == prompts
    every = [token for request in wanted for _, tokens in request for token in tokens]
    for number, token in enumerate(every):
        for layer in range(SHAPE.num_layers):
            ids, weights = token["routed"].get(layer, ([-1, -1], [0, 0]))
            assert trace.experts[number, layer].tolist() == list(ids)
            assert trace.weights[number, layer].tolist() == list(weights)
            guess = token["guessed"].get(layer)
            if trace.guesses is None or trace.guess_weights is None:
                assert not any(token["guessed"] for token in every)
            elif guess is None:
                assert trace.guesses[number, layer].tolist() == [-1, -1]
            else:
                assert trace.guesses[number, layer].tolist() == list(guess[0])
                assert trace.guess_weights[number, layer].tolist() == list(guess[1])


def record(folder: Path, tokens: int = 3, **options: Any) -> TraceRecorder:
    recorder = TraceRecorder(folder, FACTS, **options)
    add(recorder, tokens)
    return recorder


def add(recorder: TraceRecorder, tokens: int = 3) -> None:
    live = Live(recorder, 1, ahead=False)
    live.begin("prefill")
    live.run(range(SHAPE.num_layers), tokens, None)
    recorder.finish()


def test_a_recording_goes_on_where_there_is_one(tmp_path: Path) -> None:
    record(tmp_path / "new" / "deep")
    record(tmp_path / "new" / "deep", tokens=2)
    trace = load_trace(tmp_path / "new" / "deep")
    assert trace.offsets.tolist() == [0, 3, 5]
    assert (trace.model, trace.shape) == (FACTS.model, SHAPE)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        (TraceFacts("other:latest", SHAPE, "ab12"), "holds a trace of other:latest, not of some/model:latest"),
        (TraceFacts("some/model:latest", SHAPE, "cd34"), "holds a trace of another version of some/model:latest"),
        (TraceFacts("some/model:latest", MoeShape(4, 5, 2), "ab12"), "holds a trace of another version of"),
        (TraceFacts("some/model:latest", SHAPE, "ab12", version=2), "has version 2, and this moeinf reads up to 1"),
    ],
)
def test_another_models_trace_is_left_alone(tmp_path: Path, facts: TraceFacts, said: str) -> None:
    (tmp_path / "trace.json").write_bytes(facts.dumps())
    with pytest.raises(UsageError, match=said) as refused:
        TraceRecorder(tmp_path, FACTS)
    assert "\n" not in str(refused.value)
    assert (tmp_path / "trace.json").read_bytes() == facts.dumps() and len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["routing.npz", "letter.txt", ".hidden"])
def test_a_folder_of_other_files_is_left_alone(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"dear")
    with pytest.raises(UsageError, match="holds other files, and no trace to go on with; name an empty folder"):
        TraceRecorder(tmp_path, FACTS)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_an_imported_trace_is_not_recorded_into(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(FACTS.dumps())
    (tmp_path / "routing.npz").write_bytes(b"")
    with pytest.raises(UsageError, match="holds a trace that was imported; record into another folder"):
        TraceRecorder(tmp_path, FACTS)


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(UsageError, match=r"file.*: Not a directory"):
        TraceRecorder(tmp_path / "file", FACTS)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "is not sound JSON"),
        (b"{}", 'its format is not "moeinf trace"'),
        (b'{"format": "moeinf trace", "version": 1}', "names no model"),
        (b'{"format": "moeinf trace", "version": 1, "model": "m"}', "does not tell the shape"),
        (
            b'{"format": "moeinf trace", "version": 1, "model": "m", "num_layers": 2, "num_experts": [4], "top_k": 1}',
            "layers, experts and top_k do not fit each other",
        ),
        (
            b'{"format": "moeinf trace", "version": 1, "model": "m", "num_layers": 1, "num_experts": "4", "top_k": 1}',
            "are not whole numbers",
        ),
        (TraceFacts("m", SHAPE, expert_bytes=(1, 2)).dumps(), "does not tell the size of each layer's experts"),
        (TraceFacts("m", SHAPE, expert_bytes=(1, 0, 1, 1)[: SHAPE.num_layers]).dumps(), "that is no number of bytes"),
    ],
)
def test_facts_that_are_none_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "trace.json").write_bytes(data)
    for use in (lambda: load_trace(tmp_path), lambda: TraceRecorder(tmp_path, FACTS)):
        with pytest.raises(UsageError, match=said) as refused:
            use()
        assert "\n" not in str(refused.value)
    assert (tmp_path / "trace.json").read_bytes() == data


def test_a_recording_without_a_finished_request_says_so(tmp_path: Path) -> None:
    TraceRecorder(tmp_path, FACTS)
    with pytest.raises(UsageError, match="holds no finished request yet"):
        load_trace(tmp_path)


def test_a_request_of_another_shape_is_refused(tmp_path: Path) -> None:
    record(tmp_path / "a")
    other = TraceFacts(FACTS.model, MoeShape(4, 7, 2), FACTS.model_id)
    live = Live(TraceRecorder(tmp_path / "b", other), 1, ahead=False)
    live.begin("prefill")
    live.run(range(4), 1, None)
    live.recorder.finish()
    (tmp_path / "b" / "request-000001.npz").rename(tmp_path / "a" / "request-000002.npz")
    with pytest.raises(UsageError, match=r"request-000002\.npz is of another model"):
        load_trace(tmp_path / "a")
    (tmp_path / "a" / "request-000001.npz").unlink()
    with pytest.raises(UsageError, match=r"of another model than its trace\.json says"):
        load_trace(tmp_path / "a")


KILLED = """
import os, signal, sys
from pathlib import Path
from moeinf.traces import folder
sync = os.fsync
def kill(fd):
    os.kill(os.getpid(), signal.SIGKILL)
folder.os.fsync = kill
folder.add_request(Path(sys.argv[1]), b"half" * 1000)
"""


def test_what_a_killed_process_leaves_is_not_taken_for_a_request(tmp_path: Path) -> None:
    record(tmp_path)
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "request-000002.tmp").exists()
    assert load_trace(tmp_path).num_tokens == 3
    record(tmp_path)
    assert [path.name for path in request_files(tmp_path)] == ["request-000001.npz", "request-000003.npz"]
    assert load_trace(tmp_path).num_tokens == 6


def test_processes_that_record_into_one_folder_overwrite_nothing(tmp_path: Path) -> None:
    open_folder(tmp_path, FACTS)
    script = "import sys; from pathlib import Path; from moeinf.traces.folder import add_request\n"
    script += "for n in range(40): add_request(Path(sys.argv[1]), f'{sys.argv[2]}-{n}'.encode())"
    started = [subprocess.Popen([sys.executable, "-c", script, str(tmp_path), name]) for name in ("a", "b", "c")]
    assert [process.wait() for process in started] == [0, 0, 0]
    found = sorted(path.read_text() for path in request_files(tmp_path))
    assert found == sorted(f"{name}-{n}" for name in "abc" for n in range(40))
    assert not list(tmp_path.glob("*.tmp"))


def test_a_number_is_not_taken_where_a_file_has_it_by_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may finish between the look at the numbers and the temporary file."""
    record(tmp_path)
    first = (tmp_path / "request-000001.npz").read_bytes()
    looks = iter([[], *[os.listdir(tmp_path)] * 2])
    monkeypatch.setattr(os, "listdir", lambda folder: next(looks))
    assert add_request(tmp_path, b"new").name == "request-000002.npz"
    assert (tmp_path / "request-000001.npz").read_bytes() == first


def test_recording_ends_where_the_folder_is_full(tmp_path: Path) -> None:
    notices: list[str] = []
    recorder = record(tmp_path, limit_bytes=5000, notify=notices.append)
    while not notices:
        add(recorder, 50)
    size = sum(path.stat().st_size for path in request_files(tmp_path))
    assert 0 < size <= 5000 and "no more routing is recorded" in notices[0]
    add(recorder, 1)
    assert sum(path.stat().st_size for path in request_files(tmp_path)) == size
    assert len(notices) == 1
    record(tmp_path, limit_bytes=size, notify=notices.append)
    assert len(notices) == 2 and sum(path.stat().st_size for path in request_files(tmp_path)) == size


def test_a_disk_that_refuses_ends_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notices: list[str] = []
    recorder = record(tmp_path, notify=notices.append)
    monkeypatch.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    add(recorder)
    assert notices == [f"the routing of a request was not recorded: {tmp_path}: No space left on device"]
    monkeypatch.undo()
    assert len(request_files(tmp_path)) == 1 and not list(tmp_path.glob("*.tmp"))
    add(recorder)
    assert len(request_files(tmp_path)) == 2


def test_options_say_where_and_how_much(tmp_path: Path) -> None:
    assert open_recorder(RuntimeConfig(), FACTS, print, 0) is None
    recorder = open_recorder(RuntimeConfig.of(trace=str(tmp_path / "t"), trace_limit="3MB"), FACTS, print, 0)
    assert recorder is not None and recorder._limit_bytes == 3_000_000
    with pytest.raises(UsageError, match="--trace-limit bounds the folder of --trace DIR"):
        RuntimeConfig.of(trace_limit="3MB")
