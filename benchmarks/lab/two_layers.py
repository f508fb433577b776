"""Whether guesses two layers ahead would hide more of the reads than look-ahead's, which see one.

    python benchmarks/lab/two_layers.py MODEL TEXT... [--tokens 2000] [--read-ms 0.9] [--layer-ms 0.5]

Reads the texts through a model of the store, all of whose experts fit in memory, and notes the state in front of each
layer's experts. From it the routing two layers on is guessed in three ways: by that layer's own router, applied early;
by a linear map that ridge regression learns; and by one that single steps of gradient descent learn, which costs next
to nothing. The guess of the next layer's router is weighted by the router, and by how often its places were right. Maps
learn from the first two thirds of the tokens, and all are measured on the rest: recall by distance, and the time of a
token in the simulator, with what is read ahead and used of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from moeinf.bench.simulation.replay import SimulatedTier, replay
from moeinf.bench.simulation.run import Timing
from moeinf.bench.simulation.simulate import slots_of
from moeinf.config import RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.engine.model import Model
from moeinf.models.layers.decoder import Decoder
from moeinf.runtime.experts import StreamedExperts
from moeinf.runtime.policy.eviction import NextUse
from moeinf.runtime.policy.lookahead import LookAheadPredictor
from moeinf.runtime.policy.policy_protocol import Predictor
from moeinf.store.library import Library
from moeinf.traces.trace import Trace
from moeinf.types import FloatArray, IntArray, MoeShape, Phase, Routing

Floats = npt.NDArray[np.float32]
SHARES: Final = (20, 33, 50)  # percent of the experts that are resident
RIDGE: Final = 1.0
RATE: Final = 0.5  # of gradient descent, for states of length 1


class Noted:
    """States [tokens, hidden] in front of each layer's experts, the routing, and what routers guess from the state."""

    def __init__(self, num_layers: int) -> None:
        self.states: list[list[Floats]] = [[] for _ in range(num_layers)]
        self.ids: list[list[IntArray]] = [[] for _ in range(num_layers)]
        self.early: dict[int, list[list[Routing]]] = {n: [[] for _ in range(num_layers)] for n in (1, 2)}  # by distance


def note_all(model: Model, noted: Noted) -> None:
    """Lets the decoder and the experts of a model write down what they do."""
    run = StreamedExperts.run

    def look_ahead(self: Decoder, layer: int, x: Any) -> None:
        block = self._routed[layer]
        if block is None:
            return
        here = block.moe_layer
        noted.states[here].append(np.array(x, np.float32))
        for distance in (1, 2):
            later = self._routed[layer + distance] if layer + distance < len(self._routed) else None
            if later is not None:
                noted.early[distance][later.moe_layer].append(_copied(later.router(x)[1]))

    def noting(self: StreamedExperts, layer: int, hidden: Any, routing: Routing, out: Any) -> None:
        noted.ids[layer].append(routing.ids.copy())
        run(self, layer, hidden, routing, out)

    Decoder._look_ahead = look_ahead  # type: ignore[method-assign]
    StreamedExperts.run = noting  # type: ignore[method-assign]


def _copied(routing: Any) -> Routing:
    return Routing(routing.ids.copy(), routing.weights.copy())


def chances_of(routings: list[Routing], shape: MoeShape) -> FloatArray:
    """[tokens, experts], of which a row sums to top_k: an expert is as likely as it is weighted."""
    ids, weights = (np.concatenate([getattr(each, name) for each in routings]) for name in ("ids", "weights"))
    found: FloatArray = np.zeros((len(ids), shape.num_experts))
    np.put_along_axis(found, ids, weights * (shape.top_k / weights.sum(axis=1, keepdims=True)), axis=1)
    return found


def by_place(routings: list[Routing], truth: FloatArray, shape: MoeShape) -> FloatArray:
    """[tokens, experts], as LookAheadPredictor has it once it has seen the tokens before."""
    predictor = LookAheadPredictor(MoeShape(1, shape.num_experts, shape.top_k))
    found: FloatArray = np.zeros(truth.shape)
    ids, weights = (np.concatenate([getattr(each, name) for each in routings]) for name in ("ids", "weights"))
    for token, row in enumerate(truth):
        predictor.expect(0, ids[token : token + 1], weights[token : token + 1])
        likelihood = predictor.predict(-1)
        assert likelihood is not None
        found[token] = likelihood[0]
        predictor.observe(0, row.nonzero()[0][None])
    return found


def learned(states: Floats, truth: FloatArray, split: int) -> dict[str, FloatArray]:
    """Guesses [tokens, experts] of both maps."""
    x = states / np.linalg.norm(states, axis=1, keepdims=True)
    x = np.concatenate([x, np.full((len(x), 1), 0.1, np.float32)], axis=1).astype(np.float64)
    known = x[:split]
    ridge = np.linalg.solve(known.T @ known + RIDGE * 1e-3 * np.eye(x.shape[1]), known.T @ truth[:split])
    steps = np.zeros((x.shape[1], truth.shape[1]))
    for row, label in zip(known, truth[:split], strict=True):
        steps += RATE * np.outer(row, label - 1 / (1 + np.exp(-(row @ steps))))
    return {"ridge": np.clip(x @ ridge, 0, 1), "gradient": 1 / (1 + np.exp(-(x @ steps)))}


