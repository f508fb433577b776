"""Values that pass between layers, and the protocols that have two implementations.

MoE layers are numbered 0..num_layers-1 in order of depth, counting only layers that have experts;
an architecture maps its own decoder layers onto them.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

if TYPE_CHECKING:  # list, show and the policies need these types but must not pay for importing torch
    import numpy as np
    import numpy.typing as npt

    IntArray = npt.NDArray[np.int64]
    FloatArray = npt.NDArray[np.float64]
    Float32Array = npt.NDArray[np.float32]
    ByteArray = npt.NDArray[np.uint8]
    SumArray = npt.NDArray[np.uint32]
else:
    IntArray = FloatArray = Float32Array = ByteArray = SumArray = Any

# Decoded JSON. Its values are Any, not a union of their kinds: who reads one says which kind it expects, and has it
# checked where a person or a file may say otherwise. A union would ask for a cast at each such place.
Json = Any
JsonObject = dict[str, Json]
JsonMapping = Mapping[str, Json]  # which is only read

DType = Literal["bf16", "f16", "f32"]
KVFormat = Literal["bf16", "f16", "f32", "q8_0"]  # in which keys and values can be kept
DTYPE_BYTES: Mapping[DType, int] = {"bf16": 2, "f16": 2, "f32": 4}

Format = Literal[
    "bf16", "f16", "f32", "q8_0", "q4_0", "q4_k", "iq4_nl", "mxfp4",
    "q4_1", "q5_0", "q5_1", "q2_k", "q3_k", "q5_k", "q6_k", "iq4_xs", "iq3_xxs", "iq3_s", "iq2_xxs", "iq2_xs", "iq2_s",
    "iq1_s", "iq1_m", "tq1_0", "tq2_0", "nvfp4",
    "i32",  # of no weights: whole numbers in a GGUF file, which become f32 before anything computes with them
]  # fmt: skip
# Weights and bytes of one block; a row has a whole number of them. The quantised ones are those of ggml, bit for bit.
# store.quantisation.CHOICES says which are also written; the others come in GGUF files.
FORMAT_BLOCKS: Mapping[Format, tuple[int, int]] = {
    "bf16": (1, 2), "f16": (1, 2), "f32": (1, 4),
    "q8_0": (32, 34), "q4_0": (32, 18), "q4_k": (256, 144), "iq4_nl": (32, 18), "mxfp4": (32, 17),
    "q4_1": (32, 20), "q5_0": (32, 22), "q5_1": (32, 24),
    "q2_k": (256, 84), "q3_k": (256, 110), "q5_k": (256, 176), "q6_k": (256, 210),
    "iq4_xs": (256, 136), "iq3_xxs": (256, 98), "iq3_s": (256, 110),
    "iq2_xxs": (256, 66), "iq2_xs": (256, 74), "iq2_s": (256, 82), "iq1_s": (256, 50), "iq1_m": (256, 56),
    "tq1_0": (256, 54), "tq2_0": (256, 66), "nvfp4": (64, 36),
}  # fmt: skip


# What a GPU's kernels read (gpu/triton_formats.py).
DEVICE_FORMATS: tuple[Format, ...] = ("bf16", "f16", "f32", "q8_0", "q4_0", "q4_k", "iq4_nl", "mxfp4")


def block_of(format: Format) -> tuple[int, int]:
    """Weights and bytes of a block, also of whole numbers."""
    return (1, 4) if format == "i32" else FORMAT_BLOCKS[format]


def device_format(format: Format) -> Format:
    """What weights of a format are on a GPU: the same, or q8_0, whose blocks divide those of all that is not there."""
    return format if format in DEVICE_FORMATS else "q8_0"


def format_bytes(format: Format, shape: Sequence[int]) -> int:
    """Bytes of a tensor whose rows are cut into blocks. Raises ValueError for a row that ends within a block."""
    weights, num_bytes = block_of(format)
    if shape[-1] % weights:
        raise ValueError(f"rows of {shape[-1]} are no whole number of {format} blocks of {weights}")
    return math.prod(shape) // weights * num_bytes


BLOCK_ALIGN_BYTES = (
    4096  # O_DIRECT wants offset, length and address at multiples of the device's block; 4 KiB serves all devices
)
TENSOR_ALIGN_BYTES = 64  # one cache line, and one AVX-512 load


class ExpertId(NamedTuple):
    layer: int
    expert: int


@dataclass(frozen=True, slots=True)
class MoeShape:
    """How many MoE layers a model has, how many experts each has, and how many of these one token uses.

    Layers of a pruned model may differ in their experts. Keys of experts, and arrays of them, are those of layers which
    all have as many as the largest: expert e of layer l has the key l * num_experts + e, and some keys have no expert.
    """

    num_layers: int
    num_experts: int  # of the layer that has most
    top_k: int
    counts: tuple[int, ...] = ()  # of each layer, where they differ

    def experts_of(self, layer: int) -> int:
        """How many experts a layer has."""
        return self.counts[layer] if self.counts else self.num_experts

    @property
    def experts_text(self) -> str:
        """How many experts layers have, in words: 64, or 48 to 64."""
        return f"{min(self.counts)} to {self.num_experts}" if self.counts else str(self.num_experts)

    @property
    def dense(self) -> bool:
        """Whether a layer's only expert is the MLP of a model without experts, which every token uses."""
        return self.num_experts == 1

    @property
    def kind(self) -> str:
        """What its experts are, in a word for users."""
        return "MLPs" if self.dense else "experts"

    @property
    def text(self) -> str:
        """`27 layers x 64 experts, top-6`"""
        layers = f"{self.num_layers} layer{'' if self.num_layers == 1 else 's'}"
        each = "one MLP" if self.dense else f"{self.experts_text} experts, top-{self.top_k}"
        return f"{layers} x {each}"

    @property
    def num_keys(self) -> int:
        return self.num_layers * self.num_experts

    @property
    def total_experts(self) -> int:
        return sum(self.counts) or self.num_keys


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor in an expert block or a dense file: where it lies and what it is."""

    name: str
    dtype: Format
    shape: tuple[int, ...]
    offset_bytes: int  # from the start of the block
    num_bytes: int


@dataclass(frozen=True, slots=True)
class ExpertLayout:
    """The block of one expert. All experts of a layer share it, and mostly those of all layers: see SlotSizes."""

    tensors: tuple[TensorSpec, ...]
    block_bytes: int  # end of the last tensor
    stride_bytes: int  # block_bytes rounded up to BLOCK_ALIGN_BYTES: distance between two experts


@dataclass(frozen=True, slots=True)
class ExpertPiece:
    """Where one part (gate, up, down or a bias) of one expert lies in a source tensor, whole but for `filled`.

    Element [r, c] of the part is element start_element + r * strides[0] + c * strides[1] of the source, counted in its
    flat order; a bias [r] has one stride. Without strides the part is a contiguous run of the source, row after row.
    As in gpt-oss, with E experts, H hidden and I intermediate sizes, expert e:
      gate rows between up rows, [E, 2 I, H]:   (2 e I + half) H, strides (2 H, 1); half is 0 for gate and 1 for up
      the same, transposed, [E, H, 2 I]:        2 e H I + half, strides (2, 2 I)
      down, transposed, [E, I, H]:              e I H, strides (1, H)
      biases [E, 2 I]:                          2 e I + half, strides (2,)
    filled: the shape that the source has, from the first row and column on, where the experts of some layers are
      smaller than others; the rest of the part is zero. Only sources in a plain type have it.
    at: the row and the column of the part that the first element of `filled` becomes, where several pieces, mostly of
      several sources, make one part between them. Their numbers are multiplied by `times`.
    """

    layer: int
    expert: int
    part: str
    start_element: int
    strides: tuple[int, ...] | None = None
    filled: tuple[int, ...] | None = None
    at: tuple[int, int] | None = None
    times: float = 1.0

    def strides_of(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The strides of a piece of this shape, as `torch.Tensor.as_strided` takes them, also where none are given."""
        return self.strides or tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


