"""What an adapter is to a pull, beside its arithmetic: names, updates, space on disk, the Hub, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from moeinf.config.pull_options import PullOptions
from moeinf.errors import CheckpointError, MoeinfError, UnsupportedModelError, UsageError
from moeinf.pull.checkpoint.convert import Portions
from moeinf.pull.events import SilentProgress
from moeinf.pull.pull import ensure, plan_pull, pull
from moeinf.store.library import Library, StoredModel
from tests.support.adapters import PREFIX, Q, factors, write_adapter, write_gguf_adapter
from tests.support.checkpoints import CONFIG, content, random_tensors, write_checkpoint
from tests.support.hub_server import REPO, point_client_at, serving

V = "model.layers.1.self_attn.v_proj"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "tiny")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def dense(stored: StoredModel, module: str) -> Tensor:
    return safetensors.torch.load_file(stored.dense_path)[f"{module}.weight"]


def merged(module: str = Q, scale: float = 2.0) -> Tensor:
    a, b = factors(module).values()
    return (random_tensors()[f"{module}.weight"].float() + scale * (b @ a)).bfloat16()


def test_a_model_with_an_adapter_stands_beside_the_one_without(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "My Adapter")
    plain, adapted = (pull(str(checkpoint), PullOptions(lora=lora), home=home) for lora in (None, str(adapter)))
    assert (plain.name, adapted.name) == ("tiny:latest", "tiny:my-adapter")
    assert torch.equal(dense(adapted, Q), merged()) and not torch.equal(dense(plain, Q), merged())
    same = {name for name, digest in content(adapted.path).items() if content(plain.path).get(name) == digest}
    assert any(name.startswith("experts") for name in same)
    for name in same - {"manifest.json"}:
        assert (adapted.path / name).stat().st_ino == (plain.path / name).stat().st_ino, "what is the same is shared"
    assert list((home / "partial").iterdir()) == [], "copies of shards are gone"
    (line,) = [line for line in adapted.manifest.formats.fallbacks if "adapter" in line]
    assert str(adapter) in line and "rank 2, 1 modules, made for org/Tiny" in line


def test_names_are_those_of_the_formats_too(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    adapter = str(write_adapter(tmp_path / "a"))
    given = [{"quant": "q8_0"}, {"name": "mine"}, {"name": "mine", "quant": "q8_0"}, {"name": "mine:own"}]
    names = [plan_pull(str(checkpoint), PullOptions(lora=adapter, **each), home=home).name for each in given]  # type: ignore[arg-type]
    assert names == ["tiny:a-q8_0", "mine:latest", "mine:q8_0", "mine:own"]


def test_the_stored_name_stands_for_checkpoint_and_adapter(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    first = pull(str(checkpoint), PullOptions(lora=str(adapter), quant="q8_0"), home=home)
    assert pull("tiny:a-q8_0", home=home).id == first.id
    write_adapter(adapter, factors(V, 32))
    again = pull("tiny:a-q8_0", home=home)
    assert again.id != first.id and again.name == first.name
    assert again.manifest.formats.asked == first.manifest.formats.asked
    other = pull("tiny:a-q8_0", PullOptions(lora=str(write_adapter(tmp_path / "b"))), home=home)
    assert other.name == "tiny:b-q8_0", "another adapter is merged into the checkpoint, not on top"
    assert sum("adapter" in line for line in other.manifest.formats.fallbacks) == 1


def test_run_pulls_what_is_not_there_and_what_has_changed(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")
    pull(str(checkpoint), home=home)
    first = ensure("tiny", PullOptions(lora=str(adapter)), home=home)
    assert first.name == "tiny:a" and torch.equal(dense(first, Q), merged())
    assert ensure("tiny", PullOptions(lora=str(adapter)), home=home).id == first.id
    assert ensure("tiny:a", home=home).id == first.id
    assert ensure("tiny", home=home).name == "tiny:latest"
    write_adapter(adapter, lora_alpha=8)
    assert torch.equal(dense(ensure("tiny", PullOptions(lora=str(adapter)), home=home), Q), merged(scale=4.0))


class Stopped(Exception):
    pass


class Stops(SilentProgress):
    """Gives up after so many steps of converting."""

    def __init__(self, steps: int) -> None:
        self._left = steps

    def advance(self, num_bytes: int) -> None:
        self._left -= 1
        if self._left < 0:
            raise Stopped


@pytest.mark.parametrize("steps", [0, 3, 9])
def test_an_interrupted_pull_goes_on_by_its_name(checkpoint: Path, home: Path, tmp_path: Path, steps: int) -> None:
    adapter = str(write_adapter(tmp_path / "a", factors() | factors(V, 32)))
    with pytest.raises(Stopped):
        pull(
            str(checkpoint),
            PullOptions(lora=adapter),
            home=home,
            progress=Stops(steps),
            portions=Portions(segment_bytes=4096),
        )
    stored = pull("tiny:a", home=home)
    assert torch.equal(dense(stored, Q), merged()) and torch.equal(dense(stored, V)[:, :], _v())
    assert list((home / "partial").iterdir()) == []


def _v() -> Tensor:
    a, b = factors(V, 32).values()
    return (random_tensors()[f"{V}.weight"].float() + 2 * (b @ a)).bfloat16()


def test_copies_of_shards_count_as_space(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    plain = plan_pull(str(checkpoint), home=home).needed_bytes
    adapter = str(write_adapter(tmp_path / "a"))
    with_copies = plan_pull(str(checkpoint), PullOptions(lora=adapter), home=home).needed_bytes
    shards = [path.stat().st_size for path in checkpoint.glob("*.safetensors")]
    assert min(shards) <= with_copies - plain <= 1.05 * max(shards)


def test_adapters_of_the_hub(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = write_adapter(tmp_path / "adapter")
    with serving(checkpoint) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        served.branches["tuned"] = ("d" * 40, adapter)
        lora = f"{REPO}@tuned"
        stored = pull(REPO, PullOptions(lora=lora), home=tmp_path / "home")
        assert stored.name == "tiny-moe:tiny-moe" and torch.equal(dense(stored, Q), merged())
        assert ensure(REPO, PullOptions(lora=lora), home=tmp_path / "home").id == stored.id
        plain = ensure(REPO, home=tmp_path / "home")
        assert plain.name == "tiny-moe:latest" and torch.equal(dense(plain, Q), random_tensors()[f"{Q}.weight"])
        words = "is an adapter: pull its model with it, `moeinf pull org/Tiny --lora"
        with pytest.raises(CheckpointError, match=words):
            pull(lora, home=tmp_path / "home")


def test_gguf_adapters_of_the_hub(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = (factor.numpy() for factor in factors(Q).values())
    (tmp_path / "files").mkdir()
    write_gguf_adapter(tmp_path / "files" / "tuned-f16.gguf", "qwen3moe", {"blk.0.attn_q.weight": (a, b)}, alpha=4.0)
    with serving(checkpoint) as served:
        point_client_at(served.endpoint, tmp_path, monkeypatch)
        served.branches["gguf"] = ("d" * 40, tmp_path / "files")
        for number, lora in enumerate((f"{REPO}@gguf", f"{REPO}:tuned-f16.gguf@gguf", f"{REPO}:f16@gguf")):
            stored = pull(REPO, PullOptions(lora=lora, name=f"tuned{number}"), home=tmp_path / "home")
            assert torch.equal(dense(stored, Q), merged())


def test_an_adapter_is_not_run_as_a_model(tmp_path: Path, home: Path) -> None:
    a, b = (factor.numpy() for factor in factors(Q).values())
    path = write_gguf_adapter(tmp_path / "a.gguf", "qwen3moe", {"blk.0.attn_q.weight": (a, b)})
    with pytest.raises(UnsupportedModelError, match=r"is an adapter: run its model with it, `--lora .*a\.gguf`"):
        pull(str(path), home=home)


PAIR = {"blk.0.attn_q.weight": (np.ones((2, 64), np.float32), np.ones((64, 2), np.float32))}
OF_FILES: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "another layer": ("qwen3moe", {"blk.9.attn_q.weight": PAIR["blk.0.attn_q.weight"]}, {}, "'blk.9.attn_q.weight'"),
    "another width": ("qwen3moe", {"blk.0.attn_q.weight": (np.ones((2, 48)), np.ones((64, 2)))}, {}, "attn_q"),
    "no product": ("qwen3moe", {"blk.0.attn_q.weight": (np.ones((2, 64)), np.ones((64, 3)))}, {}, "have no product"),
    "of some tokens": ("qwen3moe", {}, {"adapter__alora__invocation_tokens": [3, 4]}, "aLoRA"),
    "a model": ("qwen3moe", {}, {"general__type": "model"}, "is no LoRA adapter"),
    "another architecture": ("qwen2moe", {}, {}, "is made for 'qwen2moe', the model is 'qwen3moe'; take an adapter of"),
}


@pytest.mark.parametrize("case", OF_FILES)
def test_what_is_no_adapter_of_the_model_is_refused(case: str, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    architecture, pairs, fields, words = OF_FILES[case]
    path = write_gguf_adapter(tmp_path / "a.gguf", architecture, pairs or PAIR, **fields)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        pull(str(checkpoint), PullOptions(lora=str(path)), home=home)
    assert Library(home).list() == []


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Tensor] | None, str]] = {
    "another type": ({"peft_type": "LOHA"}, None, "is an adapter of type LOHA, which moeinf does not merge"),
    "tokens": ({"trainable_token_indices": [1]}, None, "trainable_token_indices"),
    "a beginning": ({"init_lora_weights": "pissa"}, None, "changes the weights of the model too"),
    "no number": ({"lora_alpha": "x"}, None, "lora_alpha x, which is no number"),
    "no pattern": ({"rank_pattern": {"(": 3}}, None, "rank_pattern: '\\('"),
    "a slow pattern": ({"alpha_pattern": {"(.*a)*b": 3}}, None, "could take for ever"),
    "no list": ({"target_parameters": "all"}, None, "target_parameters is no list"),
    "an unknown order": ({"lora_B_layout": "by_layer"}, None, "has the lora_B_layout 'by_layer'"),
    "an order that is not told": (
        {"auto_mapping": {"unsloth_fixed": True}, "target_parameters": ["mlp.experts.down_proj"]},
        None,
        'write "lora_B_layout": "grouped_by_expert" into its adapter_config.json',
    ),
    "another rank": ({"r": 3}, None, "do not fit"),
    "another width": ({}, factors(into=48), "do not fit"),
    "no such layer": ({}, factors("model.layers.7.self_attn.q_proj"), "no tensor that moeinf could change"),
    "a norm": ({}, factors("model.norm"), "no tensor that moeinf could change"),
    "no half": ({}, {f"{PREFIX}{Q}.lora_A.weight": torch.zeros(2, 64)}, "lacks tensor .*lora_B"),
    "no matrices": (
        {},
        {f"{PREFIX}{Q}.lora_A.weight": torch.zeros(0), f"{PREFIX}{Q}.lora_B.weight": torch.zeros(0)},
        "are no matrices",
    ),
    "a bias of B": ({}, factors() | {f"{PREFIX}{Q}.lora_B.bias": torch.zeros(64)}, "lora_B.bias"),
    "a larger vocabulary": ({}, {f"{PREFIX}lm_head.weight": torch.zeros(98, 64)}, "in shape \\[98, 64\\]"),
    "whole numbers": ({}, {name: tensor.int() for name, tensor in factors().items()}, "dtype I32"),
    "other names": ({}, {"lora_A": torch.zeros(2, 2)}, "does not begin with"),
    "nothing": ({}, {f"{PREFIX}{Q}.other": torch.zeros(2)}, "has tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_merged_exactly_is_refused(case: str, checkpoint: Path, home: Path, tmp_path: Path) -> None:
    config, tensors, words = REFUSED[case]
    adapter = write_adapter(tmp_path / "a", tensors, **config)
    with pytest.raises((CheckpointError, UnsupportedModelError), match=words):
        pull(str(checkpoint), PullOptions(lora=str(adapter)), home=home)
    assert Library(home).list() == []


def test_experts_whose_columns_lie_together(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    """As Unsloth packed B until September 2026; PEFT puts the experts of a rank side by side."""
    experts, into, out = CONFIG["num_experts"], CONFIG["hidden_size"], 2 * CONFIG["moe_intermediate_size"]
    changes = factors("model.layers.1.mlp.experts", out, into, rank=2 * experts)
    name = next(name for name in changes if "lora_B" in name)
    by_rank = changes[name].reshape(out, 2, experts)
    packed = changes | {name: by_rank.swapaxes(1, 2).reshape(out, 2 * experts).contiguous()}
    said = {"target_parameters": ["mlp.experts.gate_up_proj"]}
    made = {"auto_mapping": {"unsloth_fixed": True}, "lora_B_layout": "grouped_by_expert"}
    adapters = (
        write_adapter(tmp_path / "peft", changes, **said),
        write_adapter(tmp_path / "unsloth", packed, **said, **made),
        write_adapter(tmp_path / "since", changes, **said, **made | {"lora_B_layout": "rank_major"}),
    )
    first, *others = (pull(str(checkpoint), PullOptions(lora=str(each)), home=home) for each in adapters)
    weights = {name: digest for name, digest in content(first.path).items() if name.startswith("experts")}
    assert weights
    for other in others:
        assert {name: content(other.path)[name] for name in weights} == weights


@pytest.mark.parametrize(
    ("factor", "dtype"), [(float("nan"), torch.bfloat16), (1e30, torch.bfloat16), (1e3, torch.float16)]
)
def test_weights_that_are_no_numbers_are_the_adapters_fault(
    factor: float, dtype: torch.dtype, home: Path, tmp_path: Path
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in random_tensors().items()}
    checkpoint = write_checkpoint(tmp_path / "tiny", tensors)
    adapter = write_adapter(tmp_path / "a", {name: tensor * factor for name, tensor in factors().items()})
    with pytest.raises(CheckpointError, match=f"NaN or infinite numbers with '{Q}' of .*adapter_model"):
        pull(str(checkpoint), PullOptions(lora=str(adapter)), home=home)


def test_an_embedding_that_is_the_head_too(home: Path, tmp_path: Path) -> None:
    tensors = {name: tensor for name, tensor in random_tensors().items() if name != "lm_head.weight"}
    checkpoint = write_checkpoint(tmp_path / "tied", tensors, CONFIG | {"tie_word_embeddings": True})
    for name in ("model.embed_tokens", "lm_head"):
        adapter = write_adapter(tmp_path / name, {f"{PREFIX}{name}.weight": torch.zeros(97, 64)})
        with pytest.raises(UnsupportedModelError, match="is one matrix with"):
            pull(str(checkpoint), PullOptions(lora=str(adapter)), home=home)


def test_an_adapter_of_mlx_is_said_to_be_one(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in ("adapter_config.json", "adapters.safetensors"):
        (tmp_path / "a" / name).write_text("{}")
    with pytest.raises(CheckpointError, match="it is an adapter of mlx-lm"):
        pull(str(checkpoint), PullOptions(lora=str(tmp_path / "a")), home=home)


@pytest.mark.parametrize(
    "files", [[], ["adapter_config.json"], ["config.json"], ["adapter_model.bin", "adapter_config.json"]]
)
def test_folders_that_are_no_adapter(files: list[str], checkpoint: Path, home: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for name in files:
        (tmp_path / "a" / name).write_text("{}")
    with pytest.raises(CheckpointError, match=r"has no adapter_(config.json|model.safetensors)"):
        pull(str(checkpoint), PullOptions(lora=str(tmp_path / "a")), home=home)


@pytest.mark.parametrize("lora", ["", "x", "nowhere/", "a.gguf", "a\0b"])
def test_what_names_no_adapter(lora: str, checkpoint: Path, home: Path) -> None:
    with pytest.raises(UsageError, match="--lora"):
        pull(str(checkpoint), PullOptions(lora=lora), home=home)


def test_an_adapter_that_changes_meanwhile(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a")

    class Changes(SilentProgress):
        def finish(self) -> None:
            write_adapter(adapter, lora_alpha=9)

    with pytest.raises(MoeinfError, match="changed while it was merged"):
        pull(str(checkpoint), PullOptions(lora=str(adapter)), home=home, progress=Changes())
    assert Library(home).list() == []