def recall(chances: FloatArray, truth: FloatArray, top_k: int) -> float:
    named = np.argsort(-chances, axis=1, kind="stable")[:, :top_k]
    return float(np.take_along_axis(truth, named, axis=1).mean())


class Ahead(Predictor):
    """Guesses of the next layers, by distance: chances[d][layer] [tokens, experts]."""

    def __init__(self, chances: list[list[FloatArray | None]]) -> None:
        self.name = "ahead"
        self._chances, self._token = chances, -1

    def begin(self, phase: Phase) -> None:
        return

    def observe(self, layer: int, ids: IntArray) -> None:
        self._token += layer == 0

    def predict(self, layer: int) -> FloatArray | None:
        rows = []
        for distance, layers in enumerate(self._chances, start=1):
            found = layers[layer + distance] if layer + distance < len(layers) else None
            if found is None:
                break
            rows.append(found[self._token])
        return np.stack(rows) if rows else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text", type=Path, nargs="+")
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--read-ms", type=float, default=0.9)
    parser.add_argument("--layer-ms", type=float, default=0.5)
    given = parser.parse_args()
    config = RuntimeConfig.of(device="cpu", context=1024, expert_cache="100%", policy="lru")
    with Model(Library(store_home()).find(given.model), config) as model:
        shape = model.manifest.moe
        noted = Noted(shape.num_layers)
        note_all(model, noted)
        for text in given.text:
            ids = model.tokenizer.encode(text.read_text(encoding="utf-8"), bos=False)[: given.tokens // len(given.text)]
            for start in range(0, len(ids) - 2, 1000):
                model.replay(ids[start : start + 1000], [])
    experts = np.stack([np.concatenate(each) for each in noted.ids], axis=1)
    report(experts, noted, shape, Timing(given.read_ms * 1e-3, given.layer_ms * 1e-3))


def report(experts: IntArray, noted: Noted, shape: MoeShape, timing: Timing) -> None:
    tokens, split = len(experts), len(experts) * 2 // 3
    truth: FloatArray = np.zeros((tokens, shape.num_layers, shape.num_experts))
    np.put_along_axis(truth, experts, 1.0, axis=2)
    layers = range(shape.num_layers)
    routers = {
        n: [chances_of(noted.early[n][layer], shape) if noted.early[n][layer] else None for layer in layers]
        for n in (1, 2)
    }
    maps: dict[tuple[str, int], list[FloatArray | None]] = {}
    for distance in (1, 2):
        for layer in layers:
            known = layer >= distance
            states = np.concatenate(noted.states[layer - distance]) if known else None
            found = {} if states is None else learned(states, truth[:, layer], split)
            for name in ("ridge", "gradient"):
                maps.setdefault((name, distance), []).append(found.get(name))
    two: dict[str, list[FloatArray | None]] = {
        "router": routers[2],
        "ridge": maps["ridge", 2],
        "gradient": maps["gradient", 2],
    }
    print(f"{tokens} tokens, {shape.text}; measured on the last {tokens - split}")
    print(f"recall one layer ahead, by its router: {_mean_recall(routers[1], truth, split, shape):.3f}")
    print(f"recall one layer ahead, gradient: {_mean_recall(maps['gradient', 1], truth, split, shape):.3f}")
    for name, guesses in two.items():
        print(f"recall two layers ahead, {name}: {_mean_recall(guesses, truth, split, shape):.3f}")
    trace = Trace("text", shape, experts[split:], np.array([0, tokens - split]))
    nearest = [None if each is None else each[split:] for each in routers[1]]
    placed = [
        by_place(noted.early[1][layer], truth[:, layer], shape)[split:] if noted.early[1][layer] else None
        for layer in layers
    ]
    mapped = [None if each is None else each[split:] for each in maps["gradient", 1]]
    kinds: dict[str, Predictor | None] = {
        "no prefetch": None,
        "one layer, router": Ahead([nearest]),
        "one layer, router, by place": Ahead([placed]),
        "one layer, gradient": Ahead([mapped]),
    }
    for name, guesses in two.items():
        kinds[f"two layers, {name}"] = Ahead([nearest, [None if each is None else each[split:] for each in guesses]])
    kinds["two layers known"] = Ahead([nearest, [truth[split:, layer] for layer in layers]])
    for name, predictor in kinds.items():
        policy = NextUse(shape)
        tiers = [SimulatedTier(slots_of(shape, share), policy) for share in SHARES]
        cells = []
        for result in replay(trace, tiers, None, predictor, timing):
            stats, ms = result["decode"].stats, 1e3 * result["decode"].token_s
            ended = stats.prefetches_used + stats.prefetches_wasted
            cells.append(f"{ms:.2f} ms ({stats.prefetches_used / ended:.0%} used)" if ended else f"{ms:.2f} ms")
        print(f"{name}: {', '.join(cells)} at {', '.join(map(str, SHARES))} %")


def _mean_recall(chances: list[FloatArray | None], truth: FloatArray, split: int, shape: MoeShape) -> float:
    found = [
        recall(each[split:], truth[split:, layer], shape.top_k)
        for layer, each in enumerate(chances)
        if each is not None
    ]
    return float(np.mean(found))


if __name__ == "__main__":
    main()
