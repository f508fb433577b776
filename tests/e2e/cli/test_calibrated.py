"""`pull --calibrate` and `--imatrix`: weights that are rounded by how much each column matters on a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from moeinf._native import dequantise
from moeinf.bench.divergence import calibrating
from moeinf.bench.divergence.calibrating import calibrated
from moeinf.bench.divergence.fitting import fitted, weighed
from moeinf.config import RuntimeConfig
from moeinf.config.compare_options import CompareOptions
from moeinf.config.fit_options import FitOptions
from moeinf.config.pull_options import PullOptions
from moeinf.config.user_text import text_of
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import UsageError
from moeinf.gguf.imatrix import Imatrix, Sums, imatrix_pieces
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.pull.events import SilentProgress
from moeinf.pull.importance import LEAST_TOKENS, Importance, matrix_names, plan_of
from moeinf.pull.pull import pull
from moeinf.pull.refit import Weighing
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.catalogue import DATA
from moeinf.store.quantisation import chosen
from moeinf.store.verify import verify
from moeinf.types import Float32Array
from tests.support.cli.commands import Done

Command = Callable[..., Done]

TEXT = text_of("--calibrate", None)
OPTIONS = FitOptions(calibrate="built-in", calibrate_tokens=700)
QUIET = Reporting(lambda line: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> StoredModel:
    return pull("demo", home=tmp_path_factory.mktemp("home"))


def read(whole: StoredModel, threads: int = 1, ram: str = "", options: FitOptions = OPTIONS) -> Imatrix:
    given: dict[str, Any] = {"threads": threads} | ({"expert_cache": ram} if ram else {})
    return calibrated(whole, TEXT, options, RuntimeConfig.of(**given), QUIET)


@pytest.fixture(scope="module")
def known(whole: StoredModel) -> Imatrix:
    return read(whole)


def file_of(imatrix: Imatrix) -> bytes:
    return b"".join(imatrix_pieces(imatrix))


def calibrations(whole: StoredModel) -> list[Path]:
    return list((whole.home / "calibrations" / whole.id).iterdir())


def forget(whole: StoredModel) -> None:
    for path in calibrations(whole):
        path.unlink()


def test_sums_depend_on_neither_threads_nor_memory(whole: StoredModel, known: Imatrix) -> None:
    for threads, cache in ((3, ""), (2, "25%")):
        forget(whole)
        assert file_of(read(whole, threads, cache)) == file_of(known)


def test_an_interrupted_calibration_goes_on_and_a_finished_one_is_kept(
    whole: StoredModel, known: Imatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(whole)
    pieces: list[int] = []
    before = calibrating._Gathered.read

    def interrupted(self: Any, ids: Any) -> None:
        if len(pieces) == 1:
            raise KeyboardInterrupt
        pieces.append(len(ids))
        before(self, ids)

    monkeypatch.setattr(calibrating, "_SAVED_AFTER_S", 0.0)
    monkeypatch.setattr(calibrating._Gathered, "read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read(whole)

    def counted(self: Any, ids: Any) -> None:
        pieces.append(len(ids))
        before(self, ids)

    monkeypatch.setattr(calibrating._Gathered, "read", counted)
    assert file_of(read(whole)) == file_of(known)
    assert pieces == [512, 700 - 512], "no piece was read twice"
    assert file_of(read(whole)) == file_of(known) and len(pieces) == 2
    assert [path.suffixes for path in calibrations(whole)] == [[".gguf"]]


def test_sums_are_those_of_the_states_that_matrices_are_given(whole: StoredModel, known: Imatrix) -> None:
    """Those of the head, against the states of a plain pass, and of attention and experts by what must hold."""
    with Model(whole, RuntimeConfig.of(threads=1), QUIET) as model:
        rows: list[Float32Array] = []
        runner = model.runner
        runner.cache.on_hidden = lambda start, hidden: rows.append(np.array(hidden))
        begin = len(model.tokenizer.encode("", added=False))
        ids = list(model.tokenizer.encode(TEXT, bos=False, added=False))[:700]
        assert begin == 0
        for piece in (ids[:512], ids[512:]):
            runner.cache.truncate(0)
            runner.step([NewTokens(piece, runner.cache, len(piece))], lambda: None)
        runner.cache.on_hidden = None
    head = known.sums["output.weight"]
    np.testing.assert_allclose(head.squares[0], np.square(np.concatenate(rows)).sum(0), rtol=1e-4)
    moe = whole.manifest.moe
    for layer in range(moe.num_layers):
        query, key = (known.sums[f"blk.{layer}.attn_{each}.weight"] for each in "qk")
        assert np.array_equal(query.squares, key.squares) and query.counts == [700]
        up, gate = (known.sums[f"blk.{layer}.ffn_{each}_exps.weight"] for each in ("up", "gate"))
        assert np.array_equal(up.squares, gate.squares) and up.counts.sum() == 700 * moe.top_k
        assert ((up.squares.sum(1) > 0) == (up.counts > 0)).all()


def test_every_matrix_has_the_name_that_gguf_files_have_for_it(whole: StoredModel, known: Imatrix) -> None:
    names = matrix_names(plan_of(whole))
    assert set(names.values()) == set(known.sums)
    assert len(set(names.values())) == len(names)


def store(whole: StoredModel, imatrix: Imatrix | None, quant: str = "q3_k") -> StoredModel:
    asked = chosen(quant)
    assert asked is not None
    told = () if imatrix is None else ("by a text",)
    weighing = Weighing(None if imatrix is None else Importance(whole, imatrix, "--imatrix x"), "", told)
    return weighed(whole, asked, f"demo:{quant}{len(told)}", QUIET, SilentProgress(), weighing)


def part(stored: StoredModel, layer: int, name: str, expert: int) -> Float32Array:
    layout = stored.manifest.layout_of(layer)
    spec = next(each for each in layout.tensors if each.name == name)
    data = np.fromfile(stored.shard_paths[layer], np.uint8)[expert * layout.stride_bytes + spec.offset_bytes :]
    out = np.empty(spec.shape, np.float32)
    rows, cols = spec.shape
    dequantise(spec.dtype, data[: spec.num_bytes].copy(), rows, cols, out)
    return out


def test_weights_are_nearer_where_it_matters(whole: StoredModel, known: Imatrix) -> None:
    """Of every expert that the text reaches; and all alike, they are those of a plain pull."""
    plain, by_text = store(whole, None), store(whole, known)
    assert verify(by_text) == [] and by_text.manifest.formats.fallbacks[-1] == "by a text"
    assert plain.manifest.layout == by_text.manifest.layout
    again = pull("demo", PullOptions(quant="q3_k"), home=whole.home)
    assert [path.read_bytes() for path in plain.shard_paths] == [path.read_bytes() for path in again.shard_paths]
    assert plain.dense_path.read_bytes() == again.dense_path.read_bytes()
    moe, better = whole.manifest.moe, []
    for layer in (0, moe.num_layers - 1):
        for name in ("gate", "down"):
            counts = known.sums[f"blk.{layer}.ffn_{name}_exps.weight"].counts
            for expert in np.flatnonzero(counts >= LEAST_TOKENS).tolist():
                matters = known.sums[f"blk.{layer}.ffn_{name}_exps.weight"].squares[expert]
                exact = part(whole, layer, name, expert)
                errors = [float((np.square(part(m, layer, name, expert) - exact) * matters).sum())
                          for m in (plain, by_text)]  # fmt: skip
                better.append(errors[1] / errors[0])
    assert len(better) > 20 and max(better) < 1.02 and np.mean(better) < 0.95


def test_an_expert_that_few_tokens_reach_goes_by_its_layer(whole: StoredModel, known: Imatrix) -> None:
    name = "blk.2.ffn_up_exps.weight"
    squares, counts = known.sums[name].squares.copy(), known.sums[name].counts.copy()
    squares[[3, 4]], counts[[3, 4]] = 0, 0
    importance = Importance(whole, with_sums(known, name, Sums(squares, counts)), "x")
    unseen, other = importance.of_expert(2, "up", 3), importance.of_expert(2, "up", 4)
    assert unseen is not None and other is not None and np.array_equal(unseen, other)
    mean = squares.sum(0) / counts.sum()
    np.testing.assert_allclose(unseen, np.maximum(mean / mean.mean(), 1e-3), rtol=1e-4)
    most = int(counts.argmax())
    often = importance.of_expert(2, "up", most)
    own = squares[most] / squares[most].mean()
    assert often is not None and np.abs(often - own).mean() < np.abs(unseen - own).mean()


def test_a_layer_of_zeros_is_rounded_as_without_a_text(whole: StoredModel, known: Imatrix) -> None:
    name = "blk.1.ffn_down_exps.weight"
    zeros = Sums(np.zeros_like(known.sums[name].squares), known.sums[name].counts)
    importance = Importance(whole, with_sums(known, name, zeros), "x")
    assert importance.of_expert(1, "down", 0) is None and importance.of_expert(1, "up", 0) is not None


def with_sums(known: Imatrix, name: str, sums: Sums) -> Imatrix:
    return replace(known, sums={**known.sums, name: sums})


def test_sums_of_another_model_are_refused(whole: StoredModel, known: Imatrix) -> None:
    name = "blk.5.ffn_gate_exps.weight"
    lacking = replace(known, sums={key: each for key, each in known.sums.items() if key != name})
    with pytest.raises(UsageError, match=r"x has nothing of blk.5.ffn_gate_exps.weight: it is of another model"):
        Importance(whole, lacking, "x")
    wide = with_sums(known, name, Sums(np.ones((32, 256), np.float32), np.ones(32, np.float32)))
    with pytest.raises(UsageError, match=r"x is of another model: .* has 32 matrices of 256 columns, not 32 of 128"):
        Importance(whole, wide, "x")


def test_gate_and_up_may_be_one_matrix(whole: StoredModel, known: Imatrix) -> None:
    sums = {re.sub("ffn_up_exps", "ffn_gate_up_exps", name): each for name, each in known.sums.items()}
    fused = Importance(whole, replace(known, sums={n: s for n, s in sums.items() if "gate_exps" not in n}), "x")
    apart = Importance(whole, known, "x")
    for part_name in ("gate", "up", "down"):
        one, other = (each.of_expert(3, part_name, 7) for each in (fused, apart))
        assert one is not None and other is not None and np.array_equal(one, other)


def test_all_experts_of_a_layer_may_lie_in_one_row(whole: StoredModel, known: Imatrix) -> None:
    """As in the older form."""
    name = "blk.0.ffn_down_exps.weight"
    each = known.sums[name]
    means = each.squares / np.maximum(each.counts, 1)[:, None]
    flat = Sums(means.reshape(1, -1).astype(np.float32), np.ones(1, np.float32))
    found = Importance(whole, with_sums(known, name, flat), "x")
    for expert in range(32):
        weights = found.of_expert(0, "down", expert)
        assert weights is not None and weights.shape == (64,)


def test_a_size_is_met_with_weighed_columns(whole: StoredModel, known: Imatrix) -> None:
    text, options = "Once upon a time there was a little cat who lived by the sea. " * 20, CompareOptions(None, 64, 32)
    weighing = Weighing(Importance(whole, known, "x"), "abc", ("by a text",))
    config = RuntimeConfig.of(device="cpu", threads=1)
    made = fitted(whole, 4_500_000, "demo:small", text, options, config, QUIET, SilentProgress(), weighing)
    assert made.dense_bytes + sum(made.shard_sizes) <= 4_500_000 and verify(made) == []
    assert made.manifest.formats.fallbacks[-1] == "by a text"


def checkpoint(folder: Path, part: str, value: float) -> str:
    """The demo, with a part of one expert of which all weights are that."""
    folder.mkdir()
    for path in (DATA / "demo").glob("*.json"):
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(DATA / "demo" / "model.safetensors")
    tensors[f"model.layers.2.mlp.experts.0.{part}_proj.weight"].fill_(value)
    save_file(tensors, folder / "model.safetensors")
    return str(folder)


def test_nan_weights_end_it_in_a_line(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    source = checkpoint(tmp_path / "broken", "up", float("nan"))
    done = command("pull", source, "--quant", "q4_k", "--calibrate", "built-in")
    assert done.code == 1 and "experts.0.up_proj.weight': element 0 is NaN or infinite" in done.err


def test_an_expert_of_zeros_stays_one(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    source = checkpoint(tmp_path / "zeros", "up", 0.0)
    done = command("pull", source, "--quant", "q4_k", "--calibrate", "built-in")
    assert done.code == 0
    stored = next(each for each in Library(whole.home).list() if each.name == "zeros:q4_k-calibrated")
    assert not part(stored, 2, "up", 0).any() and part(stored, 2, "down", 0).any()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--calibrate", "built-in"), "--calibrate changes nothing of keep; add --quant with a smaller format"),
        (("--calibrate", "built-in", "--quant", "q8_0"), "--calibrate changes nothing of q8_0; add --quant with a "),
        (
            ("--calibrate", "built-in", "--imatrix", "new", "--quant", "q8_0"),
            "--calibrate changes nothing of q8_0; leave --quant out to write new alone, or add",
        ),
        (("--calibrate", "none.txt", "--quant", "q4_k"), "--calibrate none.txt cannot be read"),
        (
            ("--calibrate", "short.txt", "--quant", "q4_k"),
            "--calibrate short.txt has 26 bytes, too few for 256 tokens; give a longer text",
        ),
        (
            ("--calibrate", "medium.txt", "--quant", "q4_k"),
            "tokens say too little of the experts of demo:latest; give a",
        ),
        (("--size", "5MB", "--text", "short.txt"), "--text short.txt has 26 bytes, too few for 512 tokens"),
        (("--size", "5MB", "--text", "medium.txt"), "or a smaller --window (with `pull`, fewer --tokens)"),
        (("--imatrix", "none", "--quant", "q4_k"), "--imatrix none: there is no such file"),
        (("--imatrix", "short.txt", "--quant", "q4_k"), "--imatrix short.txt is no importance matrix"),
        (("--imatrix", "short.txt", "--calibrate", "built-in", "--quant", "q4_k"), "short.txt is there already"),
        (("--imatrix", "none/new", "--calibrate", "built-in"), "--imatrix none/new: there is no such folder; make it"),
        (("--calibrate", "built-in", "--quant", "q4_k", "--quant-dense", "q8_0"), "--quant-dense does not go with"),
        (("--calibrate", "built-in", "--quant", "q5"), "unknown --quant 'q5'; known: keep"),
    ],
)
def test_wrong_use_is_one_line(
    words: tuple[str, ...], line: str, command: Command, whole: StoredModel, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("Too short to say anything.")
    (tmp_path / "medium.txt").write_text("Too short to say anything of it. " * 20)
    done = command("pull", "demo", *words)
    assert done.code == 2 and line in done.err and "Traceback" not in done.err


def test_an_interrupted_command_tells_how_to_go_on(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    monkeypatch.setattr("moeinf.bench.divergence.fit_pull.calibrated", interrupt)
    words = ("pull", "demo", "--quant", "q4_k", "--calibrate", "built-in", "--calibrate-tokens", "700")
    done = command(*words)
    assert done.code == 130
    assert done.err.endswith(f"interrupted; `moeinf {' '.join(words)}` goes on where this stopped\n")


def test_the_command_stores_writes_and_tells(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    file = tmp_path / "made.gguf"
    done = command("pull", "demo", "--quant", "q3_k", "--calibrate", "built-in", "--imatrix", str(file))
    assert done.code == 0 and "stored as demo:q3_k-calibrated" in done.err
    shown = command("show", "demo:q3_k-calibrated").out
    assert "tokens of the text that comes along (SHA-256 " in " ".join(shown.split())
    done = command("pull", "demo", "--quant", "q3_k", "--imatrix", str(file), "--name", "demo:by-file")
    assert done.code == 0
    assert "by made.gguf (SHA-256" in " ".join(command("show", "demo:by-file").out.split())
    refused = command("pull", "demo:by-file")
    assert refused.code == 2 and "was made by measuring; pull its checkpoint again with --size" in refused.err
    models = {each.name: each for each in Library(whole.home).list()}
    by_text, by_file = models["demo:q3_k-calibrated"], models["demo:by-file"]
    assert by_text.dense_path.read_bytes() == by_file.dense_path.read_bytes()
    assert by_text.shard_paths[0].read_bytes() != by_file.shard_paths[0].read_bytes(), "experts are corrected by a text"


def test_what_a_text_gives_is_written_alone(
    whole: StoredModel, command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a format, in which weights would be rounded: the model is stored as it is, the file has the same sums."""
    monkeypatch.setenv("MOEINF_HOME", str(whole.home))
    names = {each.name for each in Library(whole.home).list()}
    alone, beside = tmp_path / "alone.gguf", tmp_path / "beside.gguf"
    words = ("pull", "demo", "--calibrate", "built-in", "--calibrate-tokens", "700")
    done = command(*words, "--imatrix", str(alone))
    assert done.code == 0 and f"{alone} has what was gathered; demo:latest is stored as it is" in done.err
    assert {each.name for each in Library(whole.home).list()} == names
    assert command(*words, "--imatrix", str(beside), "--quant", "q3_k", "--name", "demo:beside").code == 0
    assert alone.read_bytes() == beside.read_bytes()
    refused = command(*words, "--imatrix", str(alone))
    assert refused.code == 2 and "alone.gguf is there already" in refused.err
