"""No tensor of a file is dropped: what a family has no place for is refused by name, as in a checkpoint."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeinf.errors import CheckpointError
from moeinf.gguf.config import config_of
from moeinf.gguf.header import Gguf, read_gguf
from moeinf.gguf.unread_tensors import left_out
from tests.support.converter.record import checkpoint
from tests.support.converter.recorded import recorded
from tests.support.deepseek41_gguf import write_deepseek41
from tests.support.example_gguf import EXAMPLES, SUPPORTED, beside, example, last_layer, placed, refusal, saying
from tests.support.facts import declared, facts
from tests.support.gguf_files import write_gguf
from tests.support.kimi_k3_gguf import published_k3, write_kimi_k3
from tests.support.own_gguf import WRITTEN, drawn_small, write_own

# What belongs to no architecture, or to programs that look at it apart from the model.
NOBODYS = (
    "junk.0",
    "output.weight.lora_a",
    "blk.{}.attn_q.weight.lora_b",
    "token_embd_norm.bias",
    "cls.weight",
    "cls.output.weight",
    "position_embd.weight",
    "nextn.pre_projection.weight",
    "blk.{}.attn_rot_embd",
    "blk.{}.ffn_up_exps.lora_a",
    "blk.{}.ffn_gate_chexps.bias",
    "blk.{}.attn_sub_norm.weight",
    "blk.{}.ffn_act.scales",
    "blk.{}.ffn_up_exps.weight_scale",
    "blk.{}.ffn_down_exps.0.weight",
    "blk.99.attn_norm.weight",
    "blk.x.attn_norm.weight",
    "blk.{}.nothing.input_scale",
    "blk.{}.nothing.scale",
    "v",
)


def test_each_architecture_has_an_example() -> None:
    assert sorted(EXAMPLES) == SUPPORTED


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_a_tensor_that_no_model_has_is_refused_by_its_name(architecture: str) -> None:
    gguf = example(architecture)
    placed(gguf)  # what the converter writes is all wanted
    for template in NOBODYS:
        name = template.format(last_layer(gguf))
        line = refusal(beside(gguf, (name, (8,))))
        assert repr(name) in line and architecture in line and "pull the checkpoint" in line


def ends_of_tensors() -> list[tuple[str, tuple[int, ...]]]:
    """What tensors of layers are called in any architecture, but for the layer, with a shape."""
    found: dict[str, tuple[int, ...]] = {"attn_output.bias": (64,), "exp_probs_b": (8,), "ffn_gate_inp.bias": (8,)}
    found |= {f"ffn_{part}_exps.bias": (8, 64) for part in ("gate", "up", "down", "gate_up")}
    found |= {f"{each}.bias": (64,) for each in ("attn_qkv", "ffn_up", "ffn_down_shexp", "attn_norm", "attn_q_norm")}
    for each in recorded().values():
        for name, (_, shape, _) in each["tensors"].items():
            if name.startswith("blk."):
                found.setdefault(name.split(".", 2)[2], tuple(shape))
    return sorted(found.items())


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_a_tensor_of_another_architecture_is_read_or_refused(architecture: str) -> None:
    gguf, number = example(architecture), SUPPORTED.index(architecture)
    for end, shape in ends_of_tensors()[number % 4 :: 4]:
        name = f"blk.{last_layer(gguf)}.{end}"
        if name not in gguf.tensors:
            more = beside(gguf, (name, shape))
            try:
                assert name in placed(more).tensors()
            except CheckpointError:
                refusal(more)


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_no_name_of_a_tensor_takes_the_place_of_another(architecture: str) -> None:
    """Neither beside the right one nor alone."""
    gguf, layer = example(architecture), last_layer(example(architecture))
    norms = [f"blk.{layer}.{name}.weight" for name in ("ffn_norm", "post_attention_norm", "ffn_norm_exps")]
    here = [name for name in norms if name in gguf.tensors]
    for name in norms:
        if name in gguf.tensors:
            continue
        shape = gguf.tensors[here[0]].shape if here else (64,)
        assert repr(name) in refusal(beside(gguf, (name, shape)))
        for other in here:
            renamed = beside(gguf, (name, shape))
            rest = {each: tensor for each, tensor in renamed.tensors.items() if each != other}
            assert repr(other) in refusal(replace(renamed, tensors=rest))


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_biases_of_the_choice_of_experts_are_read_by_either_name(architecture: str) -> None:
    """llama.cpp#25657: files of Hunyuan had either."""
    gguf = example(architecture)
    known = re.compile(r"(.*\.exp_probs_b)(\.bias)?")
    if not any(map(known.fullmatch, gguf.tensors)):
        return
    renamed = {}
    for name, tensor in gguf.tensors.items():
        found = known.fullmatch(name)
        other = name if found is None else found[1] if found[2] else f"{name}.bias"
        renamed[other] = replace(tensor, name=other)
    other = replace(gguf, tensors=renamed)
    assert config_of(other) == config_of(gguf)
    assert placed(other).dense.keys() == placed(gguf).dense.keys()
    layer = last_layer(gguf)
    assert "exp_probs_b" in refusal(beside(gguf, *((f"blk.{layer}.exp_probs_b{end}", (8,)) for end in ("", ".bias"))))


