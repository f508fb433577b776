"""Plans a conversion: compares a checkpoint's tensors with the family's plan, and decides which bytes go where."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from moeinf.errors import CheckpointError, UnsupportedModelError
from moeinf.models.pruned import routers_of
from moeinf.pull.checkpoint.moves import (
    AHEAD,
    VISION,
    Move,
    dense_move,
    expert_moves,
    followed,
    joined_move,
    kept_move,
    left_out,
    rows_moves,
)
from moeinf.pull.checkpoint.tensors import Tensors
from moeinf.pull.coded.blocks import Kind, Losses, lines, loss_kind
from moeinf.pull.coded.declared import NOTHING, Declared
from moeinf.pull.coded.find import is_of_activations
from moeinf.pull.coded.scheme import Scheme
from moeinf.pull.source import Shards
from moeinf.store.format import (
    AHEAD_FILE,
    DENSE_FILE,
    STORE_DTYPES,
    VISION_FILE,
    BlockTensor,
    Header,
    dense_header,
    expert_layout,
    is_quantised,
    raw_header,
    shard_file,
)
from moeinf.store.manifest import StoredFormats
from moeinf.store.quantisation import KEEP, DenseTensor, FormatPlan, Quantisation, dense_tensors_of, expert_formats
from moeinf.types import DTYPE_BYTES, DType, ExpertLayout, ExpertPiece, Format, MoeShape, TensorPlan, TensorSpec

ExpertNames = Mapping[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of tensors that stay as they are; empty where there are none."""

    head: bytes
    num_bytes: int  # with its head
    places: Mapping[str, int]  # where in it each tensor begins

    @staticmethod
    def of(tensors: Tensors, names: Sequence[str]) -> KeptFile:
        entries = {name: tensors.entry(name) for name in names}
        head, places = raw_header(entries) if entries else (b"", {})
        return KeptFile(head, len(head) + sum(entry.num_bytes for entry in entries.values()), places)


@dataclass(frozen=True, slots=True)
class Conversion:
    """What is to be written, known before the first byte of weights is read."""

    moe: MoeShape
    layout: ExpertLayout
    dtype: DType  # of most bytes of the dense tensors, before any was quantised
    formats: StoredFormats
    dense: tuple[TensorSpec, ...]  # the tensors of the dense file, in its order
    dense_head: bytes
    dense_bytes: int  # of the dense file with its head
    ahead: KeptFile  # layers that predict further tokens
    vision: KeptFile  # the tower that sees pictures
    moves: Mapping[str, tuple[Move, ...]]  # by source shard, in order of source_offset
    others: Mapping[str, frozenset[str]]  # by source shard: those in which scales of its weights lie
    kinds: Mapping[str, Kind]  # of coded matrices, under what their losses are counted as

    def with_losses(self, losses: Losses) -> Conversion:
        """Returns what was planned, with the figures of what was lost."""
        planned = set(lines(self.kinds, None))
        fallbacks = (*(line for line in self.formats.fallbacks if line not in planned), *lines(self.kinds, losses))
        return replace(self, formats=replace(self.formats, fallbacks=fallbacks))

    def shard_bytes(self, layer: int) -> int:
        """The size of the file of an MoE layer."""
        return self.moe.experts_of(layer) * self.layout.stride_bytes

    @property
    def total_bytes(self) -> int:
        kept = self.ahead.num_bytes + self.vision.num_bytes
        return self.dense_bytes + kept + self.moe.total_experts * self.layout.stride_bytes

    def file_sizes(self) -> dict[str, int]:
        """Returns the sizes of the store's weight files by name."""
        shards = {shard_file(layer): self.shard_bytes(layer) for layer in range(self.moe.num_layers)}
        kept = {AHEAD_FILE: self.ahead.num_bytes, VISION_FILE: self.vision.num_bytes}
        return {DENSE_FILE: self.dense_bytes} | {name: size for name, size in kept.items() if size} | shards


