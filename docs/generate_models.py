"""Writes docs/models.md, the tables of docs/reference/families.md, and the sizes that `list --available` shows.

    python docs/generate_models.py [CONFIGS]

CONFIGS has a folder for each checkpoint, with its config.json. Without it, the published ones of the tests are read. A
test checks that all of them are current.
"""

from __future__ import annotations

import json
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.footprint import Footprint
from moeinf.engine.memory.plan import PROCESS_BYTES, plan_memory, smallest_bytes
from moeinf.errors import OutOfMemoryError
from moeinf.hardware import Machine
from moeinf.models.family import family_of
from moeinf.models.layers.assemble import Family
from moeinf.models.refused import REFUSED
from moeinf.models.registry import FAMILIES, FamilyEntry
from moeinf.store.format import expert_layout
from moeinf.store.naming.catalogue import catalogue
from moeinf.store.quantisation import (
    KEEP,
    SMALL,
    DenseTensor,
    FormatPlan,
    Quantisation,
    dense_tensors_of,
    expert_formats,
)
from moeinf.types import Format, TensorPlan, format_bytes

MODELS = """\
# Models

This page is for those who look for a model that moeinf runs on their machine. After it you know how much memory and
disk a model takes, and which families moeinf runs. `moeinf fit org/repo` says the same of any repository, for your
machine, without downloading it. `python docs/generate_models.py` writes this page; do not edit it.

`demo` needs no download: 5.6 million weights that tell stories of little sense. `demo:chat` answers.

`moeinf list --available` prints short names that `run` and `pull` know, such as `mixtral` and `qwen3:30b-a3b`, and
[first-minutes.md](first-minutes.md) says what they mean. Any other model of a family below is named by its repository,
as in `moeinf pull Qwen/Qwen3-30B-A3B --quant q4_k`.

## How much memory and disk a model takes

All figures are for 4 bits a weight (`--quant q4_k`) on a CPU. With the *least memory* the model runs, and reads nearly
every expert from the disk. With as much memory as it takes of the *disk*, all experts stay in memory. Everything
between works, and is faster with more memory. The columns behind it tell for machines of 8 to 64 GB, of which other
programs have a quarter, how many of the experts stay in memory: the others are read from the disk when needed. Nothing
stands where the model does not run. A checkpoint of another's sizes has no row, nor has one without experts.

| checkpoint | parameters | for a token | disk at 4 bits | least memory | 8 GB | 16 GB | 32 GB | 64 GB | family |
|---|---|---|---|---|---|---|---|---|---|
"""
MACHINES = (8, 16, 32, 64)  # GB
RUN = """\
## Families that run

Checkpoints of these families run, whatever their size. "GGUF" says that files which llama.cpp's converter writes are
read in place, and "pictures" that the model sees them, for which `pip install 'moeinf[vision]'` is needed. Where a
checkpoint also sees, hears or speaks, and there is no "yes", moeinf runs the part that reads and writes text.
[reference/families.md](reference/families.md) has more on each family: its checkpoints, how closely it was compared
with its reference, and what other types of transformers would need.

The last rows are families without experts: dense models, which also draft for larger ones (`--draft`). Every token uses
all of them. Of one that does not fit in memory, attention stays there and the other MLPs are read for each token, layer
by layer. What else moeinf says of experts then means the MLPs, one a layer.

| family | for example | GGUF | pictures |
|---|---|---|---|
"""
COMPARED = """\
| family | checkpoints | logits differ by | deviation | equal tokens | MTP |
|---|---|---|---|---|---|
"""
SIZES = """\
| checkpoint | family | MoE layers, experts, used | an expert | at 4 bits |
|---|---|---|---|---|
"""
REFUSALS = """\
| model_type | what it would need |
|---|---|
"""
MARKED = re.compile(r"(<!-- (compared|refused|sizes) -->\n).*?(<!-- end -->)", re.DOTALL)
SECTION = re.compile(r"^## (\S+)\n\n([^,\n]+?)\.?(?:,|\n)", re.MULTILINE)  # a family, and its first checkpoint
DETAILS = Path(__file__).parent / "reference" / "families.md"
PARITY = Path(__file__).parent / "parity.json"
SHAPES = Path(__file__).parent / "shapes.json"
PUBLISHED = Path(__file__).parents[1] / "tests" / "support" / "published"


