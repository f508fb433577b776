"""Every family on the GPU, in float32: its layers, the experts that come to it, and the steps that are captured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from moeinf.gpu.cuda import find_cuda
from moeinf.gpu.device import CudaDevice
from moeinf.gpu.matrix_ops import TritonMatrixOps
from moeinf.gpu.open_gpu import OpenGpu, open_gpu
from moeinf.gpu.ops import Ops
from moeinf.gpu.vector_ops import TritonVectorOps
from moeinf.store.library import StoredModel
from tests.support.gpu.families import FAMILIES, all_logits, in_family, near
from tests.support.pairs.decoders import CONFIGS, PROMPT, Pair, logits
from tests.support.pairs.on_device import built

pytestmark = pytest.mark.gpu


@pytest.fixture
def card() -> Iterator[OpenGpu]:
    found = find_cuda("cuda", print)
    assert found is not None
    yield open_gpu(found)


@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_of_every_family_are_those_of_the_cpu(
    kind: str, demo: StoredModel, card: OpenGpu, tmp_path: Path
) -> None:
    stored = in_family(FAMILIES[kind], demo, tmp_path)
    near(all_logits(stored, card, 8, expert_cache="60%"), all_logits(stored, None, 8, expert_cache="60%"))


@torch.inference_mode()
@pytest.mark.parametrize("name", CONFIGS)
def test_layers_of_every_variant_are_those_of_the_cpu(name: str, tmp_path: Path) -> None:
    pair = Pair(CONFIGS[name], tmp_path)
    wanted, device = logits(pair.ours, [PROMPT]), CudaDevice(0)
    with device.computing():
        ours = built(pair, device, Ops(TritonVectorOps(), TritonMatrixOps()))
        for size in (1, 5, 17):
            chunks = [PROMPT[at : at + size] for at in range(0, len(PROMPT), size)]
            assert (logits(ours, chunks) - wanted).abs().max() < 1e-4
