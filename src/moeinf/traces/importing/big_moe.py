"""github.com/Helldez/BigMoeOnEdge, `--route-trace`: one CSV file of a session, "# route_trace v1".

Its head names the model and its shape. A row is an expert: turn, phase (0 prefill, 1 decode), step (the position of the
token), layer, slot, expert, weight and more. The rows of a pass go layer by layer. Only the last token of a prompt may
go through the last layer, as llama.cpp leaves out what no logits need: it then counts as a pass of its own.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final

from moeinf.config.user_text import decoded
from moeinf.errors import MALFORMED
from moeinf.traces.importing.request import Foreign, ForeignError, ForeignRequest
from moeinf.traces.trace import ABSENT

NAME: Final = "big-moe"
_HEAD: Final = "# route_trace v1"
_FACTS: Final = re.compile(r"# model=(.*) arch=\S* n_layer=\d+ n_expert=(\d+) n_expert_used=(\d+)")
_COLUMNS: Final = ["turn", "phase", "step", "layer", "slot", "expert", "weight"]

Row = tuple[int, int, int, int, int, float]  # turn, phase, step, layer, expert, weight


def recognises(head: str) -> bool:
    return head.startswith(_HEAD)


def read(files: Sequence[Path]) -> Foreign:
    """Raises ForeignError, OSError."""
    parts = [_read(path) for path in files]
    if len({(part.model, part.num_experts) for part in parts}) > 1:
        raise ForeignError("its files are of different models; import them one by one")
    return Foreign(parts[0].model, parts[0].num_experts, [request for part in parts for request in part.requests])


def _read(path: Path) -> Foreign:
    with io.StringIO(decoded(path.read_bytes()), newline="") as file:
        lines = iter(file)
        facts = None
        for line in lines:
            if not line.startswith("#"):
                break
            facts = facts or _FACTS.match(line)
        else:
            line = ""
        if facts is None or line.strip().split(",")[: len(_COLUMNS)] != _COLUMNS:
            raise ForeignError(f"{path.name} has no head of a route trace")
        rows = list(_rows(path, csv.reader(lines)))
    model = re.split(r"[/\\]", facts[1])[-1].removesuffix(".gguf")
    top_k = int(facts[3])
    turns = [_request(path, list(turn), top_k) for _, turn in groupby(rows, key=lambda row: row[0])]
    return Foreign(model, int(facts[2]), turns)


def _rows(path: Path, lines: Iterator[list[str]]) -> Iterator[Row]:
    number = 0  # of the last row that was read
    try:
        for row in lines:
            number += 1
            turn, phase, step, layer, _, expert, weight = row[: len(_COLUMNS)]
            yield int(turn), int(phase), int(step), int(layer), int(expert), float(weight)
    except (*MALFORMED, csv.Error) as error:
        raise ForeignError(f"{path.name}, row {number}: it is cut off, or no row of routing") from error


def _request(path: Path, rows: list[Row], top_k: int) -> ForeignRequest:
    """Of one turn: a pass ends where the layers begin anew."""
    layers = sorted({row[3] for row in rows})
    experts: list[list[list[int]]] = []
    weights: list[list[list[float]]] = []
    lengths: list[int] = []
    num_prompt = 0
    for tokens in _passes(rows):
        visited: Sequence[int] = ()
        for step, of_layers in tokens.items():
            if any(len(chosen) != top_k for chosen in of_layers.values()):
                raise ForeignError(f"{path.name}: the token at {step} of turn {rows[0][0]} has not {top_k} experts")
            nothing = [(0, ABSENT, 0.0)] * top_k
            token = [of_layers.get(layer, nothing) for layer in layers]
            experts.append([[expert for _, expert, _ in chosen] for chosen in token])
            weights.append([[weight for _, _, weight in chosen] for chosen in token])
            num_prompt += token[0][0][0] == 0
            if list(of_layers) == visited:
                lengths[-1] += 1
            else:
                lengths.append(1)
            visited = list(of_layers)
    known = not any(math.isnan(row[5]) for row in rows)
    return ForeignRequest(experts, num_prompt, lengths, weights if known else None)


def _passes(rows: Sequence[Row]) -> Iterator[dict[int, dict[int, list[tuple[int, int, float]]]]]:
    """The passes of a turn: step -> layer -> (phase, expert, weight) of each slot."""
    last_layer, last_step = -1, -1
    tokens: dict[int, dict[int, list[tuple[int, int, float]]]] = {}
    for _, phase, step, layer, expert, weight in rows:
        if layer < last_layer or (layer == last_layer and step < last_step):
            yield tokens
            tokens = {}
        tokens.setdefault(step, {}).setdefault(layer, []).append((phase, expert, weight))
        last_layer, last_step = layer, step
    yield tokens