def models(configs: Path) -> str:
    """The page for users."""
    rows = sorted((_bytes_at_4_bits(path), path) for path in configs.glob("*/config.json"))
    told = {_told(path, num_bytes): path.parent.name for num_bytes, path in reversed(rows) if not _is_dense(path)}
    sizes = MODELS + "".join(f"| {name} | {cells} |\n" for cells, name in reversed(told.items()))
    return sizes + "\n" + RUN + "".join(_runs(family, _parity()[family.model_type]) for family in FAMILIES)


def families(configs: Path) -> str:
    """The page that says what is special in each family: its text as it is, with tables as they are to be."""
    tables = {
        "compared": COMPARED + "".join(_compared(family, _parity()[family.model_type]) for family in FAMILIES),
        "refused": REFUSALS + "".join(f"| {name} | {needs} |\n" for name, needs in sorted(REFUSED.items())),
        "sizes": SIZES + "".join(_sizes(path) for path in sorted(configs.glob("*/config.json"))),
    }
    return MARKED.sub(lambda found: f"{found[1]}{tables[found[2]]}{found[3]}", DETAILS.read_text(encoding="utf-8"))


def examples() -> dict[str, str]:
    """The first checkpoint of each family that has a section on that page, in their order."""
    return dict(SECTION.findall(DETAILS.read_text(encoding="utf-8")))


def sizes(configs: Path) -> str:
    """The sizes of the models that moeinf knows by name: by the published config.json that each has, or by the shape
    that is told of it in public text (docs/shapes.json)."""
    wanted = {model.like for model in catalogue().values()}
    shapes: dict[str, Any] = json.loads(SHAPES.read_text(encoding="utf-8"))
    found = {path.parent.name: _size(json.loads(path.read_text())) for path in sorted(configs.glob("*/config.json"))}
    found |= {name: _size(shape["config"]) for name, shape in shapes.items()}
    lines = (f"  {json.dumps(name)}: {json.dumps(found[name])}" for name in sorted(found) if name in wanted)
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _size(config: dict[str, Any]) -> dict[str, object]:
    family, small = _taken_at_4_bits(config)
    moe = small.moe
    return {
        "architecture": family.name,
        "num_params": small.info.num_params,
        "active_params": small.info.active_params,
        "store_bytes": _weight_bytes(family, small),
        "least_bytes": smallest_bytes(small, num_threads=4) + PROCESS_BYTES,
        "dense_bytes": _dense_bytes(family.tensors),
        "expert_bytes": small.layout.stride_bytes,
        "num_layers": moe.num_layers,
        "num_experts": moe.num_experts,
        "top_k": moe.top_k,
    }


PAGES = {"models.md": models, "reference/families.md": families, "../src/moeinf/data/model_sizes.json": sizes}


@cache
def _parity() -> dict[str, Any]:
    recorded: dict[str, Any] = json.loads(PARITY.read_text(encoding="utf-8"))
    return recorded


def _runs(family: FamilyEntry, parity: dict[str, Any]) -> str:
    link = f"[{family.model_type}](reference/families.md#{family.model_type.lower()})"
    seen = ("yes" if parity[name] else "" for name in ("gguf", "pictures"))
    return f"| {' | '.join((link, examples()[family.model_type], *seen))} |\n"


def _compared(family: FamilyEntry, parity: dict[str, Any]) -> str:
    cells = [
        f"[{family.model_type}](#{family.model_type.lower()})",
        str(parity["configs"]),
        f"{parity['difference']:.1e}",
        f"{parity['spread']:.2g}",
        str(parity["tokens"]),
        "yes" if parity["ahead"] else "",
    ]
    return f"| {' | '.join(cells)} |\n"


