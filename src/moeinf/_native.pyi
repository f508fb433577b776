"""The native read engine: memory for experts, and reads into it in the background."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from moeinf.errors import ExpertReadError
from moeinf.runtime.cache.cache import KeepScores
from moeinf.runtime.cache.stats import CacheStats
from moeinf.runtime.io.pages import PagesAhead
from moeinf.runtime.io.reader_protocol import OnWait, ReadDone, Reader
from moeinf.types import (
    AttentionSizes,
    DeltaSizes,
    ExpertForm,
    Float32Array,
    FloatArray,
    IndexSizes,
    IntArray,
    KVFormat,
    LatentSizes,
    MambaSizes,
    PassShape,
    Profiler,
    SumArray,
)

class ReadFailure(OSError):
    """A read that failed or came back short; errno is 0 where the file has the wrong size. key is -1 at opening."""

    key: int
    path: str
    offset: int
    num_bytes_read: int

class Arena:
    """Anonymous memory on a 2 MiB border, taken from the machine page by page as it is written.

    ValueError for 0 bytes, MemoryError where the machine refuses.
    """

    def __init__(self, num_bytes: int) -> None: ...
    @property
    def address(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    def array(self) -> npt.NDArray[np.uint8]:
        """All of it as a writable array that keeps the arena alive."""

def crc32c(data: _Bytes, before: int = 0) -> int:
    """CRC-32C of bytes (1-D), without the GIL. before: the sum of those in front of them, which is gone on with."""

def crc32c_units(data: _Bytes, unit_bytes: int) -> SumArray:
    """The sum of each unit; the last may be shorter."""

def crc32c_joined(sums: SumArray, unit_bytes: int, num_bytes: int) -> int:
    """The sum of num_bytes, of sums of its units as crc32c_units gives them."""

class SharedPages:
    """Memory whose pages may lie at several addresses at once; they come from the machine as they are written.

    OSError where the system has none.
    """

    def __init__(self) -> None: ...
    @property
    def page_bytes(self) -> int: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def used_bytes(self) -> int:
        """What it takes of the machine's memory."""

    def grow(self, num_bytes: int) -> int:
        """Adds so many bytes, whole pages; returns where they begin. ValueError, MemoryError where refused."""

    def release(self, offset: int, start: int, num_bytes: int, stride: int, count: int) -> bool:
        """Gives pages back to the machine, without the GIL: they read as 0 until they are written again.

        Those of num_bytes at offset + start, and the same `count` times, each `stride` behind the one before. False
        where the machine refuses. ValueError for what is not inside, or no whole pages.
        """

class MappedPages:
    """A range of addresses over pages of SharedPages. ValueError for no whole pages; MemoryError where refused."""

    def __init__(self, pages: SharedPages, offset: int, num_bytes: int) -> None: ...
    def map(self, offset: int, start: int, num_bytes: int, stride: int, count: int) -> None:
        """Puts the pages that `release` would give back at the addresses that lie `start` behind the first one, and so
        on; what lay there is no longer seen. Raises as the constructor; some of it may then be done."""

    def array(self) -> npt.NDArray[np.uint8]:
        """All of it as a writable array that keeps the memory alive."""

class PageTaker:
    """Takes pages of an array from the machine in two threads of its own; their contents stay as they are.

    Reads into them then need not wait for pages to be zeroed. A hint: where the kernel cannot do it, or the system has
    no thread to give, pages come with the reads. What is still queued when the object goes is dropped.
    """

    def __init__(self, memory: npt.NDArray[np.uint8]) -> None: ...
    def take(self, start: int, end: int) -> None:
        """Queues the bytes from `start` to `end`. Does not block. ValueError for what is not inside the memory."""

    def drop(self, start: int) -> None:
        """Drops what is queued from `start` on; waits, without the GIL, until nothing is being taken there."""

def give_back(memory: npt.NDArray[np.uint8]) -> bool:
    """Gives the whole pages of an array of an Arena back to the machine, without the GIL; what was in them is lost.

    They come anew, zeroed, when they are written again. No read may be under way into them. False where refused.
    """

def lowest(scores: FloatArray, states: npt.NDArray[np.uint8], state: int, held: Sequence[int], count: int) -> list[int]:
    """Indices of the `count` smallest scores where `states` (both 1-D) is `state`, but for those `held`.

    Smallest first, of equals the lowest; fewer where there are fewer. Scores are finite. ValueError for other lengths.
    """

def draw_token(
    scores: Float32Array, temperature: float, top_p: float, min_p: float, uniform: float, *, isa: str = ""
) -> int:
    """The index of one of the scores [n], without a sort of them all.

    A score's weight is e^((score - best score) / temperature). top_p: the largest pass (of equals the first), until
    their weights reach this share of all, at least one; 1: all do. min_p: those pass whose weight is at least this
    share of the best one's. Of those that pass, `uniform`, from 0 to 1, falls on one where they share that range, in
    order, by their weights. A score of minus infinity is never drawn. Weights are float32, so borders are off by 1e-6
    of the whole at most. isa: as of Kernels. ValueError: no scores, a NaN, a best score that is infinite, a temperature
    that is no finite number above 0, and other values out of range.
    """

def rank_prefetches(
    likelihood: FloatArray,
    *,
    num_layers: int,
    eps: float,
    states: npt.NDArray[np.uint8],
    absent: int,
    first_key: int,
    at_least: float,
    count: int,
) -> tuple[list[int], list[float]]:
    """Returns the keys and priorities of up to `count` experts to be read ahead, highest priority first.

    likelihood [n, E] is of the n layers behind one, whose keys begin at first_key; its priority is that of
    moeinf.runtime.policy.priority.prefetch_priority. Only experts whose state by key is `absent` count, and priorities
    above at_least. Of equals the lowest key comes first. ValueError for more layers than states.
    """

def replayed_hits(keys: IntArray, sizes: IntArray, resident: IntArray, num_slots: int) -> tuple[int, int]:
    """What two other caches of num_slots experts would have hit of a routing that has run: LRU, and Belady's bound.

    keys: of the activations, layer * experts + expert, visit behind visit; sizes: how many each visit has. Both begin
    with the keys `resident`. An activation is a hit where its expert is there when the visit begins. ValueError for
    sizes that do not add up to the keys, and for no slots.
    """

def substitute(
    states: npt.NDArray[np.uint8],
    slices: int,
    ids: IntArray,
    weights: Float32Array,
    spare_ids: IntArray | None,
    spare_weights: Float32Array | None,
    *,
    keeps_sum: bool,
    most_lost: float,
) -> tuple[int, int]:
    """Changes a routing, ids and weights [tokens, top_k], so that fewer experts have to be read; returns how many
    others stand in for, and how many are left out.

    states [experts * slices] of the layer are those of SlotTable; spares [tokens, number], best first, or None. Of the
    experts of a token that are absent the lightest are given up first, each for the best spare that is resident and
    not used yet, or for none, as long as their weights, as a share of the token's, are most_lost at most.
    What another token needs counts as resident. One that is left out names the heaviest of the token, with weight 0.
    keeps_sum: the other weights grow, so that those of a token have the sum that they had. ValueError for other shapes,
    an id without a state, and a share that is none or 1.
    """

