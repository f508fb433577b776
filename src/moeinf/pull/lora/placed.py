"""Which elements of a checkpoint's tensors an adapter changes, whatever names and shapes each of the two has.

PEFT names what it adapts as transformers holds a model: with one tensor for all experts of a layer, or one for each.
The checkpoint may have the other form. The plan of the family knows the pieces of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from moeinf.errors import UnsupportedModelError
from moeinf.pull.checkpoint.layout import View
from moeinf.pull.checkpoint.tensor_names import Names
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.lora.adapter import Adapter, LowRank, module_of
from moeinf.store.format import STORE_DTYPES, TensorEntry
from moeinf.types import ExpertPiece, TensorPlan


@dataclass(frozen=True, slots=True)
class Update:
    """What is added to the elements of one view of a stored tensor: rows and columns of one product of an adapter."""

    change: LowRank
    view: View
    scale: float
    expert: int = 0
    experts: int = 1
    inputs_first: bool = False  # the product is (B A) transposed, as in an embedding, or experts stored [in, out]
    turned: bool = False  # what lies in the view is the product transposed once more
    rows: slice | None = None  # of that; None for all
    cols: slice | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """By the name of a stored tensor."""

    updates: Mapping[str, tuple[Update, ...]]
    replaced: Mapping[str, TensorEntry]

    def __contains__(self, name: str) -> bool:
        return name in self.updates or name in self.replaced


@dataclass(frozen=True, slots=True)
class _Target:
    """A tensor that an adapter means: a matrix, or one for each expert."""

    name: str
    experts: int
    rows: int
    cols: int
    inputs_first: bool

    @property
    def size(self) -> int:
        return self.rows * self.cols


def placed(adapter: Adapter, tensors: Tensors, plan: TensorPlan) -> Placed:
    """Raises UnsupportedModelError naming the first module or tensor that the checkpoint has no place for."""
    places = _Places(adapter, tensors, plan)
    updates: dict[str, list[Update]] = {}
    for change in adapter.changes:
        for name, update in places.updates(change):
            updates.setdefault(tensors.stored_name(name), []).append(update)
    replaced = {tensors.stored_name(places.whole(name, entry)): entry for name, entry in adapter.replaced.items()}
    return Placed({name: tuple(each) for name, each in updates.items()}, replaced)


class _Places:
    def __init__(self, adapter: Adapter, tensors: Tensors, plan: TensorPlan) -> None:
        self._adapter, self._tensors, self._plan = adapter, tensors, plan
        names = [f"{module_of(change)}.weight" for change in adapter.changes]
        self._names = Names([*names, *adapter.replaced], plan)
        self._pieces: dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]] = {}
        for layout in plan.experts:
            for name, found in layout.items():
                self._pieces.setdefault(name, found)
        stored = max(plan.experts, key=lambda layout: sum(name in tensors for name in layout) / len(layout))
        self._stored = {
            (piece.layer, piece.expert, piece.part): (name, piece)
            for name, (_, pieces) in stored.items()
            if name in tensors
            for piece in pieces
        }

    def updates(self, change: LowRank) -> Iterator[tuple[str, Update]]:
        """What a change means for the tensors of the checkpoint, by the plan's names for them."""
        target, scale = self._target(change)
        found = self._tensors.found(target.name)
        if found is not None or target.name not in self._pieces:
            self._check_plain(target.name, (target.experts, target.rows, target.cols))
            shape, strides = (target.rows, target.cols), (target.cols, 1)
            for expert in range(target.experts):
                view = View(expert * target.size, shape, strides)
                yield target.name, Update(change, view, scale, expert, target.experts, target.inputs_first)
            return
        for piece in self._pieces[target.name][1]:
            if len(self._plan.parts[piece.part]) == 2:
                yield self._of_piece(change, target, piece, scale)

    def whole(self, name: str, entry: TensorEntry) -> str:
        """The stored tensor, by the plan's name for it, that a tensor of the adapter takes the place of."""
        known = self._names(name)
        self._check_untied(known)
        found = self._tensors.found(known)
        if found is None:
            raise self._no_place(name)
        if found[1].shape != entry.shape:
            raise UnsupportedModelError(
                f"{self._adapter.where} has {name!r} in shape {list(entry.shape)}, the checkpoint in "
                f"{list(found[1].shape)}; merge it with PEFT (merge_and_unload), save the model, and pull that"
            )
        self._check_plain(known, entry.shape)
        return known

    def _of_piece(self, change: LowRank, target: _Target, piece: ExpertPiece, scale: float) -> tuple[str, Update]:
        """The share of one part of one expert, where the checkpoint has another form than the adapter means."""
        if change.magnitude is not None:
            raise self._no_place(change.module)
        place = self._stored.get((piece.layer, piece.expert, piece.part))
        if place is None:
            raise self._no_place(change.module)
        name, there = place
        shape = there.filled or self._plan.parts[piece.part]
        expert, start = divmod(piece.start_element, target.size)
        (row, col), (down, right) = divmod(start, target.cols), piece.strides_of(shape)
        turned = right != 1
        if turned:
            row, col, down, right = col, row, down, right // target.cols
        else:
            down //= target.cols
        rows, cols = slice(row, row + shape[0] * down, down), slice(col, col + shape[1] * right, right)
        self._check_plain(name, None)
        view = View(there.start_element, shape, there.strides_of(shape))
        return name, Update(change, view, scale, expert, target.experts, target.inputs_first, turned, rows, cols)

    def _target(self, change: LowRank) -> tuple[_Target, float]:
        """The tensor that a change means, and the scale of the change."""
        module, adapter = module_of(change), self._adapter
        name = self._names(f"{module}.weight")
        shape = self._shape(name)
        if shape is not None:
            self._check_untied(name)
            target = _Target(name, 1, *self._matrix(change, shape), inputs_first=change.of_embedding)
            rank = change.a.shape[0]
            if adapter.rank(module) == rank == change.b.shape[1] and _products(change, target, rank):
                return target, adapter.scale(module)
            raise self._other_shape(change, name, shape)
        found = [
            (target, adapter.scale(f"{module}.{parameter}"))
            for parameter in sorted({each.rpartition(".")[2] for each in adapter.parameters})
            for target in self._parameters(change, f"{module}.{parameter}")
        ]
        if len(found) > 1 and len({target.name for target, _ in found}) == 1:
            found = [each for each in found if each[0].inputs_first == self._inputs_first(module)]
        if len(found) != 1:
            raise self._no_place(change.module)
        return found[0]

    def _parameters(self, change: LowRank, parameter: str) -> Iterator[_Target]:
        """Stacks of matrices of this name that the change fits, stored one way or the other."""
        shape, rank = self._shape(name := self._names(parameter)), self._adapter.rank(parameter)
        if shape is None or len(shape) != 3 or change.a.shape[0] != rank * shape[0]:
            return
        for inputs_first in (False, True):
            target = _Target(name, *shape, inputs_first=inputs_first)
            if _products(change, target, rank):
                yield target

    def _inputs_first(self, module: str) -> bool:
        """Whether experts are stored [in, out], which matrices that are square do not tell, but others beside them."""
        changes = [each for each in self._adapter.changes if module_of(each) == module]
        names = {each.rpartition(".")[2] for each in self._adapter.parameters}
        fits = [
            {target.inputs_first for target in self._parameters(change, f"{module}.{name}")}
            for change in changes
            for name in names
        ]
        return {True} in fits

    def _shape(self, name: str) -> tuple[int, ...] | None:
        if name in self._plan.dense:
            return self._plan.dense[name]
        if name in self._pieces:
            return self._pieces[name][0]
        found = self._tensors.found(name)
        return found[1].shape if found else self._plan.dense.get(self._plan.copies.get(name, ""))

    def _matrix(self, change: LowRank, shape: tuple[int, ...]) -> tuple[int, int]:
        if len(shape) != 2:
            raise self._no_place(change.module)
        return shape[0], shape[1]

    def _check_untied(self, name: str) -> None:
        """Raises UnsupportedModelError for one of two matrices that are one in the checkpoint."""
        copies = self._plan.copies
        tied = [name, copies[name]] if name in copies else [name, *(copy for copy in copies if copies[copy] == name)]
        if len(tied) > 1 and not all(self._tensors.found(each) for each in tied):
            raise UnsupportedModelError(
                f"{self._adapter.where} changes {name!r}, which is one matrix with {tied[1]!r} in the checkpoint: "
                "untie them with PEFT, save the model, and pull that"
            )

    def _check_plain(self, name: str, shape: tuple[int, ...] | None) -> None:
        """Raises UnsupportedModelError for a tensor that is missing, quantised, or of another size."""
        found = self._tensors.found(name)
        if found is None or found[1].dtype not in STORE_DTYPES:
            dtype = found[1].dtype if found else "quantised"
            raise UnsupportedModelError(
                f"{self._adapter.where} changes {name!r}, which the checkpoint has as {dtype}; an adapter is merged "
                "into weights in bf16, f16 or f32: pull the unquantised original"
            )
        if shape is not None and math.prod(found[1].shape) != math.prod(shape):
            raise UnsupportedModelError(
                f"{self._adapter.where} changes {name!r} as {list(shape)}, the checkpoint has {list(found[1].shape)}"
            )

    def _no_place(self, name: str) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self._adapter.where} changes {name!r}, for which the checkpoint has no tensor that moeinf could change; "
            "check that the adapter is of this model, or merge it with PEFT (merge_and_unload)"
        )

    def _other_shape(self, change: LowRank, name: str, shape: tuple[int, ...]) -> UnsupportedModelError:
        return UnsupportedModelError(
            f"{self._adapter.where}: A {list(change.a.shape)} and B {list(change.b.shape)} of {change.module!r} do not "
            f"fit {name!r}, which is {list(shape)}; check that the adapter is of this model"
        )


def _products(change: LowRank, target: _Target, rank: int) -> bool:
    """Whether the product of one expert has the shape of its matrix."""
    out, into = (target.cols, target.rows) if target.inputs_first else (target.rows, target.cols)
    a, b = change.a.shape, change.b.shape
    return a == (rank * target.experts, into) and b == (out, rank * target.experts)
