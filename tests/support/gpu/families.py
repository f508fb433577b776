"""Models of every family in float32, and their logits on a GPU, real or emulated, and on the CPU."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.gpu.open_gpu import OpenGpu
from moeinf.hardware import Machine
from moeinf.pull.pull import pull
from moeinf.store.library import StoredModel
from tests.support.checkpoints import random_tensors, scaled, write_checkpoint
from tests.support.tiny_models import all_configs

FAMILIES = {config["model_type"]: config for config in reversed(all_configs().values())}  # the first of each


def in_family(config: dict[str, Any], demo: StoredModel, folder: Path) -> StoredModel:
    """A random checkpoint in float32."""
    made = random_tensors(config, layout=-1)
    weights = scaled({name: t.float() if t.is_floating_point() else t for name, t in made.items()}, 0.2)
    source = write_checkpoint(folder / "source", weights, config | {"torch_dtype": "float32"})
    shutil.copy(demo.path / "tokenizer.json", source)
    return pull(str(source), home=folder / "home")


def all_logits(stored: StoredModel, gpu: OpenGpu | None, tokens: int = 20, **options: Any) -> list[torch.Tensor]:
    """Of a prompt and `tokens` tokens behind it."""
    config = RuntimeConfig.of(device="cpu" if gpu is None else "auto", **options)
    with Model(stored, config, on=Machine(1 << 36, "test", 2), gpu=gpu) as model:
        run = model.runner
        steps = [[5, 17, 3, 88, 41], *([token] for token in range(20, 20 + tokens))]
        return [torch.from_numpy(run.forward(step, lambda: None)[-1]) for step in steps]


def near(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> None:
    """Within what sums in another order differ by."""
    for ours, theirs in zip(found, wanted, strict=True):
        assert (ours - theirs).abs().max() < 1e-4 * max(1.0, float(theirs.abs().max()))
