"""Attention of heads that a family makes itself, on the CPU and an emulated device, against plain torch in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf import _native
from moeinf.gpu.ops import Ops
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.gpu import heads as device_heads
from moeinf.models.gpu.layers import DeviceLayers
from moeinf.models.gpu.weights import DeviceWeights
from moeinf.models.layers.attention.own_heads import HeadsPart
from moeinf.models.layers.attention_config import AttentionConfig, Scores, Sharpening, Sight
from moeinf.models.layers.kv_cache import Cache
from moeinf.models.layers.rope import Rope, plain_rope
from moeinf.models.layers.weights import StoredTensor
from moeinf.types import DType, KVFormat
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps
from tests.support.emulated_device import EmulatedDevice

HEADS, KV_HEADS, HEAD_DIM, WIDTH, TOKENS = 6, 2, 12, 5, 560
PLAIN = AttentionConfig(32, HEADS, KV_HEADS, HEAD_DIM, 1e-5, None)
ROPE = Rope(plain_rope(HEAD_DIM, 100.0).frequencies[:4])
CASES: dict[str, tuple[AttentionConfig, int, bool]] = {  # with the extent of profiles, and whether there are sinks
    "nothing added": (replace(PLAIN, rope=ROPE), 0, False),
    "a bias": (PLAIN, 530, False),
    "a bias in a window": (replace(PLAIN, sight=Sight(21), scores=Scores(0.1)), 21, False),
    "a bias shorter than the window, sinks": (replace(PLAIN, sight=Sight(67), rope=ROPE), 3, True),
    "sinks, sharpened": (replace(PLAIN, scores=Scores(sharpening=Sharpening(0.4, 9, 1, growth="smooth"))), 70, True),
}


class Case:
    def __init__(self, name: str) -> None:
        self.config, self.extent, sunk = CASES[name]
        rng = np.random.default_rng(len(name))

        def rows(width: int) -> Tensor:
            return torch.from_numpy(rng.standard_normal((TOKENS, width), np.float32))

        self.q, self.k, self.v = rows(HEADS * HEAD_DIM), rows(KV_HEADS * HEAD_DIM), rows(KV_HEADS * HEAD_DIM)
        self.relative = rows(HEADS * WIDTH) if self.extent else None
        self.sinks = rows(HEADS) if sunk else None
        profiles = rng.standard_normal((WIDTH, max(self.extent, 1)), np.float32)
        self.tensors = {"profiles": StoredTensor(profiles.reshape(-1).view(np.uint8), "f32", profiles.shape)}
        self.profiles = torch.from_numpy(profiles).double()

    def wanted(self) -> Tensor:
        """Of all tokens, [tokens, heads * head_dim]."""
        c, places = self.config, torch.arange(TOKENS)
        factors = torch.ones(TOKENS, dtype=torch.float64)
        if c.scores.sharpening is not None:
            s = c.scores.sharpening
            factors = 1 + s.sharpness * ((places + s.offset) / s.length).clamp(min=1).double().log()
        q = self._turned(self.q.double().view(TOKENS, HEADS, HEAD_DIM)) * factors[:, None, None]
        k, v = self._turned(self.k.double().view(TOKENS, KV_HEADS, -1)), self.v.double().view(TOKENS, KV_HEADS, -1)
        k, v = (each.repeat_interleave(HEADS // KV_HEADS, 1) for each in (k, v))
        scores = torch.einsum("ihd,jhd->hij", q, k) * c.scale
        back = places[:, None] - places
        if self.relative is not None:
            states = self.relative.double().view(TOKENS, HEADS, WIDTH) * factors[:, None, None]
            added = torch.einsum("ihc,cd->hid", states, self.profiles)
            added = added.gather(2, back.clamp(0, self.extent - 1).expand(HEADS, -1, -1))
            scores += torch.where((back >= 0) & (back < self.extent), added, 0.0)
        scores = scores.masked_fill((back < 0) | (back >= (c.window or TOKENS)), -torch.inf)
        if self.sinks is not None:
            scores = torch.cat([scores, self.sinks.double().T[:, :, None]], -1)
        return torch.einsum("hij,jhd->ihd", scores.softmax(-1)[..., :TOKENS], v).flatten(1)

    def _turned(self, x: Tensor) -> Tensor:
        if self.config.rope is None:
            return x
        cos, sin = (torch.from_numpy(table).double()[:, None] for table in self.config.rope.tables(0, TOKENS))
        a, b, rest = x[..., :4], x[..., 4:8], x[..., 8:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], -1)

    def given(self, layers: Any, cuts: list[int], of_pass: int) -> Tensor:
        """The same of a core of these layers, in calls that end at the cuts."""
        core = layers.make(HeadsPart(self.config, 0, "profiles" if self.extent else None))
        cache = Cache([core.new_state(TOKENS + 3)], TOKENS + 3)
        rotary, math, found = layers.rotary(self.config.rope, 600), layers.weights.math, []
        for start, end in zip([0, *cuts], [*cuts, TOKENS], strict=True):
            q, k, v = (math.of_host(each[start:end].numpy().copy()) for each in (self.q, self.k, self.v))
            beside = {
                name: math.of_host(each[start:end].numpy())
                for name, each in (("relative", self.relative), ("sinks", self.sinks))
                if each is not None
            }
            layers.begin_pass(of_pass)
            mixed = core.mixed(q, k, v, cache, rotary(start, end - start, cache), **beside)
            found.append(torch.from_numpy(math.to_host(mixed)))
            cache.advance(end - start)
        return torch.cat(found)


@pytest.mark.parametrize("isa", _native.available_isas())
@pytest.mark.parametrize("name", CASES)
def test_the_cpu_gives_what_plain_torch_gives_however_a_sequence_is_cut(name: str, isa: str) -> None:
    case = Case(name)
    layers = NativeLayers(_native.Kernels(2, isa), case.tensors, "f32")
    whole = case.given(layers, [], TOKENS)
    assert (whole - case.wanted()).abs().max() < 1e-5
    assert torch.equal(case.given(layers, [1, 4, 90, 515], TOKENS), whole)
    singles = case.given(layers, list(range(540, TOKENS)), 1)
    assert (singles - whole).abs().max() < 1e-5


@pytest.mark.parametrize(("kept", "near"), [("f16", 5e-3), ("bf16", 4e-2)])
def test_keys_and_values_may_be_kept_in_fewer_bits(kept: KVFormat, near: float) -> None:
    case = Case("a bias shorter than the window, sinks")
    layers = NativeLayers(_native.Kernels(2), case.tensors, kept)
    assert 0 < (case.given(layers, [90, 91, 92], TOKENS) - case.wanted()).abs().max() < near


@pytest.mark.parametrize(("dtype", "near"), [("f32", 1e-5), ("bf16", 6e-2)])
@pytest.mark.parametrize("name", CASES)
def test_a_device_gives_what_plain_torch_gives(
    name: str, dtype: DType, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_heads, "SCORES_AT_ONCE", HEADS * 1000)
    case, device = Case(name), EmulatedDevice()
    ops = Ops(TorchVectorOps(), TorchMatrixOps())
    layers = DeviceLayers(DeviceWeights(device, ops, case.tensors, {}), dtype, 600, None)
    found = case.given(layers, [1, 5, 90, 540, 548, 549], TOKENS)
    assert (found - case.wanted()).abs().max() < near
