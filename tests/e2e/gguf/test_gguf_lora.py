"""Adapters of llama.cpp, beside GGUF files and checkpoints: the answers are those of the weights that they make."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf.config.pull_options import PullOptions
from moeinf.errors import UnsupportedModelError
from moeinf.models.family import family_of
from moeinf.pull.pull import ensure
from tests.support.adapters import factored, write_gguf_adapter
from tests.support.checkpoints import write_checkpoint
from tests.support.converter.meant import meant
from tests.support.converter.record import NAMES, checkpoint
from tests.support.gguf_files import architecture_of, converted, write_gguf
from tests.support.mixed_gguf import small, without_vocabulary
from tests.support.stored_logits import logits

JOINED = ("qwen3_next", "bailing_moe")  # whose checkpoints have in one matrix what files have in several


@pytest.fixture(autouse=True)
def plain_tokenizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are the subject here: the files of these tests have no vocabulary."""
    without_vocabulary(monkeypatch)


def changed(tensors: dict[str, Tensor], matrices: frozenset[str]) -> dict[str, Tensor]:
    """With products of rank 2 added to linear layers and to experts."""
    generator = torch.Generator().manual_seed(3)
    made = dict(tensors)
    for name, tensor in tensors.items():
        if (name in matrices or ".experts." in name) and tensor.dim() > 1 and not name.endswith(("bias", "_b_proj")):
            *experts, out, into = tensor.shape
            b, a = (torch.randn(*experts, *shape, generator=generator) * 0.2 for shape in ((out, 2), (2, into)))
            made[name] = tensor + (b @ a).to(tensor.dtype)
    return made


@pytest.mark.parametrize("name", NAMES)
def test_every_family_computes_what_the_changed_weights_do(name: str, tmp_path: Path) -> None:
    config, tensors = checkpoint(name)
    config, tensors = (
        meant(config),
        {key: tensor.float() if tensor.is_floating_point() else tensor for key, tensor in small(tensors).items()},
    )
    plan = family_of(config).tensors
    other = changed(tensors, plan.matrices - plan.lookups)
    files = [
        write_gguf(tmp_path / f"{i}.gguf", config, t, kinds=lambda name: "F32")[0]
        for i, t in enumerate((tensors, other))
    ]
    c = config.get("text_config") or config
    before, after = (
        converted(config["model_type"], c, {key.removeprefix("language_model."): t for key, t in each.items()})
        for each in (tensors, other)
    )
    pairs = {key: factored(after[key] - before[key]) for key in before if not np.array_equal(before[key], after[key])}
    lora = PullOptions(
        lora=str(write_gguf_adapter(tmp_path / "lora.gguf", architecture_of(config["model_type"], c), pairs))
    )
    home = tmp_path / "home"
    wanted = logits(ensure(str(files[1]), home=home))
    stored = ensure(str(files[0]), lora, home=home)
    assert stored.name == "0:lora" and pairs
    np.testing.assert_allclose(logits(stored, expert_cache="50%"), wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())
    folder = write_checkpoint(tmp_path / "checkpoint", tensors, config, num_shards=0)
    if name in JOINED:
        with pytest.raises(UnsupportedModelError, match="for which the model has no tensor"):
            ensure(str(folder), lora, home=home)
        return
    found = logits(ensure(str(folder), lora, home=home))
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


def test_one_of_another_architecture_is_refused(tmp_path: Path) -> None:
    config, tensors = checkpoint("qwen3_moe")
    [file] = write_gguf(tmp_path / "model.gguf", meant(config), small(tensors))
    pair = (np.ones((2, 16), np.float32), np.ones((16, 2), np.float32))
    lora = write_gguf_adapter(tmp_path / "lora.gguf", "gemma4", {"blk.0.attn_q.weight": pair})
    with pytest.raises(UnsupportedModelError, match="is made for 'gemma4', the model is 'qwen3moe'"):
        ensure(str(file), PullOptions(lora=str(lora)), home=tmp_path / "home")
