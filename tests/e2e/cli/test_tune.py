"""`moeinf tune`: from recorded requests to a network beside the store, and what run and show make of it."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moeinf.engine.stored.tuned_file import load_tuned, path_of, save_tuned
from moeinf.pull.pull import ensure
from moeinf.runtime.policy.tuned import Gain, TunedNetwork, weight_shapes
from moeinf.store.library import StoredModel
from moeinf.traces.trace import load_trace
from tests.support.cli.commands import Done

RUN = ("run", "demo", "The king said", "-n", "24", "--seed", "3", "-q", "--expert-cache", "20%")
# Hardly more than the least that tune takes.
RECORD = ("bench", "demo", "-p", "8", "-n", "96", "-r", "3", "-q", "--trace")
BETTER = Gain((10, 50), (40.0, 70.0), (42.5, 70.0), 9, 800)


@pytest.fixture
def stored(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StoredModel:
    """The demo model in a store that only this test has. What `tune` learns in it is learned from few steps."""
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("moeinf.bench.tuning.training.LEAST_STEPS", 20)
    return ensure("demo", home=tmp_path / "home")


def test_without_torch_nothing_is_read_and_one_line_says_how_to_get_it(
    stored: StoredModel, command: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = command("tune", "demo", "--trace", "nowhere")
    assert done.code == 2 and "pip install torch" in done.err and len(done.err.splitlines()) == 1


def network_of(stored: StoredModel, gain: Gain = BETTER) -> TunedNetwork:
    rng, shape = np.random.default_rng(0), stored.manifest.moe
    weights = {
        name: (0.1 * rng.standard_normal(each)).astype(np.float32) for name, each in weight_shapes(shape).items()
    }
    return TunedNetwork(stored.id, shape, weights, gain)


def test_recorded_requests_train_a_network_that_changes_no_token(
    stored: StoredModel, command: Callable[..., Done], tmp_path: Path
) -> None:
    trace = str(tmp_path / "trace")
    plain = command(*RUN)
    assert command(*RECORD, trace).code == 0
    done = command("tune", "demo", "--trace", trace, "--rounds", "1")
    assert done.code == 0 and done.err == "" and "next-use" in done.out, done
    network = load_tuned(stored)
    assert network is not None and f"{network.num_parameters:,} parameters" in done.out
    assert network.gain.tokens < load_trace(Path(trace)).num_tokens / 2
    shown = command("show", "demo").out
    assert ("in use (" if network.gain.better else "not in use") in shown and network.gain.text in shown
    for policy in ((), ("--policy", "tuned"), ("--policy", "next-use")):
        assert command(*RUN, *policy) == plain


def test_it_is_the_default_only_where_it_was_better(stored: StoredModel, command: Callable[..., Done]) -> None:
    bench = ("bench", "demo", "-p", "8", "-n", "4", "-r", "1", "-q", "-o", "json")
    save_tuned(stored, network_of(stored))
    assert '"policy": "tuned"' in command(*bench).out
    assert '"policy": "next-use"' in command(*bench, "--policy", "next-use").out
    save_tuned(stored, network_of(stored, replace(BETTER, tuned=(50.0, 69.9))))
    assert '"policy": "next-use"' in command(*bench).out
    assert '"policy": "tuned"' in command(*bench, "--policy", "tuned").out


def test_a_network_that_cannot_be_used_is_told_in_one_line(stored: StoredModel, command: Callable[..., Done]) -> None:
    plain = command(*RUN)
    asked = command(*RUN, "--policy", "tuned")
    assert asked.code != 0 and "`moeinf tune demo:latest` trains one" in asked.err and asked.err.count("\n") == 1
    whole = network_of(stored).dumps()
    another = replace(network_of(stored), model_id="other").dumps()
    for data, said in ((whole[: len(whole) // 2], "damaged"), (another, "another model")):
        path_of(stored).write_bytes(data)
        done = command(*RUN)
        assert (done.code, done.out) == (plain.code, plain.out)
        assert said in done.err and "next-use decides" in done.err and done.err.count("\n") == plain.err.count("\n") + 1
        asked = command(*RUN, "--policy", "tuned")
        assert asked.code != 0 and said in asked.err and asked.err.count("\n") == 1
        assert said in command("show", "demo").out
        assert path_of(stored).read_bytes() == data


def test_bad_traces_are_refused_and_nothing_is_written(
    stored: StoredModel, command: Callable[..., Done], tmp_path: Path
) -> None:
    few, shape = tmp_path / "few", stored.manifest.moe
    assert command("run", "demo", "Once", "-n", "8", "-q", "--trace", str(few)).code == 0
    strange = tmp_path / "strange"
    strange.mkdir()
    np.savez(
        strange / "routing.npz",
        experts=np.zeros((500, shape.num_layers + 1, 1), np.uint8),
        offsets=np.arange(0, 501, 50),
        n_experts=shape.num_experts,
        top_k=1,
    )
    for folder, said in ((few, "too few"), (strange, "another model"), (tmp_path / "none", "no trace in")):
        done = command("tune", "demo", "--trace", str(folder))
        assert done.code != 0 and said in done.err and done.err.count("\n") == 1, done
    assert command("tune", "demo").code != 0
    assert load_tuned(stored) is None


def test_an_interrupt_leaves_what_was_there(
    stored: StoredModel, command: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command(*RECORD, str(tmp_path / "t")).code == 0
    save_tuned(stored, network_of(stored))
    before = path_of(stored).read_bytes()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeinf.bench.tuning.training._loss", interrupted)
    assert command("tune", "demo", "--trace", str(tmp_path / "t")).code == 130
    assert path_of(stored).read_bytes() == before
    assert not list(stored.path.glob(".*tmp"))
