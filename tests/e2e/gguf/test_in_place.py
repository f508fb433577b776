"""A GGUF file where it lies gives what a store of the same weights gives, whatever the cache, and is left as it was."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.weights.placed_dense import PlacedSizes
from moeinf.errors import CheckpointError, ExpertReadError, StoreError
from moeinf.gguf.config import config_of
from moeinf.gguf.header import read_gguf
from moeinf.models.family import family_of
from moeinf.pull.events import SilentProgress
from moeinf.pull.pull import ensure, plan_pull, pull
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.store.library import Library, StoredModel
from moeinf.store.verify import verify
from moeinf.types import Float32Array
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.configs.deepseek_v41 import DEEPSEEK_V41
from tests.support.configs.kimi_k3 import KIMI_K3
from tests.support.converter.meant import meant
from tests.support.converter.published import published
from tests.support.converter.record import NAMES, checkpoint
from tests.support.deepseek41_gguf import is_whole, write_deepseek41
from tests.support.gguf_files import write_gguf
from tests.support.kimi_k3_gguf import published_k3, write_kimi_k3
from tests.support.mixed_gguf import small, without_vocabulary
from tests.support.own_gguf import WRITTEN, drawn_small, write_own

IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
# Log and exponential do not undo each other to the bit, and factors of positions are rounded.
RECOMPUTED = (
    "qwen3_next",
    "qwen3_5_moe",
    "gemma4",
    "granitemoehybrid",
    "nemotron_h",
    "jamba",
    "kimi_linear",
    "bailing_hybrid",
    "qwen4_exp",
    "glm5_next",
)


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


def logits(stored: StoredModel, **options: Any) -> Float32Array:
    """Of a prompt and of a token behind it."""
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", **options)) as model:
        runner = model.runner
        network: Any = runner.network
        prefill = network.forward(IDS[:-1], runner.cache, last_only=False)
        found: Float32Array = np.concatenate([prefill, runner.forward(IDS[-1:], lambda: None)])
        model.tier.check_integrity()
    return found


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_what_its_checkpoint_does(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    config, tensors = meant(config), small(tensors)
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    of_store = logits(pull(str(folder), home=tmp_path / "home"))
    [file] = write_gguf(tmp_path / "model.gguf", config, tensors, kinds=lambda name: "F32")
    before = file.read_bytes()
    stored = ensure(str(file), home=tmp_path / "home")
    in_place = logits(stored, expert_cache="50%")
    assert np.isfinite(of_store).all()
    if config["model_type"] in RECOMPUTED or "attention_factor" in (stored.path / "config.json").read_text():
        np.testing.assert_allclose(in_place, of_store, rtol=1e-3, atol=1e-3 * np.abs(of_store).max())
    else:
        assert np.array_equal(in_place, of_store)
    assert file.read_bytes() == before
    assert {path.name for path in stored.path.iterdir()} >= {"config.json", "manifest.json", "tokenizer.json"}
    assert stored.manifest.in_place is not None
    assert sum(path.stat().st_size for path in stored.path.iterdir()) < len(before)


def test_a_table_of_n_grams_stays_in_the_file(tmp_path: Path) -> None:
    config, tensors = checkpoint("qwen4_exp")
    [file] = write_gguf(tmp_path / "model.gguf", config, tensors)
    stored = ensure(str(file), home=tmp_path / "home")
    assert stored.manifest.in_place is not None
    sizes = PlacedSizes(stored.manifest.in_place, family_of(config_of(read_gguf(file))).tensors, stored.path)
    [table] = [name for name in sizes.recipes if ".ngram_embedding." in name]
    assert sizes.recipes[table].kind.shape == (432, 12) and table in sizes.in_file and table not in sizes.kinds


def test_deepseek_v41_computes_what_its_checkpoint_does_and_its_tables_stay_in_the_file(tmp_path: Path) -> None:
    drawn = random_tensors(DEEPSEEK_V41).items()
    tensors = {name: tensor.float() if is_whole(name, tensor.dim()) else tensor for name, tensor in drawn}
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, DEEPSEEK_V41, num_shards=0)
    wanted = logits(pull(str(folder), home=tmp_path / "home"))
    file = write_deepseek41(tmp_path / "model.gguf", {})
    stored = ensure(str(file), home=tmp_path / "home")
    assert stored.manifest.in_place is not None and np.isfinite(wanted).all()
    assert np.array_equal(logits(stored, expert_cache="50%"), wanted)
    sizes = PlacedSizes(stored.manifest.in_place, family_of(config_of(read_gguf(file))).tensors, stored.path)
    assert {f"layers.{i}.engram.embed.weight" for i in (1, 4)} <= set(sizes.in_file) - sizes.kinds.keys()


@pytest.mark.parametrize(
    "other", [{}, {"activation_situ_linear_beta": None, "latent_moe_use_norm": False}], ids=["", "other"]
)
def test_kimi_k3_computes_what_its_checkpoint_does(tmp_path: Path, other: dict[str, Any]) -> None:
    config = KIMI_K3 | {"text_config": KIMI_K3["text_config"] | other}
    tensors = published_k3(config)
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    of_checkpoint = pull(str(folder), home=tmp_path / "home")
    wanted = logits(of_checkpoint)
    stored = ensure(str(write_kimi_k3(tmp_path / "model.gguf", tensors, {}, config)), home=tmp_path / "home")
    assert stored.manifest.in_place is not None and np.isfinite(wanted).all()
    for model, options in ((stored, {"expert_cache": "50%"}), (of_checkpoint, {"expert_cache": "30%"})):
        np.testing.assert_allclose(logits(model, **options), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    own = pull(str(tmp_path / "model.gguf"), PullOptions(repack=True), home=tmp_path / "home")
    assert np.array_equal(logits(own), logits(stored))


@pytest.mark.parametrize("family", WRITTEN)
def test_a_family_of_no_record_computes_what_its_checkpoint_does(family: str, tmp_path: Path) -> None:
    config, tensors = WRITTEN[family].config, drawn_small(family)
    of_checkpoint = pull(str(write_checkpoint(tmp_path / "c", tensors, config)), home=tmp_path / "home")
    wanted = logits(of_checkpoint)
    stored = ensure(str(write_own(tmp_path / "model.gguf", family, tensors)), home=tmp_path / "home")
    assert stored.manifest.in_place is not None and np.isfinite(wanted).all()
    for model, options in ((stored, {"expert_cache": "50%"}), (of_checkpoint, {"expert_cache": "30%"})):
        np.testing.assert_allclose(logits(model, **options), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    [file] = [write_own(tmp_path / "q8.gguf", family, tensors, kinds="Q8_0")]
    found = logits(ensure(str(file), home=tmp_path / "home"))
    assert np.square(found - wanted).mean() < 0.1**2 * np.square(wanted).mean()
    own = pull(str(file), PullOptions(repack=True), home=tmp_path / "home")
    assert np.array_equal(logits(own), found)


def test_experts_in_fp4_and_tables_of_experts_are_those_of_the_published_checkpoint(tmp_path: Path) -> None:
    config, tensors = checkpoint("deepseek_v4")
    tensors = small(tensors)
    shipped = write_checkpoint(tmp_path / "c", published(config, tensors), config | {"expert_dtype": "fp4"}, 0)
    wanted = logits(pull(str(shipped), home=tmp_path / "home"))
    kinds = {True: "MXFP4", False: "F32"}
    [file] = write_gguf(tmp_path / "model.gguf", config, tensors, kinds=lambda name: kinds["_exps." in name])
    stored = ensure(str(file), home=tmp_path / "home")
    assert {spec.dtype for layout in stored.manifest.layers for spec in layout.tensors} == {"mxfp4"}
    own = pull(str(file), PullOptions(repack=True), home=tmp_path / "home")
    for model, options in ((stored, {}), (stored, {"expert_cache": "30%", "prefetch": False}), (own, {})):
        assert np.array_equal(logits(model, **options), wanted), options
    assert verify(pull(str(file), home=tmp_path / "other")) == []
    assert stored.manifest.in_place is not None
    [table] = [place for place in stored.manifest.in_place.dense if place.name == "layers.1.ffn.gate.tid2eid"]
    with file.open("r+b") as damaged:
        damaged.seek(table.sources[0].offset_bytes + 44)
        damaged.write(b"\x08\0\0\0")
    with pytest.raises(StoreError, match=r"gate\.tid2eid' has numbers from 0 to 8, and must be below 8; fetch"):
        logits(stored)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_with_weights_that_lie_in_blocks(name: str, tmp_path: Path) -> None:
    """Also what its layers take no blocks of, as latent attention of the matrix that it folds."""
    config, tensors = checkpoint(name)
    config, tensors = meant(config), small(tensors)
    [plain] = write_gguf(tmp_path / "plain.gguf", config, tensors, kinds=lambda name: "F32")
    [blocks] = write_gguf(tmp_path / "blocks.gguf", config, tensors, kinds=lambda name: "Q8_0")
    wanted, found = (logits(ensure(str(file), home=tmp_path / "home")) for file in (plain, blocks))
    errors = np.linalg.norm(found - wanted, axis=1) / np.linalg.norm(wanted, axis=1)
    assert np.median(errors) < 0.1, "but for single tokens, for which other experts are the best"
    own = pull(str(blocks), PullOptions(repack=True), home=tmp_path / "home")
    assert np.array_equal(logits(own), found)


def mixed(tmp_path: Path, **how: Any) -> Path:
    """Layers and parts in several formats, in rows that are no whole number of 4 KiB blocks."""
    config, tensors = checkpoint("qwen3_moe")
    kinds = {"ffn_gate_exps": "Q8_0", "ffn_up_exps": "Q4_0", "ffn_down_exps": "Q5_1", "token_embd": "Q8_0"}

    def kind(name: str) -> str:
        if name.startswith("blk.0.ffn_down_exps"):
            return "BF16"
        return next((each for part, each in kinds.items() if part in name), "F16")

    return write_gguf(tmp_path / "mixed.gguf", config, small(tensors), kinds=kind, **how)[0]


@pytest.mark.parametrize("how", [{}, {"tensors_a_part": 5}], ids=["one file", "a split"])
def test_the_tokens_are_the_same_for_every_cache_policy_and_reader(tmp_path: Path, how: dict[str, Any]) -> None:
    stored = ensure(str(mixed(tmp_path, **how)), home=tmp_path / "home")
    manifest = stored.manifest
    assert manifest.in_place is not None and (len(manifest.in_place.files) > 1) == bool(how)
    assert any(place.step_bytes % 4096 for places in manifest.in_place.experts for place in places)
    expected = logits(stored)
    smallest = manifest.moe.top_k * manifest.layout.stride_bytes
    runs: list[dict[str, Any]] = [
        {"expert_cache": smallest},
        {"expert_cache": smallest, "prefetch": False},
        {"expert_cache": "60%", "reader": "pure"},
        {"expert_cache": "60%", "direct_io": False, "prefill_chunk": 1},
        *({"expert_cache": "60%", "policy": policy} for policy in POLICIES),
    ]
    for options in runs:
        assert np.array_equal(logits(stored, **options), expected), options


@pytest.mark.parametrize("fused", [False, True])
def test_gate_and_up_may_lie_in_one_tensor(tmp_path: Path, fused: bool) -> None:
    config, tensors = checkpoint("qwen3_moe")
    [file] = write_gguf(tmp_path / "m.gguf", config, small(tensors), kinds=lambda name: "F32", fused=fused)
    folder = write_checkpoint(tmp_path / "checkpoint", small(tensors), config, num_shards=0)
    expected = logits(pull(str(folder), home=tmp_path / "home"))
    stored = pull(str(file), home=tmp_path / "home")
    assert np.array_equal(logits(stored, expert_cache="50%", verify_reads=True), expected)


def test_a_file_is_indexed_once_and_again_when_it_has_changed(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    first = ensure(str(file), home=home)
    assert first.name == "mixed:latest" and first.manifest.source.location == str(file)
    assert ensure(str(file), home=home).id == first.id
    assert ensure("mixed", home=home).id == first.id
    config, tensors = checkpoint("qwen3_moe")
    write_gguf(file, config, small(tensors), kinds=lambda name: "BF16")
    second = ensure(str(file), home=home)
    assert (second.name, second.id != first.id) == ("mixed:latest", True)
    assert [model.id for model in Library(home).list()] == [second.id]
    assert not list(home.glob("partial/*"))


def change(at: int) -> Callable[[Path], None]:
    def flip(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 16]))

    return flip


@pytest.mark.parametrize("repack", [False, True], ids=["in place", "repacked"])
def test_a_file_that_is_cut_under_an_open_model_is_one_line(tmp_path: Path, repack: bool) -> None:
    """Nothing but rows of the embedding is read while it answers. Once the file is whole, the same model goes on."""
    stored = pull(str(mixed(tmp_path)), PullOptions(repack=repack), home=tmp_path / "home")
    cut = stored.dense_path if repack else tmp_path / "mixed.gguf"
    whole = cut.read_bytes()
    with Model(stored, RuntimeConfig.of(device="cpu", context=32, threads=1)) as model:
        assert model.tier.all_resident
        expected = model.runner.forward([5, 6], lambda: None)
        os.truncate(cut, 0)
        for ids in ([7, 8], [9]):
            with pytest.raises(StoreError) as failed:
                model.runner.forward(ids, lambda: None)
            line = str(failed.value)
            assert line.startswith(f"{cut} ends at 0, ") and "truncated; check it with `moeinf verify" in line
            assert "\n" not in line
        cut.write_bytes(whole)
        model.runner.cache.truncate(0)
        assert np.array_equal(model.runner.forward([5, 6], lambda: None), expected)


def test_verify_names_the_tensor_and_the_expert_that_is_damaged(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    stored = ensure(str(file), home=home)
    notes: list[str] = []
    assert verify(stored, note=notes.append) == [] and "added checksums.bin" in notes[0]
    assert verify(stored) == []
    assert stored.manifest.in_place is not None
    up = stored.manifest.in_place.experts[1][1]
    embedding = next(place for place in stored.manifest.in_place.dense if "embed" in place.name).sources[0]
    row = embedding.num_bytes // embedding.shape[0]
    for at in (up.offset_bytes + 3 * up.step_bytes + 7, embedding.offset_bytes + 5 * row + 1):
        change(at)(file)
    assert sorted(verify(stored)) == [
        "mixed.gguf: tensor 'blk.1.ffn_up_exps.weight', expert 3 does not match its checksum",
        "mixed.gguf: tensor 'token_embd.weight', row 5 does not match its checksum",
    ]
    with pytest.raises((ExpertReadError, StoreError), match=r"do(es)? not match (their|its) checksum"):
        logits(stored, expert_cache="50%", verify_reads=True)


def test_pull_checks_every_read_from_then_on(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    index = ensure(str(file), home=home)
    stored = pull(str(file), home=home)
    assert stored.name == index.name and "checksums.bin" in stored.manifest.file_sizes()
    assert pull(str(file), home=home).id == ensure(str(file), home=home).id == stored.id
    assert plan_pull(str(file), home=home).up_to_date
    expected = logits(stored, verify_reads=True)
    assert stored.manifest.in_place is not None
    down = stored.manifest.in_place.experts[0][2]
    for expert in range(stored.manifest.moe.num_experts):
        change(down.offset_bytes + expert * down.step_bytes)(file)
    with pytest.raises(ExpertReadError, match=r"of layer 0 is damaged in .*mixed\.gguf.*fetch the file again"):
        logits(stored)
    for expert in range(stored.manifest.moe.num_experts):
        change(down.offset_bytes + expert * down.step_bytes)(file)
    assert np.array_equal(logits(stored), expected)


def test_a_file_that_is_gone_or_another_one_is_told_with_the_remedy(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    stored = ensure(str(file), home=home)
    change(stored.manifest.in_place.files[0].header_bytes // 2)(file)  # type: ignore[union-attr]
    with pytest.raises(StoreError, match=r"mixed\.gguf is another file now; .*`moeinf rm mixed:latest`"):
        logits(stored)
    change(stored.manifest.in_place.files[0].header_bytes // 2)(file)  # type: ignore[union-attr]
    moved = file.rename(tmp_path / "elsewhere.gguf")
    with pytest.raises(StoreError, match=r"mixed\.gguf: No such file.*`moeinf run` it where it is now"):
        logits(stored)
    assert "No such file" in verify(stored)[0]
    other = tmp_path / "other"
    other.mkdir()
    again = ensure(str(moved.rename(other / "mixed.gguf")), home=home)
    assert again.name == "mixed:latest"  # the index of the file that is gone left it
    assert [model.name for model in Library(home).list()] == ["mixed:latest"]


def test_two_files_of_one_name_are_two_models_and_rm_deletes_neither(tmp_path: Path) -> None:
    home = tmp_path / "home"
    files = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        files.append(mixed(tmp_path / folder))
    first, second = (ensure(str(file), home=home) for file in files)
    assert first.name == "mixed:latest" and second.name.startswith("mixed-") and first.id != second.id
    before = files[0].read_bytes()
    for stored in (first, second):
        assert Library(home).remove(stored.name) < 1 << 20
    assert [file.read_bytes() == before for file in files] == [True, True]
    assert Library(home).list() == []


@pytest.mark.parametrize("cut", [3, 100, 2000, -1000])
def test_a_file_that_is_cut_leaves_nothing_behind(tmp_path: Path, cut: int) -> None:
    file = mixed(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[:cut])
    for make in (ensure, pull):
        with pytest.raises(CheckpointError) as raised:
            make(str(file), home=tmp_path / "home")
        assert "\n" not in str(raised.value) and str(file) in str(raised.value)
    home = tmp_path / "home"
    assert not list(home.glob("models/*")) and not list(home.glob("partial/*")) and not list(home.glob("names/*/*"))


def test_weights_that_are_no_numbers_are_found_by_pull(tmp_path: Path) -> None:
    file = mixed(tmp_path)
    stored = ensure(str(file), home=tmp_path / "home")
    assert stored.manifest.in_place is not None
    gate = stored.manifest.in_place.experts[0][0]
    with file.open("r+b") as damaged:
        damaged.seek(gate.offset_bytes)
        damaged.write(b"\xff\xff")
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_gate_exps\.weight.*NaN"):
        pull(str(file), home=tmp_path / "home")
    assert "NaN" in verify(stored)[0]


def test_a_repacked_file_computes_the_same_from_blocks_of_the_store_s_own(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    stored = ensure(str(file), home=home)
    own = pull(str(file), PullOptions(repack=True), home=home)
    assert own.name == "mixed:repacked" and own.id != stored.id
    assert own.manifest.in_place is None and len(set(own.manifest.layers)) > 1
    expected = logits(stored)
    file.unlink()
    for options in ({}, {"expert_cache": "40%", "verify_reads": True}):
        assert np.array_equal(logits(own, **options), expected)
    assert verify(own) == []
    change(5)(own.shard_paths[1])
    assert verify(own) == ["experts-00001.bin: expert 0 does not match its checksum"]


class Told(SilentProgress):
    """What a pull says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def stage(self, text: str) -> None:
        self.lines.append(text)

    def note(self, text: str) -> None:
        self.lines.append(text)


