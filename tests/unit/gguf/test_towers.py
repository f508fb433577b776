"""mmproj files: names, shapes and config of vision towers, whole and of other models."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_vision import tower_places
from moeinf.gguf.header import Gguf, read_gguf
from moeinf.gguf.undo import Kind, Stored, undone
from moeinf.models.family import family_of
from moeinf.models.layers.weights import StoredTensor, vector
from moeinf.pull.gguf.towers import candidates
from tests.support.converter.record import numbered, summary
from tests.support.converter.towers import NAMES, recorded, tower
from tests.support.gguf_files import write_gguf
from tests.support.mmproj_gguf import write_mmproj
from tests.support.seeing_models import MARKS

TOKENS = sorted({token for marks in MARKS.values() for token in marks.tokens})


def seeing(folder: Path, name: str, *, text: dict[str, Any] | None = None, **how: Any) -> Gguf:
    """The headers of a model and its tower. text: metadata of the model's own file; how: the tower is written."""
    config, tensors = tower(name)
    family = family_of(config)
    plan = family.tensors
    layout = plan.experts[int(family.name == "mistral4")]  # as the converter knows it
    own = numbered(dict(plan.dense) | {source: shape for source, (shape, _) in layout.items()})
    vocabulary = [f"t{number}" for number in range(config.get("text_config", config)["vocab_size"] - len(TOKENS))]
    metadata = {"tokenizer.ggml.tokens": [*vocabulary, *TOKENS]} | dict(text or {})
    [model] = write_gguf(folder / "model.gguf", config | {"model_type": family.name}, own, metadata=metadata)
    return replace(read_gguf(model), mmproj=read_gguf(write_mmproj(folder / "mmproj.gguf", config, tensors, **how)))


def read(gguf: Gguf, tensor: Any) -> Stored:
    assert gguf.mmproj is not None and tensor.file == len(gguf.files)
    data = gguf.mmproj.files[0].path.read_bytes()[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes]
    return Stored(Kind(tensor.format, tensor.shape), np.frombuffer(data, np.uint8))


def as_plan(gguf: Gguf) -> dict[str, Tensor]:
    """The tensors of the tower as the family wants them."""
    found = {}
    for name, source in tower_places(gguf, family_of(config_of(gguf)).seen_by).items():
        made = undone([read(gguf, tensor) for tensor in source.tensors], source.undo)
        values = vector(StoredTensor(np.ascontiguousarray(made.data), made.kind.format, made.kind.shape))
        found[name] = torch.from_numpy(values).reshape(source.shape)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_the_writer_of_the_tests_does_what_the_converter_does(name: str, tmp_path: Path) -> None:
    config, tensors = tower(name)
    ours = summary(read_gguf(write_mmproj(tmp_path / "mmproj.gguf", config, tensors)))
    assert ours == recorded()[name]


@pytest.mark.parametrize("kind", ["BF16", "F16", "F32", "Q8_0"])
@pytest.mark.parametrize("name", NAMES)
def test_every_tensor_comes_out_as_it_was(name: str, kind: str, tmp_path: Path) -> None:
    found, wanted = as_plan(seeing(tmp_path, name, kinds=lambda each: kind)), tower(name)[1]
    assert found.keys() == wanted.keys()
    for each, tensor in found.items():
        assert (tensor - wanted[each].float()).abs().max() <= (1 / 128 if kind == "Q8_0" else 0), each


