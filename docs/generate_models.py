"""Writes docs/models.md from the table of families and true configs; a test checks that the page is current.

    python docs/generate_models.py [CONFIGS]

CONFIGS has a folder for each checkpoint, with its config.json. Without it, the published ones of the tests are read.
"""

from __future__ import annotations

import json
import math
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from moeinf.engine.footprint import Footprint
from moeinf.engine.memory_plan import PROCESS_BYTES, smallest_bytes
from moeinf.models.family import Family, family_of
from moeinf.models.refused import REFUSED
from moeinf.models.registry import FAMILIES, FamilyEntry
from moeinf.store.format import expert_layout
from moeinf.types import Format, TensorPlan, format_bytes

HEAD = """\
# Models

Made by `python docs/generate_models.py` from the table of families (`src/moeinf/models/registry.py`), from the
config.json of each checkpoint as published (`tests/support/published`), and from what `python -m
tests.support.pairs.record` has recorded (`parity.json`). Do not edit it. A family is added as
[adding-a-model.md](contributing/adding-a-model.md) tells.

`demo` comes with moeinf: a qwen3_moe of 5.6 million weights, trained on stories, which goes on with a text in words
that make little sense. `demo:chat` is the same weights with a chat template: the answer is a story that goes on from
what the user said. System texts and tools are told to it, and change the story, but it obeys no instructions, and
calls a tool only where the request demands it. The weights of both lie on the disk once.

## All families

Each is compared with its reference on tiny random checkpoints that switch on every feature it has: in float32 the
logits of a prompt, whose largest difference stands beside the standard deviation of the reference's, and 64 greedy
tokens of each checkpoint, all of which are the same. "GGUF": files of llama.cpp's converter are read in place.
"Pictures": the model sees them. "MTP": layers that predict further tokens are kept in the store, and not run.

| family | for example | GGUF | pictures | MTP | checkpoints | logits differ by | deviation | equal tokens |
|---|---|---|---|---|---|---|---|---|
"""
SIZES = """\
## Sizes

Of one expert as published and at `--quant q4_k`, and the least memory in which the model runs on a CPU at 4 bits: its
dense weights, the experts of one token's layer, a context of 512 tokens. More memory holds more experts, reads less.

| checkpoint | family | parameters | MoE layers, experts, used | an expert | at 4 bits | least memory |
|---|---|---|---|---|---|---|
"""
NOT_RUN = """\
## Not run

Every other type of transformers that names experts in its configuration is refused, with the line of this table.

| model_type | needs |
|---|---|
"""
PARITY = Path(__file__).parent / "parity.json"
PUBLISHED = Path(__file__).parents[1] / "tests" / "support" / "published"
DENSE_FORMAT: Format = "q4_k"
HEAD_FORMAT: Format = "q8_0"


def render(configs: Path) -> str:
    parity = json.loads(PARITY.read_text(encoding="utf-8"))
    lines = [HEAD + "".join(_compared(family, parity[family.model_type]) for family in FAMILIES)]
    for family in FAMILIES:
        lines.append(_section(family))
    lines.append(NOT_RUN + "".join(f"| {name} | {needs} |\n" for name, needs in sorted(REFUSED.items())))
    lines.append(SIZES + "".join(_sizes(path) for path in sorted(configs.glob("*/config.json"))))
    return "\n".join(lines)


def _compared(family: FamilyEntry, parity: dict[str, Any]) -> str:
    cells = [
        f"[{family.model_type}](#{family.model_type.lower()})",
        family.checkpoints[0],
        *("yes" if parity[name] else "" for name in ("gguf", "pictures", "ahead")),
        str(parity["configs"]),
        f"{parity['difference']:.1e}",
        f"{parity['spread']:.2g}",
        str(parity["tokens"]),
    ]
    return "| " + " | ".join(cells) + " |\n"


def _section(family: FamilyEntry) -> str:
    special = f"{family.special[0].upper()}{family.special[1:]}."
    notes = "".join(_wrapped(f"- {note}", "  ") for note in family.notes)
    return (
        f"## {family.model_type}\n\n{_wrapped(', '.join(family.checkpoints) + '.')}\n"
        f"{_wrapped(special)}{_wrapped(f'Verified against {family.verified}.')}" + (f"\n{notes}" if notes else "")
    )


def _wrapped(text: str, indent: str = "") -> str:
    lines = textwrap.wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines) + "\n"


def _sizes(path: Path) -> str:
    family, small = at_4_bits(path)
    info, moe = small.info, small.moe
    least, published = smallest_bytes(small, num_threads=4) + PROCESS_BYTES, _layout(family.tensors, "bf16")
    cells = [
        path.parent.name,
        family.name,
        f"{info.num_params / 1e9:.1f}B",
        f"{moe.num_layers}, {moe.num_experts}, {moe.top_k}",
        _mib(published.stride_bytes),
        _mib(small.layout.stride_bytes),
        f"{least / 2**30:.1f} GiB",
    ]
    return "| " + " | ".join(cells) + " |\n"


@cache
def at_4_bits(path: Path) -> tuple[Family, Footprint]:
    """The family of this config.json, and what the model takes."""
    family = family_of(json.loads(path.read_text()))
    plan = family.tensors
    small = _layout(plan, "q4_k")
    return family, Footprint(family.info("bf16"), plan.moe, small, _dense_bytes(plan), family.workspace)


def _layout(plan: TensorPlan, format: Format) -> Any:
    return expert_layout([(name, _format_of(shape, format), shape) for name, shape in plan.parts.items()])


def _format_of(shape: tuple[int, ...], format: Format) -> Format:
    """What a tensor of this shape is stored as where `format` is asked for."""
    if len(shape) == 1:
        return "bf16"
    choices: tuple[Format, ...] = (format, "iq4_nl")
    for choice in choices:
        try:
            format_bytes(choice, shape)
        except ValueError:
            continue
        return choice
    return "bf16"


def _dense_bytes(plan: TensorPlan) -> int:
    """Of the weights that lie in memory: matrices at 4 bits, the head at 8, the rest as published."""
    head = plan.head[0] if plan.head else ""
    total = 0
    for name, shape in plan.dense.items():
        if name == head:
            total += format_bytes(HEAD_FORMAT, shape)
        elif name in plan.matrices:
            total += format_bytes(_format_of(shape, DENSE_FORMAT), shape)
        elif name not in plan.lookups:
            total += 2 * math.prod(shape)
    return total


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


if __name__ == "__main__":
    configs = Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED
    (Path(__file__).parent / "models.md").write_text(render(configs), encoding="utf-8")