@pytest.mark.parametrize("architecture", SUPPORTED)
def test_an_output_matrix_of_its_own_is_used(architecture: str) -> None:
    gguf = example(architecture)
    apart = beside(gguf, ("output.weight", gguf.tensors["token_embd.weight"].shape))
    try:
        assert "output.weight" in placed(apart).tensors()
    except CheckpointError as error:
        assert "output.weight" in str(error) or "tie_word_embeddings" in str(error)


def test_layers_that_guess_ahead_towers_and_scales_of_activations_are_left_out() -> None:
    gguf = example("glm4moe")
    layers = gguf.metadata["glm4moe.block_count"]
    assert type(layers) is int
    ahead = saying(gguf, {"block_count": layers + 1, "nextn_predict_layers": 1})
    names = (f"blk.{layers}.nextn.eh_proj.weight", f"blk.{layers}.attn_norm.weight", f"blk.{layers}.anything")
    found = placed(beside(ahead, *((name, (8,)) for name in names)))
    assert found.tensors() == placed(gguf).tensors()
    assert repr(names[0]) in refusal(beside(gguf, (names[0], (8,))))  # of a file that says nothing of such layers
    scale = f"blk.{layers - 1}.attn_output.input_scale"
    assert scale not in placed(beside(gguf, (scale, (1,)))).tensors()
    pictures = beside(gguf, ("v.blk.0.attn_q.weight", (8,)), ("mm.0.weight", (8,)), ("a.conv1d.weight", (8,)))
    placed(pictures)
    [line] = left_out(pictures)
    assert "3 tensors" in line and "v.blk.0.attn_q.weight" in line and "mmproj" in line
    assert left_out(gguf) == []
    choice = ("blk.1.exp_probs_b_vl.bias", (8,))
    for architecture in ("deepseek4", "deepseek41"):
        assert choice[0] not in placed(beside(example(architecture), choice)).tensors()
    assert choice[0] in refusal(beside(gguf, choice))


def positions(folder: Path, architecture: str, **factors: list[float]) -> Gguf:
    """The file with factors of positions, by the names of their tensors."""
    folder.mkdir(exist_ok=True)
    more = {f"{name}.weight": np.array(numbers, np.float32) for name, numbers in factors.items()}
    if architecture == "deepseek41":
        return read_gguf(write_deepseek41(folder / "positions.gguf", {}, more=more))
    if architecture == "kimi-k3":
        return read_gguf(write_kimi_k3(folder / "positions.gguf", published_k3(), {}, more=more))
    family = EXAMPLES[architecture]
    if family in WRITTEN:
        return read_gguf(write_own(folder / "positions.gguf", family, drawn_small(family), more=more))
    config, tensors = checkpoint(family)
    return read_gguf(write_gguf(folder / "positions.gguf", config, tensors, scales=more)[0])


def pairs_of(gguf: Gguf) -> int:
    """How many pairs of a head turn."""
    architecture = gguf.metadata["general.architecture"]
    heads = gguf.metadata[f"{architecture}.attention.head_count"]
    each = gguf.metadata.get(f"{architecture}.rope.dimension_count") or gguf.metadata.get(
        f"{architecture}.attention.key_length"
    )
    if each is None:
        width = gguf.metadata[f"{architecture}.embedding_length"]
        assert isinstance(width, int) and isinstance(heads, int)
        each = width // heads
    assert isinstance(each, int)
    return each // 2


def computed(gguf: Gguf) -> dict[str, Any]:
    return dict(facts(declared(config_of(gguf))))


@pytest.mark.parametrize("architecture", sorted(set(SUPPORTED) - {"phimoe", "gemma4"}))  # whose files have their own
def test_factors_of_positions_change_what_is_computed_or_are_refused(architecture: str, tmp_path: Path) -> None:
    plain = example(architecture)
    count = pairs_of(plain)
    for names in (["rope_factors_short", "rope_factors_long"], ["rope_freqs", "rope_factors_long"], ["rope_freqs"]):
        gguf = positions(tmp_path, architecture, **{name: [3.0 + i for i in range(count)] for name in names})
        try:
            found = computed(gguf)
        except CheckpointError:
            continue
        assert found != computed(plain), names
        assert placed(gguf).tensors() == placed(plain).tensors()
    ones = positions(tmp_path / "ones", architecture, rope_freqs=[1.0] * count)
    assert computed(ones) == computed(plain)
    for kind in ("yarn", "linear"):
        line = refusal(saying(gguf, {"rope.scaling.type": kind, "rope.scaling.factor": 4.0}))
        assert "rope_freqs" in line or "rope_scaling" in line


def test_pairs_of_gemma_turn_or_stand_still(tmp_path: Path) -> None:
    config, tensors = checkpoint(EXAMPLES["gemma4"])
    path = tmp_path / "model.gguf"
    own = read_gguf(write_gguf(path, config, tensors)[0])
    count = own.tensors["rope_freqs.weight"].shape[0]
    for factors in ([2.0] * count, [1.0] * (count - 1) + [3.0], [1e30] + [1.0] * (count - 1), [0.0] * count):
        data = bytearray(path.read_bytes())
        tensor = own.tensors["rope_freqs.weight"]
        data[tensor.offset_bytes : tensor.offset_bytes + tensor.num_bytes] = np.array(factors, np.float32).tobytes()
        (tmp_path / "other.gguf").write_bytes(data)
        line = refusal(read_gguf(tmp_path / "other.gguf"))
        assert "rope_freqs.weight" in line
