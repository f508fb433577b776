"""Small pieces of the campaign: `make campaign` carries it out for hours."""

from __future__ import annotations

import errno
import itertools
import math
import random
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from moeinf.prefixes.memory import MemoryTier
from moeinf.pull.pull import ensure
from tests.support.campaign import driver, strikes
from tests.support.campaign.learned import check_learned
from tests.support.campaign.page import PAGE, with_tables
from tests.support.campaign.record import Record
from tests.support.campaign.scenes import SCENES, stage
from tests.support.campaign.sessions import World
from tests.support.campaign.shortage import fill, group, small_disk
from tests.support.campaign.step import Done, Turn
from tests.support.faults.native import built, compiler


def test_a_record_goes_on_behind_its_last_whole_line(tmp_path: Path) -> None:
    record = Record(tmp_path / "steps.jsonl")
    record.add("kills", 1, 0, "abc", 30, Done(Counter({"kills: cp": 7}), []))
    with (tmp_path / "steps.jsonl").open("a") as file:
        file.write('{"kind": "kills", "st')
    again = Record(tmp_path / "steps.jsonl")
    assert (again.next_step("kills", 1), again.next_step("kills", 2), again.seconds("kills")) == (1, 0, 30)
    again.add("kills", 1, 1, "abc", 30, Done(Counter(), ["torn"]))
    assert [step["step"] for step in Record(tmp_path / "steps.jsonl").steps] == [0, 1]


def test_a_campaign_takes_the_kinds_by_turns_and_says_how_to_repeat_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[list[str]] = []

    def step(command: list[str]) -> Done:
        asked.append(command)
        return Done(Counter({"kills: cp": 1}), ["lost"] if len(asked) == 3 else [])

    numbers = itertools.count()
    monkeypatch.setattr(driver, "in_a_process", step)

    def clock() -> float:
        return float(next(numbers))

    assert driver.run(tmp_path, ["kills", "worlds"], 5, 16 / 3600, 1.0, clock) == 1
    assert driver.run(tmp_path, ["kills", "worlds"], 5, 4 / 3600, 1.0, clock) == 0
    steps = [(words[words.index("--only") + 1], words[words.index("--step") + 1]) for words in asked]
    assert len(steps) == len(set(steps)) >= 4 and {kind for kind, _ in steps} == {"kills", "worlds"}
    assert f"FAULT: lost\n  repeat: {' '.join(asked[2])}\n" in capsys.readouterr().out


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_a_command_that_is_killed_or_refused_a_call_leaves_a_whole_store(tmp_path: Path) -> None:
    scene = SCENES["cp"]
    with stage(tmp_path, built(strikes.SOURCE, tmp_path)) as played:
        wanted, before = played.whole(scene), played.before(scene)
        last = strikes.num_calls(played, scene, strikes.CHANGE)
        assert last > 5
        for at, action in ((1, strikes.KILL_AFTER), (last, strikes.KILL_BEFORE)):
            assert strikes.killed(played, scene, [(at, action)], before, wanted) == 1
        for kind, action, value, period in (
            ("rename", strikes.FAIL, errno.ENOSPC, 0),
            ("write", strikes.SHORT, 0, 0),
            ("read", strikes.SHORT, 0, 1),
            ("open", strikes.FAIL, errno.EIO, 2),
        ):
            strike = (strikes.KINDS[kind], 1, action, value, period)
            assert strikes.struck(played, scene, strike, before, wanted).calls >= 1
        (tmp_path / "place" / "home" / "names" / "demo" / "latest").write_text("{")
        with pytest.raises(AssertionError):
            played.check(tmp_path / "place" / "home")


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_a_thread_that_is_refused_its_first_memory_ends_a_command_with_a_line(tmp_path: Path) -> None:
    scene = SCENES["verify"]
    with stage(tmp_path, built(strikes.SOURCE, tmp_path)) as played:
        wanted, before = played.whole(scene), played.before(scene)
        kind = strikes.KINDS["map"]
        refused = [  # some are of objects, which Python then has elsewhere
            strikes.struck(played, scene, (kind, at, strikes.FAIL, errno.ENOMEM, 0), before, wanted)
            for at in range(1, 1 + strikes.num_calls(played, scene, kind))
        ]
        # Python 3.10 has frames beside its other objects.
        assert sys.version_info < (3, 11) or any("not enough memory to begin a thread" in each.err for each in refused)


def test_a_sweep_takes_every_kth_of_many_calls(tmp_path: Path) -> None:
    turn = Turn(random.Random(1), 0, tmp_path, 1.0)
    assert [*strikes.every_kth(turn, 7, 20)] == [*range(1, 8)]
    for last in (21, 40, 41, 2267):
        taken = strikes.every_kth(turn, last, 20)
        assert set(taken) <= set(range(1, last + 1)) and last // math.ceil(last / 20) <= len(taken) <= 20


def test_steps_take_what_there_is_by_turns(tmp_path: Path) -> None:
    turns = [Turn(random.Random(1), number, tmp_path, 1.0) for number in range(5)]
    assert [turn.of(["a", "b", "c"]) for turn in turns] == ["a", "b", "c", "a", "b"]


@pytest.mark.parametrize("seed", [*range(6), 306927642416])
def test_sessions_beside_each_other_get_what_they_get_alone(seed: int) -> None:
    world = World(seed)
    world.play()
    again = World(seed)
    again.play()
    assert world.counts == again.counts and world.counts["answers, each the one that it gets alone"] > 0


def test_a_world_of_sessions_sees_memory_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryTier, "remove", lambda self, block: self._blocks.pop(block.digest))
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(20):
            World(seed).play()


def test_a_disk_is_full_for_a_while(tmp_path: Path) -> None:
    with small_disk(tmp_path) as place:
        if place is None:
            pytest.skip("this needs root and a loop device")

        def meanwhile() -> None:
            with pytest.raises(OSError, match="No space left"):
                (place / "more").write_bytes(bytes(1 << 16))

        fill(place, meanwhile)
        assert (place / "more").write_bytes(bytes(1 << 16)) == 1 << 16


def test_memory_of_a_group_is_taken_for_a_while() -> None:
    with group(256 << 20) as limited:
        if limited is None:
            pytest.skip("this needs root and control groups")
        names = ("memory.usage_in_bytes", "memory.current")
        usage = next(path for name in names if (path := limited.folder / name).exists())
        with limited.taken(64 << 20):
            end = time.monotonic() + 60
            while int(usage.read_text()) < 100 << 20:
                assert time.monotonic() < end, "it is not taken"
                time.sleep(0.05)
    assert not limited.folder.exists()


@pytest.mark.parametrize("name", ["eamc.npz", "hits.json", "receipt.json"])
def test_what_runs_have_learned_is_looked_at(name: str, tmp_path: Path) -> None:
    model = ensure("demo", home=tmp_path)
    check_learned(model)
    (model.path / name).write_bytes(b"PK torn")
    with pytest.raises(AssertionError, match=name):
        check_learned(model)


def test_the_page_has_a_table_for_each_of_its_marks() -> None:
    step = {"kind": "kills", "seed": 1, "step": 0, "commit": "abc", "seconds": 3600, "faults": ["x"]}
    counts = {"kills: cp": 1234, "world: visits": 5, "executions: native/draws": 6789}
    page = with_tables(PAGE.read_text(encoding="utf-8"), [step | {"counts": counts}])
    assert "| kills | 1 | 1.00 | 1 | abc | 1 |" in page and "| cp | 1,234 | 0 | 0 | 0 | 0 |" in page
    assert "| world: visits | 5 |" in page and "| native/draws | 6,789 |" in page
