"""Options: sizes, environment, refusals."""

from __future__ import annotations

import pytest

from moeinf.config import RuntimeConfig, parse_size, with_environment
from moeinf.errors import UsageError


@pytest.mark.parametrize(("text", "size"), [
    ("1073741824", 1 << 30), ("6GiB", 6 << 30), ("6G", 6 << 30), ("6GB", 6_000_000_000), ("512 MiB", 512 << 20),
    ("1.5kib", 1536), ("40%", 400), ("100%", 1000), ("0.5%", 5),
])
def test_sizes_are_bytes_units_or_percent(text: str, size: int) -> None:
    assert parse_size("--expert-cache", text, 1000) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "6 QB", "101%", "1e9", "%", "GiB"])
def test_a_size_that_cannot_be_meant_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="--expert-cache"):
        parse_size("--expert-cache", text, 1000)


def test_what_is_given_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_POLICY", "lru")
    monkeypatch.setenv("MOEINF_THREADS", "3")
    monkeypatch.setenv("MOEINF_PREFETCH", "off")
    config = with_environment(policy="lfu", threads=None)
    assert (config.policy, config.threads, config.prefetch) == ("lfu", 3, False)
    assert config.expert_cache == RuntimeConfig().expert_cache


@pytest.mark.parametrize(("name", "text"), [("MOEINF_THREADS", "many"), ("MOEINF_PREFETCH", "maybe"),
                                            ("MOEINF_CONTEXT", "0"), ("MOEINF_READER", "mmap")])
def test_a_variable_that_cannot_be_meant_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=name.removeprefix("MOEINF_").lower() + "|" + name):
        with_environment()


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(UsageError, match=r"'expert_cash'.*expert_cache"):
        with_environment(expert_cash="1GiB")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_devices_are_named_as_torch_names_them(device: str) -> None:
    assert with_environment(device=device).device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda0", "CUDA", "cpu:0", "cuda:-1"])
def test_another_device_is_refused_with_the_known_ones(device: str) -> None:
    with pytest.raises(UsageError, match=r"unknown device .*known: auto, cpu, cuda, cuda:0"):
        with_environment(device=device)


@pytest.mark.parametrize("option", ["vram", "ram", "expert_cache"])
def test_a_size_is_looked_at_before_anything_is_loaded(option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} 'much' is not a size"):
        with_environment(**{option: "much"})
    assert getattr(with_environment(**{option: "40%"}), option) == "40%"


def test_what_is_for_a_gpu_is_refused_beside_the_cpu_wherever_either_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--vram 8GiB .*--device cpu"):
        with_environment(device="cpu", vram="8GiB")
    monkeypatch.setenv("MOEINF_DEVICE", "cpu")
    with pytest.raises(UsageError, match=r"--vram 8GiB .*--device cpu"):
        with_environment(vram="8GiB")
    assert with_environment(vram="8GiB", device="cuda").vram == "8GiB"
    with pytest.raises(UsageError, match=r"--cpu-experts .*--device cpu"):
        with_environment(cpu_experts=True)


def test_the_cpu_takes_no_part_on_a_gpu_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not with_environment().cpu_experts
    monkeypatch.setenv("MOEINF_CPU_EXPERTS", "on")
    assert with_environment().cpu_experts and not with_environment(cpu_experts=False).cpu_experts
