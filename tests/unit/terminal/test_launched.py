"""What torchrun tells a process that it starts."""

from __future__ import annotations

import pytest

from moeinf.config import RuntimeConfig
from moeinf.errors import UsageError
from moeinf.terminal.launched import Launch, launch_of, with_launched

TOLD = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "x"}


def test_a_process_of_torchrun_knows_its_rank() -> None:
    assert launch_of(TOLD) == Launch(2, 4, "10.0.0.1", 29500)


@pytest.mark.parametrize("changed", [{"WORLD_SIZE": "1"}, {"RANK": "x"}])
def test_others_are_as_they_were(changed: dict[str, str]) -> None:
    assert launch_of(TOLD | changed) is None


@pytest.mark.parametrize("missing", TOLD)
def test_variables_of_another_launcher_mean_nothing(missing: str) -> None:
    """Slurm and others set RANK, too."""
    assert launch_of({name: value for name, value in TOLD.items() if name != missing}) is None


def test_without_torchrun_nothing_changes() -> None:
    config = RuntimeConfig.of(workers="a:1")
    assert with_launched(config, "demo", quiet=True) is config


def test_torchrun_and_workers_exclude_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TOLD.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="has started already; leave it out"):
        with_launched(RuntimeConfig.of(workers="a:1"), "demo", quiet=True)
    with pytest.raises(UsageError, match="--worker-key-file PATH is missing"):
        with_launched(RuntimeConfig(), "demo", quiet=True)