@pytest.mark.parametrize("name", NAMES)
def test_the_config_is_that_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    wanted, config = tower(name)[0], config_of(seeing(tmp_path, name))
    ours, theirs = family_of(config), family_of(wanted)
    assert ours.vision is not None and theirs.vision is not None
    assert ours.seen_by == theirs.seen_by
    first, marks = config["text_config"]["vocab_size"] - len(TOKENS), MARKS[name.partition(" ")[0]].fields
    assert {field: config[field] for field in marks} == {
        field: first + TOKENS.index(token) for field, token in marks.items()
    }
    said = {field: value for field, value in config["vision_config"].items() if field in wanted["vision_config"]}
    assert said == {field: wanted["vision_config"][field] for field in said}
    if "mrope_section" in str(wanted):
        rope = ours.decoder.attention.rope  # type: ignore[union-attr]
        assert rope is not None and rope.axes is not None
        assert rope.axes.tolist() == theirs.decoder.attention.rope.axes.tolist()  # type: ignore[union-attr]


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3_5_moe", {"clip.projector_type": "ldp"}, "projector 'ldp', a model of 'qwen35moe' takes 'qwen3vl_merger'"),
    ("qwen3_5_moe", {"clip.vision.projection_dim": 128}, "rows of 128 numbers, which takes 64: it is the mmproj file"),
    ("qwen3_5_moe", {"clip.has_vision_encoder": False}, "has no vision tower"),
    ("qwen3_5_moe", {"general.architecture": "qwen35moe"}, "no mmproj file but a model of 'qwen35moe'"),
    ("qwen3_5_moe", {"clip.vision.is_deepstack_layers": [True, False]}, "deepstack_visual_indexes"),
    ("qwen3_5_moe", {"clip.vision.n_wa_pattern": 4}, "clip.vision.n_wa_pattern = 4 is not supported"),
    ("qwen3_5_moe", {"clip.vision.block_count": 3}, "has no tensor 'v.blk.2."),
    ("qwen3_5_moe", {"clip.vision.block_count": 1}, "its tensor 'v.blk.1.attn_.*' is none of a tower"),
    ("qwen3_5_moe", {"clip.vision.embedding_length": 32}, "which the metadata mean; the file is damaged"),
    ("qwen3_5_moe", {"clip.vision.image_mean": [0.5]}, "clip.vision.image_mean is .* must be three numbers"),
    ("qwen3_5_moe", {"clip.use_gelu": False}, "use_gelu"),
    ("qwen3_vl_moe", {"clip.vision.is_deepstack_layers": [True, True, False, False]}, r"tensor 'v\.deepstack\.1\."),
    ("qwen3_vl_moe", {"clip.vision.is_deepstack_layers": [False] * 4}, r"tensor 'v\.deepstack\..*' is none of a tower"),
    ("glm4v_moe", {"clip.projector_type": "glm5v"}, "takes 'glm4v'"),
    ("glm4v_moe", {"clip.use_silu": False}, "use_silu"),
    ("glm5_next", {"clip.projector_type": "glm4v"}, "takes 'glm5v'"),
    ("glm5_next", {"clip.vision.swiglu_clamp": None}, "swiglu_clamp"),
    ("kimi_k25", {"clip.vision.projector.scale_factor": 1}, "which the metadata mean"),
    ("mistral4", {"clip.vision.attention.layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"),
    ("mistral4", {"clip.use_silu": True}, "use_silu"),
    ("mistral4", {"clip.vision.spatial_merge_size": 3}, "which the metadata mean"),
    ("llama4", {"clip.projector_type": "pixtral"}, "takes 'llama4'"),
    ("llama4", {"clip.vision.image_size": 24}, "which the metadata mean"),
    ("mimo_v2_flash", {"clip.use_silu": False}, "use_silu"),
    ("mimo_v2_flash", {"clip.vision.projector_type": "qwen3vl_merger"}, "takes 'mimovl'"),
    ("mimo_v2_flash", {"clip.vision.wa_pattern_mode": [-1, 0, 1, 1]}, "must be -1, 0 or 1 for each of 5 blocks"),
    ("mimo_v2_flash", {"clip.vision.wa_pattern_mode": [-1, 0, -1, 1, -1]}, "its tensor 'v.blk.2.attn_sinks' is none"),
    ("mimo_v2_flash", {"clip.vision.embedding_length": 32}, "which the metadata mean"),
    ("step3p7 in files", {"clip.vision.projector.scale_factor": 2}, "scale_factor"),
    ("step3p7 in files", {"clip.vision.feed_forward_length": 32}, "which the metadata mean"),
    ("minimax_m3_vl", {"clip.use_gelu": False}, "use_gelu"),
    ("minimax_m3_vl", {"clip.vision.embedding_length": 32}, "which the metadata mean"),
    ("gemma4", {"clip.vision.projector_type": "gemma3"}, "takes 'gemma4v'"),
    ("gemma4", {"clip.vision.image_std": [0.5] * 3}, "normalised"),
    ("gemma4", {"clip.vision.attention.head_count": 2}, "which the metadata mean"),
]


@pytest.mark.parametrize("name", ["mimo_v2_flash", "minimax_m3_vl", "step3p7 in files"])
def test_towers_that_newer_converters_write_come_out_as_they_were(name: str, tmp_path: Path) -> None:
    gguf, (wanted, tensors) = seeing(tmp_path, name, kinds=lambda each: "F32"), tower(name)
    assert {key: tensor.tolist() for key, tensor in as_plan(gguf).items()} == {
        key: tensor.float().tolist() for key, tensor in tensors.items()
    }
    config = config_of(gguf)
    said = {field: value for field, value in config["vision_config"].items() if field in wanted["vision_config"]}
    assert len(said) > 4 and said == {field: wanted["vision_config"][field] for field in said}


@pytest.mark.parametrize(("name", "metadata", "words"), REFUSED)
def test_what_is_no_tower_of_the_model_is_one_line(
    name: str, metadata: dict[str, Any], words: str, tmp_path: Path
) -> None:
    from moeinf.pull.gguf.index import check_runs

    with pytest.raises((CheckpointError, UnsupportedModelError), match=words) as caught:
        check_runs(seeing(tmp_path, name, metadata=metadata))
    assert "\n" not in str(caught.value) and "mmproj.gguf" in str(caught.value)


def test_a_vocabulary_without_pictures_is_told(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"has no token '<\|image_pad\|>'"):
        config_of(seeing(tmp_path, "qwen3_5_moe", text={"tokenizer.ggml.tokens": ["a"]}))


def test_the_likeliest_file_comes_first() -> None:
    names = ["mmproj-F32.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "model.gguf", "README.md", "mmproj.txt"]
    assert candidates(names, "model.gguf") == ["mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"]
    two = ["other-mmproj-bf16.gguf", "mmproj-Model-Q8_0.gguf", "Model.mmproj-f16.gguf"]
    assert candidates(two, "model-Q4_K_M.gguf")[-1] == "other-mmproj-bf16.gguf"
