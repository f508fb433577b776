"""Where the tensors of a family's plan lie in a GGUF file, and what was done to them on the way there."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.gguf.gguf_names import ATTENTION, MAMBA, ROUTING_BIASES, is_named, layer_names, of_layer, outer_names
from moeinf.gguf.header import Gguf, GgufTensor
from moeinf.gguf.placement import DenseSource, ExpertSource, Placement
from moeinf.gguf.undo import (
    Columns,
    FillUp,
    JoinLatentHeads,
    Kind,
    Log,
    LogOfNegative,
    Numbers,
    Ones,
    Reshape,
    Rows,
    SideBySide,
    Stack,
    Subtract,
    TakeRows,
    Undo,
    Widen,
    outcome,
)
from moeinf.gguf.unread_tensors import refuse_leftovers
from moeinf.types import TensorPlan, format_bytes

# Whose converter puts the two halves of each head between each other.
_ROTATED = {
    *("llama", "granite", "granitemoe", "arctic", "granitehybrid", "granite_swa", "nemotron_h_moe", "bailingmoe"),
    *("smollm3", "deepseek", "minicpm"),
}
_PLUS_ONE = {
    "gemma",
    "gemma2",
    "gemma3",
    "qwen3next",
    "qwen35moe",
    "qwen4exp",
    "step35",
    "minimax-m3",
}  # whose norms are stored with one added


def places_of(gguf: Gguf, plan: TensorPlan) -> Placement:
    """Raises CheckpointError for a tensor that is missing, is not of the shape that the config says, or is left.

    What an adapter has changed (`gguf.merged`) comes from there instead.
    """
    found = Placement(_Dense(gguf, plan).places(), _experts(gguf, plan))
    refuse_leftovers(gguf, found.tensors())
    return found.with_merged(gguf.merged) if gguf.merged else found


def some_places_of(gguf: Gguf, plan: TensorPlan) -> Placement:
    """As `places_of`, of a file with some of the tensors: those that are missing or do not fit are left out."""
    dense, layers = _Dense(gguf, plan), _decoder_layers(plan)
    found = dict[str, DenseSource]()
    for name in filter(is_named, plan.dense):
        with suppress(CheckpointError, UnsupportedModelError):
            found[name] = dense.place(name)
    experts = tuple[dict[str, ExpertSource], ...]({} for _ in range(plan.moe.num_layers))
    for layer, parts in enumerate(experts):
        for part in plan.parts:
            with suppress(CheckpointError, UnsupportedModelError):
                parts[part] = _expert(gguf, plan, layers[layer], layer, part)
    return Placement(found, experts)


def _find(gguf: Gguf, names: list[str]) -> GgufTensor:
    for name in names:
        if name in gguf.tensors:
            return gguf.tensors[name]
    raise CheckpointError(
        f"{gguf.where} has no tensor {names[0]!r}, which its metadata mean; take a file of a newer llama.cpp, or pull "
        "the checkpoint that it was made from"
    )


def _scale(gguf: Gguf, tensor: GgufTensor, count: int) -> GgufTensor | None:
    """The factor, or one for each expert, that llama.cpp multiplies products with a tensor by; NVFP4 has it."""
    of_a_norm = tensor.name.endswith(".ffn_gate_inp.weight") and gguf.metadata.get("general.architecture") == "gemma4"
    if not tensor.name.endswith(".weight") or of_a_norm:
        return None
    found = gguf.tensors.get(re.sub(r"\.weight$", ".scale", tensor.name))
    if found is not None and (found.format, found.shape) != ("f32", (count,)):
        raise CheckpointError(f"{gguf.where}: tensor {found.name!r} is {found.format} {list(found.shape)}; is damaged")
    return found


# ---- experts


def _experts(gguf: Gguf, plan: TensorPlan) -> tuple[Mapping[str, ExpertSource], ...]:
    layers = _decoder_layers(plan)
    return tuple(
        {part: _expert(gguf, plan, layers[layer], layer, part) for part in plan.parts}
        for layer in range(plan.moe.num_layers)
    )


def _decoder_layers(plan: TensorPlan) -> dict[int, int]:
    """By the number of a MoE layer: that of the decoder layer."""
    numbers: dict[int, int] = {}
    for name, (_, pieces) in plan.experts[0].items():
        found = of_layer(name)
        assert found is not None, f"{name} is of no layer"
        for piece in pieces:
            numbers[piece.layer] = found[0]
    return numbers


def _expert(gguf: Gguf, plan: TensorPlan, layer: int, moe_layer: int, part: str) -> ExpertSource:
    shape, experts, gated = plan.parts[part], plan.moe.experts_of(moe_layer), "gate" in plan.parts
    which, biased = part.removesuffix("_bias"), part.endswith("_bias")
    end = "bias" if biased else "weight"
    alone = experts == 1 and f"blk.{layer}.ffn_down.weight" in gguf.tensors  # the MLP of a dense layer
    kind = "" if alone else "_exps"
    fused = "ffn_gate_up_exps"
    if alone and gated and f"blk.{layer}.ffn_gate.weight" not in gguf.tensors:
        fused = "ffn_up"
    tensor = gguf.tensors.get(f"blk.{layer}.{fused}.{end}") if which != "down" else None
    whole = shape if tensor is None else (2 * shape[0], *shape[1:])  # gate's rows, then up's
    if tensor is None and f"blk.{layer}.ffn_{which}.0.{end}" in gguf.tensors:
        return _apart(gguf, [f"blk.{layer}.ffn_{which}.{expert}.{end}" for expert in range(experts)], shape)
    if tensor is None:
        tensor = _find(gguf, [f"blk.{layer}.ffn_{which}{kind}.{end}"])
    meant = whole if alone else (experts, *whole)
    if tensor.shape != meant or tensor.format == "i32":
        raise CheckpointError(
            f"{gguf.where}: tensor {tensor.name!r} is {tensor.format} of the shape {list(tensor.shape)}, "
            f"its metadata mean {list(meant)}; the file is damaged"
        )
    num_bytes, stride = format_bytes(tensor.format, shape), format_bytes(tensor.format, whole)
    begin = tensor.offset_bytes + (stride - num_bytes if which == "up" else 0)
    scale = _scale(gguf, tensor, experts)
    return ExpertSource(tensor, tensor.format, shape, begin, num_bytes, stride, scale)


def _apart(gguf: Gguf, names: Sequence[str], shape: tuple[int, ...]) -> ExpertSource:
    """A part of experts which have a tensor each, as llama.cpp wrote them before April 2024 (its pull request 6387)."""
    first, *others = [_find(gguf, [name]) for name in names]
    alike = all((each.file, each.format, each.shape) == (first.file, first.format, shape) for each in others)
    steps = {b.offset_bytes - a.offset_bytes for a, b in pairwise([first, *others])} or {0}
    if first.shape != shape or not alike or len(steps) > 1 or min(steps) < 0:
        raise UnsupportedModelError(
            f"{gguf.where}: experts of {names[0]!r} have tensors of their own, as before April 2024, and do not lie in "
            "equal steps; take a newer file of the model, or pull the checkpoint"
        )
    num_bytes = format_bytes(first.format, shape)
    return ExpertSource(
        first, first.format, shape, first.offset_bytes, num_bytes, max(steps) or num_bytes, None, tuple(others)
    )


# ---- dense tensors


class _Dense:
    def __init__(self, gguf: Gguf, plan: TensorPlan) -> None:
        self._gguf, self._plan = gguf, plan
        self._in_blocks = {*plan.matrices, *plan.lookups, *(plan.head or ())}  # what may be quantised
        self._multiplied = {*plan.matrices, *(plan.head or ())} - plan.lookups  # by nothing but matrix products
        architecture = gguf.metadata.get("general.architecture")
        self._architecture = architecture if isinstance(architecture, str) else ""

    def places(self) -> dict[str, DenseSource]:
        return {name: self.place(name) for name in self._plan.dense}

    def place(self, name: str) -> DenseSource:
        layer, shape = of_layer(name), self._plan.dense[name]
        if layer is None:
            undo = _of_score(name, shape) or self._norm(name)
            return self._checked(name, (_find(self._gguf, outer_names(name)),), shape, undo)
        number, rest = layer
        if rest.endswith(".kv_b_proj.weight") and f"blk.{number}.attn_k_b.weight" in self._gguf.tensors:
            halves = tuple(_find(self._gguf, [f"blk.{number}.attn_{half}_b.weight"]) for half in "kv")
            return self._checked(name, halves, shape, (JoinLatentHeads(),))
        if rest == "shared_mlp.input_linear.weight" and f"blk.{number}.ffn_gate_shexp.weight" in self._gguf.tensors:
            halves = tuple(_find(self._gguf, [f"blk.{number}.ffn_{half}_shexp.weight"]) for half in ("gate", "up"))
            return self._checked(name, halves, shape, (Stack(),))
        if rest == "self_attn.indexer.index_qk_proj.weight":
            halves = tuple(_find(self._gguf, [f"blk.{number}.indexer.{half}_proj.weight"]) for half in "qk")
            return self._checked(name, halves, shape, (Stack(),))
        if (taken := self._of_fused(number, name, rest, shape)) is not None:
            return self._checked(name, *taken)
        if name in self._plan.whole:
            tensor = _find(self._gguf, layer_names(number, rest, self._architecture))
            return self._checked(name, (tensor,), shape, (Numbers(self._plan.whole[name]),))
        if rest.startswith("ple.ple_embedding."):  # of which there is one, as it lies
            return self._checked(name, (_find(self._gguf, ["per_layer_token_embd.weight"]),), shape, ())
        tensor = _find(self._gguf, layer_names(number, rest, self._architecture))
        return self._checked(name, (tensor,), shape, self._undo(rest, tensor, shape))

    def _of_fused(
        self, layer: int, name: str, rest: str, shape: tuple[int, ...]
    ) -> tuple[tuple[GgufTensor], tuple[int, ...], Undo] | None:
        """Queries, keys or values that lie in one tensor, one behind the other."""
        found = re.fullmatch(r"self_attn\.([qkv])_proj\.(weight|bias)", rest)
        tensor = None if found is None else self._gguf.tensors.get(f"blk.{layer}.attn_qkv.{found[2]}")
        if found is None or tensor is None:
            return None
        whole = [f"{name.removesuffix(rest)}self_attn.{each}_proj.{found[2]}" for each in "qkv"]
        rows = [self._plan.dense.get(each, (0,))[0] for each in whole]
        if tensor.shape[0] != sum(rows):
            raise CheckpointError(
                f"{self._gguf.where}: tensor {tensor.name!r} has {tensor.shape[0]} rows, its metadata mean {rows} of "
                "queries, keys and values; the file is damaged"
            )
        return (tensor,), shape, (TakeRows(sum(rows[: "qkv".index(found[1])]), shape[0]),)

    def _checked(self, name: str, tensors: tuple[GgufTensor, ...], shape: tuple[int, ...], undo: Undo) -> DenseSource:
        """Widened or as it lies, what comes out has to be what the plan wants."""
        kind = outcome([Kind(tensor.format, tensor.shape) for tensor in tensors], undo)
        if kind is None or kind.shape != shape or kind.format == "i32":
            said = " and ".join(f"{each.name!r} ({each.format}, {list(each.shape)})" for each in tensors)
            raise CheckpointError(
                f"{self._gguf.where}: tensor {said} cannot be {name} {list(shape)}, which the metadata mean; "
                "the file is damaged"
            )
        if name not in self._in_blocks and not kind.plain:
            undo = (*undo, Widen())
        scale = next((found for each in tensors if (found := _scale(self._gguf, each, 1))), None)
        if scale is not None and (len(tensors) > 1 or name not in self._multiplied):
            raise UnsupportedModelError(
                f"{self._gguf.where}: tensor {scale.name!r} scales {name}, which is computed without; "
                "take a file of another quantisation"
            )
        return DenseSource(tensors, shape, undo, scale)

    def _norm(self, rest: str) -> Undo:
        plus_one = re.search(r"norm(_key|_query|_conv)?\.weight$", rest) and "linear_attn" not in rest
        return (Subtract(1.0),) if plus_one and self._architecture in _PLUS_ONE else ()

    def _undo(self, rest: str, tensor: GgufTensor, shape: tuple[int, ...]) -> Undo:
        if rest.startswith("linear_attn."):
            return self._delta(rest.removeprefix("linear_attn."), tensor, shape)
        if ".chunk_experts." in rest:
            return (SideBySide() if ".down_proj." in rest else Reshape(shape),)
        if rest.endswith(".A_log"):
            into = FillUp(shape[0]) if self._architecture == "kimi-k3" else Reshape(shape)
            return (Log() if self._architecture == "bailingmoe3" else LogOfNegative(), into)
        if re.fullmatch(MAMBA + r"(D|norm\.weight|[qkv]?_?conv1d\.weight)|(conv\.conv|ple\.conv1d)\.weight", rest):
            return (Reshape(shape),)
        if re.fullmatch(ATTENTION + r"[qk]_proj\.(weight|bias)", rest) and self._architecture in _ROTATED:
            return self._halves(rest, tensor)
        one_row = rest == "mlp.shared_expert_gate.weight" or re.fullmatch(ROUTING_BIASES, rest) is not None
        if one_row and tensor.shape != shape:
            return (Reshape(shape),)
        return _of_score(rest, shape) or self._norm(rest)

    def _halves(self, rest: str, tensor: GgufTensor) -> Undo:
        heads = self._number("attention.head_count")
        if re.match(ATTENTION + "k_", rest):
            heads = self._number("attention.head_count_kv", heads)
        half = tensor.shape[0] // heads // 2
        return (Rows(0, (heads, half, 2), (0, 2, 1)),)

    def _delta(self, rest: str, tensor: GgufTensor, shape: tuple[int, ...]) -> Undo:
        """Gated DeltaNet. Qwen3.5 lies with the values' heads in turn of the keys' instead of one key's together."""
        keys, values = self._number("ssm.group_count"), self._number("ssm.time_step_rank")
        each, value_dim = values // keys, self._number("ssm.inner_size") // values
        if tensor.name.endswith(".ssm_ba.weight") and rest in ("in_proj_b.weight", "in_proj_a.weight"):
            apart = Rows(0, (keys, 2, each), (1, 0, 2))  # of each key's head the rates, then the decays
            return (apart, TakeRows(values if rest == "in_proj_a.weight" else 0, values))
        turned: Undo = ()
        if self._architecture in ("qwen35moe", "qwen4exp") and each > 1:
            heads, in_turn = (each, keys), (1, 0)
            if rest in ("in_proj_b.weight", "in_proj_a.weight", "A_log", "dt_bias"):
                turned = (Rows(0, heads, in_turn),)
            elif rest == "in_proj_z.weight":
                turned = (Rows(0, (*heads, value_dim), (*in_turn, 2)),)
            elif rest in ("in_proj_qkv.weight", "conv1d.weight"):
                before = 2 * keys * self._number("ssm.state_size")
                turned = (Rows(before, (*heads, value_dim), (*in_turn, 2)),)
            elif rest == "out_proj.weight":
                turned = (Columns((*heads, value_dim), (*in_turn, 2)),)
        if rest == "A_log":
            return (*turned, LogOfNegative())
        if rest == "conv1d.weight":
            return (*turned, Reshape(shape))
        return turned

    def _number(self, name: str, default: int = 0) -> int:
        """Of metadata that `config_of` has read already."""
        value = self._gguf.metadata.get(f"{self._architecture}.{name}", default)
        if isinstance(value, list | array):  # of each layer; those without attention have none
            value = max(value, default=0)
        if type(value) is not int or not value:
            raise CheckpointError(
                f"{self._gguf.where}: {self._architecture}.{name} is {value!r:.50}; the file is damaged"
            )
        return value


def _of_score(name: str, shape: tuple[int, ...]) -> Undo:
    """Of a norm and a projection, whose product alone is stored."""
    if name.endswith("_res_norm.weight"):
        return (Ones(),)
    return (Reshape(shape),) if name.endswith("_res_proj.weight") else ()
