"""Models whose layers were pruned to different numbers of experts, as checkpoints and as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.engine.weights.device_form import device_layouts
from moeinf.errors import CheckpointError
from moeinf.pull.pull import ensure, pull
from moeinf.runtime.policy.eviction import POLICIES
from moeinf.runtime.policy.predictors import PREDICTORS
from moeinf.store.library import StoredModel
from moeinf.store.verify import verify
from moeinf.terminal.stored.show import show_json, show_lines
from moeinf.types import Float32Array
from tests.support.checkpoints import write_checkpoint, write_tokenizer
from tests.support.converter.meant import meant
from tests.support.converter.published import ARCHITECTURES as ARCHITECTURES_OF_RECORDS
from tests.support.converter.record import NAMES, checkpoint
from tests.support.gguf_files import ARCHITECTURES, write_gguf
from tests.support.gpu.emulated_gpu import opened
from tests.support.hybrid_gguf import num_layers
from tests.support.mixed_gguf import without_vocabulary
from tests.support.pruning import moe_layers_of, num_experts, prune_model, prune_tensors, uneven_counts, varied
from tests.support.tiny_models import all_configs, reference

NOT_IN_TRANSFORMERS = ("arctic", "bailing_moe")
IDS = [5, 17, 3, 41, 41, 2, 60, 9, 33, 14]
RECURRENT = (
    "qwen3_next",
    "qwen3_5_moe",
    "granitemoehybrid",
    "nemotron_h",
    "jamba",
)  # a file has the e^ of their decays
# One config of each family but those whose files are recorded for whole models alone.
FAMILIES = list({name.split()[0]: name for name in reversed(NAMES) if name not in ARCHITECTURES_OF_RECORDS}.values())


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


def logits(stored: StoredModel, **options: Any) -> Float32Array:
    """Of a prompt and of two tokens behind it, for which experts are predicted."""
    with Model(stored, RuntimeConfig.of(context=32, threads=1, device="cpu", **options)) as model:
        runner: Any = model.runner
        found = [runner.network.forward(IDS[:-2], runner.cache, last_only=False)]
        found += [runner.forward([token], lambda: None) for token in IDS[-2:]]
        model.tier.check_integrity()
    return np.concatenate(found)


def saved(name: str, folder: Path) -> tuple[Path, Any]:
    """A checkpoint of transformers of which layers were pruned, with a config that does not say so, and its model."""
    model = varied(reference(all_configs()[name]))
    prune_model(model, uneven_counts(all_configs()[name], moe_layers_of(model.state_dict())))
    model.save_pretrained(folder)  # type: ignore[operator]
    write_tokenizer(folder)
    (folder / "tokenizer_config.json").write_text("{}")
    return folder, model


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NOT_IN_TRANSFORMERS])
def test_every_family_computes_what_transformers_does_without_the_experts(name: str, tmp_path: Path) -> None:
    folder, model = saved(name, tmp_path / "checkpoint")
    with torch.inference_mode():
        wanted = model(torch.tensor([IDS])).logits[0].numpy()
    stored = pull(str(folder), home=tmp_path / "home")
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    counts = uneven_counts(all_configs()[name], moe_layers_of(tensors))
    assert stored.manifest.moe.counts == tuple(counts.values())
    found = logits(stored)
    assert np.abs(found - wanted).max() < 1e-4 * max(1, np.abs(wanted).max())
    assert np.array_equal(logits(stored, expert_cache="50%"), found)


@pytest.mark.parametrize(
    ("name", "listed"), [*((name, True) for name in FAMILIES), ("mixtral", False)], ids=lambda each: str(each)
)
def test_a_file_computes_what_the_checkpoint_does(name: str, listed: bool, tmp_path: Path) -> None:
    """listed: the file has a list of counts; else it says what the model had before it was pruned."""
    config, tensors = checkpoint(name)
    stored = ensure(str(pruned_file(tmp_path, name, listed=listed)), home=tmp_path / "home")
    counts = uneven_counts(config, moe_layers_of(tensors))
    assert stored.manifest.moe.counts == tuple(counts.values())
    assert json.loads(stored.manifest.dumps())["version"] == 4
    folder = write_checkpoint(tmp_path / "checkpoint", small(prune_tensors(config, tensors, counts)), meant(config), 0)
    wanted = logits(pull(str(folder), home=tmp_path / "home"))
    exact = config["model_type"] not in (*RECURRENT, "gemma4") and "long" not in name
    np.testing.assert_allclose(logits(stored), wanted, **({"rtol": 0} if exact else {"rtol": 1e-3, "atol": 0.01}))


def small(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.float() / 8 if tensor.ndim > 1 else tensor.float() for name, tensor in tensors.items()}


def pruned_file(
    tmp_path: Path, name: str = "qwen3_moe", *, listed: bool = True, kind: str = "F32", said: Any = None
) -> Path:
    """said: what the file has as expert_count, if not the list of counts or the one from before."""
    config, tensors = checkpoint(name)
    counts = uneven_counts(config, moe_layers_of(tensors))
    config, tensors = meant(config), small(prune_tensors(config, tensors, counts))
    layers = num_layers(config.get("text_config") or config)
    if said is None:
        said = [counts.get(layer, 0) for layer in range(layers)] if listed else num_experts(config)
    metadata = {f"{ARCHITECTURES[config['model_type']]}.expert_count": said}
    return write_gguf(tmp_path / "pruned.gguf", config, tensors, kinds=lambda name: kind, metadata=metadata)[0]


@pytest.fixture(params=["a file", "a store", "a repacked file"])
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> StoredModel:
    """Qwen3-MoE with 7, 8 and 6 experts."""
    home = tmp_path / "home"
    if request.param == "a store":
        return pull(str(saved("qwen3_moe", tmp_path / "checkpoint")[0]), home=home)
    file = str(pruned_file(tmp_path, kind="Q8_0"))
    return pull(file, PullOptions(repack=request.param == "a repacked file"), home=home)


def test_the_tokens_are_the_same_for_every_cache_policy_predictor_and_reader(stored: StoredModel) -> None:
    wanted, manifest = logits(stored), stored.manifest
    assert manifest.moe.counts == (7, 8, 6) and manifest.moe.total_experts == 21
    smallest = manifest.moe.top_k * manifest.layout.stride_bytes
    runs: list[dict[str, Any]] = [
        {"expert_cache": smallest},
        {"expert_cache": smallest, "prefetch": False},
        {"expert_cache": "60%", "reader": "pure", "verify_reads": True},
        {"expert_cache": "100%", "prefill_chunk": 1},
        *({"expert_cache": "60%", "policy": policy} for policy in POLICIES),
        *({"expert_cache": "60%", "predictor": predictor} for predictor in PREDICTORS),
    ]
    for options in runs:
        assert np.array_equal(logits(stored, **options), wanted), options


def test_it_is_shown_verified_and_refused_when_it_is_damaged(stored: StoredModel) -> None:
    assert "6 to 8" in next(line for line in show_lines(stored) if "experts per layer" in line)
    moe = json.loads(show_json(stored))["moe"]
    assert (moe["experts_per_layer"], moe["experts_of_layers"]) == (8, [7, 8, 6])
    assert verify(stored) == []
    in_place = stored.manifest.in_place
    if in_place is not None:
        place = in_place.experts[2][2]
        path, at = in_place.paths(stored.path)[place.file], place.offset_bytes + 5 * place.step_bytes
    else:
        path, at = stored.shard_paths[2], 5 * stored.manifest.layout_of(2).stride_bytes
    with path.open("r+b") as file:
        file.seek(at + 8)
        file.write(b"\x11\x22")
    [fault] = verify(stored)
    assert "expert 5 does not match" in fault


def test_a_gpu_computes_the_same_for_every_number_of_slots(stored: StoredModel) -> None:
    wanted, stride = logits(stored)[-3:], device_layouts(stored.manifest)[0].stride_bytes

    def on_device(slots: int, host: int | None, **options: Any) -> Float32Array:
        with opened(stored, None, host, context=32, expert_cache=slots * stride, **options) as model:
            assert model.runner.plan.num_slots == slots
            found = [model.runner.forward(IDS[:-2], lambda: None)]
            found += [model.runner.forward([token], lambda: None) for token in IDS[-2:]]
            model.tier.check_integrity()
        return np.concatenate(found)

    for slots, host in ((21, None), (9, 21), (9, 8)):
        for options in ({}, {"prefetch": False}):
            found = on_device(slots, host, **options)
            assert np.linalg.norm(found - wanted) < 0.02 * np.linalg.norm(wanted)
            assert np.array_equal(found, on_device(21, None))


def test_a_count_that_the_tensors_contradict_is_one_line(tmp_path: Path) -> None:
    for counts, said in (
        ([7, 8, 8], "expert_count is 8 in layer 2, whose router has 6 experts"),
        ([7, 8], "expert_count has 2 numbers for 3 layers"),
        (7, "the metadata mean"),
        ([2, 2, 2], "expert_count is 2 in layer 0, whose router has 7 experts"),
    ):
        file = pruned_file(tmp_path, said=counts)
        with pytest.raises(CheckpointError, match=said) as raised:
            ensure(str(file), home=tmp_path / "home")
        assert "\n" not in str(raised.value)
    config, tensors = checkpoint("qwen3_moe")
    for counts, said in (
        ([7, 8, 8], "says 8 experts of layer 2, whose router has 6"),
        (7, "says 7 experts of layer 1, whose router has 8"),
        ([8, 8], "must be a number, or a list of 3"),
    ):
        pruned = small(prune_tensors(config, tensors, {0: 7, 1: 8, 2: 6}))
        folder = write_checkpoint(tmp_path / "checkpoint", pruned, config | {"num_experts": counts}, 0)
        with pytest.raises(CheckpointError, match=said):
            pull(str(folder), home=tmp_path / "home")


def test_a_list_in_the_config_is_heeded_and_kept_as_it_is(tmp_path: Path) -> None:
    config, tensors = checkpoint("qwen3_moe")
    tensors, listed = small(prune_tensors(config, tensors, {0: 7, 1: 8, 2: 6})), config | {"num_experts": [7, 8, 6]}
    told = pull(str(write_checkpoint(tmp_path / "told", tensors, listed, 0)), home=tmp_path / "home")
    found = pull(str(write_checkpoint(tmp_path / "found", tensors, config, 0)), home=tmp_path / "home")
    assert (told.path / "config.json").read_text() == json.dumps(listed)
    assert json.loads((found.path / "config.json").read_text()) == listed
    assert np.array_equal(logits(told), logits(found))
