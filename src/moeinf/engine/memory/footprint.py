"""The sizes of a model in memory: its weights, what it keeps of a sequence, and what it needs to compute."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, cast

import moeinf._native as _native
from moeinf.config import RuntimeConfig
from moeinf.engine.weights.device_form import HeldDense, device_bytes, device_layouts
from moeinf.engine.weights.expert_files import expert_parts
from moeinf.errors import UsageError
from moeinf.runtime.cache.slot_sizes import SlotSizes, slot_sizes
from moeinf.store.manifest import Manifest
from moeinf.store.placed.expert_slices import ExpertSlices, slices_of
from moeinf.types import (
    DTYPE_BYTES,
    FORMAT_BLOCKS,
    AttentionSizes,
    DeltaSizes,
    ExpertLayout,
    IndexSizes,
    KVFormat,
    LatentSizes,
    LayerSizes,
    MambaSizes,
    ModelInfo,
    MoeShape,
    PassShape,
    Workspace,
    format_bytes,
)

SOURCE_ROWS = 4 * 128  # queries of a source whose scores exist at once, and what makes them (models/beams.py)
ROUTED_BYTES = 40  # of each expert, for a token: its score, what becomes of that, and where it is sorted to
ATTENTION_MASK_BYTES: Final = 128 << 20  # of a block of queries, also as a bias (device/vector_ops.py)
WIDENED_BYTES: Final = 128 << 20  # rows of a quantised matrix that are widened at once (device/matrix_ops.py)
TEXT_BYTES: Final = 16 << 20  # of the process that holds the tokenizer, before it has loaded one
TEXT_COPIES: Final = 9  # times its file that a tokenizer takes there: 8.5 and 9.7 were measured, of 3.5 and 2.1 MB
ANY_TEXT_BYTES: Final = 40 << 20  # the same where the file is not known
FURTHER_SHARE: Final = 8  # of the context, what each sequence but the first adds to what all have room for: an eighth
FIXED_COPIES: Final = 4  # of Workspace.fixed on a GPU: in both types, before and after what is done to it


@dataclass(frozen=True, slots=True)
class Footprint:
    """The sizes of a model that the memory plan needs."""

    info: ModelInfo
    moe: MoeShape
    layout: ExpertLayout
    dense_bytes: int  # dense weights that are held in memory
    workspace: Workspace
    layers: tuple[ExpertLayout, ...] = ()  # of each layer, where they differ
    text_bytes: int = ANY_TEXT_BYTES  # of the process that holds the tokenizer
    kept: KVFormat | None = None  # of keys and values; None: info.dtype
    apart_bytes: int = 0  # of what is kept of a token: what has a type of its own
    tower_bytes: int = 0  # of the vision tower while it runs, where pictures may come
    whole_tokens: int = 0  # of the largest picture, where a pass must not cut one apart
    slices: ExpertSlices | None = None  # of experts, where these are large

    @property
    def sizes(self) -> SlotSizes:
        """Of slots in which no expert leaves more than a tenth empty."""
        layouts = self.layers or (self.layout,) * self.moe.num_layers
        return slot_sizes([layout.stride_bytes for layout in layouts], self.moe)


def footprint_of(
    manifest: Manifest, dense_bytes: int, workspace: Workspace, num_beams: int, apart_bytes: int = 0
) -> Footprint:
    """Returns the sizes of a model, stored or known by its headers.

    dense_bytes: those of the dense weights that are held in memory.

    Half of an encoder-decoder's keys and values are those of its input, which all beams share. Another layer's keys and
    values are needed to move beams.
    """
    info = manifest.info
    half = info.kv_bytes_per_token // 2
    moved = 2 * half * num_beams // info.num_layers if num_beams > 1 else 0
    info = replace(info, kv_bytes_per_token=info.kv_bytes_per_token + half * (num_beams - 1) + moved)
    tokenizer = manifest.file_sizes().get("tokenizer.json")
    text_bytes = ANY_TEXT_BYTES if tokenizer is None else TEXT_BYTES + TEXT_COPIES * tokenizer
    return Footprint(
        info,
        manifest.moe,
        manifest.layout,
        dense_bytes,
        workspace,
        manifest.layers,
        text_bytes,
        apart_bytes=apart_bytes,
        slices=slices_of(manifest),
    )


def device_footprint(footprint: Footprint, manifest: Manifest, dense: HeldDense) -> Footprint:
    """Returns the sizes of a model of which `footprint` are those on a CPU."""
    stored_bytes = sum(format_bytes(format, shape) for format, shape in dense.kinds.values())
    dense_bytes = footprint.dense_bytes - stored_bytes + sum(device_bytes(manifest, dense).values())
    layouts = device_layouts(manifest)
    largest = max(layouts, key=lambda layout: layout.stride_bytes)
    return replace(footprint, layout=largest, layers=layouts, dense_bytes=dense_bytes)


def unequal_bytes(manifest: Manifest) -> tuple[int, ...]:
    """What is read of an expert of each layer, where layers differ; else ()."""
    num_bytes = tuple(layout.stride_bytes for layout in manifest.layers)
    return num_bytes if len(set(num_bytes)) > 1 else ()


def kept_format(info: ModelInfo, config: RuntimeConfig) -> KVFormat:
    """What --kv-cache asks for: of itself, the checkpoint's own numbers."""
    return info.dtype if config.memory.kv_cache == "auto" else cast(KVFormat, config.memory.kv_cache)