class NativeReader:
    """moeinf.runtime.io.reader_protocol.Reader over io_uring or a pool of threads.

    Opens every file at once: OSError (as open raises it) for one that cannot be opened, ReadFailure for one whose size
    is not the given one. O_DIRECT or io_uring refused: goes on without, and `notice` says so; a backend that was asked
    for by name and is refused is an OSError. After close(), every call but bytes_read, busy_seconds and close is a
    ValueError, and a wait_any under way in another thread ends with it.
    """

    def __init__(
        self,
        paths: Sequence[str | Path],
        sizes: Sequence[int],
        arena: Arena,
        *,
        backend: Literal["auto", "io_uring", "threads"] = "auto",
        direct: bool = True,
        queue_depth: int = 16,
        prefetch_depth: int = 4,
        segment_bytes: int = ...,
        on_wait: OnWait | None = None,
        disks: int = 1,
        cuts: Sequence[tuple[int, int]] = (),
    ) -> None:
        """paths: of the files on the first disk, then of the same files on each other one; sizes: of one disk's.

        A read goes to the disk that will have brought it soonest, by its rate so far and what is in flight. One that
        fails, or differs from its sum, is tried on the others before it counts as failed, and `notice` says so. cuts:
        of every `period` bytes of a file, two disks have the first so many and the rest: (period, first) of each file.
        """

    @property
    def backend(self) -> str: ...
    @property
    def notice(self) -> str: ...
    def expect(
        self, files: IntArray, offsets: IntArray, num_bytes: int, sums: SumArray, *, always: bool = False
    ) -> None:
        """From now on, a read of exactly num_bytes at one of these places is compared with its CRC-32C.

        The first time, or always; it is done by the thread that reads. A block that differs is a ReadFailure with errno
        EBADMSG. ValueError for a place that is not inside its file.
        """
    def submit(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: int,
        priorities: FloatArray,
    ) -> None:
        """Queues a read per key; `destinations` are offsets in the arena. Nothing is queued when it raises.

        ValueError for a key that is queued, in flight or not collected; for a range that is not inside its file and
        the arena, or not on 4 KiB borders; for a priority that is NaN or -inf.
        """

    def submit_pieces(
        self,
        keys: IntArray,
        files: IntArray,
        offsets: IntArray,
        destinations: IntArray,
        num_bytes: IntArray,
        priorities: FloatArray,
    ) -> None:
        """The same for keys of several ranges each, [keys, pieces], which begin and end anywhere in their files.

        A key lands when all of its pieces have. A piece is read with the rest of its 4 KiB blocks: its byte i comes to
        destination + offset % 4096 + i, so destinations are on borders, with room for whole blocks. The sum that a
        piece is compared with is that of its own bytes. A piece of 0 bytes behind the first is left out.
        """

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        """Moves queued and half-issued requests; segments in flight go on. Unknown and landed keys are ignored."""

    def cancel(self, keys: IntArray) -> IntArray:
        """Drops the requests of which nothing was issued yet, and returns their keys."""

    def known(self, keys: IntArray) -> IntArray:
        """Returns those of the keys that are queued, in flight, or landed and not collected."""

    def wait_any(self, keys: IntArray) -> IntArray:
        """Blocks without the GIL until at least one key has landed; collects and returns all that have, in that order.

        Raises ReadFailure for the first that failed: that key alone is forgotten and may be submitted again, the others
        stay to be collected. ValueError for a key that is not known. Every 100 ms signal handlers run, then `on_wait`;
        what they raise ends the wait, and changes nothing else.
        """

    def poll(self) -> ReadDone:
        """Collects everything that has ended, in the order in which it ended. Does not block."""

    def bytes_read(self) -> int: ...
    def bytes_read_of(self, disk: int) -> int:
        """Of that disk alone; the first one is 0. IndexError for one that there is not."""

    def busy_seconds(self) -> float:
        """Seconds in which at least one read was in flight."""

    def close(self) -> bool:
        """Drops what is queued and waits up to a second for what is in flight; whether that has ended.

        False: a disk hangs. The kernel may still write into the arena, which stays until it has. Signal handlers run.
        """

_Bytes = npt.NDArray[np.uint8] | bytes | bytearray | memoryview  # of contiguous uint8

