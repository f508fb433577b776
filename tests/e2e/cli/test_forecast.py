"""`moeinf doctor` and `moeinf fit`: what they print, and where they fail."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from moeinf.bench.forecast import checkup
from moeinf.bench.forecast.forecast_report import rate_text
from moeinf.config import RuntimeConfig
from moeinf.engine.speed.rates import Rates, Reading
from moeinf.engine.speed.rates_file import save
from moeinf.errors import DeviceError
from moeinf.forecast import known
from moeinf.pull import steps
from tests.support.checkpoints import random_tensors, write_checkpoint
from tests.support.cli.commands import Done
from tests.support.rates import rates_of_this_machine

Command = Callable[..., Done]


@pytest.fixture(autouse=True)
def rates(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of this machine are known: nothing is measured."""
    save(rates_of_this_machine(), home)

    def refused(*_: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(known, "measure", refused)
    monkeypatch.setattr(
        "moeinf.engine.speed.kept.measure_reading", lambda *given: dict.fromkeys(given[-1], Reading(2e9, 1e9))
    )


def test_fit_tells_memory_by_part_and_speed(command: Command) -> None:
    done = command("fit", "demo", "--ram", "200MiB", "-c", "1024")
    assert done.code == 0 and done.err == "", done
    for word in ("dense weights", "1024 tokens", "192 of 192", "100% of the experts", "decode", "prefill", "in all"):
        assert word in done.out


def test_the_same_as_json(command: Command) -> None:
    told = json.loads(command("fit", "demo", "--expert-cache", "10%", "--json").out)
    assert told["name"] == "demo:latest" and told["experts"] == 19 and told["experts_total"] == 192
    assert 0 < told["expert_hit_rate"] < 1 and told["decode_tokens_per_s"] > 0 and told["prefill_tokens_per_s"] > 0
    assert told["memory"]["total_bytes"] == sum(size for name, size in told["memory"].items() if name != "total_bytes")


def test_a_card_that_is_named_is_told_of_by_published_rates(command: Command) -> None:
    done = command("fit", "demo", "--card", "rtx 4090")
    assert done.code == 0 and "Speed on RTX 4090 (forecast)" in done.out, done
    assert "from published rates, not measured" in done.out and "1008 GB/s" in done.out
    told = json.loads(command("fit", "demo", "--card", "RTX 4060 Ti 16GB", "--json").out)["card"]
    assert told["memory_bytes"] == 16 << 30 and told["experts"] == 192 and told["decode_tokens_per_s"] > 0
    assert told["rates"] == "from published rates, not measured"
    unknown = command("fit", "demo", "--card", "Voodoo 2")
    assert unknown.code != 0 and "no rates of a card 'Voodoo 2' are known here; known: RTX 3060" in unknown.err


def test_a_model_that_is_not_stored_is_looked_at_and_left_alone(
    command: Command, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_checkpoint(tmp_path / "checkpoint", random_tensors())
    before = sorted(home.rglob("*"))
    told = json.loads(command("fit", str(folder), "--quant", "q8_0", "--json").out)
    assert told["store_bytes"] > 0 and told["experts_total"] == 16
    assert sorted(home.rglob("*")) == before
    assert not told["stored"] and told["notes"] == []
    assert "once pulled" in command("fit", str(folder)).out
    monkeypatch.setattr(steps, "free_bytes", lambda where: 1000)
    assert "the disk has no room for it" in command("fit", str(folder)).out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("fit", "nowhere"), 1, "model 'nowhere' not found"),
        (("fit", "demo", "--ram", "20MiB"), 1, "demo:latest does not fit"),
        (("fit", "demo", "-c", "999999"), 2, "beyond the model's 2048 tokens"),
        (("fit", "demo", "--quant", "q9"), 2, "unknown --quant 'q9'"),
        (("fit", "demo", "--policy", "lru"), 2, "no such option: --policy"),  # it would change nothing
        (("fit",), 2, "Missing argument"),
    ],
)
def test_what_cannot_be_forecast_is_one_line(words: tuple[str, ...], code: int, said: str, command: Command) -> None:
    done = command(*words)
    assert done.code == code and done.out == "" and said in done.err and len(done.err.splitlines()) == 1


def test_show_and_run_have_the_plan(command: Command) -> None:
    shown, fitted = command("show", "demo", "--plan"), command("fit", "demo")
    assert shown.code == 0 and shown.out == fitted.out
    done = command("run", "demo", "--plan", "--expert-cache", "10%")
    assert done.code == 0 and "10% of the experts resident" in done.out and len(done.out.splitlines()) == 1
    assert "does not fit" in command("run", "demo", "--plan", "--ram", "20MiB").err


def test_in_a_pipe_one_line_says_that_the_machine_is_measured(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(home: Path, config: RuntimeConfig, report: Callable[[str], None]) -> Rates:
        report("measuring the disk")
        report("measuring the memory")
        return rates_of_this_machine()

    monkeypatch.setattr(known, "measure", measured)
    done = command("doctor", "--again", "--json")
    assert len(done.err.splitlines()) == 1 and "a quarter of a minute" in done.err and json.loads(done.out)


def test_rates_of_a_busy_machine_are_said_to_be_low(command: Command, home: Path) -> None:
    said = "note: other programs computed when this machine was measured"
    assert said not in command("fit", "demo").err
    rates = rates_of_this_machine()
    busy = replace(rates, conditions=replace(rates.conditions, load=rates.conditions.threads + 0.5))
    save(busy, home)
    assert said in command("fit", "demo").err and "`moeinf doctor --again` measures it" in command("doctor").err


def test_doctor_tells_the_machine_and_its_rates(command: Command) -> None:
    done = command("doctor")
    for word in ("CPU", "memory", "GPU", "store", "server", "Hub", "disk", "bf16 weights", "q4_k weights"):
        assert word in done.out
    told = json.loads(command("doctor", "--json").out)
    assert {each["name"] for each in told["findings"]} >= {"CPU", "memory", "GPU", "store", "server"}
    assert "bf16 50%, q8_0 50%, q6_k 50%" in done.out and "of the memory's rate" in done.out
    assert told["rates"]["reading"]["q4_k"] == {"2048": {"plain": 2e9, "product": 1e9}}
    assert told["rates"]["isa"] == rates_of_this_machine().conditions.isa
    assert done.code == (1 if any(each["remedy"] for each in told["findings"]) else 0)


def test_a_gpu_that_cannot_be_used_is_a_fault_with_its_remedy(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise DeviceError("GPU 0 (X) cannot be used without torch: pip install 'moeinf[gpu]', or run with --device cpu")

    monkeypatch.setattr(checkup, "find_cuda", refused)
    done = command("doctor")
    assert done.code == 1 and "GPU 0 (X) cannot be used without torch" in done.out
    assert "pip install 'moeinf[gpu]'" in done.out.partition("To mend")[2]


@pytest.mark.parametrize(("rate", "text"), [(123.4, "123 tokens/s"), (20.0, "20 tokens/s"), (3.14, "3.1 tokens/s")])
def test_rates_have_two_or_three_digits(rate: float, text: str) -> None:
    assert rate_text(rate) == text
