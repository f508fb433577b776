"""What follows from each tiny config, hashed: the tensors, what `show` says, the working memory, logits and tokens.

    python -m tests.support.frozen

writes tests/parity/frozen.json anew, after a change that is meant to change some of it. Weights are random numbers of
a fixed seed and no reference is asked, so that nothing here depends on another library's models.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from moeinf._native import Kernels
from moeinf.engine.memory.footprint import Footprint, activation_bytes, device_activation_bytes
from moeinf.models.cpu.layers import NativeLayers
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import DecoderFamily, EncoderDecoderFamily, Family
from moeinf.store.format import expert_layout
from moeinf.types import ExpertPiece, Profiler, TensorPlan
from tests.support.checkpoints import random_tensors, scaled
from tests.support.pairs import decoders, translators
from tests.support.pairs.experts import resident_experts, stored
from tests.support.tiny_models import all_configs

FILE = Path(__file__).parents[1] / "parity" / "frozen.json"
CONFIGS = all_configs() | all_configs("SEQ2SEQ_CONFIGS")
SCALE = 0.2  # of the random weights, so that tokens vary
CHUNK, CONTEXT, THREADS = 64, 256, 2
GREEDY = 8

Facts = dict[str, Any]


def machine() -> str:
    """What the bits of logits depend on beside moeinf: libraries' sines and exponentials choose among instructions."""
    about = Path("/proc/cpuinfo")
    lines = about.read_text(encoding="utf-8").splitlines() if about.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return digest([platform.machine(), platform.libc_ver(), np.__version__, flags])


def digest(value: object) -> str:
    """Of what JSON can say."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def facts(config: dict[str, Any]) -> Facts:
    family = family_of(config)
    return {
        "tensors": digest(tensors_of(family.tensors)),
        "info": digest([dataclasses.asdict(family.info(dtype)) for dtype in ("f32", "bf16")]),
        "workspace": workspace(family),
        **answers(family, config),
    }


def tensors_of(plan: TensorPlan) -> list[object]:
    return [
        dataclasses.asdict(plan.moe),
        list(plan.parts.items()),
        sorted(plan.dense.items()),  # in whatever order
        [
            [(name, shape, [piece_of(piece) for piece in pieces]) for name, (shape, pieces) in layout.items()]
            for layout in plan.experts
        ],
        [plan.ignored, plan.ahead, plan.head, plan.tied_head, sorted(plan.matrices), sorted(plan.lookups)],
        [list(each.items()) for each in (plan.scales, plan.renamed, plan.whole, plan.vision, plan.copies)],
        list(plan.follows),
        [dataclasses.asdict(form) for form in plan.forms],
    ]


def piece_of(piece: ExpertPiece) -> tuple[object, ...]:
    """What it says, without what shares of a part have besides, where it is whole."""
    said = dataclasses.astuple(piece)
    return said if piece.at is not None else said[:-2]


def workspace(family: Family) -> list[int]:
    """Bytes that the plan sets aside for a chunk of a prompt, on the CPU and on a device."""
    plan = family.tensors
    layout = expert_layout([(name, "bf16", shape) for name, shape in plan.parts.items()])
    footprint = Footprint(family.info("bf16"), plan.moe, layout, 0, family.workspace)
    return [activation_bytes(footprint, CHUNK, CONTEXT, THREADS), device_activation_bytes(footprint, CHUNK, CONTEXT)]


def answers(family: Family, config: dict[str, Any]) -> Facts:
    """Logits of a prompt in two chunks, as the generic instruction set computes them, and greedy tokens behind it."""
    tensors = scaled(random_tensors(config, layout=-1, by_name=True), SCALE)
    kernels = Kernels(1, "generic")
    weights = NativeLayers(kernels, {name: stored(tensor) for name, tensor in tensors.items()}, "f32")
    experts = resident_experts(family.tensors, tensors, kernels)
    if isinstance(family, EncoderDecoderFamily):
        translator = family.build(weights, experts, Profiler())
        found = translators.logits(translator, [translators.ANSWER[:5], translators.ANSWER[5:]])
        return {"logits": bits_of(found.numpy()), "tokens": found.argmax(-1).tolist()}
    assert isinstance(family, DecoderFamily)
    decoder, prompt = family.build(weights, experts, Profiler()), decoders.PROMPT
    cache, made = decoder.new_cache(CONTEXT), list[int]()
    logits = [decoder.forward(prompt[:9], cache, of_tokens=len(prompt), last_only=False)]
    logits.append(decoder.forward(prompt[9:], cache, of_tokens=len(prompt), last_only=False))
    for _ in range(GREEDY):
        made.append(int(logits[-1][-1].argmax()))
        logits.append(decoder.forward(made[-1:], cache))
    return {"logits": bits_of(np.concatenate(logits)), "tokens": made}


def bits_of(logits: np.ndarray[Any, np.dtype[np.float32]]) -> str:
    assert np.isfinite(logits).all() and logits.std() > 0.01, "the comparison means something"
    return hashlib.sha256(np.ascontiguousarray(logits, np.float32).tobytes()).hexdigest()[:16]


def main() -> None:
    frozen = {"machine": machine()} | {name: facts(config) for name, config in CONFIGS.items()}
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(value)}" for name, value in frozen.items())
    FILE.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
