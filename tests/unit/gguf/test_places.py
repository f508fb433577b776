"""Configs and places of tensors: a checkpoint that became a GGUF file is read back as it was."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import quants
from torch import Tensor

from moeinf.errors import CheckpointError, StoreError, UnsupportedModelError
from moeinf.gguf.config import REFUSED, config_of
from moeinf.gguf.configs.hybrids import HYBRIDS
from moeinf.gguf.configs.latent_config import LATENT
from moeinf.gguf.configs.plain import ARCHITECTURES
from moeinf.gguf.configs.qwen import QWEN
from moeinf.gguf.configs.windows import WINDOWED
from moeinf.gguf.gguf_tensors import places_of
from moeinf.gguf.header import Gguf, GgufFile, GgufTensor, Value, read_gguf
from moeinf.gguf.placement import Placement
from moeinf.gguf.undo import Columns, Kind, Stored, outcome, parse_undo, undo_json, undone
from moeinf.models.family import family_of
from moeinf.types import ByteArray, TensorPlan
from tests.support.converter.meant import meant
from tests.support.converter.record import NAMES, checkpoint
from tests.support.facts import declared, facts
from tests.support.gguf_files import write_gguf
from tests.support.pairs.experts import part_of

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


READ_AS = {"glm4_moe_lite": "deepseek_v3", "solar_open": "glm4_moe"}  # the family of the file's architecture


@dataclasses.dataclass
class Converted:
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    gguf: Gguf
    plan: TensorPlan
    places: Placement

    def stored(self, tensor: GgufTensor) -> Stored:
        data = np.memmap(self.gguf.files[tensor.file].path, np.uint8, "r")
        return Stored(Kind(tensor.format, tensor.shape), data[tensor.offset_bytes :][: tensor.num_bytes])


def convert(folder: Path, name: str, **how: Any) -> Converted:
    config, tensors = checkpoint(name)
    found = read_gguf(write_gguf(folder / "model.gguf", config, tensors, **how)[-1])
    plan = family_of(config_of(found)).tensors
    return Converted(config, tensors, found, plan, places_of(found, plan))


@pytest.mark.parametrize("name", NAMES)
def test_the_config_is_that_of_the_checkpoint(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    made = config_of(read_gguf(write_gguf(tmp_path / "model.gguf", config, tensors)[0]))
    assert made["model_type"] == READ_AS.get(name, config["model_type"]) and json.loads(json.dumps(made)) == made
    ours, theirs = (dict(facts(declared(each))) for each in (made, meant(config)))
    assert ours.keys() == theirs.keys()
    for field, value in theirs.items():
        wanted = pytest.approx(value, rel=1e-6) if isinstance(value, float | list) else value
        assert ours[field] == wanted, field


def wanted_dense(c: Converted, name: str) -> Tensor:
    """The checkpoint's tensor. Projections may lie apart in a file, also if a checkpoint stacks them."""
    if ".ngram_embedding." in name:  # in a checkpoint in parts
        return torch.cat([tensor for source, tensor in c.tensors.items() if ".ngram_embedding." in source])
    if name not in c.tensors and "text_config" in c.config:
        inside = name.replace("model.", "model.language_model.", 1)
        return c.tensors[inside if inside in c.tensors else f"language_model.{name}"]
    if name in c.tensors:
        return c.tensors[name]
    if ".attention." in name:  # of Ling, whose checkpoints have queries, keys and values in one matrix
        before, which = name.removesuffix("_proj.weight").rsplit(".", 1)
        fused, heads = c.tensors[f"{before}.query_key_value.weight"], c.config["num_attention_heads"]
        keys = c.config["num_key_value_heads"]
        size = len(fused) // (heads + 2 * keys)
        part: Tensor = fused.split([heads * size, keys * size, keys * size])["qkv".index(which)]
        return part
    before, which = name.removesuffix(".weight").split("in_proj_")
    keys, values = c.config["linear_num_key_heads"], c.config["linear_num_value_heads"]
    stacked = c.tensors[f"{before}in_proj_{'qkvz' if which in ('qkv', 'z') else 'ba'}.weight"]
    heads = stacked.view(keys, -1, stacked.shape[1])
    if which in "ba":
        parts = dict(zip("ba", heads.split([values // keys] * 2, 1), strict=True))
    else:
        size = values // keys * c.config["linear_value_head_dim"]
        parts = dict(zip("qkvz", heads.split([c.config["linear_key_head_dim"]] * 2 + [size] * 2, 1), strict=True))
    return torch.cat([parts[each].reshape(-1, stacked.shape[1]) for each in which])


@pytest.mark.parametrize("name", NAMES)
def test_dense_tensors_come_out_as_they_were(name: str, tmp_path: Path) -> None:
    c = convert(tmp_path, name)
    assert c.places.dense.keys() == c.plan.dense.keys()
    for each, source in c.places.dense.items():
        assert parse_undo(json.loads(json.dumps(undo_json(source.undo))), "x") == source.undo
        result = undone([c.stored(tensor) for tensor in source.tensors], source.undo)
        assert result.kind.shape == source.shape == c.plan.dense[each]
        found = torch.from_numpy(result.data.copy()).view(TYPES[result.kind.format]).view(source.shape).float()
        wanted = wanted_dense(c, each).float()
        if each.endswith("A_log"):
            torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(found, wanted), each


def parts_of(c: Converted) -> Iterator[tuple[ByteArray, str, Tensor]]:
    """Of every part of every expert: its bytes in the file, their format, and the weights of the checkpoint."""
    plan = family_of(c.config).tensors
    layout = next(layout for layout in plan.experts if layout.keys() <= c.tensors.keys())
    wanted = {
        (piece.layer, piece.expert, piece.part): part_of(piece, c.tensors[name].float(), plan.parts[piece.part])
        for name, (_, pieces) in layout.items()
        for piece in pieces
    }
    assert len(c.places.experts) == c.plan.moe.num_layers
    for layer, parts in enumerate(c.places.experts):
        assert parts.keys() == c.plan.parts.keys()
        for part, source in parts.items():
            data = np.memmap(c.gguf.files[source.tensor.file].path, np.uint8, "r")
            for expert in range(c.plan.moe.num_experts):
                begin = source.offset_bytes + expert * source.stride_bytes
                yield data[begin : begin + source.num_bytes], source.format, wanted[layer, expert, part]


@pytest.mark.parametrize("name", NAMES)
def test_experts_lie_where_they_are_said_to(name: str, tmp_path: Path) -> None:
    for data, format, weights in parts_of(convert(tmp_path, name)):
        found = torch.from_numpy(data.copy()).view(TYPES[format]).view(weights.shape)
        assert torch.equal(found.float(), weights)


def mixed(name: str) -> str:
    """Types as files have them: other ones for each projection."""
    return "Q8_0" if "down" in name or "attn" in name else "Q4_0" if "gate" in name else "Q5_1"


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "mixtral"])
@pytest.mark.parametrize("how", [{"fused": True}, {"tensors_a_part": 7}])
def test_experts_of_mixed_types_of_fused_tensors_and_of_splits(name: str, how: dict[str, Any], tmp_path: Path) -> None:
    c = convert(tmp_path, name, kinds=mixed, **how)
    assert (len(c.gguf.files) > 1) == ("tensors_a_part" in how)
    for data, format, weights in parts_of(c):
        blocks = quants.quantize(weights.numpy(), gguf.GGMLQuantizationType[format.upper()])
        assert np.array_equal(data, blocks.view(np.uint8).reshape(-1)), format


@pytest.mark.parametrize("name", ["mixtral", "arctic", "qwen3_next", "qwen3_5_moe", "deepseek_v3"])
def test_rows_are_moved_as_blocks_and_what_cannot_be_is_widened_first(name: str, tmp_path: Path) -> None:
    c = convert(tmp_path, name, kinds=lambda name: "Q8_0")
    widened = set[str]()
    for each, source in c.places.dense.items():
        stored = [c.stored(tensor) for tensor in source.tensors]
        kinds = [one.kind for one in stored]
        weights = wanted_dense(c, each).float().numpy()
        result = undone(stored, source.undo)
        assert result.kind == outcome(kinds, source.undo)
        if result.kind.format == "q8_0":
            blocks = quants.quantize(weights, gguf.GGMLQuantizationType.Q8_0)
            assert np.array_equal(result.data, blocks.reshape(-1)), each
        elif any(kind.format == "q8_0" for kind in kinds):
            widened.add(each.rsplit(".", 2)[1])
            found = result.data.view(np.float32).reshape(weights.shape)
            assert np.abs(found - weights).max() <= 1 / 128  # half a step of Q8_0
    computed = {"deepseek_v3": {"kv_b_proj"}, "qwen3_next": {"in_proj_a", "in_proj_b"}}
    computed["qwen3_5_moe"] = computed["qwen3_next"]
    assert widened == computed.get(name, set())


def test_columns_are_moved_as_blocks_where_no_block_is_cut() -> None:
    weights = np.random.default_rng(1).standard_normal((3, 192), np.float32)
    moved = weights.reshape(3, 2, 3, 32).transpose(0, 2, 1, 3).reshape(3, 192)
    undo = (Columns((3, 2, 32), (1, 0, 2)),)
    blocks, wanted = (quants.quantize(each, gguf.GGMLQuantizationType.Q8_0) for each in (moved, weights))
    assert np.array_equal(undone([Stored(Kind("q8_0", (3, 192)), blocks.reshape(-1))], undo).data, wanted.reshape(-1))
    plain = undone([Stored(Kind("f32", (3, 192)), moved.view(np.uint8).reshape(-1))], undo)
    assert np.array_equal(plain.data, weights.view(np.uint8).reshape(-1))
    whole, cut = (3, 2, 256), (3, 4, 128)  # blocks of 256 are moved as they lie, or widened
    assert outcome([Kind("q4_k", (3, 1536))], (Columns(whole, (1, 0, 2)),)) == Kind("q4_k", (3, 1536))
    assert outcome([Kind("q4_k", (3, 1536))], (Columns(cut, (1, 0, 2)),)) == Kind("f32", (3, 1536))
    assert outcome([Kind("q8_0", (3, 192))], (Columns((32, 6), (1, 0)),)) == Kind("f32", (3, 192))


def refused(folder: Path, name: str, metadata: Mapping[str, Any], *words: str) -> None:
    config, tensors = checkpoint(name)
    found = read_gguf(write_gguf(folder / "model.gguf", config, tensors, metadata=metadata)[0])
    with pytest.raises(CheckpointError) as caught:
        places_of(found, family_of(config_of(found)).tensors)
    line = str(caught.value)
    assert "\n" not in line and all(word in line for word in words), line


@pytest.mark.parametrize(
    ("name", "metadata", "words"),
    [
        ("olmoe", {"olmoe.attention.max_alibi_bias": 8.0}, ("max_alibi_bias", "not supported")),
        ("olmoe", {"olmoe.attention.causal": False}, ("attention.causal",)),
        ("olmoe", {"olmoe.attention.head_count": "x"}, ("attention.head_count is 'x'",)),
        ("olmoe", {"olmoe.block_count": 1_000_000}, ("block_count", "damaged")),
        ("olmoe", {"olmoe.block_count": 4}, ("blk.3.", "has no tensor")),
        ("olmoe", {"olmoe.embedding_length": 32}, ("metadata mean",)),
        ("olmoe", {"olmoe.expert_count": 9}, ("metadata mean", "9")),
        ("olmoe", {"olmoe.expert_count": 0}, ("'olmoe' is an architecture without experts",)),
        ("olmoe", {"olmoe.rope.scaling.type": "polar"}, ("polar",)),
        ("olmoe", {"general.architecture": "gptneox"}, ("'gptneox' is an architecture without experts",)),
        ("olmoe", {"general.type": "mmproj"}, ("mmproj",)),
        ("olmoe", {"olmoe.attention.head_count_kv": [2, 2, 1]}, ("differs from layer to layer",)),
        ("qwen3_moe", {"qwen3moe.expert_weights_scale": 2.5}, ("expert_weights_scale",)),
        ("qwen3_moe", {"qwen3moe.attention.value_length": 8}, ("keys of 24 and values of 8",)),
        ("glm4_moe", {"glm4moe.expert_gating_func": 1}, ("expert_gating_func",)),
        ("deepseek_v3", {"deepseek2.expert_gating_func": 1}, ("expert_gating_func",)),
        ("qwen3_next", {"qwen3next.ssm.time_step_rank": 0}, ("ssm.",)),
        ("qwen3_next", {"qwen3next.ssm.inner_size": 7}, ("ssm.inner_size 7",)),
        ("deepseek_v4", {"deepseek4.expert_gating_func": 2}, ("expert_gating_func",)),
        ("deepseek_v4", {"deepseek4.swiglu_clamp_shexp": [0.5] * 4}, ("swiglu_clamp_shexp",)),
        ("deepseek_v4", {"deepseek4.attention.compress_ratios": [6, 2, 0]}, ("compress_ratios [6, 2, 0] is not",)),
        ("deepseek_v4", {"deepseek4.attention.compress_ratios": [6, 2, 0, 4]}, ("compress_ratios [6, 2, 0, 4] is",)),
        ("deepseek_v4", {"deepseek4.hash_layer_count": 3}, ("ffn_gate_tid2eid",)),
        ("cohere2_moe", {"cohere2moe.expert_gating_func": 3}, ("expert_gating_func",)),
        ("cohere2_moe", {"cohere2moe.attention.sliding_window_pattern": [True]}, ("tells of 1 of 3 layers",)),
        ("gemma4", {"gemma4.attention.head_count_kv": [2]}, ("head_count_kv is [2], not a whole number for each of",)),
        ("step3p7", {"step35.attention.head_count": [4]}, ("head_count is [4], not a whole number for each of",)),
        ("mimo_v2_flash", {"mimo2.attention.key_length": 0}, ("key_length",)),
        ("mimo_v2_flash", {"mimo2.attention.head_count_kv": [2]}, ("head_count_kv",)),
        ("laguna", {"laguna.attention.head_count": [4]}, ("head_count is [4], not a whole number",)),
        ("dbrx", {"dbrx.attention.layer_norm_epsilon": 1e-6}, ("layer_norm_epsilon",)),
        ("glm5_next", {"glm5-next.attention.indexer.kpool_select_tail": False}, ("kpool_select_tail",)),
        ("glm5_next", {"glm5-next.attention.layer_norm_epsilon": 1e-5}, ("layer_norm_epsilon",)),
        ("hy_v4", {"hy_v4.attention.indexer.types": [False, False, False]}, ("see all tokens, without an indexer",)),
        ("hy_v4", {"hy_v4.attention.indexer.types": [True, True, True]}, ("blk.1.indexer",)),
        ("hy_v4", {"hy_v4.swiglu_clamp_exp": 0.0}, ("swiglu_clamp_exp",)),
        ("qwen4_exp", {"qwen4exp.attention.compress_ratios": [0] * 4}, ("compress_ratios [0, 0, 0, 0]",)),
        ("qwen4_exp", {"qwen4exp.ple.layers": [0, 2]}, ("ple is not of one layer",)),
        ("qwen4_exp", {"qwen4exp.ple.head_offsets": [0, 1, 2, 3]}, ("one behind the other",)),
        ("qwen4_exp", {"qwen4exp.ple.layer_multipliers": [1, 3]}, ("layer_multipliers", "lists of 3")),
    ],
)
def test_what_metadata_mean_otherwise_is_refused_by_name(
    name: str, metadata: dict[str, Any], words: tuple[str, ...], tmp_path: Path
) -> None:
    refused(tmp_path, name, metadata, *words)


def test_what_guesses_tokens_ahead_is_left_out(tmp_path: Path) -> None:
    config, tensors = checkpoint("glm4_moe")
    longer = config | {"num_hidden_layers": 4}
    more = {name.replace("layers.2.", "layers.3."): tensor for name, tensor in tensors.items()}
    found = read_gguf(
        write_gguf(tmp_path / "model.gguf", longer, tensors | more, metadata={"glm4moe.nextn_predict_layers": 1})[0]
    )
    made = config_of(found)
    assert made["num_hidden_layers"] == 3
    assert places_of(found, family_of(made).tensors).dense.keys() == family_of(config).tensors.dense.keys()


def test_limits_of_ling_s_experts_are_those_that_the_file_names(tmp_path: Path) -> None:
    config, tensors = checkpoint("bailing_hybrid")
    routed, shared = [0.0, 2.5, 7.0, 7.0], [0.0, 0.0, 0.0, 5.0]
    fields = {"bailingmoe3.swiglu_clamp_exp": routed, "bailingmoe3.swiglu_clamp_shexp": shared}
    made = config_of(read_gguf(write_gguf(tmp_path / "model.gguf", config, tensors, metadata=fields)[0]))
    wanted = config | {"expert_swiglu_limit_list": routed, "share_expert_swiglu_limit_list": shared}
    assert dict(facts(declared(made))) == dict(facts(declared(wanted)))
    refused(tmp_path, "bailing_hybrid", {"bailingmoe3.swiglu_clamp_exp": [0.0, 2.5]}, "swiglu_clamp_exp = [0.0, 2.5]")


def test_norms_and_scores_of_cohere_s_layers_are_those_that_the_file_names(tmp_path: Path) -> None:
    config, tensors = checkpoint("cohere2_moe")
    fields = {"cohere2moe.expert_gating_func": 2, "cohere2moe.attention.layer_norm_rms_epsilon": 1e-5}
    made = config_of(read_gguf(write_gguf(tmp_path / "model.gguf", config, tensors, metadata=fields)[0]))
    wanted = config | {"expert_selection_fn": "sigmoid", "rms_norm_eps": 1e-5}
    assert dict(facts(declared(made))) == dict(facts(declared(wanted)))


def test_compressed_layers_have_positions_of_their_own(tmp_path: Path) -> None:
    """As DeepSeek-V4 is published, which counts a layer that guesses ahead among the ratios alone."""
    config, tensors = checkpoint("deepseek_v4")
    said = {"type": "yarn", "factor": 4.0, "original_context_length": 64, "yarn_beta_fast": 32.0, "yarn_beta_slow": 1.0}
    fields = {f"deepseek4.rope.scaling.{name}": value for name, value in said.items()}
    fields |= {"deepseek4.attention.compress_ratios": [6, 2, 0, 2, 0], "deepseek4.nextn_predict_layers": 1}
    path = tmp_path / "model.gguf"
    made = config_of(read_gguf(write_gguf(path, config, tensors, metadata=fields)[0]))
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64, "beta_fast": 32, "beta_slow": 1}
    ours, theirs = (dict(facts(declared(c))) for c in (made, config | {"rope_scaling": yarn}))
    assert ours == theirs


def test_whole_numbers_are_taken_for_no_weights(tmp_path: Path) -> None:
    config, tensors = checkpoint("deepseek_v4")
    for beginning in ("layers.0.attn_norm.", "layers.0.attn.wq_a.", "layers.2.ffn.experts."):
        whole = {name: tensor.int() if name.startswith(beginning) else tensor for name, tensor in tensors.items()}
        found = read_gguf(write_gguf(tmp_path / "model.gguf", config, whole)[0])
        with pytest.raises(CheckpointError, match="i32"):
            places_of(found, family_of(config_of(found)).tensors)


def test_positions_of_llama_3_come_from_a_tensor(tmp_path: Path) -> None:
    config, tensors = checkpoint("mixtral")
    factors = torch.tensor([1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0])
    path = tmp_path / "model.gguf"
    found = read_gguf(write_gguf(path, config, tensors | {"rope_freqs.weight": factors})[0])
    rope = family_of(config_of(found)).decoder.attention.rope  # type: ignore[union-attr]
    plain = family_of(config).decoder.attention.rope  # type: ignore[union-attr]
    assert rope is not None and plain is not None and rope.scale == 1
    for room in (10, 10_000):
        assert np.allclose(rope.within(room, room).frequencies, plain.frequencies / factors.numpy(), rtol=1e-6)


def test_an_architecture_without_experts_is_no_model_of_ours(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModelError, match="'gpt2' is an architecture without experts"):
        config_of(read_gguf(tmp_path / "x.gguf"))


def test_what_else_has_experts_is_refused_by_what_it_would_need() -> None:
    experts = {gguf.MODEL_TENSOR.FFN_GATE_EXP, gguf.MODEL_TENSOR.FFN_UP_EXP, gguf.MODEL_TENSOR.FFN_DOWN_EXP}
    known = ARCHITECTURES | HYBRIDS | LATENT | QWEN | WINDOWED
    theirs = {gguf.MODEL_ARCH_NAMES[each] for each, found in gguf.MODEL_TENSORS.items() if experts & set(found)}
    assert theirs <= known.keys() | REFUSED.keys() and not known.keys() & REFUSED.keys()
    for name, words in [*((name, f"needs {needs}; docs/") for name, needs in REFUSED.items()), ("new", "new")]:
        fields: dict[str, Value] = {"general.architecture": name, f"{name}.expert_count": 8}
        with pytest.raises(UnsupportedModelError) as raised:
            config_of(Gguf((GgufFile(Path("x.gguf"), 9, 9),), fields, {}))
        line = str(raised.value)
        assert (
            line.startswith(f"x.gguf: {name!r} is an architecture with experts") and words in line and len(line) < 250
        )


@pytest.mark.parametrize(
    "undo",
    [
        {},
        [{"step": "Nothing"}],
        [{"step": ["Reshape"]}],
        [{"step": "Reshape"}],
        [{"step": "Reshape", "shape": ["x"]}],
        [{"step": "Reshape", "shape": 3}],
        [{"step": "Reshape", "shape": [3], "more": 1}],
        [{"step": "Rows", "start": -1, "sizes": [1], "axes": [0]}],
        [{"step": "Rows", "start": 0, "sizes": [1, 2], "axes": [0, 0]}],
        [{"step": "Rows", "start": 0, "sizes": [1, 2], "axes": [0]}],
        [{"step": "Subtract", "number": math.nan}],
        [{"step": "Subtract", "number": 1.0}] * 9,
        ["Subtract"],
    ],
)
def test_damaged_steps_are_refused(undo: Any) -> None:
    with pytest.raises(StoreError) as caught:
        parse_undo(undo, "manifest.json: undo")
    assert str(caught.value).startswith("manifest.json: undo") and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["glm", "mimo_v2_flash"])
