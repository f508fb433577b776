"""Every family from a checkpoint of its true geometry, cut in size, to logits: names and layouts as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from moeinf._native import Kernels
from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.build_context import BuildContext, Host, Observation
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored_weights import Weights
from moeinf.engine.weights.dense_file import DenseFile
from moeinf.hardware import machine
from moeinf.models.family import family_of
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.dense import dense_tensors
from moeinf.store.dense_sums import DenseSums
from moeinf.store.library import StoredModel
from moeinf.store.sums.checksums import sums_of
from moeinf.store.verify import verify
from moeinf.types import Float32Array, Profiler
from tests.support.checkpoints import (
    Checkpoint,
    in_fp8,
    in_mxfp4,
    random_tensors,
    scaled,
    write_checkpoint,
    write_tokenizer,
)
from tests.support.configs.nllb_moe import SEQ2SEQ_CONFIGS
from tests.support.configs.qwen3_5_moe import QWEN3_5
from tests.support.configs.qwen3_vl_moe import QWEN3_VL
from tests.support.tiny_models import all_configs
from tests.support.true_configs import DISTINCT, NAMES, published

# In these transformers 5.23 differs from what was published: docs/reference/families.md.
NOT_A_REFERENCE = ("nllb-moe",)
IDS = [5, 17, 3, 88, 41, 41, 2, 60, 9, 33, 75, 14]


def run_of(stored: StoredModel) -> CpuRunner:
    config_json = json.loads((stored.path / "config.json").read_text())
    family = family_of(config_json)
    plan = family.tensors
    config = RuntimeConfig.of(context=64, threads=1, expert_cache="50%")
    dense = DenseFile(stored, plan, DenseSums(stored, sums_of(stored)[0]))
    context = BuildContext(
        Weights(stored, family, config_json, dense),
        Host(machine(), config, Kernels(1)),
        Observation(ActivationCollection(stored.manifest.moe), Profiler()),
        Reporting(),
    )
    return CpuRunner(context)


def logits_of(stored: StoredModel) -> Float32Array:
    """Of IDS after each other, experts streamed; for an encoder-decoder model: the source, too."""
    run = run_of(stored)
    try:
        if hasattr(run.network, "encode"):
            run.network.encode(IDS, run.cache)
        prefill = run.network.forward(IDS[:-1], run.cache, last_only=False)
        logits: Float32Array = np.concatenate([prefill, run.forward(IDS[-1:])])
    finally:
        run.close()
    return logits


def in_transformers(config: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    left_out = ("model_type", "auto_map", "quantization_config", "torch_dtype", "dtype", "transformers_version")
    values = {name: value for name, value in config.items() if name not in left_out}
    torch.manual_seed(3)
    model: Any = AutoModelForSeq2SeqLM if config.get("is_encoder_decoder") else AutoModelForCausalLM
    return model.from_config(AutoConfig.for_model(config["model_type"], **values)).float().eval()


@torch.inference_mode()
@pytest.mark.parametrize("layout", ["old", "new"])
@pytest.mark.parametrize("name", DISTINCT)
def test_a_checkpoint_saved_by_transformers_gives_its_logits(name: str, layout: str, tmp_path: Path) -> None:
    """old: one tensor an expert where the family began so, and the config.json that was published."""
    config = {field: value for field, value in published(name).items() if field != "quantization_config"}
    theirs = in_transformers(config)
    bare = layout == "old" and config["model_type"] == "nllb-moe"  # published without the head, which is tied
    (theirs.model if bare else theirs).save_pretrained(tmp_path / "c", save_original_format=layout == "old")
    write_tokenizer(tmp_path / "c")
    if layout == "old":
        (tmp_path / "c" / "config.json").write_text(json.dumps(config))
    stored = pull(str(tmp_path / "c"), home=tmp_path / "home")
    assert verify(stored) == []
    ours = torch.from_numpy(logits_of(stored))
    ids = torch.tensor([IDS])
    wanted = theirs(input_ids=ids, decoder_input_ids=ids) if config.get("is_encoder_decoder") else theirs(ids)
    assert torch.isfinite(ours).all() and ours.shape == wanted.logits[0].shape
    if config["model_type"] not in NOT_A_REFERENCE:
        assert (ours - wanted.logits[0]).abs().max() < 1e-5 * wanted.logits.abs().max()


def predictor_layer(config: dict[str, Any], layer: Checkpoint) -> Checkpoint:
    """What DeepSeek-V3 has behind its last layer: one more, for predicting the token after the next."""
    i, hidden, vocab = (config[name] for name in ("num_hidden_layers", "hidden_size", "vocab_size"))
    prefix = f"model.layers.{i}."
    extra = {f"{prefix}{name}.weight": (hidden,) for name in ("enorm", "hnorm", "shared_head.norm")}
    shapes: dict[str, tuple[int, ...]] = extra | {
        f"{prefix}eh_proj.weight": (hidden, 2 * hidden),
        f"{prefix}embed_tokens.weight": (vocab, hidden),
        f"{prefix}shared_head.head.weight": (vocab, hidden),
    }
    copied = {name.replace(f"layers.{i - 1}.", f"layers.{i}."): tensor for name, tensor in layer.items()}
    return copied | {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in shapes.items()}


@pytest.mark.parametrize("quant", [None, "q4_0"])
@pytest.mark.parametrize("name", ["deepseek-v3", "gpt-oss-20b", "gpt-oss-120b"])
def test_what_is_shipped_quantised_is_read(name: str, quant: str | None, tmp_path: Path) -> None:
    config = published(name)
    tensors = {key: tensor * 0.02 for key, tensor in random_tensors(config).items()}
    if config["quantization_config"]["quant_method"] == "fp8":
        last = f"layers.{config['num_hidden_layers'] - 1}."
        tensors |= predictor_layer(config, {key: tensor for key, tensor in tensors.items() if last in key})
        tensors, _ = in_fp8(tensors)
        kv_a = tensors["model.layers.0.self_attn.kv_a_proj_with_mqa.weight"]
        assert kv_a.shape[0] == 576 and kv_a.dtype == torch.float8_e4m3fn
    else:
        tensors |= in_mxfp4(config)
    stored = pull(
        str(write_checkpoint(tmp_path / "c", tensors, config)), PullOptions(quant=quant), home=tmp_path / "home"
    )
    assert verify(stored) == [] and np.isfinite(logits_of(stored)).all()
    formats = {spec.name: spec.dtype for spec in stored.manifest.layout.tensors}
    if config["model_type"] == "gpt_oss":
        assert {formats[part] for part in ("gate", "up", "down")} == {"mxfp4"}
        assert {formats[f"{part}_bias"] for part in ("gate", "up", "down")} == {"bf16"}
    else:
        assert set(formats.values()) == {quant or "bf16"}


AT_HAND = {published(name)["model_type"] for name in NAMES}
UNPUBLISHED = {name: config for name, config in all_configs().items() if config["model_type"] not in AT_HAND}


@pytest.mark.parametrize("name", UNPUBLISHED, ids=lambda name: name.replace(" ", "-"))
def test_families_whose_config_is_not_at_hand_run_from_every_layout_that_they_know(name: str, tmp_path: Path) -> None:
    config = UNPUBLISHED[name]
    for layout in range(len(family_of(config).tensors.experts)):
        tensors = scaled(random_tensors(config, layout=layout), 0.05)
        checkpoint = write_checkpoint(tmp_path / f"c{layout}", tensors, config)
        for quant in (None, "q8_0")[: 2 - min(layout, 1)]:
            stored = pull(str(checkpoint), PullOptions(quant=quant), home=tmp_path / "home")
            assert verify(stored) == [] and np.isfinite(logits_of(stored)).all()


@pytest.mark.parametrize("quant", [None, "q4_0"])
def test_experts_that_were_published_transposed_are_stored_as_others(quant: str | None, tmp_path: Path) -> None:
    """Of layouts with the same names, the shapes tell."""
    published_so = random_tensors(QWEN3_VL, layout=1)
    turned = {name: t.transpose(1, 2).contiguous() if ".experts." in name else t for name, t in published_so.items()}
    stores = [
        pull(str(write_checkpoint(tmp_path / name, found, QWEN3_VL)), PullOptions(quant=quant), home=tmp_path / "home")
        for name, found in (("transposed", published_so), ("turned", turned))
    ]
    experts = [[path.read_bytes() for path in sorted(stored.path.glob("experts-*.bin"))] for stored in stores]
    assert experts[0] == experts[1] and len(experts[0]) == 3


@pytest.mark.parametrize("quant", [None, "q4_0", "mxfp4"])
def test_narrower_experts_are_stored_as_if_they_had_come_with_zeros(quant: str | None, tmp_path: Path) -> None:
    narrow = SEQ2SEQ_CONFIGS["nllb overflowing, likeliest first, normalised before, narrower experts of answers"]
    wide = narrow | {"decoder_ffn_dim": narrow["encoder_ffn_dim"]}
    tensors = {key: tensor * 0.05 for key, tensor in random_tensors(narrow).items()}
    padded = {key: torch.zeros_like(tensor) for key, tensor in random_tensors(wide).items()}
    for key, tensor in tensors.items():
        padded[key][tuple(map(slice, tensor.shape))] = tensor
    stores = [
        pull(str(write_checkpoint(tmp_path / name, found, config)), PullOptions(quant=quant), home=tmp_path / "home")
        for name, found, config in (("narrow", tensors, narrow), ("wide", padded, wide))
    ]
    experts = [[path.read_bytes() for path in sorted(stored.path.glob("experts-*.bin"))] for stored in stores]
    assert experts[0] == experts[1] and len(experts[0]) == 3
    assert verify(stores[0]) == [] and np.isfinite(logits_of(stores[0])).all()


@torch.inference_mode()
def test_what_qwen3_5_has_beside_its_language_model_is_left_out(tmp_path: Path) -> None:
    """As published: text_config within, a model of images, and layers that predict further tokens."""
    import transformers

    library: Any = transformers
    values = {name: value for name, value in QWEN3_5.items() if name != "model_type"}
    torch.manual_seed(3)
    theirs = library.Qwen3_5MoeForConditionalGeneration(library.Qwen3_5MoeConfig(**values)).float().eval()
    theirs.save_pretrained(tmp_path / "saved")
    write_tokenizer(tmp_path / "saved")
    tensors = safetensors.torch.load_file(tmp_path / "saved" / "model.safetensors")
    assert any(".visual." in name for name in tensors)
    hidden = QWEN3_5["text_config"]["hidden_size"]
    tensors |= {
        "mtp.fc.weight": torch.zeros(hidden, 2 * hidden),
        "mtp.norm.weight": torch.zeros(hidden),
        "mtp.layers.0.mlp.experts.0.up_proj.weight": torch.zeros(32, hidden),
    }
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    stored = pull(str(write_checkpoint(tmp_path / "c", tensors, config)), home=tmp_path / "home")
    wanted = theirs(input_ids=torch.tensor([IDS])).logits[0]
    assert (torch.from_numpy(logits_of(stored)) - wanted).abs().max() < 1e-5 * wanted.abs().max()


@pytest.mark.parametrize("name", ["granite-powermoe-3b", "switch-base-128", "nllb-moe-54b", "olmoe-1b-7b-0125"])
def test_the_head_is_quantised_and_is_the_embedding_where_both_are_tied(name: str, tmp_path: Path) -> None:
    config = published(name)
    plan = family_of(config).tensors
    tensors = {key: tensor * 0.05 for key, tensor in random_tensors(config).items()}
    stored = pull(
        str(write_checkpoint(tmp_path / "c", tensors, config)), PullOptions(quant="q4_0"), home=tmp_path / "home"
    )
    assert plan.head is not None
    source, head = plan.head
    formats = {spec.name: spec.dtype for spec in dense_tensors(stored.dense_path, stored.manifest.formats.dense)}
    assert (source == head) == (name == "olmoe-1b-7b-0125") and (head in formats) == (source not in plan.lookups)
    quantised = {name for name, format in formats.items() if format == "q8_0"}
    assert quantised == (plan.matrices | plan.lookups | {source}) & formats.keys()
    assert np.isfinite(logits_of(stored)).all()
