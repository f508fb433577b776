"""`moeinf compare`: how far models are from another, and what it says where that cannot be told."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.models.layers.kv_cache import NewTokens
from moeinf.pull.pull import pull
from moeinf.store.library import Library, StoredModel
from moeinf.types import Float32Array
from tests.support.checkpoints import CONFIG, random_tensors, scaled, write_checkpoint
from tests.support.cli.commands import Done

Command = Callable[..., Done]
WINDOW = 48
WORDS = " ".join(np.random.default_rng(5).choice(["a", "b", "B"], 4 * WINDOW))  # the tokenizer knows a and b
SHORT = ("--window", str(WINDOW), "--tokens", str(2 * WINDOW))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a model, `exact`, and one of the same weights in 4 bits, `q4`."""
    folder = tmp_path_factory.mktemp("compared")
    write_checkpoint(folder / "checkpoint", scaled(random_tensors(CONFIG), 1.5))
    for name, quant in (("exact", None), ("q4", "q4_0")):
        pull(str(folder / "checkpoint"), PullOptions(name=name, quant=quant), home=folder / "home")
    return folder / "home"


@pytest.fixture
def compare(command: Command, store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    monkeypatch.setenv("MOEINF_HOME", str(store))
    file = tmp_path / "words.txt"
    file.write_text(WORDS)
    return lambda *words: command("compare", *words, *(() if "--text" in words else ("--text", str(file))))


def figures(done: Done) -> Any:
    assert done.code == 0, done
    return json.loads(done.out)


def decoded(stored: StoredModel, ids: list[int]) -> Float32Array:
    """Logits behind each token, which are read one by one: another path through attention, experts and head."""
    config = RuntimeConfig.of(device="cpu", threads=1, context=len(ids))
    with Model(stored, config) as model:
        runner = model.runner
        rows = [runner.step([NewTokens([token], runner.cache)], lambda: None)[0].copy() for token in ids]
    return np.array(rows)


def test_the_figures_are_those_of_tokens_read_one_by_one(compare: Command, store: Path) -> None:
    found = figures(compare("exact", "q4", "--json", "--window", str(WINDOW), "--tokens", str(WINDOW)))
    library = Library(store)
    exact, other = library.find("exact"), library.find("q4")
    ids = [int(word == "b") for word in WORDS.split()[:WINDOW]]
    logs = []
    for stored in (exact, other):
        logits = decoded(stored, ids)[WINDOW // 2 : WINDOW - 1].astype(np.float64)
        logs.append(logits - np.log(np.exp(logits).sum(1, keepdims=True)))
    away = (np.exp(logs[0]) * (logs[0] - logs[1])).sum(1)
    following = ids[WINDOW // 2 + 1 :]
    surprise = [-each[np.arange(len(following)), following] for each in logs]
    (model_found,) = found["models"]
    assert found["predictions"] == len(away) == WINDOW - 1 - WINDOW // 2
    assert model_found["kl"] == pytest.approx(away.mean(), rel=0.02) and away.mean() > 1e-4
    assert model_found["kl_error"] == pytest.approx(away.std() / len(away) ** 0.5, rel=0.05)
    assert found["perplexity"] == pytest.approx(np.exp(surprise[0].mean()), rel=1e-3)
    assert model_found["more_perplexity"] == pytest.approx(np.expm1((surprise[1] - surprise[0]).mean()), rel=0.01)
    assert model_found["same_token"] == pytest.approx((logs[0].argmax(1) == logs[1].argmax(1)).mean(), abs=0.05)
    assert len(model_found["state_off_by_layer"]) == CONFIG["num_hidden_layers"]
    first, last = model_found["state_off_by_layer"]
    assert 0.001 < first < last, "what is off adds up"


def test_a_model_is_no_way_from_itself(compare: Command, command: Command) -> None:
    (found,) = figures(compare("exact", "exact", "--json", *SHORT))["models"]
    assert found["kl_most"] == found["more_perplexity"] == max(found["state_off_by_layer"]) == 0
    assert found["same_token"] == 1
    assert json.loads(command("show", "exact", "--json").out)["compared"] == [], "which is nothing to remember"


def test_neither_the_cache_nor_the_pieces_of_a_window_change_a_figure(compare: Command) -> None:
    (whole,) = figures(compare("exact", "q4", "--json", *SHORT))["models"]
    pieces = ("--expert-cache", "30%", "--prefill-chunk", "16")
    (cut,) = figures(compare("exact", "q4", "--json", *SHORT, *pieces))["models"]
    assert cut | {"size_bytes": 0} == whole | {"size_bytes": 0}, "the size counts what `show` remembers, too"


def test_people_get_a_table_and_show_remembers_it(compare: Command, command: Command, store: Path) -> None:
    done = compare("exact", "q4", *SHORT)
    assert done.code == 0 and done.err == ""
    rows = [line.split() for line in done.out.splitlines()]
    assert ["exact:latest"] in [row[:1] for row in rows] and ["q4:q4_0"] in [row[:1] for row in rows]
    assert "state off behind layer 1:" in done.out and f"KL from position {WINDOW // 2}:" in done.out
    shown = command("show", "q4").out
    assert "with exact:latest: KL " in shown and "(46 predictions, words.txt)" in shown
    told = json.loads(command("show", "q4", "--json").out)["compared"]
    assert [each["reference"] for each in told] == ["exact:latest"], "the same comparison again takes its place"
    (record,) = store.glob(f"models/{Library(store).find('q4').id}/compared.json")
    record.write_text('{"compared": [{"kl": 1}]}')
    assert "compared" not in command("show", "q4").out


def test_models_of_other_tokens_are_not_compared(compare: Command, store: Path, tmp_path: Path) -> None:
    folder = tmp_path / "other"
    write_checkpoint(folder, random_tensors(CONFIG))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["normalizer"] = {"type": "Lowercase"}
    file.write_text(json.dumps(tokenizer))
    pull(str(folder), PullOptions(name="other"), home=store)
    done = compare("exact", "other", *SHORT)
    assert done.code == 2 and "other:latest cuts the text into other tokens" in done.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--window", "8"), "--window must be at least 16, not 8"),
        (("--tokens", "100"), "--tokens 100 is less than one --window of 512"),
        (("--text", "nowhere.txt"), "--text nowhere.txt cannot be read: No such file or directory"),
        (("--window", "100000", "--tokens", "100000"), "--window 100000 is more than the "),
        (("--device", "cuda"), "no such option: --device"),
    ],
)
def test_what_cannot_be_is_one_line(compare: Command, words: tuple[str, ...], said: str) -> None:
    done = compare("exact", "q4", *words)
    assert done.code != 0 and said in done.err and done.out == "" and len(done.err.splitlines()) == 1


def test_a_text_that_fills_no_window_is_refused(compare: Command, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("a few words")
    done = compare("exact", "q4", "--text", str(tmp_path / "short.txt"), *SHORT)
    assert done.code == 2 and "has 3 tokens, and a window takes 48: give a longer --text, or a smaller" in done.err


def test_without_room_on_the_disk_nothing_is_computed(compare: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    done = compare("exact", "q4", *SHORT)
    assert done.code == 1 and "1.0 KB free" in done.err and "--tokens" in done.err


def test_damaged_weights_are_told(compare: Command, store: Path, tmp_path: Path) -> None:
    weights = scaled(random_tensors(CONFIG), 1.5)
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], 3e38)  # any product is infinite
    write_checkpoint(tmp_path / "huge", weights)
    pull(str(tmp_path / "huge"), PullOptions(name="huge"), home=store)
    done = compare("exact", "huge", *SHORT)
    assert done.code == 1 and "non-finite logits" in done.err
    assert not list(store.glob("models/tmp*")), "what waited on the disk is gone"