def test_queries_keys_and_values_that_lie_in_one_tensor_are_taken_apart(name: str, tmp_path: Path) -> None:
    """As in files made of the code that was published with GLM-4-9B, or of MiMo-V2.5, whose values are narrower."""
    config, tensors = checkpoint(name)
    left = {
        name: each for name, each in tensors.items() if "_proj." not in name or "self_attn.o" in name or "mlp" in name
    }
    fused = {
        f"blk.{layer}.attn_qkv.{end}": torch.cat(
            [tensors[f"model.layers.{layer}.self_attn.{part}_proj.{end}"].float() for part in "qkv"]
        ).numpy()
        for layer in range(config["num_hidden_layers"])
        for end in ("weight", "bias")
        if f"model.layers.{layer}.self_attn.q_proj.{end}" in tensors
    }
    found = read_gguf(write_gguf(tmp_path / "model.gguf", config, left, scales=fused)[0])
    plan = family_of(config_of(found)).tensors
    c = Converted(config, tensors, found, plan, places_of(found, plan))
    taken = 0
    for each, source in c.places.dense.items():
        if source.tensors[0].name in fused:
            result = undone([c.stored(tensor) for tensor in source.tensors], source.undo)
            assert np.array_equal(result.data.view(np.float32).reshape(source.shape), tensors[each].float().numpy())
            taken += 1
    assert taken == 3 * len(fused)
    short = {key: values[:-1] for key, values in fused.items()}
    cut = read_gguf(write_gguf(tmp_path / "cut.gguf", config, left, scales=short)[0])
    with pytest.raises(CheckpointError, match=r"attn_qkv\.\w+' has \d+ rows"):
        places_of(cut, plan)
