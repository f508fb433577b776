"""An adapter beside a GGUF file: the answers are those of the checkpoint that it is merged into, and the file stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import safetensors.torch
import torch
from gguf import GGUFReader
from torch import Tensor

from moeinf.config.pull_options import PullOptions
from moeinf.errors import UnsupportedModelError
from moeinf.gguf.config import config_of
from moeinf.gguf.gguf_names import of_layer
from moeinf.gguf.header import read_gguf
from moeinf.models.family import family_of
from moeinf.pull.pull import ensure, pull
from moeinf.store.format import MERGED_FILE
from moeinf.store.library import Library
from moeinf.store.verify import verify
from moeinf.types import Float32Array
from tests.support.adapters import PREFIX, factors, write_adapter
from tests.support.checkpoints import write_checkpoint
from tests.support.converter.meant import meant
from tests.support.converter.record import NAMES, checkpoint
from tests.support.gguf_files import write_gguf
from tests.support.mixed_gguf import small, without_vocabulary
from tests.support.stored_logits import logits


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


def adapter_of(config: dict[str, Any], file: Path, folder: Path) -> Path:
    """Of every matrix that only linear layers read, and of the parts of the first experts of each layer.

    A file may have what a checkpoint has in one matrix in two, which are other modules.
    """
    plan, made = family_of(config).tensors, dict[str, Tensor]()
    in_file = {of_layer(name) for name in family_of(config_of(read_gguf(file))).tensors.matrices}
    generator = torch.Generator().manual_seed(3)
    matrices = {name: plan.dense[name] for name in sorted(plan.matrices - plan.lookups) if of_layer(name) in in_file}
    shapes = {name: shape for name, shape in matrices.items() if len(shape) == 2}
    for layout in plan.experts[:1]:
        shapes |= {
            name: shape
            for name, (shape, pieces) in layout.items()
            if len(shape) == 2 and len(pieces) == 1 and pieces[0].expert < 2
        }
    for name, (out, into) in shapes.items():
        module = f"{PREFIX}{name.removesuffix('.weight')}"
        made[f"{module}.lora_A.weight"] = torch.randn(2, into, generator=generator) * 0.2
        made[f"{module}.lora_B.weight"] = torch.randn(out, 2, generator=generator) * 0.2
    return write_adapter(folder, made)


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_what_its_checkpoint_does_with_it(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    config, tensors = meant(config), small(tensors)
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    [file] = write_gguf(tmp_path / "model.gguf", config, tensors, kinds=lambda name: "F32")
    lora = PullOptions(lora=str(adapter_of(config, file, tmp_path / "adapter")))
    before, home = file.read_bytes(), tmp_path / "home"
    wanted = logits(pull(str(folder), lora, home=home))
    without = ensure(str(file), home=home)
    stored = ensure(str(file), lora, home=home)
    found = logits(stored, expert_cache="50%")
    assert stored.name == "model:adapter" and without.name == "model:latest" and file.read_bytes() == before
    assert np.abs(wanted - logits(without)).max() > 0.01 * np.abs(wanted).max(), "the adapter changes something"
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def quantised(folder: Path, kind: str = "Q8_0") -> tuple[Path, Path]:
    """A file of blocks, and an adapter of its attention and of one of its experts."""
    config, tensors = checkpoint("qwen3_moe")
    config, tensors = meant(config), small(tensors)
    [file] = write_gguf(folder / "model.gguf", config, tensors, kinds=lambda name: kind)
    return file, adapter_of(config, file, folder / "adapter")


def test_what_is_stored_is_the_sum_and_all_else_stays_in_blocks(tmp_path: Path) -> None:
    file, adapter = quantised(tmp_path)
    stored = ensure(str(file), PullOptions(lora=str(adapter)), home=tmp_path / "home")
    of_file = {tensor.name: gguf.dequantize(tensor.data, tensor.tensor_type) for tensor in GGUFReader(file).tensors}
    found = safetensors.torch.load_file(adapter / "adapter_model.safetensors")
    merged = safetensors.torch.load_file(stored.path / MERGED_FILE)

    def product(module: str) -> Float32Array:
        a, b = (found[f"{PREFIX}{module}.lora_{each}.weight"].numpy() for each in "AB")
        made: Float32Array = 2.0 * (b @ a)
        return made

    query = merged["model.layers.1.self_attn.q_proj.weight"]
    assert query.dtype == torch.float16
    wanted = of_file["blk.1.attn_q.weight"] + product("model.layers.1.self_attn.q_proj")
    np.testing.assert_allclose(query.float(), wanted, rtol=2**-10, atol=2**-11)
    downs = merged["experts/0/down"].float().numpy()
    wanted = of_file["blk.0.ffn_down_exps.weight"].copy()
    for expert in (0, 1):
        wanted[expert] += product(f"model.layers.0.mlp.experts.{expert}.down_proj")
    np.testing.assert_allclose(downs, wanted, rtol=2**-10, atol=2**-11)
    assert "model.embed_tokens.weight" not in merged
    told = "\n".join(stored.manifest.formats.fallbacks)
    assert "merged with the LoRA adapter" in told and "q8_0 to f16" in told


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_the_cache_changes_no_bit_and_a_copy_gives_the_same(kind: str, tmp_path: Path) -> None:
    file, adapter = quantised(tmp_path, kind)
    lora, home = str(adapter), tmp_path / "home"
    stored = ensure(str(file), PullOptions(lora=lora), home=home)
    wanted = logits(stored)
    for cache in ("25%", "50%", "100%"):
        assert np.array_equal(logits(stored, expert_cache=cache), wanted)
    assert np.array_equal(logits(pull(str(file), PullOptions(lora=lora, repack=True), home=home)), wanted)


def test_a_model_with_it_stands_beside_the_file_alone(tmp_path: Path) -> None:
    file, adapter = quantised(tmp_path)
    lora, home = PullOptions(lora=str(adapter)), tmp_path / "home"
    stored = ensure(str(file), lora, home=home)
    assert ensure(str(file), home=home).name == "model:latest", "the file means itself"
    assert ensure(str(file), lora, home=home).id == ensure("model:adapter", home=home).id == stored.id
    own = (stored.path / MERGED_FILE).stat().st_size
    assert file.stat().st_size + own < stored.size_bytes < file.stat().st_size + own + (1 << 20)
    before = logits(stored)
    write_adapter(adapter, safetensors.torch.load_file(adapter / "adapter_model.safetensors"), lora_alpha=9)
    again = pull("model:adapter", home=home)
    assert again.name == stored.name and again.id != stored.id and not np.array_equal(logits(again), before)
    Library(home).remove("model:adapter")
    assert file.exists()


def test_damage_to_what_was_merged_is_found(tmp_path: Path) -> None:
    file, adapter = quantised(tmp_path)
    stored = pull(str(file), PullOptions(lora=str(adapter)), home=tmp_path / "home")
    assert verify(stored, lambda count: None) == []
    path = stored.path / MERGED_FILE
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert any("does not match its checksum" in fault for fault in verify(stored, lambda count: None))


def test_a_file_of_another_model_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    file, _ = quantised(tmp_path)
    adapter = write_adapter(tmp_path / "other", factors("model.layers.0.self_attn.q_proj", 32, 16))
    with pytest.raises(UnsupportedModelError, match="do not fit"):
        ensure(str(file), PullOptions(lora=str(adapter)), home=tmp_path / "home")
    assert Library(tmp_path / "home").list() == [] and not list((tmp_path / "home").glob("partial/*/model"))
