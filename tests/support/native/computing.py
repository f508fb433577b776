"""Rows of the table: matrices, threads, norms, routers and experts."""

from __future__ import annotations

from typing import Any

import numpy as np

from moeinf import _native
from moeinf.types import ExpertForm, PassShape
from tests.support.native.table import Arguments, World, call, plain

EXPERTS, INNER = 6, 32


def pass_shape(world: World) -> PassShape:
    dtype: Any = world.rng.choice(["bf16", "f16", "f32"])
    kept: Any = world.rng.choice(["bf16", "f32", "q8_0"])
    return PassShape(dtype=dtype, kept=kept, tokens=world.tokens, positions=world.rng.choice([1, 100]), num_threads=2)


@call(
    "Matrix",
    "an unknown format, less than 1 row or column, columns that are no whole number of blocks, bytes that are not "
    "theirs",
)
def _matrix(world: World) -> Arguments:
    return {"memory": world.bytes(68), "format": "q8_0", "rows": 2, "cols": 32, "scale": 1.0}


@call(
    "Kernels",
    "less than 1 thread or more than 65535, an instruction set that is unknown or not there; OSError where the system "
    "has no thread to give",
    OSError,
    tried={"threads": (0, -1, 2**16, 2**31, 2**63, None, 1.0, "2")},  # a sanitizer ends where the system has none
)
def _kernels(world: World) -> Arguments:
    return {"threads": world.rng.choice([1, 2, 3]), "isa": world.rng.choice(["", *_native.available_isas()])}


plain("Kernels", "isa", "threads", "scratch_bytes", "pass_tokens", "release_scratch")


@call("Kernels.begin_pass", "less than 0 tokens")
def _begin_pass(world: World) -> Arguments:
    return {"tokens": world.rng.choice([0, 1, 8, 100])}


def _product(given: Arguments, _: Any) -> bool:
    return bool(np.isfinite(given["y"]).all())


@call("Kernels.linear", "shapes that do not fit, functions that are unknown or have limits", holds=_product)
def _linear(world: World) -> Arguments:
    rows = world.rng.choice([1, 16, 50])
    w = world.matrix(rows, world.rng.choice([32, 256]) if world.rng.random() < 0.5 else 64)
    cols = next(cols for cols in (32, 64, 256) if _fits(w, cols, rows))
    given = {"x": world.floats(world.tokens, cols), "w": w, "y": world.floats(world.tokens, rows)}
    finish = {"bias": world.floats(rows), "activation": world.rng.choice(["gelu", "relu2"])}
    return given | (finish if world.rng.random() < 0.5 else {})


def _fits(w: Any, cols: int, rows: int) -> bool:
    try:
        _KERNELS.linear(np.zeros((0, cols), np.float32), w, np.zeros((0, rows), np.float32))
    except ValueError:
        return False
    return True


_KERNELS = _native.Kernels(1)


@call("Kernels.watch", "other than one sum for each column")
def _watch(world: World) -> Arguments:
    return {"w": world.matrix(16, 64), "sums": world.floats(64)}


@call("Kernels.linear_workspace_bytes", "formats that are unknown, sizes below 0, what is no number of bytes")
def _linear_workspace_bytes(world: World) -> Arguments:
    return {"cols": 64, "shape": pass_shape(world)}


@call("Kernels.panel_bytes", "formats that are unknown, sizes below 0, what is no number of bytes")
def _panel_bytes(world: World) -> Arguments:
    return {"shape": pass_shape(world)}


@call("memory_read_rate", "less than 1 MiB, less than 1 repeat or more than 1000")
def _memory_read_rate(world: World) -> Arguments:
    return {"kernels": world.get("Kernels"), "num_bytes": 1 << 20, "repeats": 1}


def _of_matrix(world: World) -> Arguments:
    return {"kernels": world.get("Kernels"), "w": world.matrix(16, 256), "num_x": world.rng.choice([1, 8])}


def _are_rates(given: Arguments, found: Any) -> bool:
    rates = np.array(found)
    return len(rates) == given["repeats"] and bool((np.isfinite(rates) & (rates > 0)).all())


