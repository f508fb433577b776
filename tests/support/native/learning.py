"""Rows of the table: what eviction learns of routing."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.support.native.table import Arguments, World, call, plain

LAYERS, EXPERTS, TOP_K, WIDTH = 3, 8, 2, 4
SIZES = "sizes below 1, a top_k beyond the experts, tables that no memory could hold"
ROUTING = "a layer or an expert that there is not, a routing that is not [tokens, top_k], an expert twice in a token"


def _sizes(world: World) -> Arguments:
    return {"num_layers": LAYERS, "num_experts": EXPERTS, "top_k": TOP_K}


def _routing(world: World) -> Arguments:
    ids = np.stack([world.distinct(EXPERTS, TOP_K) for _ in range(world.rng.choice([1, 1, 2, 40]))])
    return {"layer": world.rng.randrange(LAYERS), "ids": ids}


def _tuned(world: World) -> Arguments:
    shapes = {
        "token": (LAYERS, EXPERTS, WIDTH), "own": (LAYERS, EXPERTS, WIDTH), "contexts": (4, WIDTH, WIDTH),
        "bias": (LAYERS, WIDTH), "hidden": (WIDTH, WIDTH), "head": (LAYERS, WIDTH, 2 * EXPERTS),
        "head_bias": (LAYERS, 2 * EXPERTS), "direct": (LAYERS, 4, 2),
    }  # fmt: skip
    return {**_sizes(world), "width": WIDTH, **{name: world.floats(*shape) for name, shape in shapes.items()}}


call("UseModel", SIZES)(_sizes)
call("UseEvidence", SIZES)(_sizes)
call("TunedUse", f"{SIZES}, weights of another shape, weights that are NaN or infinite")(_tuned)
for name in ("UseModel", "UseEvidence", "TunedUse"):
    call(f"{name}.observe", ROUTING)(_routing)
    plain(name, "restart")
plain("UseModel", "no_use", "wait")
plain("TunedUse", "no_use", "wait")
plain("UseEvidence", "rows")
call("UseModel.num_bytes", "sizes below 1, what is no number of bytes")(
    lambda world: {"num_layers": LAYERS, "num_experts": EXPERTS}
)
call("TunedUse.num_bytes", "sizes below 1, what is no number of bytes")(_sizes)


def _tables(world: World) -> Any:
    return world.kept("tables", lambda: (world.doubles(LAYERS, EXPERTS), world.doubles(LAYERS, EXPERTS)))


@call("NextUseScores", "tables of two shapes or of no layer, an encoder of too many layers, a next source below 0")
def _next_use(world: World) -> Arguments:
    no_use, wait = _tables(world)
    return {"no_use": no_use, "wait": wait, "encoder_layers": world.rng.choice([0, 1]), "next_source": 3}


@call("NextUseScores.observed", "less than 0 tokens")
def _observed(world: World) -> Arguments:
    return {"num_tokens": world.rng.choice([1, 30])}


@call(
    "NextUseScores.keep_scores", "a layer that there is not", holds=lambda given, found: bool(np.isfinite(found).all())
)
def _keep_scores(world: World) -> Arguments:
    return {"layer": world.rng.randrange(LAYERS)}
