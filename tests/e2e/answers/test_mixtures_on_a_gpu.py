"""Stored mixtures of formats, of which a GPU lacks some: experts are converted in host memory, as of GGUF files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.model import Model
from moeinf.hardware import Machine
from moeinf.pull.pull import pull
from moeinf.types import DEVICE_FORMATS
from tests.support.checkpoints import CONFIG, random_tensors, write_checkpoint
from tests.support.gpu.emulated_gpu import opened

WIDE = CONFIG | {"hidden_size": 256, "moe_intermediate_size": 256, "intermediate_size": 256}


@pytest.mark.parametrize("quant", ["q4_k", "q3_k"])
def test_logits_are_the_same_for_every_number_of_slots_and_near_those_of_the_cpu(quant: str, tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", random_tensors(WIDE), WIDE)
    stored = pull(str(source), PullOptions(quant=quant), home=tmp_path / "home")
    formats = {tensor.dtype for tensor in stored.manifest.layout.tensors}
    assert formats - set(DEVICE_FORMATS) and not stored.manifest.layers, "one layout, and a format without a kernel"
    found = []
    for options in ({"expert_cache": "100%"}, {"expert_cache": "50%"}, {"expert_cache": "50%", "host": 10}):
        with opened(stored, **options) as model:
            steps = ([5, 17, 3], [8], [21])
            found.append([model.runner.forward(step, lambda: None)[-1].tolist() for step in steps])
    assert found[0] == found[1] == found[2]
    with Model(stored, RuntimeConfig.of(device="cpu"), on=Machine(1 << 36, "test", 2)) as model:
        wanted = model.runner.forward([5, 17, 3], lambda: None)[-1]
    assert np.abs(np.array(found[0][0]) - wanted).max() < 0.1 * np.abs(wanted).max(), "the GPU's weights are others"
