"""Rows of the table: the read engine, and the cache of experts over it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from moeinf import _native
from moeinf.runtime.cache.stats import CacheStats
from tests.support.native.table import Arguments, World, call, plain

LAYERS, EXPERTS, SLOTS, BLOCK = 3, 4, 6, 4096
KEYS = LAYERS * EXPERTS


def contents(world: World) -> Any:
    """What the file has, block by block; it is there once this is called."""

    def made() -> Any:
        data = world.bytes(KEYS * BLOCK)
        (world.folder / "experts").write_bytes(data.tobytes())
        return data.reshape(KEYS, BLOCK)

    return world.kept("contents", made)


def _closed(*more: str) -> str:
    return ", ".join([*more, "a reader that is closed"])


@call(
    "NativeReader",
    "another number of sizes than of paths, an unknown backend, depths, segments, disks and cuts that cannot be; "
    "OSError: a file that cannot be opened, or is of another size, a backend that the system refuses",
    OSError,
)
def _reader(world: World) -> Arguments:
    contents(world)
    return {"paths": [str(world.folder / "experts")], "sizes": [KEYS * BLOCK], "arena": world.get("Arena"),
            "backend": world.rng.choice(["auto", "threads"]), "direct": False, "queue_depth": 4, "prefetch_depth": 2,
            "segment_bytes": BLOCK, "on_wait": None, "disks": 1, "cuts": []}  # fmt: skip


@call("NativeReader.bytes_read_of", "IndexError: a disk that there is not", IndexError)
def _bytes_read_of(world: World) -> Arguments:
    return {"disk": 0}


plain("NativeReader", "backend", "notice", "bytes_read", "busy_seconds", "close")
plain("NativeReader", "poll", refuses=_closed())


def _asked(world: World) -> Arguments:
    keys = world.distinct(KEYS, world.rng.randrange(1, 4))
    return {"keys": keys, "files": np.zeros_like(keys), "offsets": keys * BLOCK, "destinations": keys * BLOCK}


@call(
    "NativeReader.submit",
    _closed(
        "columns of two lengths, a key that is queued, in flight or not collected, ranges that are not inside file and "
        "arena or not on 4 KiB borders, a priority that is NaN or minus infinity"
    ),
)
def _submit(world: World) -> Arguments:
    given = _asked(world)
    return given | {"num_bytes": BLOCK, "priorities": world.doubles(len(given["keys"]))}


@call("NativeReader.submit_pieces", _closed("as submit; keys without pieces"))
def _submit_pieces(world: World) -> Arguments:
    given = _asked(world)
    rows = {name: np.repeat(given[name][:, None], 2, 1) for name in ("files", "offsets", "destinations")}
    num_bytes = np.tile(np.array([100, 0]), (len(given["keys"]), 1))
    return {"keys": given["keys"], **rows, "num_bytes": num_bytes, "priorities": world.doubles(len(given["keys"]))}


@call("NativeReader.expect", "columns of two lengths, a place that is not inside its file")
def _expect(world: World) -> Arguments:
    key = world.rng.randrange(KEYS)
    sums = np.array([_native.crc32c(contents(world)[key])], np.uint32)
    return {"files": np.zeros(1, np.int64), "offsets": np.array([key * BLOCK]), "num_bytes": BLOCK, "sums": sums,
            "always": world.rng.random() < 0.5}  # fmt: skip


@call("NativeReader.reprioritise", _closed("columns of two lengths", "a priority that is NaN or minus infinity"))
def _reprioritise(world: World) -> Arguments:
    keys = world.distinct(KEYS, 2)
    return {"keys": keys, "priorities": world.doubles(2)}


@call("NativeReader.known", _closed())
def _known(world: World) -> Arguments:
    return {"keys": world.distinct(KEYS, 2)}


@call("NativeReader.cancel", _closed())
def _cancel(world: World) -> Arguments:
    return {"keys": world.distinct(KEYS, 2)}


@call("NativeReader.wait_any", _closed("no keys", "a key that is not known; ReadFailure for one that failed"), OSError)
def _wait_any(world: World) -> Arguments:
    given = _submit(world)
    if world.rng.random() < 0.7:
        world.get("NativeReader").submit(**given)
    return {"keys": given["keys"]}


@call(
    "SlotTable",
    "states and offsets of two lengths, slots of no size, of more bytes than any memory has or of unknown classes, a "
    "first offset below 0",
)
def _table(world: World) -> Arguments:
    sizes = world.kept("classes", lambda: world.rng.choice([[BLOCK], [BLOCK, 2 * BLOCK]]))
    of_slots = np.arange(SLOTS, dtype=np.uint8) % len(sizes)
    of_keys = np.repeat(np.arange(LAYERS, dtype=np.uint8) % len(sizes), EXPERTS)
    states = world.kept("states", lambda: np.zeros(KEYS, np.uint8))
    offsets = world.kept("offsets", lambda: np.zeros(KEYS, np.int64))
    return {"first_offset": 0, "class_bytes": sizes, "of_slots": of_slots, "of_keys": of_keys, "states": states,
            "offsets": offsets}  # fmt: skip


plain("SlotTable", "num_slots", "num_free", "num_resident", "num_loading", "total_experts", "all_resident")
plain("SlotTable", "end_offset", "num_classes", "slots_by_class", "free_by_class", "free_offsets", "loading", "count")


def _keys(world: World) -> list[int]:
    return world.rng.sample(range(KEYS), world.rng.choice([1, 1, 2, 4]))


NO_KEY = "IndexError: a key that there is not"


@call("SlotTable.assign", f"too few free slots, an expert that is not absent; {NO_KEY}", IndexError)
def _assign(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("SlotTable.land", NO_KEY, IndexError)
def _land(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("SlotTable.limit", "less than 0 slots or more than at first")
def _limit(world: World) -> Arguments:
    return {"num_slots": world.rng.randrange(SLOTS + 1)}


def keep_scores(layer: int) -> Any:
    return np.linspace(0, 1, KEYS)


def _raises(*given: Any) -> Any:
    raise ValueError("raised by what was called back")


def _policy(world: World) -> SimpleNamespace:
    """Of a sound policy, as a rule; else of one whose scores are none, or that meddles with the cache that asks it."""

    def meddles(layer: int) -> Any:
        cache, table = world.made.get("ExpertCache"), world.get("SlotTable")
        if cache is not None:
            table.land(table.loading())
            cache.let_go()
            cache.release([key for key in range(KEYS) if len(cache.by_state([key])[2])][:2])
        return keep_scores(layer)

    others = (_raises, meddles, lambda layer: np.zeros(1), lambda layer: None, lambda layer: np.full(KEYS, np.nan))
    return SimpleNamespace(keep_scores=world.rng.choice((keep_scores, keep_scores, keep_scores, *others)))


@call("ExpertCache", "other keys than layers times experts")
def _cache(world: World) -> Arguments:
    policy = _policy(world)
    if world.rng.random() < 0.3:
        policy.native = _native.NextUseScores(
            world.doubles(LAYERS, EXPERTS), world.doubles(LAYERS, EXPERTS), encoder_layers=0, next_source=0
        )
    return {"table": world.get("SlotTable"), "num_layers": LAYERS, "num_experts": EXPERTS, "policy": policy,
            "stats": CacheStats()}  # fmt: skip


plain(
    "ExpertCache", "layer", "num_pinned", "num_reserved", "pinned", "reserved", "unused", "end_reservations", "let_go"
)


@call("ExpertCache.by_state", NO_KEY, IndexError)
def _by_state(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call(
    "ExpertCache.begin_layer", f"a layer that there is not, counts that are not those of the keys; {NO_KEY}", IndexError
)
def _begin_layer(world: World) -> Arguments:
    layer, keys = world.rng.randrange(LAYERS), _keys(world)
    return {"layer": layer, "keys": keys, "counts": np.ones(len(keys), np.int64), "many": world.rng.random() < 0.3}


@call("ExpertCache.share")
def _share(world: World) -> Arguments:
    return {"shared": world.rng.random() < 0.5}


@call("ExpertCache.pin", NO_KEY, IndexError)
def _pin(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("ExpertCache.unpin", NO_KEY, IndexError)
def _unpin(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("ExpertCache.reserve", NO_KEY, IndexError)
def _reserve(world: World) -> Arguments:
    return {"keys": _keys(world), "prefetched": world.rng.random() < 0.5}


@call("ExpertCache.make_room", f"a policy whose scores are not one a key; {NO_KEY}", IndexError)
def _make_room(world: World) -> Arguments:
    return {"keys": _keys(world), "also_held": _keys(world), "at_any_cost": world.rng.random() < 0.5}


@call("ExpertCache.release", f"an expert that has no slot; {NO_KEY}", IndexError)
def _release(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("ExpertCache.take_over", "other than one number a key, a slot that there is not, or that two experts lie in")
def _take_over(world: World) -> Arguments:
    numbers = np.full(KEYS, -1, np.int64)
    numbers[world.rng.randrange(KEYS)] = 0
    return {"numbers": numbers}


call("ExpertReads", "TypeError: it is what PythonReads and FileReads are")(lambda world: {})


class Reads:
    """A reader in Python, which brings everything at once; one that lies also names keys that nobody asked for."""

    def __init__(self, lies: bool) -> None:
        self.coming: list[int] = []
        self.others = [99, -1, 2**62, 3] if lies else []

    def submit(self, keys: Any, offsets: Any, priorities: Any) -> None:
        self.coming += keys.tolist()

    def reprioritise(self, keys: Any, priorities: Any) -> None:
        pass

    def cancel(self, keys: Any) -> Any:
        return np.array(self.others, np.int64)

    def known(self, keys: Any) -> Any:
        return np.array([key for key in keys.tolist() if key in self.coming] + self.others, np.int64)

    def poll(self) -> tuple[Any, Any]:
        done, self.coming = self.coming, []
        return np.array(done, np.int64), np.array(self.others, np.int64)

    def wait_any(self, keys: Any) -> Any:
        done = [key for key in keys.tolist() if key in self.coming]
        if not done:
            raise ValueError("no such key is being read")
        self.coming = [key for key in self.coming if key not in done]
        return np.array(done, np.int64)


@call("PythonReads")
def _python_reads(world: World) -> Arguments:
    reads = Reads(lies=world.rng.random() < 0.2)
    return {"reader": reads, "submit": reads.submit, "pages": None, "stride_bytes": BLOCK}


@call("FileReads", "places that are not all [layers, pieces], less than 1 expert or slice")
def _file_reads(world: World) -> Arguments:
    rows = np.zeros((LAYERS, 1), np.int64)
    starts = np.arange(LAYERS)[:, None] * EXPERTS * BLOCK
    return {"reader": world.get("NativeReader"), "files": rows, "starts": starts, "steps": rows + BLOCK,
            "num_bytes": rows + BLOCK, "regions": rows, "num_experts": EXPERTS, "slices": 1, "pages": None,
            "stride_bytes": BLOCK}  # fmt: skip


@call("Loader", "less than 1 slice, slices that do not divide the keys")
def _loader(world: World) -> Arguments:
    reads = world.get(world.kept("reads", lambda: world.rng.choice(["PythonReads", "FileReads"])))
    return {"cache": world.get("ExpertCache"), "reads": reads, "slices": 1}


READ = _closed(f"an expert that is not absent, too few free slots, as many priorities as keys; {NO_KEY}")


def _wanted(world: World) -> Arguments:
    keys = np.array(_keys(world), np.int64)
    return {"keys": keys, "priorities": world.doubles(len(keys))}


@call("Loader.submit", READ, IndexError)
def _load(world: World) -> Arguments:
    given = _wanted(world)
    return {"keys": given["keys"].tolist(), "priorities": given["priorities"].tolist()}


@call("Loader.demand", READ, IndexError)
def _demand(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("Loader.prefetch", READ, IndexError)
def _prefetch(world: World) -> Arguments:
    return _wanted(world)


@call("Loader.reprioritise", READ, IndexError)
def _loads_first(world: World) -> Arguments:
    return _wanted(world)


@call("Loader.cancel", READ, IndexError)
def _cancel_loads(world: World) -> Arguments:
    return {"keys": _keys(world)}


@call("Loader.drop", READ, IndexError)
def _drop_loads(world: World) -> Arguments:
    return {"keys": _keys(world)}


plain("Loader", "poll", refuses=READ, errors=(IndexError,))


@call("Loader.wait", f"a key that is not being read; {NO_KEY}; ReadFailure", IndexError, OSError)
def _wait_loads(world: World) -> Arguments:
    return {"keys": world.get("SlotTable").loading() or _keys(world)}


@call("IdleWindow", "what the clock raises", holds=None)
def _idle(world: World) -> Arguments:
    return {"clock": None, "lag_s": None, "seconds": 0.1}


plain("IdleWindow", "seconds", "clock")
plain("IdleWindow", "visit_begins", "demand_ends", refuses="what the clock raises")


@call("Visits")
def _visits(world: World) -> Arguments:
    profiler = SimpleNamespace(lap=world.rng.choice((lambda name: 0.0, lambda name: 0.0, _raises)))
    return {"cache": world.get("ExpertCache"), "loader": world.get("Loader"), "idle": world.get("IdleWindow"),
            "profiler": profiler, "explain": lambda failure: ValueError("a read failed")}  # fmt: skip


@call("Visit", _closed("no token, other counts, a layer or an expert that there is not, one named twice"), IndexError)
def _visit(world: World) -> Arguments:
    experts = world.distinct(EXPERTS, world.rng.randrange(1, EXPERTS))
    return {"visits": world.get("Visits"), "layer": world.rng.randrange(LAYERS), "experts": experts,
            "counts": np.ones(len(experts), np.int64), "num_tokens": world.rng.randrange(1, 4)}  # fmt: skip


@call("Visit.read_ahead", NO_KEY, IndexError)
def _read_ahead(world: World) -> Arguments:
    return {"keys": np.array(_keys(world), np.int64)}


plain("Visit", "layer", "num_tokens", "keys", "num_absent", "all_have_slots", "any_ready", "close")
plain("Visit", "__enter__", "__exit__")
plain(
    "Visit",
    "_arrive",
    "arrivals",
    refuses="what explain makes of a failure, a visit whose reads are not there; RuntimeError where others took them",
    errors=(IndexError, RuntimeError),
)
