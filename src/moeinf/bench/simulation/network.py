"""What messages between ranks take: a star around rank 0, or sums that several ranks have made before."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from moeinf.errors import UsageError

Gather = Literal["rows", "sums", "tree"]
GATHERS: Final[tuple[Gather, ...]] = ("rows", "sums", "tree")

WIRE_S: Final = 20e-6  # one way: two network cards and a switch
SEND_S: Final = 25e-6  # of rank 0's own time, for each message that it posts: measured over gloo, docs/lab/scale-out.md
WAKE_S: Final = 40e-6  # from a message in a machine's memory to the thread that waits for it, likewise
_USED: Final = 0.94  # of a link's rate, behind the headers of Ethernet, IP and TCP
_FAN_OUT: Final = 8  # children of a rank in a tree


@dataclass(frozen=True, slots=True)
class Network:
    """A network by the rate of its links, full duplex, one a machine."""

    name: str
    bytes_per_s: float

    def seconds(self, num_bytes: float) -> float:
        return num_bytes / self.bytes_per_s


def networks_of(text: str) -> tuple[Network, ...]:
    """1GbE,10GbE: names with commas between. Raises UsageError."""
    return tuple(_network(name.strip()) for name in dict.fromkeys(text.split(",")))


def _network(name: str) -> Network:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)GbE", name)
    if found is None or not 0 < float(found[1]) <= 1e4:
        raise UsageError(f"--network {name!r} is no network; write for example 1GbE,10GbE,100GbE")
    return Network(name, float(found[1]) * 1e9 / 8 * _USED)


def asked_at(network: Network, now_s: float, num_bytes: Sequence[float], gather: Gather) -> list[float]:
    """When each of some ranks has the request that rank 0 posts from now on, one after the other.

    num_bytes: of each request. In a tree all go to the first ranks, which pass them on.
    """
    if gather == "tree":
        depth = _depth(len(num_bytes))
        hop = SEND_S + network.seconds(max(num_bytes, default=0.0)) + WIRE_S + WAKE_S
        return [now_s + depth * (hop + (_FAN_OUT - 1) * SEND_S)] * len(num_bytes)
    arrivals, posted_s, free_s = [], now_s, now_s
    for each in num_bytes:
        posted_s += SEND_S
        free_s = max(free_s, posted_s) + network.seconds(each)
        arrivals.append(free_s + WIRE_S + WAKE_S)
    return arrivals


def answered_at(
    network: Network,
    ready_s: Sequence[float],
    num_rows: Sequence[int],
    num_tokens: int,
    row_bytes: float,
    gather: Gather,
) -> float:
    """When rank 0 has what ranks have computed; ready_s: when each is done with so many rows.

    rows: a row for each token and expert, all through the one link of rank 0. sums: each rank sends one a token. tree:
    ranks add what their children send, so that rank 0 is sent no more than that of each of its own children.
    """
    if gather == "tree":
        hop = SEND_S + network.seconds(num_tokens * row_bytes * min(_FAN_OUT, len(ready_s))) + WIRE_S + WAKE_S
        return max(ready_s) + _depth(len(ready_s)) * hop
    free_s = 0.0
    for ready, rows in sorted(zip(ready_s, num_rows, strict=True)):
        sent = rows if gather == "rows" else min(rows, num_tokens)
        free_s = max(free_s, ready + SEND_S + WIRE_S) + network.seconds(sent * row_bytes)
    return free_s + WAKE_S


def _depth(num_ranks: int) -> int:
    depth, reached = 1, _FAN_OUT
    while reached < num_ranks:
        depth, reached = depth + 1, reached + _FAN_OUT ** (depth + 1)
    return depth
