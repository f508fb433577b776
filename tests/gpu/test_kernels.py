"""The compiled kernels against their twins in plain torch, on the GPU, at the sizes of real models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from moeinf.gpu.groups import make_groups
from moeinf.gpu.matrix import DeviceMatrix, ExpertPart, ExpertParts
from moeinf.gpu.matrix_ops import TritonMatrixOps
from moeinf.gpu.vector_ops import AttentionForm, HeadForm, KeyValues, SlotTensors, TritonVectorOps
from moeinf.types import DEVICE_FORMATS, FORMAT_BLOCKS, ExpertForm, Format, IntArray, format_bytes
from tests.oracles.torch_matrix import TorchMatrixOps
from tests.oracles.torch_vector import TorchVectorOps

pytestmark = pytest.mark.gpu
FORMATS = list(DEVICE_FORMATS)
HIDDEN, INTERMEDIATE, TOP_K, NUM_EXPERTS = 2048, 768, 8, 16
BF16_BIT = 2.0**-7


def random(*shape: int, seed: int = 0) -> Tensor:
    values = np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)
    return torch.from_numpy(values).cuda()


def blocks(format: Format, rows: int, cols: int, seed: int) -> Tensor:
    """Any codes, with scales that make weights of about 0.02."""
    plain = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    if format in plain:
        return (0.02 * random(rows, cols, seed=seed)).to(plain[format]).view(torch.uint8).reshape(-1)
    num_bytes = FORMAT_BLOCKS[format][1]
    rng = np.random.default_rng((seed, rows, cols))
    data = rng.integers(0, 256, (format_bytes(format, (rows, cols)) // num_bytes, num_bytes), np.uint8)
    if format == "mxfp4":
        data[:, 0] = 118 + data[:, 0] % 4
    for start in {"mxfp4": (), "q4_k": (0, 2)}.get(format, (0,)):
        data[:, start : start + 2] = rng.uniform(0.0002, 0.002, (len(data), 1)).astype(np.float16).view(np.uint8)
    return torch.from_numpy(data.reshape(-1)).cuda()


def near(found: Tensor, wanted: Tensor, share: float) -> None:
    """Within a share of the largest value: sums differ in order, and tiles round weights."""
    assert torch.isfinite(found).all()
    assert (found - wanted).abs().max() <= share * wanted.abs().max()


@pytest.mark.parametrize("tokens", [1, 3, 8, 9, 200])
@pytest.mark.parametrize("format", FORMATS)
def test_a_matrix_is_multiplied_as_by_its_twin(format: Format, tokens: int) -> None:
    matrix = DeviceMatrix(blocks(format, 512, HIDDEN, 1), format, 512, HIDDEN)
    x, bias = random(tokens, HIDDEN), random(512)
    results = []
    for ops in (TritonMatrixOps(), TorchMatrixOps()):
        out = random(tokens, 512, seed=5)
        ops.linear(x, matrix, out, bias, add=True)
        results.append(out)
    near(results[0], results[1], 1e-4 if format == "f32" else BF16_BIT)


class Layer:
    """Experts of one layer in device memory, one behind the other."""

    def __init__(self, format: Format) -> None:
        size = format_bytes(format, (INTERMEDIATE, HIDDEN))
        self.stride = -(-3 * size // 4096) * 4096
        self.memory = torch.zeros(NUM_EXPERTS * self.stride, dtype=torch.uint8, device="cuda")
        for expert in range(NUM_EXPERTS):
            at = expert * self.stride
            for part, shape in enumerate(((INTERMEDIATE, HIDDEN), (INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE))):
                self.memory[at + part * size : at + (part + 1) * size] = blocks(format, *shape, 3 * expert + part)
        self.parts = ExpertParts(
            ExpertPart(format, INTERMEDIATE, HIDDEN, 0),
            ExpertPart(format, INTERMEDIATE, HIDDEN, size),
            ExpertPart(format, HIDDEN, INTERMEDIATE, 2 * size),
        )

    def addresses(self, experts: IntArray) -> IntArray:
        return self.memory.data_ptr() + experts.astype(np.int64) * self.stride


@pytest.mark.parametrize("format", FORMATS)
def test_experts_of_one_token_are_those_of_the_twin(format: Format) -> None:
    layer, x = Layer(format), random(1, HIDDEN)
    ids = np.array([3, 0, 15, 7, 9, 1, 2, 11])
    addresses = torch.from_numpy(np.where(ids == 9, 0, layer.addresses(ids))).cuda()
    results = []
    for ops in (TritonMatrixOps(), TorchMatrixOps()):
        act, outputs = torch.zeros(TOP_K, INTERMEDIATE).cuda(), torch.full((TOP_K, HIDDEN), 5.0).cuda()
        ops.gate_up(x, addresses, layer.parts, act)
        ops.down(act, addresses, layer.parts, outputs)
        assert (outputs[4] == 5).all(), "the pair of address 0 was left alone"
        results.append(outputs)
    near(results[0], results[1], 1e-4 if format == "f32" else BF16_BIT)


@pytest.mark.parametrize("format", FORMATS)
def test_experts_of_a_prompt_are_those_of_the_twin_and_of_single_tokens(format: Format) -> None:
    layer, tokens = Layer(format), 150
    x = random(tokens, HIDDEN)
    rng = np.random.default_rng(2)
    ids = np.stack([rng.permutation(NUM_EXPERTS)[:TOP_K] for _ in range(tokens)])
    results = []
    for ops in (TritonMatrixOps(), TorchMatrixOps()):
        act = torch.zeros(tokens * TOP_K, INTERMEDIATE).cuda()
        outputs = torch.zeros(tokens * TOP_K, HIDDEN).cuda()
        for batch in (np.arange(0, 9), np.arange(9, NUM_EXPERTS)):
            groups = make_groups(ids, batch, layer.addresses(batch), x.device)
            ops.gate_up_grouped(x, groups, layer.parts, act)
            ops.down_grouped(act, groups, layer.parts, outputs)
        results.append(outputs)
    near(results[0], results[1], 1e-4 if format == "f32" else 2 * BF16_BIT)
    ops, act, outputs = TritonMatrixOps(), torch.zeros(TOP_K, INTERMEDIATE).cuda(), torch.zeros(TOP_K, HIDDEN).cuda()
    addresses = torch.from_numpy(layer.addresses(ids[17])).cuda()
    ops.gate_up(x[17:18], addresses, layer.parts, act)
    ops.down(act, addresses, layer.parts, outputs)
    near(results[0][17 * TOP_K : 18 * TOP_K], outputs, 1e-4 if format == "f32" else 4 * BF16_BIT)


FORMS = [
    ExpertForm("swiglu_clamped", biased=True, limit=0.5),
    ExpertForm("relu", gated=False, biased=True),
    ExpertForm("relu2", gated=False),
    ExpertForm("gelu"),
    ExpertForm("quick_gelu"),
    ExpertForm("silu_clamped", limit=0.5),
    ExpertForm("clamped_silu", limit=0.5),
    ExpertForm("softcapped", limit=0.5, gate_limit=0.3),
    ExpertForm("softcapped", gate_limit=0.3),
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.activation + "-gated" * form.gated)
@pytest.mark.parametrize("format", ["f32", "bf16", "mxfp4"])
def test_experts_of_other_forms_are_those_of_the_twin(format: Format, form: ExpertForm) -> None:
    """One expert, in decode and for a prompt."""
    layer, x, ids = Layer(format), random(100, HIDDEN), np.zeros((100, 1), np.int64)
    parts = layer.parts._replace(gate=layer.parts.gate if form.gated else None, form=form)
    if form.biased:  # where the next expert lies
        layer.memory[layer.stride : layer.stride + 2 * HIDDEN] = random(HIDDEN, seed=2).bfloat16().view(torch.uint8)
        narrow, wide = (ExpertPart("bf16", rows, 1, layer.stride) for rows in (INTERMEDIATE, HIDDEN))
        parts = parts._replace(gate_bias=narrow if form.gated else None, up_bias=narrow, down_bias=wide)
    addresses = layer.addresses(np.zeros(1, np.int64))
    groups = make_groups(ids, np.zeros(1, np.int64), addresses, x.device)
    results = []
    for ops in (TritonMatrixOps(), TorchMatrixOps()):
        act, outputs = torch.zeros(100, INTERMEDIATE).cuda(), torch.zeros(100, HIDDEN).cuda()
        ops.gate_up_grouped(x, groups, parts, act)
        ops.down_grouped(act, groups, parts, outputs)
        one_act, one = torch.zeros(1, INTERMEDIATE).cuda(), torch.zeros(1, HIDDEN).cuda()
        ops.gate_up(x[:1], torch.from_numpy(addresses).cuda(), parts, one_act)
        ops.down(one_act, torch.from_numpy(addresses).cuda(), parts, one)
        results.append((outputs, one))
    for found, wanted in zip(*results, strict=True):
        near(found, wanted, 1e-4 if format == "f32" else 2 * BF16_BIT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), [(64, 8, 64, 0), (64, 8, 64, 128), (128, 1, 576, 0)])
@pytest.mark.parametrize(("tokens", "start"), [(1, 517), (5, 517), (300, 517), (300, 0)])
def test_attention_with_sinks_is_that_of_the_twin(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int, tokens: int, start: int
) -> None:
    """With positions of a part of a head, in pairs that lie together; wide heads without sinks."""
    caches = [random(kv_heads, 1024, dim, seed=n).to(dtype) for n in (1, 2)]
    angles, sinks = random(1024, dim // 4, seed=3), 3 * random(heads) if dim == 64 else None
    position = torch.tensor([start], dtype=torch.int32, device="cuda")
    results = []
    for ops in (TritonVectorOps(), TorchVectorOps()):
        cache = KeyValues(*(kept.clone() for kept in caches))
        q, k, v = (random(tokens, n * dim, seed=4 + n) for n in (heads, kv_heads, kv_heads))
        ops.rope_store(q, k, v, HeadForm(angles.cos(), angles.sin(), interleaved=True), position, cache)
        out = torch.empty_like(q)
        ops.attend(q, cache, position, start, AttentionForm(dim**-0.5, window, sinks), out)
        results += [out]
    near(results[0], results[1], 1e-4 if dtype is torch.float32 else 2 * BF16_BIT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("heads", "kv_heads", "dim", "window"), [(32, 4, 128, 0), (32, 8, 128, 100), (4, 4, 96, 0)])
@pytest.mark.parametrize("tokens", [1, 5, 300])
def test_attention_is_that_of_the_twin(
    dtype: torch.dtype, heads: int, kv_heads: int, dim: int, window: int, tokens: int
) -> None:
    capacity, start = 1024, 517
    caches = [random(kv_heads, capacity, dim, seed=n).to(dtype) for n in (1, 2)]
    angles = random(capacity, dim // 2, seed=3)
    position = torch.tensor([start], dtype=torch.int32, device="cuda")
    results = []
    for ops in (TritonVectorOps(), TorchVectorOps()):
        cache = KeyValues(*(kept.clone() for kept in caches))
        q, k, v = (random(tokens, n * dim, seed=4 + n) for n in (heads, kv_heads, kv_heads))
        norms = random(dim, seed=9), random(dim, seed=8)
        ops.rope_store(q, k, v, HeadForm(angles.cos(), angles.sin(), False, *norms, 1e-6), position, cache)
        out = torch.empty_like(q)
        ops.attend(q, cache, position, start, AttentionForm(dim**-0.5, window), out)
        results += [out]
    near(results[0], results[1], 1e-4 if dtype is torch.float32 else 2 * BF16_BIT)


@pytest.mark.parametrize(("heads", "biases"), [(48, 12), (16, 16)])
def test_attention_of_beams_with_biases_is_that_of_the_twin(heads: int, biases: int) -> None:
    """Of switch-base: one token of four beams, each head with keys of its own."""
    keys, values, bias = random(heads, 512, 64), random(heads, 512, 64, seed=1), 3 * random(biases, 512)
    q, position = random(1, heads * 64, seed=2), torch.tensor([317], dtype=torch.int32, device="cuda")
    results = []
    for ops in (TritonVectorOps(), TorchVectorOps()):
        out = torch.empty_like(q)
        ops.attend(q, KeyValues(keys, values), position, 317, AttentionForm(1.0, bias=bias), out)
        results.append(out)
    near(results[0], results[1], 1e-4)


def test_routing_is_that_of_the_twin() -> None:
    logits = random(64, 128)
    results = []
    for ops in (TritonVectorOps(), TorchVectorOps()):
        ids = torch.empty((64, TOP_K), dtype=torch.int32, device="cuda")
        weights = torch.empty((64, TOP_K), device="cuda")
        ops.softmax_topk(logits, TOP_K, True, ids, weights)
        results.append((ids, weights))
    assert torch.equal(results[0][0], results[1][0])
    near(results[0][1], results[1][1], 1e-5)


def test_missing_experts_are_claimed_and_gathered_from_pinned_memory() -> None:
    experts, slots, size = 32, 12, 1 << 20
    host = torch.randint(0, 256, (experts, size), dtype=torch.uint8).pin_memory()
    memory = torch.zeros((slots, size), dtype=torch.uint8, device="cuda")
    table = SlotTensors(
        slot_of=torch.full((experts,), -1, dtype=torch.int32, device="cuda"),
        key_of=torch.full((slots,), -1, dtype=torch.int32, device="cuda"),
        slot_address=(memory.data_ptr() + torch.arange(slots) * size).cuda(),
        slot_class=torch.zeros(slots, dtype=torch.int32, device="cuda"),
        host=(host.data_ptr() + torch.arange(experts) * size).cuda(),
        scores=random(experts + 1),
        misses=torch.zeros(1, dtype=torch.int64, device="cuda"),
        num_experts=experts,
        step=0,
        layer_class=[0],
    )
    addresses = torch.zeros(TOP_K, dtype=torch.int64, device="cuda")
    copies = torch.zeros((TOP_K, 2), dtype=torch.int64, device="cuda")
    ops, rng = TritonVectorOps(), np.random.default_rng(1)
    for _ in range(20):
        ids = rng.permutation(experts)[:TOP_K]
        ops.claim(torch.from_numpy(ids.astype(np.int32)).cuda(), 0, table, addresses, copies)
        ops.gather(copies, size)
        found = ((addresses - memory.data_ptr()) // size).tolist()
        assert len(set(found)) == TOP_K
        for expert, slot in zip(ids.tolist(), found, strict=True):
            assert torch.equal(memory[slot].cpu(), host[expert])
