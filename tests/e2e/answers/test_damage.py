"""Damaged weights never answer: each read finds them, one line names them, and sound experts go on working."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.engine.reporting import Reporting
from moeinf.errors import ExpertReadError, MoeinfError, StoreError, UsageError
from moeinf.pull.pull import pull
from moeinf.store.dense import dense_tensors
from moeinf.store.library import Library, StoredModel
from moeinf.store.sums.checksums import CHECKSUMS_FILE
from moeinf.store.verify import verify
from moeinf.threads import mapped
from moeinf.types import Float32Array
from tests.support.checkpoints import resealed

PROMPT = "The king said, that he would go to the sea"


@pytest.fixture
def stored(demo: StoredModel, tmp_path: Path) -> StoredModel:
    """The demo in a folder of its own."""
    shutil.copytree(demo.path, tmp_path / demo.id)
    return StoredModel(demo.name, demo.id, tmp_path / demo.id)


class Recorder:
    """Chooses greedily and keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[Float32Array] = []

    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        self.logits.append(logits.copy())
        return int(logits.argmax())


def logits_of(stored: StoredModel, tokens: int = 6, **options: Any) -> list[Float32Array]:
    recorder = Recorder()
    with Model(stored, RuntimeConfig.of(device="cpu", threads=1, **options)) as model:
        for _ in model.generator.tokens(model.encode(PROMPT), recorder, tokens, GenerationStats()):
            pass
    return recorder.logits


