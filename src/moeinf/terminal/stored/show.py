"""What `show` tells about a stored model. It reads small files only, and loads nothing heavy."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from moeinf.engine.memory.device_plan import smallest_device_bytes
from moeinf.engine.memory.plan import PROCESS_BYTES, smallest_bytes
from moeinf.engine.stored.compared_file import ComparedBefore, load_compared
from moeinf.engine.stored.facts import StoredFacts, config, formats_text, generation_parameters, licence_text
from moeinf.engine.stored.outline import outline_of
from moeinf.engine.stored.parameters import parameter_rows
from moeinf.engine.stored.preset import preset_of
from moeinf.engine.stored.tuned_file import load_tuned
from moeinf.errors import StoreError
from moeinf.hardware import usable_cores
from moeinf.store.formats import mixed
from moeinf.store.spread.whole import copies_of, fault_of, strides_of
from moeinf.terminal.screen import section, table
from moeinf.text.quantities import at_least_text, binary_size_text, count_text
from moeinf.text.templates.own import is_own

if TYPE_CHECKING:
    from moeinf.store.library import StoredModel
    from moeinf.store.spread.copy_list import Copy

_NUM_LINES = 2


def needed_bytes(model: StoredModel) -> int:
    """The least --ram that the model runs in, with the smallest cache and the shortest context."""
    return smallest_bytes(outline_of(model).footprint, usable_cores()) + PROCESS_BYTES


def needed_on_gpu(model: StoredModel) -> tuple[int, int]:
    """The least memory of a GPU, and of the machine that holds it."""
    vram, ram = smallest_device_bytes(outline_of(model).device_footprint)
    return vram, ram + PROCESS_BYTES


def show_lines(model: StoredModel, *, verbose: bool = False) -> list[str]:
    """All sections, each followed by an empty line; the last empty line is left out."""
    info = model.manifest.info
    lines = section(
        "Model",
        [
            ("architecture", info.architecture),
            ("parameters", count_text(info.num_params)),
            ("context length", str(info.context_length)),
            ("embedding length", str(info.hidden_size)),
            ("quantization", formats_text(model)),
            *(("", line) for line in model.manifest.formats.fallbacks),
            *([("chat template", "moeinf's own")] if is_own(StoredFacts(model).template) else []),
        ],
    )
    lines += section("Layers" if model.manifest.moe.dense else "MoE", _moe_rows(model))
    lines += section("Capabilities", [(capability, "") for capability in StoredFacts(model).capabilities])
    preset = preset_of(model)
    if parameters := parameter_rows(generation_parameters(model), preset):
        lines += section("Parameters", parameters)
    if preset.system:
        lines += ["  System", *(f"    {line}" for line in _cut(preset.system.splitlines())), ""]
    if preset.messages:
        lines += section("Saved chat", [("messages", str(len(preset.messages)))])
    lines += _licence_section(model)
    if verbose:
        lines += section("Metadata", [(name, json.dumps(value)) for name, value in config(model).items()])
        lines += section("Tensors of one expert", _tensor_rows(model))
    return lines[:-1]


def _tensor_rows(model: StoredModel) -> list[tuple[str, str]]:
    """Each tensor with its formats, of which there may be several where layers differ."""
    layouts = model.manifest.layers or (model.manifest.layout,)
    return [
        (spec.name, f"{mixed(layout.tensors[number].dtype for layout in layouts)}  {list(spec.shape)}")
        for number, spec in enumerate(model.manifest.layout.tensors)
    ]


def _moe_rows(model: StoredModel) -> list[tuple[str, str]]:
    manifest = model.manifest
    info, moe, layout, ahead, vision = (
        manifest.info,
        manifest.moe,
        manifest.layout,
        manifest.ahead_bytes,
        manifest.vision_bytes,
    )
    experts = [
        ("experts per layer", moe.experts_text),
        ("active per token", str(moe.top_k)),
        ("shared experts", str(info.num_shared_experts)),
    ]
    return [
        ("layers", str(moe.num_layers)),
        *([("kind", "dense: every token uses all of it")] if moe.dense else experts),
        ("total parameters", count_text(info.num_params)),
        *([] if moe.dense else [("active parameters", count_text(info.active_params))]),
        (
            "bytes per layer's MLP" if moe.dense else "bytes per expert",
            f"{layout.stride_bytes} ({binary_size_text(layout.stride_bytes)})",
        ),
        ("dense bytes", binary_size_text(model.dense_bytes)),
        *([("vision tower", f"{binary_size_text(vision)}, read for pictures alone")] if vision else []),
        *([("MTP layers", f"{binary_size_text(ahead)}, read for --draft mtp alone")] if ahead else []),
        *(("experts also in", _copy_text(copy, model)) for copy in copies_of(model)),
        ("needs at least", f"{at_least_text(needed_bytes(model))} RAM"),
        ("on a GPU", _gpu_text(needed_on_gpu(model))),
        *_tuned_rows(model),
        *(("compared", _compared_text(each)) for each in load_compared(model)),
    ]


def _compared_text(found: ComparedBefore) -> str:
    """What `moeinf compare` has found."""
    text = found.text or "the text that comes along"
    return (
        f"with {found.reference}: KL {found.kl:.4f} ± {found.kl_error:.4f} nats a token, perplexity "
        f"{found.more_perplexity:+.1%}, same token {found.same:.1%} ({found.predictions:,} predictions, {text})"
    )


def _copy_text(copy: Copy, model: StoredModel) -> str:
    if fault := fault_of(copy, model):
        return fault
    if not copy.divided:
        return f"{copy.folder}, all of them"
    strides = strides_of(model)
    return f"{copy.folder}, which alone has {1 - sum(copy.first_bytes) / sum(strides):.0%} of each"


def _tuned_rows(model: StoredModel) -> list[tuple[str, str]]:
    """What `moeinf tune` has trained, if it has."""
    try:
        network = load_tuned(model)
    except StoreError as error:
        return [("tuned network", str(error))]
    if network is None:
        return []
    state = "in use" if network.gain.better else "not in use: no better than next-use"
    return [("tuned network", f"{state} ({network.gain.text})")]


def _gpu_text(needed: tuple[int, int]) -> str:
    vram, ram = needed
    return f"{at_least_text(vram)} VRAM and {at_least_text(ram)} RAM"


def _licence_section(model: StoredModel) -> list[str]:
    text = [line.strip() for line in licence_text(model).splitlines() if line.strip()]
    if not text:
        return []
    return ["  License", *(f"    {line}" for line in _cut(text)), ""]


def _cut(lines: list[str]) -> list[str]:
    """The first two lines of a longer text."""
    return [*lines[:_NUM_LINES], "..."] if len(lines) > _NUM_LINES else lines


def show_json(model: StoredModel) -> str:
    info, moe, layout = model.manifest.info, model.manifest.moe, model.manifest.layout
    return json.dumps(
        {
            "name": model.name,
            "id": model.id,
            "size_bytes": model.size_bytes,
            "source": model.manifest.source.to_json(),
            "architecture": info.architecture,
            "parameters": info.num_params,
            "active_parameters": info.active_params,
            "context_length": info.context_length,
            "embedding_length": info.hidden_size,
            "dtype": info.dtype,
            "quantization": formats_text(model),
            "fallbacks": list(model.manifest.formats.fallbacks),
            "capabilities": list(StoredFacts(model).capabilities),
            "own_template": is_own(StoredFacts(model).template),
            "generation_config": generation_parameters(model),
            "own_options": list(preset_of(model).options),
            "system": preset_of(model).system,
            "compared": [asdict(each) for each in load_compared(model)],
            "also": [{"folder": copy.folder, "divided": copy.divided} for copy in copies_of(model)],
            "moe": {
                "layers": moe.num_layers,
                "experts_per_layer": moe.num_experts,
                "experts_of_layers": [moe.experts_of(layer) for layer in range(moe.num_layers)],
                "active_per_token": moe.top_k,
                "shared_experts": info.num_shared_experts,
                "bytes_per_expert": layout.stride_bytes,
                "dense_bytes": model.dense_bytes,
                "mtp_bytes": model.manifest.ahead_bytes,
                "vision_bytes": model.manifest.vision_bytes,
                "needs_at_least_bytes": needed_bytes(model),
                "on_gpu_needs_at_least_bytes": dict(zip(("vram", "ram"), needed_on_gpu(model), strict=True)),
            },
        },
        indent=2,
    )


def parameters_text(model: StoredModel) -> str:
    return "\n".join(table(parameter_rows(generation_parameters(model), preset_of(model))))
