"""The tensors of a checkpoint by name: where each lies, what it holds, and which others belong to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.pull.checkpoint.layout import INTEGERS
from moeinf.pull.checkpoint.tensor_names import Names
from moeinf.pull.coded.declared import Declared
from moeinf.pull.coded.find import belonging, codes_of, is_of_activations, scheme_of, stale_codings
from moeinf.pull.coded.scheme import Scheme
from moeinf.pull.source import INDEX_FILE, RANK_FILE, Shards
from moeinf.store.format import STORE_DTYPES, Header, TensorEntry
from moeinf.types import DType, Format, TensorPlan


class Tensors:
    """Every tensor of a checkpoint, by the plan's name for it.

    A matrix of the plan may be coded, made of several tensors, of which none need have its name.
    """

    def __init__(self, shards: Shards, headers: Mapping[str, Header], plan: TensorPlan, declared: Declared) -> None:
        """headers: of each file in shards.

        Raises CheckpointError for a tensor that is in two shards of which the index names neither.
        """
        self._mxfp4, self._whole, self._head = plan.scales, plan.whole, plan.own_head
        self._declared = declared
        self._schemes: dict[str, Scheme] = {}
        self._names = Names({name for shard in shards.files for name in headers[shard]}, plan)
        self._found: dict[str, tuple[str, TensorEntry]] = {}
        self._stored_names: dict[str, str] = {}
        self.shares: dict[str, dict[int, str]] = {}  # of matrices that were split: by rank, the tensor with its share
        for shard in shards.files:
            for stored, entry in headers[shard].items():
                self._add(stored, shard, entry, shards.weight_map or {})
        if index := shards.weight_map:
            unnamed = {name for name, stored in self._stored_names.items() if stored not in index}
            for stale in stale_codings(self, unnamed):
                del self._found[stale], self._stored_names[stale]
        self._check_copies(shards.weight_map or {}, plan.copies)
        for copy, source in plan.copies.items():
            if source not in self._found and copy in self._found and not plan.is_ahead(copy):
                self._found[source] = self._found.pop(copy)  # one matrix, under either of its names
        self.cut = {name: rows for name, rows in plan.cut.items() if name not in self and rows.name in self}
        self._shares = {each: len(rows) for name, (whole, rows) in plan.cut.items() for each in (name, whole)}

    def _check_copies(self, weight_map: Mapping[str, str], copies: Mapping[str, str]) -> None:
        """A tensor that the index promises is not taken for a copy because its shard lacks it."""
        for stored, shard in weight_map.items():
            name = self._names(stored)
            if name in copies and name not in self._found:
                raise CheckpointError(
                    f"{shard} lacks tensor {stored!r}, which {INDEX_FILE} puts there; "
                    "fetch the index and its files again"
                )

    def _add(self, stored: str, shard: str, entry: TensorEntry, weight_map: Mapping[str, str]) -> None:
        """Of two copies of a tensor the one counts that the index names."""
        name, rank = self._names(stored), RANK_FILE.fullmatch(shard)
        if rank is not None and rank[1].isdigit():
            whole, number = name, int(rank[1])
            name = f"{name} of rank {number}" if number else name
            self.shares.setdefault(whole, {})[number] = name
        if name in self._found:
            other, named = self._found[name][0], weight_map.get(stored)
            if self._stored_names[name] != stored or named not in (shard, other):
                again = "" if self._stored_names[name] == stored else f" as {self._stored_names[name]!r}"
                raise CheckpointError(
                    f"{shard}: tensor {stored!r} is also in {other}{again}, and {INDEX_FILE} does not say which "
                    "counts; remove one of the two"
                )
            if named == other:
                return
        self._found[name], self._stored_names[name] = (shard, entry), stored

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor or coded matrix."""
        return codes_of(self, name) is not None

    @property
    def remark(self) -> str:
        """What to know about the prefix of names where a tensor is missing."""
        return self._names.remark

    def stored_name(self, name: str) -> str:
        """What the checkpoint calls a tensor."""
        return self._stored_names.get(name, name)

    def names(self) -> Collection[str]:
        return self._found.keys()

    def found(self, name: str) -> tuple[str, TensorEntry] | None:
        return self._found.get(name)

    def scheme(self, name: str) -> Scheme | None:
        """Returns how a matrix is coded that `check_shape` has passed; None where it is one tensor."""
        return self._schemes.get(name)

    def shard(self, name: str) -> str:
        """Returns the file of a tensor, or of the codes of a matrix."""
        return self._found[codes_of(self, name) or name][0]

    def shard_of(self, name: str) -> str:
        """Returns the file of a tensor that is one, whatever it may be a part of."""
        return self._found[name][0]

    def entry(self, name: str) -> TensorEntry:
        return self._found[name][1]

    def is_empty(self, name: str) -> bool:
        """Whether it has no numbers, as the matrices of shared experts that a model has none of."""
        return 0 in self.entry(name).shape

    def dtype_text(self, name: str) -> str:
        """What a tensor or matrix is in, for messages."""
        scheme = self.scheme(name)
        return scheme.words if scheme else self.entry(name).dtype

    def is_mxfp4(self, name: str) -> bool:
        """Whether a tensor has blocks of MXFP4 with their scales apart, as in gpt-oss."""
        return name in self._mxfp4

    def values_of(self, name: str) -> int | None:
        """How many values the numbers of a tensor have; None for one that is not of a type of whole numbers."""
        return self._whole.get(name) if self.entry(name).dtype in INTEGERS else None

    def format(self, name: str) -> Format | None:
        """Returns the format in which a tensor is stored unless another is wanted; None for one that is not read."""
        scheme = self.scheme(name)
        if scheme is not None:
            return scheme.kept
        entry = self.entry(name)
        if self.is_mxfp4(name):
            return "mxfp4" if entry.dtype == "U8" else None
        if self.values_of(name):
            return "f32"
        return STORE_DTYPES.get(entry.dtype)

    def dtype(self, name: str) -> DType:
        """Returns the type of a tensor of floating numbers, which `check_readable` and `check_shape` have passed."""
        scheme = self.scheme(name)
        if scheme is not None:
            return scheme.plain
        return "f32" if self.values_of(name) else STORE_DTYPES[self.entry(name).dtype]

    def scales_of(self, name: str) -> str:
        """Returns the name of the tensor with the scales of MXFP4 blocks, whether that is there or not."""
        return self._mxfp4[name]

    def claimed_by(self, names: Collection[str]) -> set[str]:
        """Returns the tensors that by their names are parts of these matrices, or say how to compute with them."""
        claimed = {scales for name, scales in self._mxfp4.items() if name in names and name in self._found}
        for name in names:
            claimed.update(belonging(self, name))
        return claimed | {name for name in self._found if name not in names and is_of_activations(name)}

    def used(self) -> set[str]:
        """Returns the tensors that coded matrices and MXFP4 blocks are made of, once `check_shape` has passed them."""
        used = {scales for name, scales in self._mxfp4.items() if name in self._found}
        for scheme in self._schemes.values():
            used.update((scheme.codes, *scheme.others))
        return used

    def zero_biases(self, wanted: Collection[str]) -> list[str]:
        """Returns biases that GPTQ and AWQ give to layers that have none by their architecture."""
        packed = (scheme.codes for scheme in self._schemes.values() if scheme.codes.endswith("qweight"))
        biases = (codes.removesuffix("qweight") + "bias" for codes in packed)
        return [name for name in biases if name in self._found and name not in wanted]

    def check_readable(self, name: str) -> None:
        """Raises UnsupportedModelError for a tensor of a type that is not converted."""
        if name in self._whole and not self.values_of(name):
            shard, entry = self._found[name]
            known = " or ".join(INTEGERS)
            raise UnsupportedModelError(f"{shard}: tensor {name!r} has dtype {entry.dtype}, must be {known}")
        if self.format(name) is None:
            shard, entry = self._found[name]
            raise UnsupportedModelError(
                f"{shard}: tensor {name!r} has dtype {entry.dtype}; moeinf converts bf16, f16 and f32, and the "
                "quantised forms of docs/formats.md, so pull the unquantised original"
            )

    def check_shape(self, name: str, shape: tuple[int, ...]) -> None:
        """Raises CheckpointError unless the tensor is there in this shape, and what belongs to it.

        Raises UnsupportedModelError where it is coded in a way that moeinf does not read.
        """
        shares = self._shares.get(name, 1)
        scheme = None if self.is_mxfp4(name) else scheme_of(self, name, shape, self._declared, shares)
        if scheme is not None:
            self._schemes[name] = scheme
            return
        self._check(name, shape, "config.json implies")
        self.check_readable(name)
        if self.is_mxfp4(name):
            scales = self.scales_of(name)
            self._check(scales, shape[:-1], f"{name!r} implies")
            if self.entry(scales).dtype != "U8":
                raise UnsupportedModelError(
                    f"{self.shard(scales)}: tensor {scales!r} has dtype {self.entry(scales).dtype}, no form of scales"
                )

    def _check(self, name: str, shape: tuple[int, ...], reason: str) -> None:
        if name not in self._found:
            tied = (
                ", or let config.json say tie_word_embeddings if the embedding is the head"
                if name == self._head
                else ""
            )
            raise CheckpointError(f"the checkpoint lacks tensor {name!r}{self.remark}; fetch it again{tied}")
        shard, entry = self._found[name]
        if entry.shape != shape:
            raise CheckpointError(f"{shard}: tensor {name!r} has shape {list(entry.shape)}, {reason} {list(shape)}")