@call(
    "product_read_rates",
    "less than 1 MiB or than the matrix, less than 1 repeat or more than 1000, other than 1 to 8 activations",
    holds=_are_rates,
)
def _product_read_rates(world: World) -> Arguments:
    return {**_of_matrix(world), "num_bytes": 1 << 20, "repeats": 2}


@call("cached_product_rates", "less than 1 repeat or more than 1000, other than 1 to 8 activations", holds=_are_rates)
def _cached_product_rates(world: World) -> Arguments:
    return {**_of_matrix(world), "repeats": 2}


def _is_normed(given: Arguments, _: Any) -> bool:
    x = given["x"].astype(np.float64)
    wanted = x / np.sqrt((x * x).mean(1, keepdims=True) + given["eps"]) * given["weight"]
    return bool(np.allclose(given["out"], wanted, 1e-3, 1e-3))


@call("rms_norm", "arrays of two widths", holds=_is_normed)
def _rms_norm(world: World) -> Arguments:
    x, weight = world.floats(world.tokens, 40), world.floats(40)
    return {"kernels": world.get("Kernels"), "x": x, "weight": weight, "eps": 1e-5, "out": np.empty_like(x)}


@call("layer_norm", "arrays of two widths")
def _layer_norm(world: World) -> Arguments:
    return {**_rms_norm(world), "bias": world.floats(40)}


@call("RouterLayer", "a norm of another width, top_k below 1 or beyond the experts")
def _router(world: World) -> Arguments:
    gate, norm = world.matrix(EXPERTS, world.hidden), world.floats(world.hidden)
    top_k, kernels = 3, world.get("Kernels")
    return {"kernels": kernels, "gate": gate, "norm": norm, "norm_eps": 1e-6, "top_k": top_k, "normalise": True}


def _chosen(given: Arguments, _: Any) -> bool:
    ids = given["ids"]
    return bool((ids >= 0).all() and (ids < EXPERTS).all() and all(len(set(row)) == len(row) for row in ids.tolist()))


@call("RouterLayer.run", "shapes that do not fit", holds=_chosen)
def _route(world: World) -> Arguments:
    x = world.floats(world.tokens, world.hidden)
    ids, weights = world.whole(EXPERTS, world.tokens, 3), world.floats(world.tokens, 3)
    spares = {"spare_ids": world.whole(EXPERTS, world.tokens, 2), "spare_weights": world.floats(world.tokens, 2)}
    more = spares if world.rng.random() < 0.5 else {}
    return {"x": x, "hidden": np.empty_like(x), "ids": ids, "weights": weights, **more}


@call("RouterLayer.workspace_bytes", "formats that are unknown, sizes below 0, what is no number of bytes")
def _router_bytes(world: World) -> Arguments:
    return {"hidden": 64, "num_experts": 6, "shape": pass_shape(world)}


def _parts(world: World) -> dict[str, Any]:
    """Of experts whose blocks are 3 matrices in bf16 and what they are multiplied by."""
    hidden, scale = world.hidden, world.rng.random() < 0.2
    size = INNER * hidden * 2
    more = (0, 0, [0.5] * EXPERTS) if scale else ()
    return {
        "gate": ("bf16", INNER, hidden, 0),
        "up": ("bf16", INNER, hidden, size),
        "down": ("bf16", hidden, INNER, 2 * size, *more),
    }


