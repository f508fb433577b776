"""What the disks of a stored model can give: the limit beside which a benchmark's read rate stands."""

from __future__ import annotations

from typing import Final

from moeinf.config import RuntimeConfig
from moeinf.engine.stored.other_disks import other_disks
from moeinf.runtime.io.read_rate import read_rate
from moeinf.store.library import StoredModel

_SPAN_BYTES: Final = 4 << 20


def disk_bytes_per_s(stored: StoredModel, config: RuntimeConfig) -> float:
    """Rate of 4 MiB reads at random places of the expert shards, 16 in flight, over two seconds or 4 GiB.

    Where a second disk has the experts as well, or some of their bytes, both read. Without O_DIRECT it is the page
    cache that answers, and its rate that is measured.
    """
    others = other_disks(stored, config, lambda line: None)
    return read_rate(stored.shard_paths, stored.shard_sizes, _SPAN_BYTES, config, others=others)