def _is_dense(path: Path) -> bool:
    return at_4_bits(path)[1].moe.dense


def _told(path: Path, num_bytes: int) -> str:
    family, small = at_4_bits(path)
    least = smallest_bytes(small, num_threads=4) + PROCESS_BYTES
    cells = [
        f"{small.info.num_params / 1e9:.1f}B",
        f"{small.info.active_params / 1e9:.1f}B",
        f"{num_bytes / 1e9:.1f} GB",
        f"{least / 1e9:.1f} GB",
        *(_resident(small, gigabytes) for gigabytes in MACHINES),
        family.name,
    ]
    return " | ".join(cells)


def _resident(small: Footprint, gigabytes: int) -> str:
    """The share of the experts that stay in memory on a machine; "" where the model does not run."""
    available = gigabytes * 10**9 * 3 // 4 - PROCESS_BYTES
    machine = Machine(cores=4, total_bytes=gigabytes * 10**9, available_bytes=available, limited_by="")
    try:
        plan = plan_memory(small, RuntimeConfig(), machine)
    except OutOfMemoryError:
        return ""
    percent = int(100 * plan.held_experts / small.moe.total_experts)
    return "all" if percent >= 100 else f"{percent} %" if percent else "<1 %"


def _bytes_at_4_bits(path: Path) -> int:
    return _weight_bytes(*at_4_bits(path))


def _weight_bytes(family: Family, small: Footprint) -> int:
    """Of all weights as they are stored."""
    dense = sum(format_bytes(tensor.format, tensor.shape) for tensor in _dense(family.tensors).values())
    return small.moe.total_experts * small.layout.stride_bytes + dense


def _sizes(path: Path) -> str:
    family, small = at_4_bits(path)
    moe, published = small.moe, _layout(family.tensors, KEEP)
    cells = [
        path.parent.name,
        family.name,
        f"{moe.num_layers}, {moe.num_experts}, {moe.top_k}",
        _mib(published.stride_bytes),
        _mib(small.layout.stride_bytes),
    ]
    return f"| {' | '.join(cells)} |\n"


@cache
def at_4_bits(path: Path) -> tuple[Family, Footprint]:
    """The family of this config.json, and what the model takes."""
    return _taken_at_4_bits(json.loads(path.read_text()))


def _taken_at_4_bits(config: dict[str, Any]) -> tuple[Family, Footprint]:
    family = family_of(config)
    plan = family.tensors
    small = _layout(plan, SMALL)
    return family, Footprint(family.info("bf16"), plan.moe, small, _dense_bytes(plan), family.workspace)


def _layout(plan: TensorPlan, wanted: Quantisation) -> Any:
    sources: dict[str, Format] = dict.fromkeys(plan.parts, "bf16")
    formats = expert_formats(plan, wanted.experts, sources, FormatPlan())
    return expert_layout([(name, formats[name], shape) for name, shape in plan.parts.items()])


def _dense(plan: TensorPlan) -> dict[str, DenseTensor]:
    """The tensors of the dense file as they are stored."""
    return dense_tensors_of(plan, SMALL, dict.fromkeys(plan.dense, "bf16"), FormatPlan())


def _dense_bytes(plan: TensorPlan) -> int:
    """Of the weights that lie in memory: all but embeddings of which only rows are looked up."""
    tied = plan.head is not None and plan.head[0] in plan.lookups
    return sum(
        format_bytes(tensor.format, tensor.shape)
        for name, tensor in _dense(plan).items()
        if name not in plan.lookups or (tied and plan.head is not None and name == plan.head[0])
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


if __name__ == "__main__":
    configs = Path(sys.argv[1]) if len(sys.argv) > 1 else PUBLISHED
    for name, page in PAGES.items():
        (Path(__file__).parent / name).write_text(page(configs), encoding="utf-8")
