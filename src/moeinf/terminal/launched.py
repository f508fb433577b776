"""Ranks that `torchrun` has started with one command: rank 0 answers, and the others are its workers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

import typer

from moeinf.config import RuntimeConfig
from moeinf.errors import UsageError


@dataclass(frozen=True, slots=True)
class Launch:
    """What torchrun tells each process that it starts."""

    rank: int
    num_ranks: int
    host: str  # of the store over which the ranks meet
    port: int


def launch_of(variables: Mapping[str, str]) -> Launch | None:
    """None for a process that torchrun did not start, and for one that it started alone."""
    try:
        rank, size, port = (int(variables[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        launch = Launch(rank, size, variables["MASTER_ADDR"], port)
    except (KeyError, ValueError):
        return None
    return launch if "TORCHELASTIC_RUN_ID" in variables and launch.num_ranks > 1 else None


def with_launched(config: RuntimeConfig, model: str, *, quiet: bool) -> RuntimeConfig:
    """The configuration with the workers that torchrun has started; on these it does not return, but serves rank 0.

    Raises UsageError where --workers names others, WorkerError where a rank does not come.
    """
    launch = launch_of(os.environ)
    if launch is None:
        return config
    if config.compute.workers:
        raise UsageError("--workers names what torchrun has started already; leave it out")
    from moeinf.engine.joining import read_key
    from moeinf.terminal.rank_worker import serve_here, teller

    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # what it would write besides, errors of ours say
    try:
        from moeinf.distributed.launch import tell_address, told_addresses
    except ImportError:
        raise UsageError("torchrun has started a Python without torch: pip install 'moeinf[distributed]'") from None
    key = read_key("--worker-key-file", config.compute.worker_key_file)
    if launch.rank == 0:
        return config.changed(workers=",".join(told_addresses(launch.host, launch.port, launch.num_ranks)))
    tell = teller(quiet=quiet)
    with tell_address(launch.host, launch.port, launch.rank, key, tell) as listener:
        serve_here(model, config, listener, tell, once=True)
    raise typer.Exit
