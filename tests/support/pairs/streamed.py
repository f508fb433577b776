"""Our half of a pair, pulled into a store and streamed through the smallest expert cache."""

from __future__ import annotations

from pathlib import Path

from moeinf.config import RuntimeConfig
from moeinf.config.pull_options import PullOptions
from moeinf.engine.build_context import BuildContext, Host, Observation
from moeinf.engine.cpu import CpuRunner
from moeinf.engine.reporting import Reporting
from moeinf.engine.stored_weights import Weights
from moeinf.engine.weights.dense_file import DenseFile
from moeinf.hardware import machine
from moeinf.models.family import family_of
from moeinf.pull.pull import pull
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.dense_sums import DenseSums
from moeinf.store.library import StoredModel
from moeinf.store.sums.checksums import sums_of
from moeinf.types import Profiler
from tests.support.checkpoints import write_tokenizer
from tests.support.pairs.decoders import Pair


def pulled_pair(checkpoint: Path, home: Path) -> StoredModel:
    (checkpoint / "tokenizer_config.json").write_text("{}")
    write_tokenizer(checkpoint)
    return pull(str(checkpoint), PullOptions(name="tiny"), home=home)


def smallest(pair: Pair, stored: StoredModel) -> CpuRunner:
    """With as many slots as one token needs in a layer."""
    size = stored.manifest.moe.top_k * stored.manifest.layout.stride_bytes
    config = RuntimeConfig.of(expert_cache=f"{size}B", context=256, threads=2)
    dense = DenseFile(stored, pair.plan, DenseSums(stored, sums_of(stored)[0]))
    context = BuildContext(
        Weights(stored, family_of(pair.config), pair.config, dense),
        Host(machine(), config, pair.kernels),
        Observation(ActivationCollection(stored.manifest.moe), Profiler()),
        Reporting(),
    )
    return CpuRunner(context)
