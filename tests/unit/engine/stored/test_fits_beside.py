"""Whether a model has room beside others, together with the one that drafts for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from moeinf.config import RuntimeConfig
from moeinf.engine.memory.plan import plan_memory
from moeinf.engine.stored.fits_beside import fits_beside
from moeinf.engine.stored.outline import outline_of
from moeinf.hardware import Machine
from moeinf.store.library import StoredModel


def test_a_model_needs_room_for_the_one_that_drafts_for_it(demo: StoredModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(demo.path.parents[1]))
    alone = Machine(1 << 40, "machine", 2)
    with_draft, without = (replace(RuntimeConfig.of(context=512, draft=name), parallel=1) for name in (demo.name, ""))
    plan = plan_memory(outline_of(demo).footprint, without, alone)
    for free, wanted in ((1.5, (True, False)), (4, (True, True))):
        left = Machine(int((plan.total_bytes + plan.program_bytes) * free), "machine", 2)
        assert tuple(fits_beside(demo, config, left, alone) for config in (without, with_draft)) == wanted