def plan_conversion(
    plan: TensorPlan,
    shards: Shards,
    headers: Mapping[str, Header],
    quantisation: Quantisation = KEEP,
    declared: Declared = NOTHING,
    told: Sequence[str] = (),
) -> Conversion:
    """headers: of each file in shards; declared: of quantised weights, by config.json; told: more lines for the user.

    Raises CheckpointError naming the first tensor that does not fit the plan.
    """
    tensors = Tensors(shards, headers, plan, declared)
    experts = _shared_out(expert_names(plan, tensors), tensors)
    zero = _check_all(plan, experts, tensors)
    formats = FormatPlan()
    parts = expert_formats(plan, quantisation.experts, _part_formats(experts, tensors), formats)
    layout = expert_layout([(part, parts[part], shape) for part, shape in plan.parts.items()])
    named = {name: _source(tensors, name) for name in plan.dense}
    dtypes = {name: tensors.dtype(source) for name, source in named.items()}
    matrices = plan.matrices & plan.dense.keys()
    sources = dtypes | {name: tensors.format(named[name]) or dtypes[name] for name in matrices}
    dense = dense_tensors_of(plan, quantisation, sources, formats)
    head, specs = dense_header({name: (tensor.format, tensor.shape) for name, tensor in dense.items()})
    ahead = KeptFile.of(tensors, [name for name in tensors.names() if _is_kept_ahead(plan, name)])
    seen_by, blind = _vision_names(plan, tensors)
    vision = KeptFile.of(tensors, seen_by)
    every = chain(
        _dense_moves(specs, dense, tensors),
        _expert_moves(experts, layout, tensors),
        ((tensors.shard(name), left_out(tensors, name)) for name in zero),
        _followed_moves(plan, tensors),
        _kept_moves({AHEAD: ahead, VISION: vision}, tensors),
    )
    moves = _by_shard(shards, every)
    kinds = _kinds(experts, parts, dense, tensors)
    fallbacks = (*told, *formats.fallbacks, *blind, *lines(kinds, None))
    quantised = {spec.name: BlockTensor(spec.dtype, spec.shape) for spec in specs if is_quantised(spec.dtype)}
    return Conversion(
        plan.moe,
        layout,
        _widest_used(plan, dtypes),
        StoredFormats(quantisation, fallbacks, quantised),
        tuple(specs),
        head,
        len(head) + sum(spec.num_bytes for spec in specs),
        ahead,
        vision,
        moves,
        {shard: _other_shards(found) - {shard} for shard, found in moves.items()},
        kinds,
    )


def _by_shard(shards: Shards, moves: Iterable[tuple[str, Move]]) -> dict[str, tuple[Move, ...]]:
    """Those of each shard in order of source_offset."""
    found: dict[str, list[Move]] = {shard: [] for shard in shards.files}
    for shard, move in moves:
        found[shard].append(move)
    return {shard: tuple(sorted(each, key=lambda move: move.source_offset)) for shard, each in found.items()}


def _dense_moves(
    specs: Sequence[TensorSpec], dense: Mapping[str, DenseTensor], tensors: Tensors
) -> Iterator[tuple[str, Move]]:
    for spec in specs:
        source = dense[spec.name].source
        whole = _source(tensors, source)
        moves = (
            rows_moves(tensors, tensors.cut[source], spec) if whole != source else [dense_move(tensors, source, spec)]
        )
        yield from ((tensors.shard(whole), move) for move in moves)


def _expert_moves(experts: ExpertNames, layout: ExpertLayout, tensors: Tensors) -> Iterator[tuple[str, Move]]:
    shares: dict[tuple[int, int, str], list[tuple[str, ExpertPiece]]] = {}  # of one part, in several sources
    for name, (_, pieces) in experts.items():
        for move in expert_moves(tensors, name, [piece for piece in pieces if piece.at is None], layout):
            yield tensors.shard(name), move
        for piece in pieces:
            if piece.at is not None:
                shares.setdefault((piece.layer, piece.expert, piece.part), []).append((name, piece))
    for sources in shares.values():
        yield tensors.shard(sources[0][0]), joined_move(tensors, sources, layout)


def _followed_moves(plan: TensorPlan, tensors: Tensors) -> Iterator[tuple[str, Move]]:
    for name in tensors.names():
        expected = next((known for pattern, known in plan.follows.items() if re.fullmatch(pattern, name)), None)
        if expected is not None and not any(re.fullmatch(pattern, name) for pattern in plan.ignored):
            yield tensors.shard(name), followed(tensors, name, expected(name))