def test_damage_that_verify_found_is_said_until_the_file_is_sound(tmp_path: Path) -> None:
    home, file = tmp_path / "home", mixed(tmp_path)
    stored = pull(str(file), home=home)
    assert stored.manifest.in_place is not None
    up = stored.manifest.in_place.experts[1][1]
    damage = change(up.offset_bytes + 3 * up.step_bytes + 7)
    damage(file)
    assert len(verify(stored)) == 1
    for make in (ensure, pull, ensure):
        told = Told()
        with pytest.raises(StoreError, match=r"ffn_up_exps\.weight', expert 3 does not match .*; fetch the file again"):
            make(str(file), home=home, progress=told)
        assert "damage was found in mixed:latest before" in told.lines[0]
    damage(file)
    for make, again in ((ensure, True), (ensure, False)):
        told = Told()
        assert make(str(file), home=home, progress=told).id == stored.id
        assert any("damage was found" in line for line in told.lines) == again


@pytest.mark.parametrize("repack", [False, True])
def test_a_second_pull_of_a_file_reads_nothing(repack: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, file, options = tmp_path / "home", mixed(tmp_path), PullOptions(repack=repack)
    stored = pull(str(file), options, home=home)

    def reads(*args: object) -> None:
        raise AssertionError("the file is read again")

    monkeypatch.setattr(
        "moeinf.pull.gguf.local.repack_told" if repack else "moeinf.pull.gguf.local.checksums_of", reads
    )
    for source in (str(file), stored.name):
        told = Told()
        assert pull(source, options, home=home, progress=told).id == stored.id
        assert told.lines[-1] == f"{stored.name} is up to date" and plan_pull(source, options, home=home).up_to_date
    os.utime(file)
    with pytest.raises(AssertionError, match="read again"):
        pull(stored.name, home=home)
