"""`pull --calibrate`: what rounding loses of a column of an expert is made up for by later ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from moeinf._native import dequantise
from moeinf.bench.divergence import calibrating
from moeinf.bench.divergence.calibrating import calibrated, states_of
from moeinf.bench.divergence.correcting import Correction
from moeinf.bench.divergence.fitting import weighed
from moeinf.bench.divergence.given_states import GivenStates
from moeinf.config import RuntimeConfig
from moeinf.config.fit_options import FitOptions
from moeinf.config.user_text import text_of
from moeinf.engine.reporting import Reporting
from moeinf.errors import DiskSpaceError
from moeinf.gguf.imatrix import Imatrix
from moeinf.pull.events import SilentProgress
from moeinf.pull.importance import Importance
from moeinf.pull.pull import pull
from moeinf.pull.refit import Refit, Weighing, refit
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.catalogue import DATA
from moeinf.store.quantisation import chosen
from moeinf.store.verify import verify
from moeinf.types import Float32Array, Format
from tests.support.cli.commands import Done

Command = Callable[..., Done]

TEXT = text_of("--calibrate", None)
OPTIONS = FitOptions(calibrate="built-in", calibrate_tokens=1500)
QUIET = Reporting(lambda line: None)
Given = tuple[Imatrix, GivenStates]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return pull("demo", home=tmp_path_factory.mktemp("home"))


def read(whole: StoredModel, **config: Any) -> Given:
    states = states_of(whole, TEXT, OPTIONS)
    return calibrated(whole, TEXT, OPTIONS, RuntimeConfig.of(**config), QUIET, states), states


@pytest.fixture(scope="module")
def given(whole: StoredModel) -> Given:
    return read(whole, threads=1)


def files_of(states: GivenStates) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in states.folder.iterdir()}


def store(whole: StoredModel, given: Given, quant: str, threads: int = 2, *, corrects: bool = True) -> StoredModel:
    asked = chosen(quant)
    assert asked is not None
    correction = Correction(whole, given[1], threads) if corrects else None
    weighing = Weighing(Importance(whole, given[0], "x"), "abc", ("by a text",), correction)
    return weighed(whole, asked, f"demo:{quant}-{corrects}", QUIET, SilentProgress(), weighing)


def shards(stored: StoredModel) -> list[bytes]:
    return [path.read_bytes() for path in stored.shard_paths]


def part(stored: StoredModel, layer: int, name: str, expert: int) -> Float32Array:
    layout = stored.manifest.layout_of(layer)
    spec = next(each for each in layout.tensors if each.name == name)
    data = np.fromfile(stored.shard_paths[layer], np.uint8)[expert * layout.stride_bytes + spec.offset_bytes :]
    rows, cols = spec.shape
    out = np.empty((rows, cols), np.float32)
    dequantise(spec.dtype, data[: spec.num_bytes].copy(), rows, cols, out)
    return out


def inputs_of(whole: StoredModel, states: GivenStates, layer: int, expert: int) -> dict[str, Float32Array]:
    """What the parts of an expert are multiplied with on the text, computed in numpy from its weights."""
    x = states.states(layer, np.flatnonzero((states.experts(layer) == expert).any(1)))
    gate, up = (x @ part(whole, layer, name, expert).T for name in ("gate", "up"))
    return {"gate": x, "up": x, "down": gate / (1 + np.exp(-gate)) * up}


@pytest.mark.parametrize("quant", ["q4_k", "q3_k", "iq4_xs", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_outputs_of_experts_are_nearer_than_by_importance_alone(whole: StoredModel, given: Given, quant: str) -> None:
    plain, made = store(whole, given, quant, corrects=False), store(whole, given, quant)
    assert verify(made) == [] and made.manifest.layout == plain.manifest.layout
    counts, better = given[0].sums["blk.3.ffn_up_exps.weight"].counts, []
    for expert in np.argsort(counts)[-5:].tolist():
        for name, x in inputs_of(whole, given[1], 3, expert).items():
            exact = part(whole, 3, name, expert)
            losses = [float(np.square(x @ (part(m, 3, name, expert) - exact).T).sum()) for m in (plain, made)]
            better.append(losses[1] / losses[0])
    assert max(better) < 1 and np.mean(better) < 0.8


def test_it_depends_on_neither_threads_nor_memory(whole: StoredModel, given: Given) -> None:
    wanted, states = shards(store(whole, given, "q3_k", 1)), files_of(given[1])
    assert shards(store(whole, given, "q3_k", 3)) == wanted
    for config in ({"threads": 3}, {"threads": 2, "expert_cache": "25%"}):
        given[1].forget()
        assert files_of(read(whole, **config)[1]) == states


def test_factors_are_those_of_numpy(whole: StoredModel, given: Given) -> None:
    """H = U D U^T, with U upper, of more columns than are taken at once."""
    rng = np.random.default_rng(2)
    inputs = rng.standard_normal((900, 640)) @ rng.standard_normal((640, 640)) * np.exp(rng.standard_normal(640))
    counts = rng.uniform(0.1, 1, 900)
    products = (inputs * counts[:, None]).T @ inputs
    products /= products.diagonal().mean()
    products += 0.01 * np.eye(640)
    found = Correction(whole, given[1], 2)._factors(inputs.astype(np.float32), counts.astype(np.float32))
    assert found is not None
    upper, squares = (each.astype(np.float64) for each in found)
    assert np.array_equal(np.triu(upper), upper) and np.array_equal(upper.diagonal(), np.ones(640))
    np.testing.assert_allclose(upper @ np.diag(squares) @ upper.T, products, atol=2e-4 * np.abs(products).max())


def test_activations_are_those_of_the_expert(whole: StoredModel, given: Given) -> None:
    data = np.fromfile(whole.shard_paths[2], np.uint8)
    layout = whole.manifest.layout_of(2)
    block = data[5 * layout.stride_bytes : 6 * layout.stride_bytes].copy()
    wanted = inputs_of(whole, given[1], 2, 5)
    found = Correction(whole, given[1], 2)._acts(2, layout, block, wanted["up"])
    np.testing.assert_allclose(found, wanted["down"], atol=0.02 * np.abs(wanted["down"]).max())


def test_an_expert_that_no_token_reaches_goes_by_its_layer(whole: StoredModel, given: Given, tmp_path: Path) -> None:
    states = GivenStates(tmp_path, whole.manifest)
    states.begin(300)
    for layer in range(whole.manifest.moe.num_layers):
        experts = given[1].experts(layer)[:300]
        states.add(layer, given[1].states(layer, np.arange(300)), np.where(experts == 7, 8, experts))
    block = np.fromfile(whole.shard_paths[1], np.uint8)[7 * whole.manifest.layout.stride_bytes :]
    wanted: dict[str, Format] = {"up": "iq4_nl", "down": "q5_0"}
    made = Correction(whole, states, 1).expert(1, 7, block[: whole.manifest.layout.stride_bytes], wanted)
    x, exact = states.states(1, np.arange(300)), part(whole, 1, "up", 7)
    plain, found = np.empty_like(exact), np.empty_like(exact)
    dequantise("iq4_nl", made["up"], *exact.shape, found)  # type: ignore[call-arg]
    stored = store(whole, given, "iq4_nl", corrects=False)
    plain = part(stored, 1, "up", 7)
    assert np.square(x @ (found - exact).T).sum() < 0.9 * np.square(x @ (plain - exact).T).sum()


def test_an_interrupted_reading_goes_on_with_its_states(
    whole: StoredModel, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, sums = files_of(given[1]), given[1].folder.with_suffix(".gguf").read_bytes()
    given[1].forget()
    given[1].folder.with_suffix(".gguf").unlink()
    pieces: list[int] = []
    before = calibrating._Gathered.read

    def counted(self: Any, ids: Any) -> None:
        if len(pieces) == 1:
            pieces.append(0)
            raise KeyboardInterrupt
        pieces.append(len(ids))
        before(self, ids)

    monkeypatch.setattr(calibrating, "_SAVED_AFTER_S", 0.0)
    monkeypatch.setattr(calibrating._Gathered, "read", counted)
    with pytest.raises(KeyboardInterrupt):
        read(whole, threads=1)
    again = read(whole, threads=1)[1]
    assert pieces == [512, 0, 512, 1500 - 1024], "no piece was read twice"
    assert files_of(again) == wanted and again.folder.with_suffix(".gguf").read_bytes() == sums
    again.forget()
    assert files_of(read(whole, threads=1)[1]) == wanted, "sums alone are not enough"


def test_an_interrupted_correction_goes_on_with_its_layers(
    whole: StoredModel, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, before = shards(store(whole, given, "iq4_xs")), Correction.expert
    asked: list[tuple[int, int]] = []
    ends = [(2, 5)]

    def interrupted(self: Any, layer: int, expert: int, *rest: Any) -> Any:
        if (layer, expert) in ends:
            raise KeyboardInterrupt
        asked.append((layer, expert))
        return before(self, layer, expert, *rest)

    monkeypatch.setattr(Correction, "expert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        store(whole, given, "iq4_xs")
    asked.clear()
    ends.clear()
    made = store(whole, given, "iq4_xs")
    assert asked[0] == (2, 0) and shards(made) == wanted and verify(made) == []
    assert not list(whole.home.glob("partial/*")), "nothing is left"
    ends.append((2, 5))
    with pytest.raises(KeyboardInterrupt):
        store(whole, given, "iq4_xs")
    asked.clear()
    ends.clear()
    weighing = Weighing(Importance(whole, given[0], "x"), "another text", (), Correction(whole, given[1], 1))
    plan = chosen("iq4_xs")
    assert plan is not None
    weighed(whole, plan, "demo:iq4_xs-True", QUIET, SilentProgress(), weighing)
    assert asked[0] == (0, 0), "what was made by another text is not gone on from"


def test_only_what_changes_is_corrected(whole: StoredModel, given: Given, tmp_path: Path) -> None:
    recipe: dict[tuple[int, str], Format] = {(4, "down"): "iq4_nl"}
    wanted = Refit(whole, recipe, "demo:down", weighing=Weighing(correction=Correction(whole, given[1], 2)))
    made = refit(wanted, tmp_path, SilentProgress())
    for layer, (found, before) in enumerate(zip(shards(made), shards(whole), strict=True)):
        assert (found == before) == (layer != 4)
    assert np.array_equal(part(made, 4, "gate", 3), part(whole, 4, "gate", 3)) and verify(made) == []
    assert not np.array_equal(part(made, 4, "down", 3), part(whole, 4, "down", 3))


def test_states_that_find_no_room_end_it_in_a_line(
    whole: StoredModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    states = GivenStates(tmp_path / "states", whole.manifest)
    with pytest.raises(DiskSpaceError, match=r"what 1,500 tokens give .* has 1.0 KB; free some, or give fewer --calib"):
        states.begin(1500)
    layers, hidden, chosen = whole.manifest.moe.num_layers, 128, whole.manifest.moe.top_k
    for layer in range(layers):
        states.add(layer, np.zeros((1498, hidden), np.float32), np.zeros((1498, chosen), np.int64))
    usage.free = 2 * layers * (2 * hidden + 4 * chosen)
    states.begin(1500)
    usage.free -= 1
    with pytest.raises(DiskSpaceError, match=r"takes 3\.3 KB more"):
        states.begin(1500)


def test_states_that_another_version_has_left_are_read_anew(whole: StoredModel, given: Given, tmp_path: Path) -> None:
    folder = shutil.copytree(given[1].folder, tmp_path / "states")
    assert GivenStates(folder, whole.manifest).pieces == given[1].pieces
    record = json.loads((folder / "rows.json").read_text())
    (folder / "rows.json").write_text(json.dumps({key: value for key, value in record.items() if key != "states"}))
    assert GivenStates(folder, whole.manifest).pieces == 0


def test_the_command_tells_of_it_and_leaves_no_states(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    words = ("pull", "demo", "--quant", "q3_k", "--calibrate", "built-in", "--calibrate-tokens", "700")
    done = command(*words)
    assert done.code == 0 and "stored as demo:q3_k-calibrated" in done.err
    assert "later columns of experts make up for what earlier ones lose" in " ".join(
        command("show", "demo:q3_k-calibrated").out.split()
    )
    assert not [
        path for path in whole.home.glob("calibrations/*/*.states") if path != states_of(whole, TEXT, OPTIONS).folder
    ]


def test_an_expert_of_zeros_stays_one(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its `down` is multiplied with nothing but zeros, and is rounded as without a text."""
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    folder = tmp_path / "zeros"
    folder.mkdir()
    for path in (DATA / "demo").glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(DATA / "demo" / "model.safetensors")
    tensors["model.layers.2.mlp.experts.0.up_proj.weight"].fill_(0)
    save_file(tensors, folder / "model.safetensors")
    assert command("pull", str(folder), "--quant", "q4_k", "--calibrate", "built-in").code == 0
    source, made = (Library(whole.home).find(name) for name in ("zeros", "zeros:q4_k-calibrated"))
    assert not part(made, 2, "up", 0).any()
    down, exact = part(made, 2, "down", 0), part(source, 2, "down", 0)
    assert 0 < np.abs(down - exact).max() < 0.1 * np.abs(exact).max()