def _kept_moves(files: Mapping[int, KeptFile], tensors: Tensors) -> Iterator[tuple[str, Move]]:
    for target, file in files.items():
        for name, place in file.places.items():
            yield tensors.shard_of(name), kept_move(tensors, name, target, place)


def _other_shards(moves: Sequence[Move]) -> frozenset[str]:
    """Those in which scales of their weights lie."""
    return frozenset(place.shard for move in moves for place in move.others)


def router_rows(plan: TensorPlan, shards: Shards, headers: Mapping[str, Header], declared: Declared) -> dict[int, int]:
    """How many experts the router of each decoder layer chooses from, by the number of the layer."""
    tensors = Tensors(shards, headers, plan, declared)
    found = {layer: tensors.found(name) for name, layer in routers_of(plan).items()}
    return {layer: place[1].shape[0] for layer, place in found.items() if place and place[1].shape}


def _check_all(plan: TensorPlan, experts: ExpertNames, tensors: Tensors) -> list[str]:
    """Checks that each tensor is wanted, in its shape, or ignored, or a part of one, and that none is missing.

    Returns those that are not wanted and have to be zero.
    """
    wanted = _dense_wanted(plan, tensors) | {name: shape for name, (shape, _) in experts.items()}
    claimed = tensors.claimed_by(wanted.keys())
    others = [
        name
        for name in tensors.names()
        if name not in wanted and not _is_left_out(plan, name) and not tensors.is_empty(name)
    ]
    for name in others:
        if name not in claimed:
            tensors.check_readable(name)
    for name, shape in wanted.items():
        tensors.check_shape(name, shape)
    for source in {rows.name for rows in tensors.cut.values()}:
        if tensors.scheme(source) is None:
            raise UnsupportedModelError(
                f"{tensors.shard(source)}: programs disagree about the order of rows in tensor {source!r}, which is "
                f"{tensors.entry(source).dtype}; pull the FP8 original, or one with queries, keys and values apart"
            )
    zero = tensors.zero_biases(wanted.keys())
    known = tensors.used().union(zero)
    for name in others:
        if name not in known and not is_of_activations(name):
            stored = tensors.stored_name(name)
            raise CheckpointError(f"{tensors.shard(name)}: tensor {stored!r} does not belong to this architecture")
    return zero


def _source(tensors: Tensors, name: str) -> str:
    """The tensor that has the rows of a dense one of the plan: mostly that of its own name."""
    return tensors.cut[name].name if name in tensors.cut else name


def _dense_wanted(plan: TensorPlan, tensors: Tensors) -> dict[str, tuple[int, ...]]:
    """The names and shapes that the checkpoint has of the dense tensors."""
    wanted = dict[str, tuple[int, ...]]()
    for name, shape in plan.dense.items():
        source = _source(tensors, name)
        before = wanted.get(source, (0,))[0]
        wanted[source] = shape if source == name else (before + shape[0], *shape[1:])
    return wanted


def _kinds(
    experts: ExpertNames, parts: Mapping[str, Format], dense: Mapping[str, DenseTensor], tensors: Tensors
) -> dict[str, Kind]:
    """Returns what matrices are coded in which way, and stored in which format, without those that lose nothing."""
    found: dict[str, tuple[Scheme, Format, dict[str, None]]] = {}
    pieces = ((name, f"expert {piece.part}", parts[piece.part]) for name, (_, all) in experts.items() for piece in all)
    matrices = ((_source(tensors, each.source), name, each.format) for name, each in dense.items())
    for source, words, format in (*pieces, *matrices):
        scheme = tensors.scheme(source)
        if scheme is not None and loss_kind(scheme, format):
            found.setdefault(loss_kind(scheme, format), (scheme, format, {}))[2][words] = None
    return {
        kind: Kind(scheme.words, format, scheme.exact and format == scheme.nearest, tuple(names))
        for kind, (scheme, format, names) in found.items()
    }


def expert_names(plan: TensorPlan, tensors: Tensors) -> ExpertNames:
    """Returns the first layout that is complete; else the error names what the most complete one lacks.

    Where several have the same names, as one transposes what the other has, the shapes tell.
    """
    complete = [names for names in plan.experts if all(name in tensors for name in names)]
    for names in complete:
        if all(_fits(tensors, name, shape) for name, (shape, _) in names.items()):
            return names
    if complete:
        return complete[0]
    closest = max(plan.experts, key=lambda names: sum(name in tensors for name in names) / len(names))
    missing = next(name for name in closest if name not in tensors)
    raise CheckpointError(f"the checkpoint lacks tensor {missing!r} (expert weights){tensors.remark}; fetch it again")