class RowsOf(NamedTuple):
    """A matrix whose rows are these of another one, in this order: a run of each of the shares that processors had.

    Both matrices may have been quantised share by share, so that each has tiles of its own.
    """

    name: str
    rows: tuple[range, ...]


@dataclass(frozen=True, slots=True)
class SumRun:
    """CRC-32C sums of adjacent units of a file. The last unit is what is left of num_bytes."""

    file: str
    start: int
    num_bytes: int
    unit_bytes: int
    sums: SumArray

    @property
    def num_units(self) -> int:
        return -(-self.num_bytes // self.unit_bytes)


Activation = Literal[
    "silu",
    "gelu",
    "gelu_tanh",
    "quick_gelu",
    "relu",
    "relu2",
    "swiglu_clamped",
    "silu_clamped",
    "clamped_silu",
    "softcapped",
]


@dataclass(frozen=True, slots=True)
class ExpertForm:
    """What an expert computes with its parts: down(act(gate(x)) * up(x)), or down(act(up(x))) where it has no gate.

    biased: parts `gate_bias`, `up_bias` and `down_bias` are added to the products. relu2: the square of relu.
    quick_gelu: x * sigmoid(1.702 x).
    swiglu_clamped (gpt-oss): with g = min(gate, limit) and u = clip(up, -limit, limit): (u + 1) * g * sigmoid(1.702 g).
    silu_clamped (DeepSeek-V4): u * silu(g), of the same g and u. clamped_silu (Step 3.5): u * min(silu(gate), limit).
    softcapped (Inkling 2): c(gate, gate_limit) * sigmoid(gate) * c(up, limit), with c(x, most) = most * tanh(x / most);
      a limit of 0 leaves up as it is (Kimi K3's SiTU).
    """

    activation: Activation = "silu"
    gated: bool = True
    biased: bool = False
    limit: float = 0.0  # of the clamped ones alone
    gate_limit: float = 0.0


@dataclass(frozen=True, slots=True)
class AttentionSizes:
    """The sizes of a layer of attention that its workspace depends on."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int  # 0: a token sees all before it
    gated: bool
    gate_apart: bool = False
    ahead: int = 0  # most positions behind its own that a token sees
    most_chosen: int = 0  # positions that a token attends to where they are chosen for it
    value_dim: int = 0  # of a head's values, where they are narrower than its keys
    sees_all: bool = False  # each token sees all, as patches of a picture do


@dataclass(frozen=True, slots=True)
class LatentSizes:
    """The sizes of a layer of multi-head latent attention that its workspace depends on."""

    num_heads: int
    rank: int
    qk_nope_head_dim: int
    value_dim: int
    rotary_dim: int
    most_chosen: int = 0  # rows that a token attends to where they are chosen for it


@dataclass(frozen=True, slots=True)
class IndexSizes:
    """The sizes of an indexer, which chooses what a token attends to, that its workspace depends on."""

    num_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class DeltaSizes:
    """The sizes of a layer of gated DeltaNet that its workspace depends on."""

    hidden_size: int
    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True)
class MambaSizes:
    """The sizes of a layer of Mamba-2 that its workspace depends on."""

    hidden_size: int
    num_heads: int
    head_dim: int
    num_groups: int
    state_size: int


LayerSizes = AttentionSizes | LatentSizes | IndexSizes | DeltaSizes | MambaSizes


@dataclass(frozen=True, slots=True)
class PassShape:
    """The largest pass that a workspace is to hold."""

    dtype: DType  # of weights, unless these are quantised
    kept: KVFormat  # of keys and values
    tokens: int
    positions: int  # of the whole sequence
    num_threads: int


@dataclass(frozen=True, slots=True)
class Workspace:
    """The working memory of a model's layers, counted in float32 numbers; of each kind, that of the largest layer."""

    attention: int = 0  # on a GPU: for each token of the pass, in attention
    token: int = 0  # for each token of the pass, without its routed experts
    source: int = 0  # for each pair of positions of an encoder's input, which is computed as a whole
    parts: int = 0  # of layers that cut a pass into parts: whatever the lengths of pass and context
    fixed: int = 0  # on a GPU: whatever the lengths of pass and context
    inputs: int = 0  # columns of the widest matrix
    layers: frozenset[LayerSizes] = frozenset()  # of those with native kernels, which tell what they take

    def __or__(self, other: Workspace) -> Workspace:
        largest = {
            each.name: max(getattr(self, each.name), getattr(other, each.name))
            for each in fields(self)
            if each.name != "layers"
        }
        return Workspace(**largest, layers=self.layers | other.layers)


class Expected(NamedTuple):
    """The numbers that follow from config.json, whole or not, in the order in which a tensor has them."""

    values: FloatArray | IntArray
    error: float = 0.0  # by how much others may compute them otherwise, besides a share of each


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """The tensors that an architecture expects in a checkpoint, under the checkpoint's own names.

    dense:   name -> shape; each is required, and kept under its name.
    experts: alternative layouts of the expert weights (one tensor an expert, or fused ones). The first layout whose
             names are all present is taken. Each maps a source name to its shape and the pieces cut from it.
    parts:   the tensors of one expert block, in block order, with their shapes: matrices [rows, cols] named gate, up
             and down, then biases [rows].
    ignored: regular expressions (full match) of tensors that carry nothing for this architecture.
    copies:  name -> the dense tensor that it is the same as by config.json, as a tied head is the embedding. What a
             checkpoint has under such a name is compared with it: where the two differ, it is a tensor of its own.
    tied_head: the one of them that would make logits.
    follows: regular expressions of tensors that config.json says by itself, each with what gives the numbers that one
             of this name has, or the choices of them. `pull` refuses other ones.
    ahead:   the same of layers that predict further tokens (MTP), which are kept as they are; moeinf.models.mtp
             runs the first.
    whole:   name -> how many values its numbers have, of dense tensors of whole numbers from 0 on, kept in f32.
    vision:  name -> shape of the tensors that pictures alone need, which are kept as they are in a file of their own.
    matrices: the dense tensors that may be quantised, as only linear layers read them; the head is not among them.
    lookups: those of which rows are looked up (embeddings): unless one is the head too, it need not lie in memory.
    head:    (source name, stored name) of the matrix that makes logits; the source is the embedding where they are
             tied. A quantised head is stored under the stored name, unless the embedding is in its format, too.
    form:    what an expert computes with its parts.
    layer_forms: the same of MoE layers that clamp otherwise.
    cut:     dense tensors that some checkpoints have as rows of another matrix, which is quantised.
    renamed: regular expressions of what parts of names are called where transformers 5 saves tensors as it holds them,
             each with what the plan calls them instead; of those that match, the first is replaced.

    The plan says nothing of the other forms in which checkpoints are quantised: `pull` reads several tensors as the one
    matrix that they make (moeinf.pull.coded). `dense` and `experts` name the weights alone.
    """

    moe: MoeShape
    parts: Mapping[str, tuple[int, ...]]
    dense: Mapping[str, tuple[int, ...]]
    experts: Sequence[Mapping[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]]
    ignored: tuple[str, ...] = ()
    matrices: frozenset[str] = frozenset()
    lookups: frozenset[str] = frozenset()
    head: tuple[str, str] | None = None
    form: ExpertForm = ExpertForm()
    renamed: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[str, ...] = ()
    whole: Mapping[str, int] = field(default_factory=dict)
    vision: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    layer_forms: Mapping[int, ExpertForm] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    tied_head: str | None = None
    follows: Mapping[str, Callable[[str], Sequence[Expected]]] = field(default_factory=dict)
    cut: Mapping[str, RowsOf] = field(default_factory=dict)

    @property
    def scales(self) -> dict[str, str]:
        """Of MXFP4 sources of experts, as gpt-oss is shipped: the name of the blocks (uint8, [..., cols / 32, 16], the
        shape that `experts` has of them) and that of their scales (uint8, [..., cols / 32]), which no layout names.

        Pieces of blocks count weights, as if the source were [..., cols]; each of their parts has rows of whole blocks.
        """
        blocks = (name for layout in self.experts for name in layout if name.endswith("_blocks"))
        return {name: name.removesuffix("blocks") + "scales" for name in blocks}

    @property
    def forms(self) -> list[ExpertForm]:
        """Of each MoE layer, or one that all have."""
        if not self.layer_forms:
            return [self.form]
        return [self.layer_forms.get(layer, self.form) for layer in range(self.moe.num_layers)]

    @property
    def own_head(self) -> str | None:
        """What the matrix that makes logits is called where it is not the embedding."""
        return self.tied_head or (self.head and self.head[0])

    def is_ahead(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ahead)

    def owning(self, names: Collection[str]) -> TensorPlan:
        """The plan of a checkpoint in which these copies differ from what they would be copies of."""
        own = [name for name in self.copies if name in names]
        kept = [name for name in own if not self.is_ahead(name)]
        head = (self.own_head, self.head[1]) if self.head and self.own_head in kept else self.head
        return replace(
            self,
            dense={**self.dense} | {name: self.dense[self.copies[name]] for name in kept},
            copies={name: source for name, source in self.copies.items() if name not in own},
            lookups=self.lookups.union(name for name in kept if name != self.own_head),
            head=head,
        )


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What `show` and the memory plan need to know of a model that is not loaded."""

    architecture: str  # model_type of config.json
    num_params: int
    active_params: int  # that one token uses
    num_shared_experts: int
    context_length: int
    hidden_size: int
    num_layers: int  # of the decoder, with experts or without
    vocab_size: int
    kv_bytes_per_token: int
    dtype: DType  # of the dense weights, the activations and the KV cache
    state_bytes: int = 0  # that recurrent layers keep of a sequence of any length


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """How an encoder-decoder model takes its encoder input, and how it begins its answer."""

    start_id: int  # the first token of the decoder
    eos_id: int  # the last token of the encoder input
    encoder_layers: int  # how many of the MoE layers belong to the encoder; they come first, and decoding skips them
    languages: bool = (
        False  # the input begins with a token for its language, and the answer with one for the target language
    )


Phase = Literal["encode", "prefill", "decode"]  # of a request; only encoder-decoder models encode a source


class Spares(NamedTuple):
    """Whom a router would have chosen next, best first: ids int64 and weights float32, both [tokens, number].

    The weights are on the scale of the chosen ones. keeps_sum: whether those of a token are made to have a fixed sum.
    """

    ids: IntArray
    weights: Float32Array
    keeps_sum: bool


class Routing(NamedTuple):
    """The choice of the router of one MoE layer: ids int64 and weights float32, both [tokens, top_k]."""

    ids: IntArray
    weights: Float32Array
    spares: Spares | None = None  # where somebody asked for them, and the router knows any


class Copier(Protocol):
    """Copies from host to device memory on a stream of its own.

    Addresses are numbers. Tickets rise, and copies end in the order of their tickets. Called from one thread.
    """

    def register(self, memory: ByteArray, ends: IntArray, progress: Callable[[int], None] | None = None) -> int:
        """Pins memory whose blocks end there, ascending; bytes from its start up to where that was refused, or less.

        Every block that is pinned has one address for the device. progress(bytes so far) may raise to end it.
        """
        ...

    def device_address(self, address: int, num_bytes: int) -> int: ...  # of pinned memory; ValueError for other

    def copy(self, sources: IntArray, destinations: IntArray, num_bytes: IntArray, compute_stream: int) -> int:
        """Submits copies of so many bytes each, behind what compute_stream was given so far; returns their ticket.

        sources stay as they are until the ticket is done.
        """
        ...

    def make_wait(self, compute_stream: int, ticket: int) -> None:
        """What compute_stream is given from now on waits for the copies of the ticket. Does not block."""
        ...

    def done(self, ticket: int) -> bool: ...

    def wait(self, ticket: int) -> None: ...  # blocks until it is done

    def bytes_copied(self) -> int: ...

    def busy_seconds(self) -> float: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PictureStep:
    """One thing that is done to the pixels of a picture, which then has this height and width.

    It is resized by a filter, lies at row `top` and column `left` of a grey canvas, or is cut out from there on.
    """

    kind: Literal["bicubic", "bilinear", "lanczos", "pad", "cut"]
    height: int
    width: int
    top: int = 0
    left: int = 0
    grey: int = 0  # of a canvas, from black to 255


PictureView = tuple[PictureStep, ...]  # what is shown to a tower: all of a picture, or a part of it
PictureViews = tuple[tuple[PictureView, ...], ...]  # in rows

Message = JsonMapping  # {"role": "user", "content": "..."}; with tools as OpenAI has them
Tool = JsonMapping  # {"type": "function", "function": {"name": ..., "description": ..., "parameters": {...}}}


class Profiler:
    """A stopwatch that says where the time of a token goes; its laps add up to the whole by construction.

    A lap attributes the time since the previous one to a name, so nothing is counted twice or left out.

    It is not thread-safe: each running model has its own. A lap costs about 0.2 us.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._last = clock()
        self.seconds: dict[str, float] = {}

    def lap(self, name: str) -> float:
        """Ends the current lap under `name`; returns its seconds."""
        now = self.clock()
        elapsed = now - self._last
        self.seconds[name] = self.seconds.get(name, 0.0) + elapsed
        self._last = now
        return elapsed

    def restart(self) -> None:
        """Forgets the time since the last lap (between requests)."""
        self._last = self.clock()

    def snapshot(self) -> dict[str, float]:
        return dict(self.seconds)
