"""What --draft names, a small model or a layer of the model's own: how it is opened, and what it leaves to the one that
it guesses for."""

from __future__ import annotations

from dataclasses import replace

from moeinf.config import DEFAULT_CONTEXT, RuntimeConfig
from moeinf.config.environment import store_home
from moeinf.config.run_options import MemoryOptions, SpeculationOptions
from moeinf.config.size import Bytes
from moeinf.errors import UsageError
from moeinf.hardware import Machine
from moeinf.store.library import Library, StoredModel
from moeinf.store.mtp_store import stored_mtp
from moeinf.store.naming.names import MTP


def draft_of(stored: StoredModel, config: RuntimeConfig) -> tuple[StoredModel, RuntimeConfig]:
    """What guesses for a stored model, and with what it is opened. Raises ModelNotFoundError; UsageError for a layer
    that has not been made ready."""
    draft = (
        _layer_of(stored) if config.speculation.draft == MTP else Library(store_home()).find(config.speculation.draft)
    )
    context = min(config.memory.context or DEFAULT_CONTEXT, draft.manifest.info.context_length)
    return draft, RuntimeConfig(
        compute=replace(config.compute, device="cpu", workers="", worker_key_file="", cpu_experts=False),
        memory=replace(MemoryOptions(), ram=config.memory.ram, context=context),
        reading=config.reading,
        speculation=SpeculationOptions(speculate="off"),
        parallel=config.parallel,
        pictures=False,
    )


def _layer_of(stored: StoredModel) -> StoredModel:
    found = stored_mtp(stored, Library(stored.home))
    if found is None:
        raise UsageError(
            f"--draft mtp: no layer that guesses is ready for {stored.name}; `moeinf run {stored.name} --draft mtp` "
            "makes it ready where there is one"
        )
    return found


def left_by(taken: int, here: Machine, config: RuntimeConfig) -> tuple[Machine, RuntimeConfig]:
    """What is left of the machine, and of --ram, beside a model that takes so many bytes."""
    left = replace(here, available_bytes=max(0, here.available_bytes - taken))
    ram = config.memory.ram
    if ram is not None:
        asked = ram.of(here.total_bytes or here.available_bytes)
        config = replace(config, memory=replace(config.memory, ram=Bytes(max(0, asked - taken), str(ram))))
    return left, config