def _shared_out(experts: ExpertNames, tensors: Tensors) -> ExpertNames:
    """The same where a checkpoint that was split for several processors has shares of matrices: rows or columns."""
    found = dict[str, tuple[tuple[int, ...], tuple[ExpertPiece, ...]]]()
    for name, (shape, pieces) in experts.items():
        names = [share for _, share in sorted(tensors.shares.get(name, {0: name}).items())]
        if len(names) == 1 or len(shape) != 2:
            found[name] = shape, pieces
            continue
        rows, cols = tensors.entry(name).shape if len(tensors.entry(name).shape) == 2 else shape
        down, right = int(rows != shape[0]), int(cols != shape[1])
        if (rows * (len(names) if down else 1), cols * (len(names) if right else 1)) != shape or down + right != 1:
            raise CheckpointError(
                f"{tensors.shard(name)}: tensor {name!r} has shape [{rows}, {cols}] in each of {len(names)} files, "
                f"config.json implies {list(shape)}"
            )
        for number, share in enumerate(names):
            at = (number * rows * down, number * cols * right)
            found[share] = (rows, cols), tuple(replace(piece, filled=(rows, cols), at=at) for piece in pieces)
    return found


def _fits(tensors: Tensors, name: str, shape: tuple[int, ...]) -> bool:
    found = tensors.found(name)
    return found is None or found[1].shape == shape  # None: it is made of others


def _part_formats(experts: ExpertNames, tensors: Tensors) -> dict[str, Format]:
    """Returns the source's format of each part of an expert. It is one for all experts, as they share a layout."""
    first: dict[str, str] = {}  # part -> the source that decides
    for name, (_, pieces) in experts.items():
        for part in {piece.part for piece in pieces}:
            wanted = first.setdefault(part, name)
            if tensors.format(name) != tensors.format(wanted):
                raise UnsupportedModelError(
                    f"{tensors.shard(name)}: expert tensor {name!r} is {tensors.dtype_text(name)}, {wanted!r} is "
                    f"{tensors.dtype_text(wanted)}; moeinf needs that part of all experts in one dtype"
                )
    return {part: format for part, name in first.items() if (format := tensors.format(name))}


def _widest_used(plan: TensorPlan, dtypes: Mapping[str, DType]) -> DType:
    used: Counter[DType] = Counter()
    for name, shape in plan.dense.items():
        used[dtypes[name]] += math.prod(shape) * DTYPE_BYTES[dtypes[name]]
    return used.most_common(1)[0][0]


def _vision_names(plan: TensorPlan, tensors: Tensors) -> tuple[list[str], list[str]]:
    """The tensors of the tower, and a line for the user where there is one that cannot be kept.

    A checkpoint may have none. Raises CheckpointError where it has some of them, or in other shapes.
    """
    there = set(tensors.names())
    found = [name for name in plan.vision if name in there]
    if not found:
        return [], []
    for name in found:
        dtype = tensors.entry(name).dtype
        if dtype not in STORE_DTYPES:
            return [], [f"the vision tower is left out, so that there are no pictures: {name} is {dtype}"]
    for name, shape in plan.vision.items():
        if name not in there:
            raise CheckpointError(f"the checkpoint lacks tensor {name!r} (vision tower); fetch it again")
        if tensors.entry(name).shape != shape:
            wrong = list(tensors.entry(name).shape)
            raise CheckpointError(f"tensor {name!r} has shape {wrong}, the architecture wants {list(shape)}")
    return found, []


def _is_left_out(plan: TensorPlan, name: str) -> bool:
    """Whether no run has a use for a tensor but for pictures, be it kept or not."""
    if name in plan.vision or name in plan.copies:
        return True
    return any(re.fullmatch(pattern, name) for pattern in (*plan.ignored, *plan.follows, *plan.ahead))


def _is_kept_ahead(plan: TensorPlan, name: str) -> bool:
    if name in plan.copies or not plan.is_ahead(name):
        return False
    return not any(re.fullmatch(pattern, name) for pattern in plan.ignored)