class SlotTable:
    """Slots in an arena; writes into `states` and `offsets`, by key, which its owner reads and keeps.

    An expert has slots of one class, which are of one size. At first every
    state is ABSENT or NO_EXPERT (moeinf.runtime.cache.table).
    """

    def __init__(
        self,
        first_offset: int,
        class_bytes: Sequence[int],
        of_slots: npt.NDArray[np.uint8],
        of_keys: npt.NDArray[np.uint8],
        states: npt.NDArray[np.uint8],
        offsets: IntArray,
    ) -> None:
        """of_slots: the class of each slot that there may be, in their order; of_keys: of the slots of each expert.

        ValueError for arrays of two lengths, slots of no size, or unknown classes.
        """

    @property
    def num_slots(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    @property
    def num_resident(self) -> int: ...
    @property
    def num_loading(self) -> int: ...
    @property
    def total_experts(self) -> int: ...
    @property
    def all_resident(self) -> bool:
        """Whether every expert is there: then nothing can be missing."""

    @property
    def end_offset(self) -> int:
        """Where the last slot ends, in bytes of the arena."""

    @property
    def num_classes(self) -> int: ...
    def slots_by_class(self) -> list[int]:
        """Returns how many slots each class has."""

    def free_by_class(self) -> list[int]: ...
    def free_offsets(self) -> list[int]: ...
    def assign(self, keys: Sequence[int]) -> list[int]:
        """Gives free slots to absent experts, which are loading from now on; returns their offsets.

        ValueError where there are not enough, or an expert is not absent: nothing has changed then.
        """

    def land(self, keys: Sequence[int]) -> None:
        """Notes that the blocks of these experts have come, so that they may be computed."""

    def loading(self) -> list[int]:
        """Returns the keys of the experts that are on their way, ascending."""

    def limit(self, num_slots: int) -> None:
        """Drops all slots but the lowest `num_slots`, which must be free, or adds slots behind the last.

        New slots are the last to be assigned. ValueError for more than there were at first.
        """

    def count(self) -> None:
        """Counts the experts anew: the states of others than loading and resident ones have been changed."""

class ExpertCache:
    """What holds experts in the slots of a table, and what leaves for another: moeinf.runtime.cache.cache."""

    def __init__(
        self, table: SlotTable, num_layers: int, num_experts: int, policy: KeepScores, stats: CacheStats
    ) -> None: ...
    @property
    def layer(self) -> int:
        """The one that runs."""

    @property
    def num_pinned(self) -> int: ...
    @property
    def num_reserved(self) -> int: ...
    def pinned(self) -> list[int]: ...
    def reserved(self) -> list[int]: ...
    def unused(self) -> list[int]:
        """Returns the keys that were prefetched, and not used so far; ascending, as the two above."""

    def by_state(self, keys: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
        """Splits the keys into those that are absent, loading and resident, each in their order.

        Those that no expert has are left out.
        """

    def begin_layer(
        self, layer: int, keys: Sequence[int], counts: IntArray, *, many: bool
    ) -> tuple[list[int], list[int], list[int]]:
        """Says that `layer` needs the experts `keys`, each for as many activations as `counts` says; counts hits.

        An expert in slices has a count for all of them, and is a hit where all are resident.

        Returns those that are absent, loading and resident. The last two are pinned. many: tokens, at once.
        """

    def end_reservations(self) -> list[int]:
        """Keeps nothing for the running layer any longer; returns the experts on their way that nobody needs now.

        Of a model that several machines share, a layer that has none of this one's experts does not run here: nothing
        is kept for those either that lie between the running layer and the one before.
        """

    def share(self, shared: bool) -> None:
        """Says whether other machines have some of the experts."""

    def pin(self, keys: Sequence[int]) -> None:
        """Keeps these experts until they are unpinned."""

    def unpin(self, keys: Sequence[int]) -> None: ...
    def reserve(self, keys: Sequence[int], *, prefetched: bool) -> None:
        """Keeps these experts until their layer has run. prefetched: they are being read for that alone."""

    def let_go(self) -> None:
        """Gives up all pins and reservations. The next `end_reservations` tells which reads go on for nobody."""

    def make_room(self, keys: Sequence[int], *, also_held: Sequence[int] = (), at_any_cost: bool = False) -> list[int]:
        """Evicts what the policy values least until there are free slots for these absent experts; returns those that
        find one, the first ones of each class of slots.

        For an expert only those leave that are in slots of its class. Neither what is pinned or reserved leaves, nor
        what is `also_held`. at_any_cost: where that leaves not a single slot of the class free, reserved experts leave
        too.

        A pass of many tokens takes nearly every expert of its layer through the slots once. For that it may use as many
        slots as a layer has experts, at most half of these: in simulation fewer let the disk wait, and more cost reads,
        as the others keep what the policy values most for the layers to come and for decode.
        """

    def release(self, keys: Sequence[int]) -> int:
        """Takes their slots from these experts; returns how many of them were prefetched in vain."""

    def take_over(self, numbers: IntArray) -> None:
        """Goes on with what somebody else has brought into the slots: by key the number of a slot, or NO_SLOT.

        All of them are resident. ValueError for a slot that there is not, or that two experts lie in.
        """

class ExpertReads:
    """What brings the blocks of experts into slots, for a Loader."""

class PythonReads(ExpertReads):
    """Over any Reader; submit(keys, slots, priorities) says to it where experts lie: moeinf.runtime.io.read_places."""

    def __init__(
        self,
        reader: Reader,
        submit: Callable[[IntArray, IntArray, FloatArray], None],
        pages: PagesAhead | None,
        stride_bytes: int,
    ) -> None: ...

class FileReads(ExpertReads):
    """Over the native reader, without Python in between; arrays as in moeinf.runtime.io.read_places.ExpertPlaces."""

    def __init__(
        self,
        reader: NativeReader,
        files: IntArray,
        starts: IntArray,
        steps: IntArray,
        num_bytes: IntArray,
        regions: IntArray,
        *,
        num_experts: int,
        slices: int,
        pages: PagesAhead | None,
        stride_bytes: int,
    ) -> None:
        """ValueError for arrays of different shapes."""

class Loader:
    """Reads that fill the slots of a cache, from absent to resident: moeinf.runtime.cache.loader."""

    def __init__(self, cache: ExpertCache, reads: ExpertReads, slices: int) -> None: ...
    def submit(self, keys: Sequence[int], priorities: Sequence[float]) -> None:
        """Queues reads of absent experts. There must be as many free slots."""

    def demand(self, keys: Sequence[int]) -> None:
        """Does as submit for what a layer waits for; pins and counts it."""

    def prefetch(self, keys: IntArray, priorities: FloatArray) -> int:
        """Queues reads of absent experts behind all demand, and keeps their slots until their layer has run.

        Returns how many of them, the first ones of each class of slots, have found a slot.
        """

    def reprioritise(self, keys: IntArray, priorities: FloatArray) -> None:
        """Gives new priorities to reads that are still queued."""

    def cancel(self, keys: Sequence[int]) -> int:
        """Drops reads of which nothing was issued; returns how many of them were prefetches.

        The slots of what is dropped are free again.
        """

    def drop(self, keys: Sequence[int]) -> None:
        """Cancels prefetches that nobody needs, as far as they have not begun."""

    def poll(self) -> list[int]:
        """Collects what has ended; returns the keys that failed, whose slots are free again.

        With them go the slots of the same experts' other slices: of an expert that is damaged nobody knows which slice
        it is, so that all are to be read again.
        """

    def wait(self, keys: Sequence[int]) -> list[int]:
        """Blocks until one of the keys or more has landed, and returns them.

        Raises ReadFailure; the slot of its key is free again, as after poll.
        """

class IdleWindow:
    """How long a link idles between two visits: the time that prefetches may fill.

    It is the smoothed time between the last demand read of a visit, or another moment, and the beginning of the next.
    """

    seconds: float

    def __init__(
        self, clock: Callable[[], float] | None = None, lag_s: Callable[[], float] | None = None, seconds: float = 0.0
    ) -> None:
        """clock: time.perf_counter where there is none.

        lag_s(): for how long what has landed is still under way, where a reader says that it landed before.
        seconds: what is taken for the window until visits tell.
        """

    @property
    def clock(self) -> Callable[[], float]: ...
    def visit_begins(self) -> None: ...
    def demand_ends(self) -> None:
        """The last expert that the visit was waiting for has landed."""

class Visits:
    """What the visits of one tier work with; explain makes the error that a user sees of a failure."""

    def __init__(
        self,
        cache: ExpertCache,
        loader: Loader,
        idle: IdleWindow,
        profiler: Profiler,
        explain: Callable[[ReadFailure], ExpertReadError],
    ) -> None: ...

class Visit:
    """One run of a layer, from the experts that it needs to the end of their computing.

    Pins the experts of a layer that are there, reads the others, and hands out each while it cannot leave. A visit may
    need more experts than there are slots: it then goes through in waves. Slices of experts are handed out in their
    order, those of one expert before those of the next, so that each is computed as soon as it lands, and its memory
    serves those that follow. `arrivals` is taken to its end, then `close` (or the end of `with`) comes; after an error
    or an interrupt `close` alone, and nothing is held any more for this visit or for layers to come. An iterator that
    is left over does nothing afterwards.
    """

    def __init__(self, visits: Visits, layer: int, experts: IntArray, counts: IntArray, num_tokens: int) -> None:
        """`num_tokens` tokens need the layer's `experts`, each of them as many as `counts` says.

        Counts the demand, pins what is there, and queues reads of the rest. ValueError for a layer or an expert that
        there is not, without a token, and unless there is a count for each expert.
        """

    @property
    def layer(self) -> int: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def keys(self) -> list[int]:
        """Of what the visit needs."""

    @property
    def num_absent(self) -> int:
        """How many of these were neither resident nor on their way at the beginning."""

    @property
    def all_have_slots(self) -> bool:
        """Whether nothing of the visit waits for a slot that another expert of it has to leave first."""

    @property
    def any_ready(self) -> bool:
        """Whether `arrivals` has something to yield at once."""

    def read_ahead(self, keys: IntArray) -> None:
        """Tells a visit of many tokens that the next layer will need `keys`, of which the surest come first.

        What is there stays for it, up to half of the slots; what is absent is read into every slot that this visit's
        demand leaves, now and after each batch.
        """

    def arrivals(self) -> Iterator[tuple[IntArray, IntArray]]:
        """Yields (experts, offsets of their blocks), batch by batch: residents first, then what has landed.

        Slices are numbered as keys are: slice s of expert e is e * slices + s.

        A batch lies still until the iterator moves on. Raises ExpertReadError; what had landed stays usable.
        """

    def close(self) -> None:
        """Ends the visit; a second call does nothing. Reads of a visit that is given up land as usual."""

    def __enter__(self) -> Visit: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

def quantise(
    format: str,
    source: _Bytes,
    source_dtype: str,
    rows: int,
    cols: int,
    out: _Bytes,
    importance: npt.NDArray[np.float32] | None = None,
) -> None:
    """Rounds [rows, cols] of bf16, f16 or f32 into blocks, in `out`; without the GIL, in this thread, deterministic.

    A block's bytes depend on its own weights alone, and on importance [cols]: how much an error in each column costs
    beside the others. q8_0 and mxfp4 search for nothing, and do not depend on it. ValueError for sizes that do not fit,
    formats that it cannot go between, a weight that is NaN, infinite or beyond 65504, and an importance that is not
    above 0 and at most 65504.
    """

def quantise_in_turn(
    format: str,
    weights: npt.NDArray[np.float32],
    asked: npt.NDArray[np.float32],
    upper: npt.NDArray[np.float32],
    importance: npt.NDArray[np.float32],
    errors: npt.NDArray[np.float32],
    out: _Bytes,
) -> None:
    """Rounds neighbouring columns of a matrix in turn, at most 256 of them, each to what errors before it ask of it.

    With E weights less what they become, column k of weights [rows, cols] aims at weights[:, k] + asked[:, k] + the sum
    of E[:, j] * upper[j, k] over the columns j < k of this call, and takes the nearest code, by the scales that
    `quantise` chooses for its block. E is written to errors [rows, cols]; upper is [cols, cols]. Without the GIL, in
    this thread, each row by itself. ValueError as `quantise`, and for mxfp4.
    """

def dequantise(format: str, data: _Bytes, rows: int, cols: int, out: npt.NDArray[np.float32]) -> None:
    """The weights of any format, into out [rows, cols]. ValueError for sizes that do not fit."""

def check_scales(format: str, data: _Bytes, rows: int, cols: int) -> int:
    """Index of the first block whose scale (or minimum) is NaN or infinite, -1 if there is none."""

def narrow_in_place(weights: _Bytes) -> bool:
    """Makes narrow_f32, the upper halves alone, of float32 in the first half of its bytes, if nothing is lost by it.

    Returns whether it did: then every weight is one of bf16 too. ValueError for bytes that are no whole numbers.
    """

def repack_mxfp4(blocks: _Bytes, scales: _Bytes, out: _Bytes) -> None:
    """Blocks as gpt-oss publishes them (16 bytes a block, its scale apart) to MXFP4 blocks of 17 bytes, lossless."""

_Vector = npt.NDArray[np.float32]

class AttentionTensors:
    """The matrices and vectors of a layer of attention, by name; None for what the model does not have."""

    def __init__(
        self,
        *,
        query: Matrix,
        key: Matrix,
        value: Matrix,
        output: Matrix,
        norm: _Vector | None = None,
        norm_bias: _Vector | None = None,
        query_norm: _Vector | None = None,
        key_norm: _Vector | None = None,
        query_bias: _Vector | None = None,
        key_bias: _Vector | None = None,
        value_bias: _Vector | None = None,
        output_bias: _Vector | None = None,
        sinks: _Vector | None = None,
        output_norm: _Vector | None = None,
        value_norm: _Vector | None = None,
        gate: Matrix | None = None,
        gate_bias: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """norm [hidden] stands in front of the layer; with a norm_bias it is a layer norm. sinks [heads]: each head has
        a further score, which weighs no value. output_norm [hidden]: an RMS norm of what the layer adds. value_norm
        [head_dim]: of each head of the values. gate, of as many rows as query or one for each head: sigmoid(gate x +
        gate_bias) multiplies the heads' outputs; gate_bias [heads]."""

class AttentionShape:
    """What attention computes, beside its tensors."""

    def __init__(
        self,
        *,
        head_dim: int,
        norm_eps: float,
        head_norm: Literal["none", "head", "full", "turned"] = "none",
        clip: float = 0.0,
        window: int = 0,
        rotary_dim: int | None = None,
        interleaved: bool = False,
        scale: float | None = None,
        residual: float = 1.0,
        gated: bool = False,
        chunked: bool = False,
        sharpness: float = 0.0,
        sharp_length: int = 1,
        sharp_offset: int = 0,
        replaces: bool = False,
        softplus_gates: bool = False,
        sharp_power: bool = False,
        front_eps: float | None = None,
        cap: float = 0.0,
        sees_all: bool = False,
    ) -> None:
        """head_norm "turned": over each head, behind its rotation.

        clip, window: 0 for none. rotary_dim: dimensions of a head that have positions, None for all, 0 for none;
        scale: of the scores, None for head_dim^-0.5. gated: the query matrix has for each head the rows of its query,
        then those of a gate, whose sigmoid multiplies the head's output. chunked: a token sees what lies in its own
        chunk of `window` positions. sharpness: queries at position p are multiplied by
        1 + sharpness ln(1 + floor((p + sharp_offset) / sharp_length)), or with sharp_power by
        (1 + (p + sharp_offset) / sharp_length)^sharpness. replaces: what the layer would add to x takes its place.
        softplus_gates: softplus, not sigmoid, of gates with a matrix of their own. front_eps: of the norm in front,
        None for norm_eps. cap: scores s become cap tanh(s / cap), 0 for none. sees_all: each token sees all, as patches
        of a picture do, so that queries and softmax weights may be rounded to bf16 where keys and values are.
        ValueError for sizes that cannot be.
        """

class AttentionLayer:
    """Self-attention of one layer, the norm in front of it included."""

    def __init__(self, kernels: Kernels, tensors: AttentionTensors, shape: AttentionShape) -> None:
        """ValueError for tensors that do not fit together."""

    @staticmethod
    def workspace_bytes(sizes: AttentionSizes, shape: PassShape) -> int:
        """What a pass takes at most of the workspace that the layers of one Kernels share."""

    def run(
        self,
        x: npt.NDArray[np.float32],
        keys: _Bytes,
        values: _Bytes,
        format: KVFormat,
        capacity: int,
        length: int,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        ends: npt.NDArray[np.int64] | None = None,
        chosen: npt.NDArray[np.int64] | None = None,
    ) -> None:
        """x [tokens, hidden] += residual * attention(norm(x)); keys and values of the tokens are stored at `length`.

        keys, values: the bytes of [kv_heads, capacity, head_dim]; cos, sin [tokens, rotary_dim / 2]. ends [tokens]:
        the position behind the last one that each token sees, from its own one's to length + tokens; None: no token
        sees one behind its own. chosen [n, groups, m]: the positions that the last n tokens attend to, of each m or
        fewer, with -1 behind them; of one group for all heads, or of one for each key/value head, which choose as many.
        Not where there are ends.
        """

    def run_beside(
        self,
        x: npt.NDArray[np.float32],
        kept: Sequence[tuple[_Bytes, _Bytes, KVFormat, int, int]],
        rows: Sequence[int],
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
    ) -> None:
        """The same of rows of several sequences, one behind the other, each of few tokens; at most 64 rows.

        kept: keys, values, format, capacity and length of each sequence; rows: how many go on with it.
        """

class HeadsLayer:
    """Attention of queries, keys and values that a model makes itself: rotated, stored and mixed."""

    def __init__(
        self,
        kernels: Kernels,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        window: int,
        rotary_dim: int,
        interleaved: bool,
        scale: float,
        profiles: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """profiles [width, extent]: what is added to scores at the distances extent - 1 down to 0, for each number of a
        query's state. window: 0 for none. What it takes of the workspace is said by AttentionLayer.workspace_bytes.

        ValueError for sizes that do not fit together.
        """

    def run(
        self,
        queries: npt.NDArray[np.float32],
        keys: npt.NDArray[np.float32],
        values: npt.NDArray[np.float32],
        kept_keys: _Bytes,
        kept_values: _Bytes,
        format: KVFormat,
        capacity: int,
        length: int,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        out: npt.NDArray[np.float32],
        relative: npt.NDArray[np.float32] | None = None,
        sinks: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Writes out [tokens, heads * head_dim]; stores keys and values behind `length` others.

        queries [tokens, heads * head_dim] and keys [tokens, kv_heads * head_dim] are rotated in place. kept_keys,
        kept_values: the bytes of [kv_heads, capacity, head_dim]. relative [tokens, heads * width]: the state of each
        query, where there are profiles; sinks [tokens, heads]: a further score, whose weight goes nowhere.
        """

def attend_shared_rows(
    kernels: Kernels,
    queries: npt.NDArray[np.float32],
    window: npt.NDArray[np.float32],
    others: npt.NDArray[np.float32],
    seen: npt.NDArray[np.int64],
    picked: npt.NDArray[np.int64],
    scale: float,
    sinks: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """Writes out [tokens, heads * head_dim]: what heads give of rows that are their keys and their values at once.

    queries [tokens, heads * head_dim]; window [rows, head_dim]; others: rows that begin with as many numbers; sinks
    [heads]: a further score of each, whose weight goes nowhere. seen [tokens, 4]: what each token attends to, as its
    first row of the window and how many, where the numbers of those of `others` begin in `picked`, and how many these
    are; -1 in the place of where: the first ones. What a token gets depends on no other token, nor on the number of
    threads.

    ValueError for sizes that do not fit together, and for rows that are not there.
    """

def score_keys(
    kernels: Kernels,
    heads: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32] | None,
    keys: npt.NDArray[np.float32],
    seen: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float32],
) -> None:
    """Writes what index keys are worth to tokens: the sum over the heads of weight relu(head . key).

    heads [tokens, heads * head_dim], weights [tokens, heads] (None: 1 each), keys [keys, head_dim]; seen [tokens]: how
    many keys each sees, the first ones. scores [tokens, at least the most seen]: what lies behind those stays. What a
    token gets depends on no other token, nor on the number of threads. Source: DeepSeek-V3.2 (arXiv 2512.02556),
    section 2.1.

    ValueError for sizes that do not fit together, and for keys that are not there.
    """

def choose_keys(
    kernels: Kernels,
    heads: npt.NDArray[np.float32],
    weights: npt.NDArray[np.float32] | None,
    keys: npt.NDArray[np.float32],
    seen: npt.NDArray[np.int64],
    chosen: npt.NDArray[np.int64],
) -> None:
    """Writes chosen [tokens, most]: the numbers of the keys that are worth most to each token, ascending, and -1 behind
    them where it sees fewer; of equals the first. What is no number counts as the least. As `score_keys`."""

def score_blocks(
    kernels: Kernels,
    heads: npt.NDArray[np.float32],
    keys: npt.NDArray[np.float32],
    seen: npt.NDArray[np.int64],
    block: int,
    worth: npt.NDArray[np.float32],
) -> None:
    """Writes worth [tokens * heads, blocks]: of each block of `block` keys that a token sees, the last of which may be
    cut off, what its best key gives a head, head . key. As `score_keys`. Source: MiniMax-M3's published code."""

def choose_best(
    kernels: Kernels, scores: npt.NDArray[np.float32], seen: npt.NDArray[np.int64], chosen: npt.NDArray[np.int64]
) -> None:
    """Writes chosen [rows, most]: the numbers of the best of the first seen[row] scores [rows, scores] of each row,
    ascending, as `choose_keys` does."""

def index_workspace_bytes(sizes: IndexSizes, shape: PassShape) -> int:
    """As of AttentionLayer, of these four, for tokens that see as many keys as the shape has positions."""

def turn_heads(
    kernels: Kernels,
    x: npt.NDArray[np.float32],
    cos: npt.NDArray[np.float32],
    sin: npt.NDArray[np.float32],
    head_dim: int,
    first: int,
    interleaved: bool,
    out: npt.NDArray[np.float32],
) -> None:
    """Writes out [tokens, heads * head_dim], which may be x: heads that are rotated from their number `first` on.

    cos, sin [tokens, pairs]; interleaved: a pair lies side by side, in place of half of the rotated part apart.
    ValueError for sizes that do not fit together.
    """

def weigh_streams(
    kernels: Kernels, x: npt.NDArray[np.float32], shares: npt.NDArray[np.float32], out: npt.NDArray[np.float32]
) -> None:
    """Writes out [tokens, hidden], the sum over the streams of share * x.

    x [tokens, streams * hidden], shares [tokens, streams], of at most 64. What a token gets depends on no other, nor on
    the number of threads. ValueError for sizes that do not fit together.
    """

def mix_streams(
    kernels: Kernels,
    x: npt.NDArray[np.float32],
    added: npt.NDArray[np.float32],
    after: npt.NDArray[np.float32],
    mixing: npt.NDArray[np.float32] | None = None,
) -> None:
    """x_i <- after_i added + sum over j of mixing_ji x_j of each token, or + x_i without mixing, in place.

    x [tokens, streams * hidden], added [tokens, hidden], after [tokens, streams], mixing [tokens, streams * streams].
    As `weigh_streams`.
    """

def add_scaled(
    kernels: Kernels,
    x: npt.NDArray[np.float32],
    added: npt.NDArray[np.float32],
    by: npt.NDArray[np.float32],
    keep: npt.NDArray[np.float32],
    shift: npt.NDArray[np.float32],
) -> None:
    """x <- added * by + x * keep + shift, in place: x, added [tokens, hidden]; the others [hidden].

    As `weigh_streams`.
    """

def window_heads(
    kernels: Kernels,
    seen: npt.NDArray[np.float32],
    taps: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    head_dim: int,
    by_head: int,
    out: npt.NDArray[np.float32],
) -> None:
    """Fills out [heads * tokens, head_dim * by_head]: of each head and token, by_head results of a convolution.

    seen [tokens + by_channel + by_head - 2, channels], taps [by_channel, channels], bias [channels]: every channel is
    convolved by itself. Results lie side by side for each channel. ValueError for sizes that do not fit together.
    """

def level_heads(
    kernels: Kernels,
    products: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    queries: npt.NDArray[np.float32],
    keys: npt.NDArray[np.float32],
    lengths: npt.NDArray[np.float32],
    out_queries: npt.NDArray[np.float32],
    out_keys: npt.NDArray[np.float32],
) -> None:
    """The queries and keys of moeinf.models.layers.recurrent.compressed_heads, of what its second convolution makes.

    products [heads of both * tokens, head_dim], bias [heads of both * head_dim], queries, keys and what is filled
    [tokens, heads * head_dim], lengths [heads of both]. ValueError for sizes that do not fit together.
    """

class LatentLayer:
    """The core of multi-head latent attention of one layer: one row a token is kept, a latent and a rotated key."""

    def __init__(
        self,
        kernels: Kernels,
        keys_values: Matrix,
        *,
        num_heads: int,
        qk_nope_head_dim: int,
        value_dim: int,
        rotary_dim: int,
        interleaved: bool,
        scale: float,
        sinks: npt.NDArray[np.float32] | None = None,
        window: int = 0,
    ) -> None:
        """keys_values [heads * (qk_nope_head_dim + value_dim), rank], not quantised: for each head W_UK, then W_UV.
        sinks [heads]: a further score of each, whose weight goes nowhere. window: a token sees itself and the rows
        before it that are so many together; 0: all.

        ValueError for sizes that do not fit together.
        """

    def store(
        self,
        rows: npt.NDArray[np.float32],
        cache: _Bytes,
        format: KVFormat,
        length: int,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
    ) -> None:
        """Writes rows [tokens, rank + rotary_dim], their ends rotated, behind the `length` others that the cache has.

        cache: the bytes of [capacity, rank + rotary_dim]; cos, sin [tokens, rotary_dim / 2].
        """

    def attend(
        self,
        queries: npt.NDArray[np.float32],
        cache: _Bytes,
        format: KVFormat,
        length: int,
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        out: npt.NDArray[np.float32],
    ) -> None:
        """Writes out [tokens, heads * value_dim]; the same whatever the number of threads.

        queries [tokens, heads * (qk_nope_head_dim + rotary_dim)], not rotated yet, are at the positions from
        `length` on, where their rows are stored. cache, cos, sin: as for store.
        """

    def attend_chosen(
        self,
        queries: npt.NDArray[np.float32],
        cache: _Bytes,
        format: KVFormat,
        chosen: npt.NDArray[np.int64],
        cos: npt.NDArray[np.float32],
        sin: npt.NDArray[np.float32],
        out: npt.NDArray[np.float32],
    ) -> None:
        """`attend` to chosen rows alone, each token to its own; the window counts for nothing.

        chosen [tokens, most]: their positions in the cache, at least one, and -1 behind them. ValueError for rows that
        are not there.
        """

    @staticmethod
    def workspace_bytes(sizes: LatentSizes, shape: PassShape) -> int:
        """As of AttentionLayer."""

# conv, heads, new_conv, new_heads: what the tokens before left, and room for what these leave.
RecurrentStates = tuple[
    npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]
]

class DeltaLayer:
    """Gated DeltaNet of one layer (moeinf.models.layers.recurrent.delta_net), the norm in front of it included."""

    def __init__(
        self,
        kernels: Kernels,
        projections: list[Matrix],
        output: Matrix,
        *,
        norm: npt.NDArray[np.float32] | None,
        taps: npt.NDArray[np.float32],
        decay: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32],
        q_norm: npt.NDArray[np.float32],
        k_norm: npt.NDArray[np.float32],
        head_norm: npt.NDArray[np.float32],
        num_key_heads: int,
        norm_eps: float,
        unit_eps: float,
        sigmoid_gates: bool = False,
        replaces: bool = False,
    ) -> None:
        """projections: qkvz and ba with the rows of each key head together, or qkv, z, b and a.

        norm [hidden], or None: the input is taken as it is; sigmoid_gates: sigmoid(gate), not silu(gate), multiplies
        what a head gives; replaces: what the layer would add to x takes its place; taps [kernel, channels]; decay and
        bias [value heads]: a token's decay is e^(decay * softplus(step + bias)); q_norm, k_norm [key_dim]: of the RMS
        norms, with unit_eps, that give queries and keys their length; head_norm [value_dim]. ValueError for shapes that
        do not fit together.
        """

    def run(self, x: npt.NDArray[np.float32], states: Sequence[RecurrentStates], rows: Sequence[int]) -> None:
        """x [tokens, hidden] += delta_net(norm(x)); what the tokens leave goes to new_conv and new_heads.

        states: of each sequence, conv [kernel - 1, channels] and heads [value heads, key_dim, value_dim].
        rows: how many of x go on with each, one behind another; with new states of the one before, it is its sequence.
        """

    @staticmethod
    def workspace_bytes(sizes: DeltaSizes, shape: PassShape) -> int:
        """As of AttentionLayer."""

class MambaLayer:
    """Mamba-2 of one layer (moeinf.models.layers.recurrent.mamba2), the norm in front of it included."""

    def __init__(
        self,
        kernels: Kernels,
        input: Matrix,
        output: Matrix,
        *,
        norm: npt.NDArray[np.float32],
        taps: npt.NDArray[np.float32],
        conv_bias: npt.NDArray[np.float32],
        decay: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32],
        skip: npt.NDArray[np.float32],
        gate_norm: npt.NDArray[np.float32],
        in_bias: npt.NDArray[np.float32] | None,
        out_bias: npt.NDArray[np.float32] | None,
        num_groups: int,
        norm_eps: float,
        residual: float,
    ) -> None:
        """input [gates, channels, steps]; channels: values, keys, queries.

        norm [hidden]; taps [kernel, channels]; conv_bias [channels]; decay, bias, skip [heads]: a token's step is
        softplus(step + bias), its decay e^(decay * step); gate_norm [heads * head_dim]: RMS of each group. in_bias
        and out_bias: of the two matrices, where they have any. ValueError for shapes that do not fit together.
        """

    def run(self, x: npt.NDArray[np.float32], states: Sequence[RecurrentStates], rows: Sequence[int]) -> None:
        """x [tokens, hidden] += residual * mamba(norm(x)); what the tokens leave goes to new_conv and new_heads.

        states: of each sequence, conv [kernel - 1, channels] and heads [heads, state_size, head_dim].
        rows: how many of x go on with each, one behind another; with new states of the one before, it is its sequence.
        """

    @staticmethod
    def workspace_bytes(sizes: MambaSizes, shape: PassShape) -> int:
        """As of AttentionLayer."""

def channel_scan(
    kernels: Kernels,
    steps: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    keys: npt.NDArray[np.float32],
    queries: npt.NDArray[np.float32],
    projected: npt.NDArray[np.float32],
    rates: npt.NDArray[np.float32],
    skip: npt.NDArray[np.float32],
    state: npt.NDArray[np.float32],
    new_state: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """The recurrence of moeinf.models.layers.recurrent.mamba1, token by token, with the gates that follow it.

    steps (in front of softplus), values [tokens, channels]; keys, queries [tokens, state_size]; projected [tokens, any
    + channels], whose last columns are gates; rates (below 0) [state_size, channels]; skip [channels]; state and
    new_state, which may be one, [state_size, channels]; fills out [tokens, channels]. ValueError for other shapes.
    """

def scan(
    kernels: Kernels,
    queries: npt.NDArray[np.float32],
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    decays: npt.NDArray[np.float32],
    state: npt.NDArray[np.float32],
    new_state: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """The recurrence of moeinf.models.layers.recurrent.mamba2 where each head has its own keys and queries.

    Token by token. queries, keys [tokens, heads, dim]; values [heads, tokens, dim]; decays (factors, not logarithms)
    [heads, tokens]; state and new_state, which may be one, [heads, dim, dim]; fills out [heads, tokens, dim].
    ValueError for other shapes.
    """

def channel_delta(
    kernels: Kernels,
    queries: npt.NDArray[np.float32],
    keys: npt.NDArray[np.float32],
    values: npt.NDArray[np.float32],
    decays: npt.NDArray[np.float32],
    rates: npt.NDArray[np.float32],
    state: npt.NDArray[np.float32],
    new_state: npt.NDArray[np.float32],
    out: npt.NDArray[np.float32],
) -> None:
    """The recurrence of moeinf.models.layers.recurrent.channel_delta, token by token.

    queries, keys, values, decays (factors, not logarithms) [tokens, heads, dim]; rates [tokens, heads]; state and
    new_state, which may be one, [heads, dim, dim]; fills out [heads, tokens, dim]. ValueError for other shapes.
    """

class RouterLayer:
    """The norm in front of a MoE block, and its softmax router."""

    def __init__(
        self,
        kernels: Kernels,
        gate: Matrix,
        norm: npt.NDArray[np.float32] | None,
        norm_eps: float,
        top_k: int,
        normalise: bool,
    ) -> None: ...
    def run(
        self,
        x: npt.NDArray[np.float32],
        hidden: npt.NDArray[np.float32],
        ids: IntArray,
        weights: npt.NDArray[np.float32],
        spare_ids: IntArray | None = None,
        spare_weights: npt.NDArray[np.float32] | None = None,
    ) -> None:
        """Writes norm(x) [tokens, hidden], the chosen experts, largest weight first, and weights [tokens, top_k].

        spare_ids, spare_weights [tokens, number]: the same of those that come behind them, with weights on the scale of
        the others. ValueError for more than there are.
        """

    @staticmethod
    def workspace_bytes(hidden: int, num_experts: int, shape: PassShape) -> int:
        """As of AttentionLayer."""

def all_finite(numbers: npt.NDArray[np.float32]) -> bool:
    """Whether none of them is infinite or NaN."""

def rms_norm(
    kernels: Kernels,
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    eps: float,
    out: npt.NDArray[np.float32],
) -> None:
    """out [tokens, count] = x / rms(x) * weight."""

def layer_norm(
    kernels: Kernels,
    x: npt.NDArray[np.float32],
    weight: npt.NDArray[np.float32],
    bias: npt.NDArray[np.float32],
    eps: float,
    out: npt.NDArray[np.float32],
) -> None:
    """out [tokens, count] = (x - mean(x)) / std(x) * weight + bias."""

class Matrix:
    """A weight matrix in bytes that it keeps alive, of which every weight is multiplied by `scale`.

    ValueError for an unknown format and sizes that do not fit.
    """

    def __init__(
        self, memory: npt.NDArray[np.uint8], format: str, rows: int, cols: int, scale: float = 1.0
    ) -> None: ...

class Kernels:
    """A pool of threads (the caller is one of them), and the inner loops of one instruction set.

    isa "": the best that this CPU has. ValueError for one that is unknown, or that this CPU or build has not, and for
    less than 1 thread. For one Python thread at a time, with all that was made from it; not after a fork.
    """

    def __init__(self, threads: int, isa: str = "") -> None: ...
    @property
    def isa(self) -> str: ...
    @property
    def threads(self) -> int: ...
    @property
    def scratch_bytes(self) -> int:
        """Working memory that calls so far have made it take; it is kept for the next."""

    def release_scratch(self) -> None:
        """Gives that memory back to the machine; the next calls take what they need."""

    def begin_pass(self, tokens: int) -> None:
        """What is computed from here on is part of a pass over so many tokens, in however many calls.

        The number decides how rows are multiplied and attended, so that results do not depend on how a prompt is cut.
        0, as at first: each call counts its own rows.
        """

    @property
    def pass_tokens(self) -> int:
        """What begin_pass was last told; 0 before."""

    def linear(
        self,
        x: npt.NDArray[np.float32],
        w: Matrix,
        y: npt.NDArray[np.float32],
        bias: npt.NDArray[np.float32] | None = None,
        activation: str | None = None,
    ) -> None:
        """y [n, rows] = activation(x [n, cols] times the transpose of w + bias [rows]).

        ValueError for shapes that do not fit, and an activation that is unknown or has limits.
        """

    def watch(self, w: Matrix, sums: npt.NDArray[np.float32]) -> None:
        """From here on adds to sums [cols] the squares of all rows that w is multiplied with, one after the other.

        w is known by the place of its weights. ValueError for sums of another number.
        """

    @staticmethod
    def linear_workspace_bytes(cols: int, shape: PassShape) -> int:
        """What linear takes at most of the workspace for all tokens of a pass."""

    @staticmethod
    def panel_bytes(shape: PassShape) -> int:
        """What threads keep beside the workspace: quantised weights, laid out anew for many rows."""

_ExpertParts = Mapping[
    str,
    tuple[str, int, int, int]
    | tuple[str, int, int, int, int, int]
    | tuple[str, int, int, int, int, int, Sequence[float]],
]

class ExpertKernel:
    """The routed experts of one layer, whose blocks lie in one memory; kernels.ReferenceExpertKernel is its twin.

    parts: (format, rows, cols, offset in the block in bytes) of gate and up [intermediate, hidden], of down [hidden,
    intermediate], and of gate_bias, up_bias and down_bias [rows, 1] in f32, f16 or bf16: those that the form has. Or
    the same for each layer. With two more numbers, start and step, a part is one that was read with the rest of its
    file's blocks: that of expert e begins (start + e * step) % 4096 behind its offset. A seventh value lists
    factors of the weights of each expert. Or a list for each layer of its experts' slices, each of which lies in one
    block: parts of some rows, all of gate and up with their biases before those of down. Slice s of expert e is then
    e * slices + s for compute, slices being the most that any layer has, and follows slice s - 1 of the same expert.
    ValueError where they do not fit together. form: None is the plain one; or a list of one for each layer, which have
    the same parts. What finish adds depends neither on how the experts were spread over compute calls nor on their
    order.
    """

    def __init__(
        self,
        kernels: Kernels,
        memory: npt.NDArray[np.uint8],
        parts: _ExpertParts | Sequence[_ExpertParts] | Sequence[Sequence[_ExpertParts]],
        form: ExpertForm | Sequence[ExpertForm] | None = None,
    ) -> None: ...
    def begin(
        self, hidden: npt.NDArray[np.float32], ids: IntArray, weights: npt.NDArray[np.float32], layer: int = 0
    ) -> tuple[IntArray, IntArray]:
        """The experts routed to, ascending, and how many tokens each has. hidden [tokens, H]; ids, weights [tokens, k].

        layer: which parts are meant, where each layer has its own. The arrays are the caller's again afterwards.
        ValueError for shapes that do not fit, a negative id, and a layer that is not there.
        """

    def compute(self, experts: IntArray, offsets: IntArray) -> None:
        """The outputs of `experts`, whose blocks begin at `offsets` of the memory.

        ValueError, and nothing is computed, for one that no token was routed to, that was computed before, or whose
        block is not inside the memory.
        """

    def watch(
        self, layer: int, inputs: npt.NDArray[np.float32], acts: npt.NDArray[np.float32], counts: IntArray
    ) -> None:
        """From here on adds the squares of what each expert's matrices are multiplied with, token after token.

        inputs [experts, H]: of gate and up; acts [experts, I]: of down; counts [experts]: of tokens. ValueError for
        shapes that do not fit, and a layer that is not there.
        """

    def norm_outputs(self, layer: int, scale: npt.NDArray[np.float32], eps: float) -> None:
        """From here on `finish` divides the weight of each expert of a layer by the rms of its output: the root of the
        mean square of output * scale, plus eps.

        scale [H]. ValueError for another shape, an eps below 0, and a layer that is not there.
        """

    def acts(self, out: npt.NDArray[np.float32]) -> None:
        """What `down` was multiplied with by the last `compute`, which was of one expert, into out [its tokens, I].

        ValueError where it was of none or of several, and for another shape.
        """

    def put(self, experts: IntArray, rows: npt.NDArray[np.float32]) -> None:
        """Takes outputs that were computed elsewhere, in place of `compute`: rows [sum of the experts' counts, H].

        Those of experts[0] come first, each expert's in the order of the tokens. ValueError as of `compute`, and for
        another number of rows.
        """

    def get(self, experts: IntArray, rows: npt.NDArray[np.float32]) -> None:
        """Copies outputs that were computed here into `rows`, which are as `put` takes them. ValueError."""

    def finish(self, out: npt.NDArray[np.float32]) -> None:
        """out [tokens, H] += weights * outputs, one after the other in the order of the routing.

        ValueError unless every expert was computed.
        """

    @property
    def scratch_bytes(self) -> int:
        """As Kernels.scratch_bytes, of what is not the kernels'."""

    def release_scratch(self) -> None:
        """As Kernels.release_scratch; a layer that has begun, and is not finished, has to begin anew."""

    @staticmethod
    def workspace_bytes(parts: _ExpertParts, top_k: int, shape: PassShape) -> int:
        """What such a kernel keeps at most, once passes of every length up to this one have gone through."""

def memory_read_rate(kernels: Kernels, num_bytes: int, repeats: int) -> float:
    """Bytes a second at which all threads read num_bytes of fresh huge pages: the best of `repeats`.

    num_bytes is to be several times the last-level cache; ValueError for less than 1 MiB or 1 repeat.
    """

def product_read_rates(
    kernels: Kernels, w: Matrix, num_x: int, num_bytes: int, repeats: int
) -> list[tuple[float, float]]:
    """Bytes a second, of each repeat, at which all threads read memory, and at which products go through its weights.

    num_bytes of fresh huge pages have copies of w one behind the other, each of which is multiplied by num_x
    activations in a call of its own. ValueError for less than 1 MiB, less than w takes, less than 1 repeat, or other
    than 1 to 8 activations.
    """

def cached_product_rates(kernels: Kernels, w: Matrix, num_x: int, repeats: int) -> list[float]:
    """The rates of products alone, where each thread multiplies a copy of w of its own again and again.

    They are those of a cache that the copy fits in. ValueError for less than 1 repeat, or other than 1 to 8
    activations.
    """

def end_if_unbegun(line: str, otherwise: Callable[[Any], object], unraisable: Any) -> None:
    """Of what Python tells sys.unraisablehook: ends the process where a thread was refused memory as it began.

    Then the line goes to standard error, and the exit code is 1; else `otherwise` is called with it.
    """

def available_isas() -> list[str]:
    """What `Kernels` accepts here, best first; the last is "generic"."""

class UseModel:
    """How soon each expert is used again, learned online from the routing alone; docs/lab/policies.md has the formulas.

    Two logistic regressions give p, that the layer's next token uses an expert, and p4, that one of the next 4 does;
    rate = 1 - (1 - p4)^(1/4). ValueError for a routing that does not fit.
    """

    def __init__(self, num_layers: int, num_experts: int, top_k: int) -> None: ...
    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k]; those of a token are distinct. Many at once teach no weights."""

    def restart(self) -> None:
        """Says that routings were left out: the next follows nothing that came before. What was learned stays."""

    @property
    def no_use(self) -> FloatArray:
        """1 - p [num_layers, num_experts] of the tokens to come: a view that is read-only and follows `observe`."""

    @property
    def wait(self) -> FloatArray:
        """(1 - p) / rate [num_layers, num_experts]: expected tokens behind the next one until a use; such a view."""

    @staticmethod
    def num_bytes(num_layers: int, num_experts: int) -> int:
        """What such a model keeps in memory, but for a few KB."""

class NextUseScores:
    """The scores of moeinf.runtime.policy.eviction.NextUse, by the tables of a UseModel or TunedUse, which it keeps.

    ValueError for tables of two shapes, a layer that there is not, or an encoder of too many.
    """

    def __init__(self, no_use: FloatArray, wait: FloatArray, *, encoder_layers: int, next_source: int) -> None:
        """encoder_layers: how many, the first ones, only a source visits. next_source: steps until the next one."""

    def observed(self, num_tokens: int) -> None:
        """Says that the routing which was learned last is of so many tokens."""

    def keep_scores(self, layer: int) -> FloatArray:
        """[num_layers, num_experts] while `layer` runs: a view that is read-only, until the next call."""

class UseEvidence:
    """What is learned of a model's routing while it runs, as the inputs of the network of `moeinf tune`.

    ValueError for a routing that does not fit.
    """

    def __init__(self, num_layers: int, num_experts: int, top_k: int) -> None: ...
    def observe(self, layer: int, ids: IntArray) -> None:
        """Takes the routing `ids` [tokens, top_k]; afterwards `rows` is of this layer's tokens to come.

        A layer that does not lie behind the last one begins another pass, and so does another number of tokens.
        """

    def restart(self) -> None:
        """Does as UseModel.restart."""

    @property
    def rows(self) -> Float32Array:
        """[4, num_experts]: logits of p and p4 by UseModel; log(x + 0.02) of what followed the tokens most alike."""

class TunedUse:
    """UseModel's answers by a trained network: formulas in docs/lab/policies.md, shapes in runtime/policy/tuned.py.

    ValueError for weights or a routing that do not fit, and for a weight that is NaN or beyond 1e4 either way.
    """

    def __init__(
        self,
        num_layers: int,
        num_experts: int,
        top_k: int,
        width: int,
        *,
        token: Float32Array,
        own: Float32Array,
        contexts: Float32Array,
        bias: Float32Array,
        hidden: Float32Array,
        head: Float32Array,
        head_bias: Float32Array,
        direct: Float32Array,
    ) -> None: ...
    def observe(self, layer: int, ids: IntArray) -> None: ...
    def restart(self) -> None: ...
    @property
    def no_use(self) -> FloatArray: ...
    @property
    def wait(self) -> FloatArray: ...
    @staticmethod
    def num_bytes(num_layers: int, num_experts: int, top_k: int) -> int:
        """What it keeps in memory beside its weights."""

class CudaError(RuntimeError):
    """A call of the CUDA driver that failed; name is the driver's, as "CUDA_ERROR_OUT_OF_MEMORY" for code 2."""

    code: int
    name: str

class CudaDriver:
    """The NVIDIA driver's library, loaded at run time: what it is, and which devices it shows to this process.

    OSError where it cannot be loaded or lacks a function, CudaError where it does not start (no device, a kernel module
    that does not fit it). Devices are numbered as torch numbers them; CudaError for one that is not there.
    """

    def __init__(self, library: str = "libcuda.so.1") -> None: ...
    @property
    def version(self) -> int:
        """The newest CUDA that the driver can run: 12040 is 12.4."""

    @property
    def device_count(self) -> int: ...
    def name(self, device: int) -> str: ...
    def capability(self, device: int) -> tuple[int, int]: ...
    def total_bytes(self, device: int) -> int: ...
    def has_display(self, device: int) -> bool:
        """Whether the driver limits how long a kernel may take, as it does on a card that a display needs too."""

    def uuid(self, device: int) -> str:
        """As nvidia-smi writes it: "GPU-" and 32 hexadecimal digits in five groups."""

    def memory(self, device: int) -> tuple[int, int]:
        """Free and total bytes. Makes the device's primary context where there is none yet: a second, 0.5 GB of it."""

class Copier:
    """Copies experts from host to device memory on one stream of its own; moeinf.types.Copier is its protocol.

    It works in the device's primary context, the one that torch uses. Addresses are numbers; streams are
    torch.cuda.Stream.cuda_stream, 0 for the default one. Everything is called from one thread, and not while one of its
    streams is captured into a graph. A call that the driver refuses is a CudaError, misuse a ValueError; after close()
    every call but bytes_copied, busy_seconds and close is a ValueError.
    """

    def __init__(self, driver: CudaDriver, device: int, ring_bytes: int = 64 << 20) -> None:
        """ring_bytes: pinned memory for copying from memory that is not registered; at least 16384."""

    @property
    def batched(self) -> bool:
        """Whether the copies of one call go to the driver in one submission (drivers from 12.8 on)."""

    def register(
        self, memory: npt.NDArray[np.uint8], ends: IntArray, progress: Callable[[int], None] | None = None
    ) -> int:
        """Pins memory in pieces of whole blocks, up to 256 MiB each; bytes pinned from its start.

        ends: where each block ends, ascending; what lies behind the last is not pinned.

        Ends at the first piece that the system refuses, and gives the piece before it back then: others in this process
        need pinned memory too. The memory is kept alive until close(). Without the GIL; between pieces signal handlers
        run and progress is told the bytes pinned so far: what these raise ends the call, and what is pinned then
        close() gives back. ValueError for memory that overlaps what is registered already or does not start with a
        page, and for ends that do not ascend or lie behind it.
        """

    def device_address(self, address: int, num_bytes: int = 1) -> int:
        """Where kernels see registered memory. ValueError unless the range is registered, and in one piece for them."""

    def copy(self, sources: IntArray, destinations: IntArray, num_bytes: IntArray, compute_stream: int) -> int:
        """Submits copies of so many bytes each, behind what compute_stream was given so far; returns their ticket.

        sources are host, destinations device addresses. Registered sources must stay as they are until the ticket is
        done; others go through the ring, which may have to wait for earlier copies, and are the caller's again at once.
        Nothing of the call is under way when it raises; what lay at its destinations is lost. Without the GIL.
        """

    def make_wait(self, compute_stream: int, ticket: int) -> None:
        """What is submitted to compute_stream from now on waits for the copies of the ticket. Does not block."""

    def done(self, ticket: int) -> bool: ...
    def wait(self, ticket: int) -> None:
        """Blocks, without the GIL, until the copies of the ticket and of all before it have ended."""

    def bytes_copied(self) -> int:
        """Bytes of the copies that have ended."""

    def busy_seconds(self) -> float:
        """Seconds of the device's clock in which copies that have ended were under way."""

    def close(self) -> None:
        """Waits for the copies, then gives back the pinned memory; CudaError, once, where the driver failed at it."""