def overwrite(path: Path, offset: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: Path, bit: int) -> None:
    with open(path, "r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        overwrite(path, bit // 8, bytes([byte ^ 1 << bit % 8]))


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text and "moeinf verify" in text
    return text


# ---- experts

STREAMED = [
    {"expert_cache": "20%"},
    {"expert_cache": "20%", "prefetch": False},
    {"expert_cache": "20%", "reader": "pure"},
    {},
    {"reader": "pure"},
]


def zero_shard(stored: StoredModel) -> None:
    path = stored.path / "experts-00002.bin"
    path.write_bytes(bytes(path.stat().st_size))


def zero_pages(stored: StoredModel) -> None:
    """One of each expert of a layer."""
    stride = stored.manifest.layout.stride_bytes
    for expert in range(stored.manifest.moe.num_experts):
        overwrite(stored.path / "experts-00002.bin", expert * stride, bytes(4096))


def swap_experts(stored: StoredModel) -> None:
    path, stride = stored.path / "experts-00002.bin", stored.manifest.layout.stride_bytes
    data = path.read_bytes()
    path.write_bytes(data[stride:] + data[:stride])


def flip_bits(stored: StoredModel) -> None:
    stride = stored.manifest.layout.stride_bytes
    for expert in range(stored.manifest.moe.num_experts):
        flip(stored.path / "experts-00002.bin", 8 * expert * stride + 12345)


@pytest.mark.parametrize("options", STREAMED, ids=str)
@pytest.mark.parametrize("damage", [zero_shard, zero_pages, swap_experts, flip_bits])
def test_damaged_experts_are_named_and_do_not_answer(
    stored: StoredModel, damage: Callable[[StoredModel], None], options: dict[str, Any]
) -> None:
    damage(stored)
    with pytest.raises(ExpertReadError) as raised:
        logits_of(stored, **options)
    text = one_line(raised.value)
    assert text.startswith(f"{stored.name}: expert ") and " of layer 2 is damaged in " in text
    assert str(stored.path / "experts-00002.bin") in text and f"`moeinf verify {stored.name}`" in text


def test_a_truncated_shard_is_named_before_anything_is_read(stored: StoredModel) -> None:
    with open(stored.path / "experts-00001.bin", "r+b") as file:
        file.truncate(4096)
    with pytest.raises(StoreError, match=r"experts-00001\.bin is 4096 bytes long"):
        logits_of(stored)


def test_the_next_request_goes_on_when_the_damage_is_gone(stored: StoredModel) -> None:
    path = stored.path / "experts-00002.bin"
    sound = path.read_bytes()
    with Model(stored, RuntimeConfig.of(device="cpu", threads=1, expert_cache="20%")) as model:
        answer = model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text
        overwrite(path, 0, bytes(len(sound)))
        model.generate(PROMPT, model.params(temperature=0, num_predict=4))  # each was sound when it was first read
    with Model(stored, RuntimeConfig.of(device="cpu", threads=1, expert_cache="20%")) as model:
        with pytest.raises(ExpertReadError):
            model.generate(PROMPT, model.params(num_predict=4))
        overwrite(path, 0, sound)
        assert model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text == answer


@pytest.mark.parametrize("reader", ["native", "pure"])
def test_verify_reads_finds_what_changes_while_a_model_runs(stored: StoredModel, reader: Any) -> None:
    config = RuntimeConfig.of(device="cpu", threads=1, expert_cache="20%", reader=reader, verify_reads=True)
    with Model(stored, config) as model:
        model.generate(PROMPT, model.params(temperature=0, num_predict=4))
        zero_shard(stored)
        with pytest.raises(ExpertReadError, match=r"of layer 2 is damaged in .*do not match their checksum"):
            model.generate(PROMPT[::-1], model.params(temperature=0, num_predict=4))


# ---- dense weights


def test_a_flipped_bit_in_any_dense_tensor_or_the_header_is_named(stored: StoredModel) -> None:
    path, generator = stored.dense_path, random.Random(2)
    specs = dense_tensors(path)
    chosen = [generator.choice(specs) for _ in range(6)] + [spec for spec in specs if "embed" in spec.name]
    for spec in chosen:
        embedding = "embed" in spec.name
        bits = (
            range(8 * spec.offset_bytes, 8 * (spec.offset_bytes + spec.num_bytes), 8 * 64)
            if embedding
            else [8 * spec.offset_bytes + generator.randrange(8 * spec.num_bytes)]
        )
        for bit in bits:
            flip(path, bit)
        with pytest.raises(StoreError) as raised:
            logits_of(stored, 1)
        assert spec.name in one_line(raised.value) and stored.name in str(raised.value)
        for bit in bits:
            flip(path, bit)
    flip(path, 8 * 40)
    with pytest.raises(StoreError, match=r"the header in .*dense\.safetensors does not match"):
        logits_of(stored, 1)
    flip(path, 8 * 40)
    assert len(logits_of(stored, 1)) == 1


def test_dense_weights_are_summed_by_the_threads_that_were_asked_for_or_not_at_all(
    stored: StoredModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def counted(call: Callable[[Any], Any], items: Sequence[Any], num_threads: int) -> Iterator[Any]:
        asked.append(num_threads)
        return mapped(call, items, num_threads)

    monkeypatch.setattr("moeinf.engine.weights.dense_file.mapped", counted)
    logits_of(stored, 1)
    assert asked == [1]
    logits_of(resealed(stored, "", without=CHECKSUMS_FILE), 1)
    assert asked == [1], "no sums are known"


# ---- small files


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", CHECKSUMS_FILE])
def test_a_flipped_bit_in_a_small_file_is_named(stored: StoredModel, name: str) -> None:
    flip(stored.path / name, 8 * ((stored.path / name).stat().st_size // 2))
    with pytest.raises(StoreError) as raised:
        logits_of(stored, 1)
    assert name in one_line(raised.value) and stored.name in str(raised.value)


@pytest.mark.parametrize(
    ("field", "value"), [("num_experts_per_tok", 2), ("hidden_size", 64), ("num_hidden_layers", 5)]
)
def test_a_config_that_is_not_the_manifests_is_refused(stored: StoredModel, field: str, value: int) -> None:
    """Whatever made it: the sums are right, the model is another."""
    config = json.loads((stored.path / "config.json").read_text())
    assert config[field] != value
    data = json.dumps(config | {field: value}).encode()
    (stored.path / "config.json").write_bytes(data)
    with pytest.raises(StoreError, match=r"config\.json: .* is \d+, in the manifest \d+; check it with"):
        logits_of(resealed(stored, "config.json"), 1)


# ---- stores that were made before


def test_a_store_without_sums_runs_with_a_note_and_verify_adds_them(stored: StoredModel) -> None:
    before = resealed(stored, "", without=CHECKSUMS_FILE)
    config = RuntimeConfig.of(device="cpu", threads=1)
    notices: list[str] = []
    with Model(before, config, Reporting(notices.append)) as model:
        assert len(notices) == 1 and "are not checked while they are read" in notices[0]
        assert f"`moeinf verify {before.name}` adds the checksums" in notices.pop()
        answer = model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text
    with pytest.raises(UsageError, match=r"--verify-reads: .*`moeinf verify"):
        Model(before, RuntimeConfig.of(device="cpu", threads=1, verify_reads=True))
    notes: list[str] = []
    assert verify(before, note=notes.append) == [] and notes[0].startswith(f"added {CHECKSUMS_FILE}")
    assert (before.path / CHECKSUMS_FILE).read_bytes() == (stored.path / CHECKSUMS_FILE).read_bytes()
    assert verify(before, note=notes.append) == [] and len(notes) == 1
    with Model(before, config, Reporting(notices.append)) as model:
        assert not notices
        assert model.generate(PROMPT, model.params(temperature=0, num_predict=4)).text == answer
    zero_shard(before)
    with pytest.raises(ExpertReadError):
        logits_of(before)


def test_sums_that_verify_added_and_that_are_damaged_are_noted_and_made_anew(stored: StoredModel) -> None:
    before = resealed(stored, "", without=CHECKSUMS_FILE)
    assert verify(before) == []
    flip(before.path / CHECKSUMS_FILE, 8 * 700)
    config, notices = RuntimeConfig.of(device="cpu", threads=1), list[str]()
    Model(before, config, Reporting(notices.append)).close()
    assert f"{CHECKSUMS_FILE} is damaged" in notices.pop()
    assert verify(before) == []
    Model(before, config, Reporting(notices.append)).close()
    assert not notices


def test_verify_adds_no_sums_of_weights_that_are_damaged(stored: StoredModel) -> None:
    before = resealed(stored, "", without=CHECKSUMS_FILE)
    zero_shard(before)
    assert len(verify(before)) == before.manifest.moe.num_experts and not (before.path / CHECKSUMS_FILE).exists()


# ---- what cannot even be opened


def test_a_damaged_manifest_is_named_and_pull_makes_the_model_anew(demo: StoredModel, tmp_path: Path) -> None:
    home = tmp_path / "home"
    stored = pull("demo", PullOptions(name="mine"), home=home)
    flip(stored.path / "manifest.json", 8 * 700)
    with pytest.raises(StoreError, match=r"manifest\.json is damaged .*; pull it again"):
        logits_of(Library(home).find("mine"))
    again = pull("mine", home=home)
    assert again.id == stored.id and verify(again) == [] and Library(home).find("mine").manifest == again.manifest
    flip(stored.path / "manifest.json", 8 * 700)
    (stored.path / "receipt.json").unlink()  # as of an earlier version
    with pytest.raises(StoreError, match=r"is damaged .*: `moeinf pull SOURCE --name mine:latest`, from where it came"):
        pull("mine", home=home)
    assert verify(pull("demo", PullOptions(name="mine"), home=home)) == []


def test_a_model_that_is_removed_while_it_is_opened_ends_in_one_line(
    demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every file that is opened or looked at, one after the other."""
    ended, step = list[str](), 0
    while not ended or ended[-1]:
        shutil.copytree(demo.path, tmp_path / demo.id)
        calls = Countdown(step, tmp_path / demo.id)
        with monkeypatch.context() as patched:
            for module, name in ((os, "open"), (os, "stat"), (io, "open")):
                patched.setattr(module, name, calls.around(getattr(module, name)))
            try:
                logits_of(StoredModel(demo.name, demo.id, tmp_path / demo.id), 1)
                ended.append("" if calls.left >= 0 else "went on")
            except MoeinfError as error:
                assert "\n" not in str(error)
                ended.append(str(error))
        shutil.rmtree(tmp_path / demo.id, ignore_errors=True)
        step += 1
    assert len(ended) > 5


class Countdown:
    """Removes a folder before the call of that number that concerns it."""

    def __init__(self, left: int, folder: Path) -> None:
        self.left, self._folder = left, folder

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(path, int) and os.fspath(path).startswith(str(self._folder)) and self.left >= 0:
                self.left -= 1
                if self.left < 0:
                    shutil.rmtree(self._folder)
            return call(path, *args, **kwargs)

        return counted


# ---- any bit


def test_no_flipped_bit_anywhere_changes_a_logit_unseen(stored: StoredModel) -> None:
    """A few of them, each alone; `make fuzz` has many."""
    sound, generator = logits_of(stored, 3, expert_cache="30%"), random.Random(5)
    files = sorted(path for path in stored.path.iterdir())
    for path in files:
        before = path.read_bytes()
        bit = generator.randrange(8 * len(before))
        flip(path, bit)
        fresh = StoredModel(stored.name, stored.id, stored.path)
        try:
            found = logits_of(fresh, 3, expert_cache="30%")
            assert all(np.array_equal(a, b) for a, b in zip(sound, found, strict=True)), (path, bit)
        except MoeinfError as error:
            assert "\n" not in str(error)
        path.write_bytes(before)  # a run writes some files anew