@call(
    "ExpertKernel",
    "parts or forms that do not fit together, an unknown format or activation, a part that ends behind its block",
)
def _expert_kernel(world: World) -> Arguments:
    memory = (world.floats(EXPERTS * 3 * INNER * world.hidden).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    parts: Any = world.kept("parts", lambda: _parts(world))
    parts = world.rng.choice([parts, [parts], [parts, parts], [[parts]]])
    forms = [None, ExpertForm(), [None, ExpertForm("gelu")] if isinstance(parts, list) and len(parts) == 2 else None]
    return {"kernels": world.get("Kernels"), "memory": memory, "parts": parts, "form": world.rng.choice(forms)}


@call("ExpertKernel.begin", "shapes that do not fit, an id below 0 or from 2^31 on, a layer that there is not")
def _begin(world: World) -> Arguments:
    hidden, weights = world.floats(world.tokens, world.hidden), world.floats(world.tokens, 2)
    ids = np.stack([world.distinct(EXPERTS, 2) for _ in range(world.tokens)])
    world.memory["routed"] = sorted({int(each) for each in ids.ravel()})
    world.memory["counts"] = [int((ids == each).sum()) for each in world.memory["routed"]]
    return {"hidden": hidden, "ids": ids, "weights": weights, "layer": 0}


def _some(world: World) -> tuple[Any, int]:
    routed, counts = world.memory.get("routed", [0]), world.memory.get("counts", [1])
    which = sorted(world.rng.sample(range(len(routed)), world.rng.randrange(1, len(routed) + 1)))
    return np.array([routed[i] for i in which], np.int64), sum(counts[i] for i in which)


@call(
    "ExpertKernel.compute",
    "no begin, other than one offset for each expert, an expert that no token has or that was computed, a block "
    "outside the memory; RuntimeError: a pass has begun that asks for other memory than that of begin",
    RuntimeError,
)
def _compute(world: World) -> Arguments:
    experts, _ = _some(world)
    return {"experts": experts, "offsets": experts * 6 * INNER * world.hidden}


@call("ExpertKernel.watch", "sums of other shapes than the experts have, a layer that there is not")
def _watch_experts(world: World) -> Arguments:
    inputs, acts = world.floats(EXPERTS, world.hidden), world.floats(EXPERTS, INNER)
    return {"layer": 0, "inputs": inputs, "acts": acts, "counts": np.zeros(EXPERTS, np.int64)}


@call("ExpertKernel.norm_outputs", "another number of factors than outputs have, an eps below 0, a layer that is not")
def _norm_outputs(world: World) -> Arguments:
    return {"layer": 0, "scale": world.floats(world.hidden), "eps": world.rng.choice([0.0, 1e-8, 0.5])}


@call("ExpertKernel.acts", "no begin, a compute of none or of several experts, slices, another shape")
def _acts(world: World) -> Arguments:
    kernel = world.get("ExpertKernel")
    kernel.begin(**_begin(world))
    first = np.array(world.memory["routed"][:1], np.int64)
    kernel.compute(first, first * 6 * INNER * world.hidden)
    return {"out": world.floats(world.memory["counts"][0], INNER)}


@call("ExpertKernel.put", "no begin, an expert that no token has or that was computed, another number of rows")
def _put(world: World) -> Arguments:
    experts, rows = _some(world)
    return {"experts": experts, "rows": world.floats(rows, world.hidden)}


def _computed(world: World) -> None:
    """A step is made, to its end but for what the row does."""
    kernel = world.get("ExpertKernel")
    kernel.begin(**_begin(world))
    experts = np.array(world.memory["routed"], np.int64)
    kernel.compute(experts, experts * 6 * INNER * world.hidden)


@call("ExpertKernel.get", "no begin, an expert that no token has or that was not computed, another number of rows")
def _get(world: World) -> Arguments:
    _computed(world)
    experts, rows = _some(world)
    return {"experts": experts, "rows": world.floats(rows, world.hidden)}


@call(
    "ExpertKernel.finish",
    "no begin, an expert that was not computed, another shape",
    holds=lambda given, _: bool(np.isfinite(given["out"]).all()),
)
def _finish(world: World) -> Arguments:
    _computed(world)
    return {"out": world.floats(world.tokens, world.hidden)}


plain("ExpertKernel", "scratch_bytes", "release_scratch")


@call("ExpertKernel.workspace_bytes", "parts that lack up or down, sizes below 0, what is no number of bytes")
def _expert_bytes(world: World) -> Arguments:
    return {"parts": _parts(world), "top_k": 2, "shape": pass_shape(world)}