def kept_as_asked(footprint: Footprint, config: RuntimeConfig) -> Footprint:
    """The same sizes with keys and values as --kv-cache wants them. Raises UsageError where they cannot be kept so."""
    info, kept = footprint.info, kept_format(footprint.info, config)
    if config.memory.kv_cache == "auto":
        return footprint
    if footprint.workspace.source:
        raise UsageError(
            f"--kv-cache {kept} is for decoders, and this encoder-decoder keeps float32 beside its beams; leave it out"
        )
    block = FORMAT_BLOCKS[kept][0]
    for sizes in footprint.workspace.layers:
        match sizes:
            case AttentionSizes():
                rows = {sizes.head_dim}
            case LatentSizes():
                rows = {sizes.rank, sizes.rotary_dim}
            case _:
                continue
        if wrong := [length for length in rows if length % block]:
            raise UsageError(
                f"--kv-cache {kept} keeps numbers in blocks of {block}, and this model has heads of {wrong[0]}; "
                "use bf16, or leave it out"
            )
    numbers = (info.kv_bytes_per_token - footprint.apart_bytes) // DTYPE_BYTES[info.dtype]
    num_bytes = format_bytes(kept, (numbers,)) + footprint.apart_bytes
    return replace(footprint, info=replace(info, kv_bytes_per_token=num_bytes), kept=kept)


def activation_bytes(footprint: Footprint, chunk: int, context: int, num_threads: int) -> int:
    """Estimates from above the working memory of a prefill chunk: native workspaces, and the arrays between them.

    Counts what `next-use` learns as well, which another policy would not keep.
    """
    info, moe, work = footprint.info, footprint.moe, footprint.workspace
    chunk = context if work.source else min(max(chunk, footprint.whole_tokens), context)  # what goes through as a whole
    shape = PassShape(info.dtype, footprint.kept or info.dtype, chunk, context, num_threads)
    arrays = (
        chunk * (4 * info.hidden_size + work.token) * 4 + work.parts * 4
    )  # hidden state, its norm, an output and what scales it
    routed = chunk * moe.num_experts * ROUTED_BYTES
    learned = _native.UseModel.num_bytes(moe.num_layers, moe.num_experts)
    native = workspace_bytes(footprint, shape)
    return (
        arrays + routed + learned + _source_bytes(work, context) + native + info.vocab_size * 8 + footprint.tower_bytes
    )


def workspace_bytes(footprint: Footprint, shape: PassShape) -> int:
    """Returns what native operations keep: one workspace, which layers use by turns, and another of the experts."""
    native = [
        _native.Kernels.linear_workspace_bytes(max(footprint.info.hidden_size, footprint.workspace.inputs), shape),
        _native.RouterLayer.workspace_bytes(footprint.info.hidden_size, footprint.moe.num_experts, shape),
        *(_layer_bytes(sizes, shape) for sizes in footprint.workspace.layers),
    ]
    formats = {tuple((t.name, t.dtype) for t in layout.tensors): layout for layout in footprint.layers}
    experts = max(
        _native.ExpertKernel.workspace_bytes(expert_parts(layout), footprint.moe.top_k, shape)
        for layout in formats.values() or (footprint.layout,)
    )
    return max(native) + experts + _native.Kernels.panel_bytes(shape)


def _layer_bytes(sizes: LayerSizes, shape: PassShape) -> int:
    match sizes:
        case AttentionSizes():
            return _native.AttentionLayer.workspace_bytes(sizes, shape)
        case LatentSizes():
            return _native.LatentLayer.workspace_bytes(sizes, shape)
        case IndexSizes():
            return _native.index_workspace_bytes(sizes, shape)
        case DeltaSizes():
            return _native.DeltaLayer.workspace_bytes(sizes, shape)
        case MambaSizes():
            return _native.MambaLayer.workspace_bytes(sizes, shape)


def _source_bytes(work: Workspace, context: int) -> int:
    """What attention within a source takes: scores of each head, and what is added to them."""
    return work.source * (context + SOURCE_ROWS) * context * 4


def sequence_bytes(info: ModelInfo, tokens: int) -> int:
    """Returns what a model keeps of so many tokens: keys and values; and the states of its sequences."""
    return tokens * info.kv_bytes_per_token + info.state_bytes


def shared_tokens(context: int, sequences: int) -> int:
    """Tokens that sequences of a context have room for together: one in full, each further one in part."""
    return context + (sequences - 1) * -(-context // FURTHER_SHARE)


def device_activation_bytes(footprint: Footprint, chunk: int, context: int) -> int:
    """Estimates from above what a prefill chunk takes of the GPU's memory beside weights, cache and slots.

    What attention and experts take by turns is added up, as memory of one size seldom serves for another.
    """
    info, moe, work, hidden = footprint.info, footprint.moe, footprint.workspace, footprint.info.hidden_size
    chunk = context if work.source else min(max(chunk, footprint.whole_tokens), context)
    places = chunk * moe.top_k
    intermediate = max((spec.shape[0] for spec in footprint.layout.tensors[:-1]), default=0)
    state = chunk * hidden * 2 * 4  # hidden state and its norm, f32
    attention = chunk * work.attention * 8  # f32, and as the products take them
    layers = chunk * work.token * 4 + (work.parts + work.fixed * FIXED_COPIES) * 4
    mask = min(ATTENTION_MASK_BYTES, chunk * context * 4)  # bool, a bias of 16 bits, and what makes them
    mask += _source_bytes(work, context)
    widened = min(WIDENED_BYTES, hidden * hidden * 8)  # the largest matrix but the head, as bf16: [4 hidden, hidden]
    routed = chunk * moe.num_experts * 2 * 4 + places * 6 * 4  # logits, probabilities; ids, weights, groups
    experts = places * (hidden + intermediate) * 4  # output and intermediate of every place, f32
    return state + attention + layers + mask + widened + routed + experts + info.vocab_size * 8
