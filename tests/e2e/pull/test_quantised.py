"""Pulls that quantise: every block is what `quantise` makes of the source, however and by whomever it was made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf._native import quantise
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.completion import GenerationStats
from moeinf.engine.model import Model
from moeinf.errors import CheckpointError, StoreError, UsageError
from moeinf.models.family import family_of
from moeinf.pull.checkpoint import layout
from moeinf.pull.checkpoint.convert import Portions
from moeinf.pull.events import SilentProgress
from moeinf.pull.pull import plan_pull, pull
from moeinf.pull.steps import PullPlan
from moeinf.store.dense import dense_tensors
from moeinf.store.library import Library, StoredModel
from moeinf.store.quantisation import Quantisation
from moeinf.store.verify import verify
from moeinf.types import FORMAT_BLOCKS, Float32Array, Format
from tests.support.blocks import WRITTEN
from tests.support.checkpoints import CONFIG, content, fused, random_tensors, write_checkpoint
from tests.support.tiny_models import all_configs

# What experts become where rows are no multiple of 256; other matrices q8_0.
INSTEAD: dict[Format, Format] = {
    "q6_k": "q8_0", "q5_k": "q5_1", "q4_k": "q5_0", "iq4_xs": "iq4_nl", "q3_k": "iq4_nl", "q2_k": "iq4_nl",
    "iq3_s": "iq4_nl", "iq3_xxs": "iq4_nl", "iq2_s": "iq4_nl", "iq2_xs": "iq4_nl", "iq2_xxs": "iq4_nl",
}  # fmt: skip
# What --quant makes of `down`.
DOWN: dict[Format, Format] = {
    "q5_k": "q6_k", "q4_k": "q5_k", "q3_k": "q4_k", "q2_k": "q3_k", "iq3_s": "iq4_xs", "iq2_s": "iq3_s",
    "iq3_xxs": "iq4_xs", "iq2_xs": "iq3_xxs", "iq2_xxs": "iq2_s",
}  # fmt: skip
# Whole blocks of any format.
WIDE = CONFIG | {"hidden_size": 256, "head_dim": 64, "moe_intermediate_size": 512, "num_experts": 4}
ODD = CONFIG | {"hidden_size": 96, "moe_intermediate_size": 40, "num_experts": 4}  # no q4_k; down fits no block at all
SOURCE: dict[torch.dtype, Format] = {torch.bfloat16: "bf16", torch.float16: "f16", torch.float32: "f32"}


def stored_as(wanted: Format | None, tensor: Tensor, instead: Format | None = None) -> tuple[Format, bytes]:
    """The format that rows of this length get, and the bytes. instead: of those with blocks of 256."""
    source = SOURCE[tensor.dtype]
    raw = tensor.contiguous().view(torch.uint8).numpy().reshape(-1)
    options = [] if wanted is None else [wanted, instead or INSTEAD[wanted]] if wanted in INSTEAD else [wanted]
    rows, cols = tensor.numel() // tensor.shape[-1], tensor.shape[-1]
    for format in options:
        weights, num_bytes = FORMAT_BLOCKS[format]
        if cols % weights == 0:
            out = np.zeros(rows * cols // weights * num_bytes, np.uint8)
            quantise(format, raw, source, rows, cols, out)
            return format, out.tobytes()
    return source, raw.tobytes()


def check_experts(
    model: StoredModel, tensors: dict[str, Tensor], wanted: Format | None, down: Format | None = None
) -> None:
    layout = model.manifest.layout
    for layer, path in enumerate(model.shard_paths):
        data = path.read_bytes()
        for expert in range(model.manifest.moe.num_experts):
            block = bytearray(layout.stride_bytes)
            for spec in layout.tensors:
                source = tensors[f"model.layers.{layer}.mlp.experts.{expert}.{spec.name}_proj.weight"]
                format, blocks = stored_as(down or wanted if spec.name == "down" else wanted, source)
                assert (spec.dtype, spec.num_bytes) == (format, len(blocks))
                block[spec.offset_bytes : spec.offset_bytes + spec.num_bytes] = blocks
            assert data[expert * layout.stride_bytes :][: layout.stride_bytes] == block


def dense_of(model: StoredModel) -> dict[str, tuple[Format, bytes]]:
    data = model.dense_path.read_bytes()
    return {
        spec.name: (spec.dtype, data[spec.offset_bytes :][: spec.num_bytes])
        for spec in dense_tensors(model.dense_path, model.manifest.formats.dense)
    }


def wanted_dense(
    tensors: dict[str, Tensor], wanted: Format | None, tied: bool = False
) -> dict[str, tuple[Format, bytes]]:
    """Matrices as wanted, the head and the embedding in 8 bits, and one of both where they are the same."""
    ends = {"_proj.weight": wanted} | ({"embed_tokens.weight": "q8_0", "lm_head.weight": "q8_0"} if wanted else {})
    return {
        name: stored_as(next((format for end, format in ends.items() if name.endswith(end)), None), tensor, "q8_0")
        for name, tensor in tensors.items()
        if ".experts." not in name and not (tied and name == "lm_head.weight")
    }


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("wide") / "wide", random_tensors(WIDE), WIDE)


@pytest.mark.parametrize("format", WRITTEN)
@pytest.mark.parametrize("config", [WIDE, ODD], ids=["wide", "odd"])
def test_blocks_are_those_of_the_source_in_every_format(format: Format, config: dict[str, Any], tmp_path: Path) -> None:
    tensors = random_tensors(config)
    model = pull(
        str(write_checkpoint(tmp_path / "c", tensors, config)), PullOptions(quant=format), home=tmp_path / "home"
    )
    assert model.name == f"c:{format}" and verify(model) == []
    check_experts(model, tensors, format, DOWN.get(format))
    assert dense_of(model) == wanted_dense(tensors, "q8_0")
    assert bool(model.manifest.formats.fallbacks) == (config is ODD)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_fused_experts_and_wider_elements_give_the_blocks_of_their_values(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors(WIDE).items()}
    checkpoint = write_checkpoint(tmp_path / "c", fused(tensors, WIDE), WIDE)
    model = pull(str(checkpoint), PullOptions(quant="q4_k"), home=tmp_path / "home")
    check_experts(model, tensors, "q4_k", "q5_k")
    assert dense_of(model) == wanted_dense(tensors, "q8_0")


@pytest.mark.parametrize("format", ["q4_k", "q3_k"])
def test_options_that_name_experts_or_the_rest_mean_no_mixture(format: Format, wide: Path, tmp_path: Path) -> None:
    tensors = random_tensors(WIDE)
    options = PullOptions(quant_experts=format, quant_dense=format)
    model = pull(str(wide), options, home=tmp_path / "home")
    assert model.name == f"wide:{format}-{format}"
    check_experts(model, tensors, format)
    assert dense_of(model) == wanted_dense(tensors, format)


def test_a_head_that_is_tied_is_the_embedding_in_8_bits(tmp_path: Path) -> None:
    config = WIDE | {"tie_word_embeddings": True}
    tensors = random_tensors(config)
    checkpoint = write_checkpoint(tmp_path / "c", tensors, config)
    model = pull(str(checkpoint), PullOptions(quant_dense="iq4_nl"), home=tmp_path / "home")
    assert "lm_head.weight" not in tensors and model.name == "c:keep-iq4_nl"
    check_experts(model, tensors, None)
    assert dense_of(model) == wanted_dense(tensors, "iq4_nl", tied=True)
    plain = pull(str(checkpoint), PullOptions(quant_experts="q8_0"), home=tmp_path / "home")
    assert dense_of(plain) == wanted_dense(tensors, None, tied=True)


class Greedy:
    def sample(self, logits: Float32Array, history: Sequence[int]) -> int:
        assert np.isfinite(logits).all() and logits.std() > 0
        return int(logits.argmax())


@pytest.mark.parametrize("name", ["aria", "kimi_k25", "qwen3_omni_moe", "inkling2"])
def test_a_head_with_a_prefix_is_stored_once(name: str, tmp_path: Path) -> None:
    config = all_configs()[name]
    head = f"{family_of(config).tensors.own_head}"
    assert head != "lm_head.weight"
    source = write_checkpoint(tmp_path / "c", random_tensors(config), config)
    model = pull(str(source), PullOptions(quant="q8_0"), home=tmp_path / "home")
    assert "lm_head.weight" in dense_of(model) and head not in dense_of(model)
    with Model(model, RuntimeConfig.of(device="cpu", threads=1)) as running:
        assert len(list(running.generator.tokens([0, 1, 1, 0], Greedy(), 3, GenerationStats()))) == 3


@pytest.mark.parametrize("threads", [1, 7])
def test_neither_threads_nor_the_size_of_reads_change_a_byte(threads: int, wide: Path, tmp_path: Path) -> None:
    whole = pull(str(wide), PullOptions(quant="q4_k", quant_dense="q8_0"), home=tmp_path / "whole")
    portions = Portions(segment_bytes=5000, num_threads=threads)
    options = PullOptions(quant="q4_k", quant_dense="q8_0")
    small = pull(str(wide), options, home=tmp_path / "small", portions=portions)
    assert content(small.path) == content(whole.path)


@pytest.mark.parametrize(
    ("name", "quant", "dense", "stored"),
    [
        (None, "keep", None, "demo:latest"),
        (None, None, "q8_0", "demo:keep-q8_0"),
        ("mine", None, None, "mine:latest"),
        ("mine", "keep", None, "mine:latest"),
        ("mine", "q4_0", None, "mine:q4_0"),
        ("mine:v2", "q4_0", None, "mine:v2"),
        ("mine", "q4_k", "q8_0", "mine:q4_k_m-q8_0"),
    ],
)
def test_the_format_that_is_asked_for_is_the_tag_of_a_name_without_one(
    name: str | None, quant: str | None, dense: str | None, stored: str, tmp_path: Path
) -> None:
    plan = plan_pull("demo", PullOptions(name=name, quant=quant, quant_dense=dense), home=tmp_path)
    assert isinstance(plan, PullPlan) and plan.name == stored


def test_formats_of_one_source_lie_side_by_side_and_are_brought_up_to_date_each(wide: Path, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", random_tensors(WIDE), WIDE)
    home = tmp_path / "home"
    plain, small = pull(str(checkpoint), home=home), pull(str(checkpoint), PullOptions(quant="q4_0"), home=home)
    named = pull(str(checkpoint), PullOptions(quant="q4_0", name="mine"), home=home)
    assert (plain.name, small.name, named.name) == ("c:latest", "c:q4_0", "mine:q4_0")
    assert plain.id != small.id == named.id
    assert {model.name: model.id for model in Library(home).list()} == {
        "c:latest": plain.id,
        "c:q4_0": small.id,
        "mine:q4_0": small.id,
    }
    assert pull("c:q4_0", home=home).id == small.id
    write_checkpoint(checkpoint, random_tensors(WIDE, seed=4), WIDE)
    updated = pull("c:q4_0", home=home)
    assert updated.id != small.id and updated.manifest.formats.asked == Quantisation("q4_0", "more")
    assert pull("mine:q4_0", home=home).id == updated.id and pull("c", home=home).manifest.formats.dense == {}
    other = pull("c:q4_0", PullOptions(quant="keep"), home=home)
    assert other.name == "c:latest" and other.id == Library(home).find("c").id


def test_an_interrupted_pull_is_not_disturbed_by_one_of_another_format(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, done = tmp_path / "home", []

    class Interrupting(SilentProgress):
        def finish(self) -> None:
            done.append(1)
            if len(done) == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(str(wide), PullOptions(quant="q8_0"), home=home, progress=Interrupting())
    pull(str(wide), PullOptions(quant="mxfp4"), home=home)
    assert [partial.name for partial in Library(home).partials()] == ["wide:q8_0"]
    started: list[str] = []
    monkeypatch.setattr(Interrupting, "finish", SilentProgress.finish)
    progress = Interrupting()
    monkeypatch.setattr(progress, "start", lambda verb, *_: started.append(verb), raising=False)
    model = pull(str(wide), PullOptions(quant="q8_0"), home=home, progress=progress)
    assert started == ["quantising"] * 2 + ["verifying"]
    assert content(model.path) == content(pull(str(wide), PullOptions(quant="q8_0"), home=tmp_path / "other").path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e5])
def test_a_weight_that_cannot_be_quantised_is_refused_with_its_tensor(bad: float, tmp_path: Path) -> None:
    tensors = random_tensors(WIDE)
    name = "model.layers.1.mlp.experts.2.up_proj.weight"
    tensors[name][100, 200] = bad
    checkpoint = write_checkpoint(tmp_path / "c", tensors, WIDE)
    with pytest.raises(CheckpointError, match=rf"safetensors: tensor '{name}': holds .*only finite weights"):
        pull(str(checkpoint), PullOptions(quant="q4_k"), home=tmp_path / "home")
    assert Library(tmp_path / "home").list() == []
    if bad == 1e5:  # which bf16 holds
        assert verify(pull(str(checkpoint), home=tmp_path / "home")) == []


def test_no_model_is_published_with_a_scale_that_is_no_number(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoilt(format: str, source: memoryview, source_dtype: str, rows: int, cols: int, out: memoryview) -> None:
        out[:] = b"\xff" * len(out)

    monkeypatch.setattr(layout, "quantise", spoilt)
    with pytest.raises(StoreError, match=r"00000.bin: expert 0: tensor 'gate': the scale of q4_k block 0 is NaN"):
        pull(str(wide), PullOptions(quant_experts="q4_k"), home=tmp_path / "home")
    with pytest.raises(StoreError, match=r"dense.safetensors: tensor '.*': the scale of q4_k block 0 is NaN"):
        pull(str(wide), PullOptions(quant_dense="q4_k"), home=tmp_path / "home")
    assert Library(tmp_path / "home").list() == []


def test_verify_names_tensor_expert_and_block_of_a_scale_that_is_no_number(wide: Path, tmp_path: Path) -> None:
    model = pull(str(wide), PullOptions(quant="q8_0"), home=tmp_path / "home")
    layout = model.manifest.layout
    part = next(spec for spec in layout.tensors if spec.name == "down")
    with model.shard_paths[1].open("r+b") as file:
        file.seek(3 * layout.stride_bytes + part.offset_bytes + 40 * 34)
        file.write(b"\x00\x7c")
    assert verify(model) == [
        "experts-00001.bin: expert 3 does not match its checksum",
        "experts-00001.bin: expert 3: tensor 'down': the scale of q8_0 block 40 is NaN or infinite",
    ]


def test_a_dry_run_knows_the_sizes_and_what_falls_back(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(tmp_path / "c", random_tensors(ODD), ODD)
    plan = plan_pull(str(checkpoint), PullOptions(quant="q4_k"), home=tmp_path / "home")
    assert isinstance(plan, PullPlan) and plan.name == "c:q4_k" and not (tmp_path / "home").exists()
    model = pull(str(checkpoint), PullOptions(quant="q4_k"), home=tmp_path / "home")
    weights = [model.dense_path, *model.shard_paths]
    assert plan.store_bytes == sum(path.stat().st_size for path in weights)
    assert plan.fallbacks == model.manifest.formats.fallbacks
    assert plan.fallbacks[:2] == (
        "expert gate, expert up: rows of 96 are no whole number of q4_k blocks (256); stored as q5_0, 5.5 bits a "
        "weight instead of 4.5",
        "expert down: rows of 40 are no whole number of q5_k blocks (256); stored as bf16, 16 bits a weight instead of "
        "5.5",
    )
    again = plan_pull(str(checkpoint), PullOptions(quant="q4_k"), home=tmp_path / "home")
    assert isinstance(again, PullPlan) and again.up_to_date and again.needed_bytes == 0


def test_what_falls_back_is_said_once(tmp_path: Path) -> None:
    class Notes(SilentProgress):
        def note(self, text: str) -> None:
            said.append(text)

    said: list[str] = []
    checkpoint = write_checkpoint(tmp_path / "c", random_tensors(ODD), ODD)
    model = pull(str(checkpoint), PullOptions(quant="q4_k"), home=tmp_path / "home", progress=Notes())
    assert tuple(said) == model.manifest.formats.fallbacks and len(set(said)) == len(said) > 0


def test_an_unknown_format_is_refused_before_anything_is_opened(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="unknown --quant-dense 'q3'; known: keep, q8_0"):
        pull("/nowhere", PullOptions(quant="q8_0", quant_dense="q3"), home=tmp_path / "home")
    assert not (tmp_path / "home").exists()
