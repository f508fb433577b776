"""Options: sizes, environment, refusals."""

from __future__ import annotations

import pytest

from moeinf.config import RuntimeConfig, ollama_value
from moeinf.config.environment import (
    api_key,
    server_address,
    store_home,
    unknown_variables,
    variables_set,
    with_environment,
)
from moeinf.config.option import http_options, option_of, options
from moeinf.config.server_options import ServerOptions
from moeinf.config.size import Bytes, Share, Size, parse_size
from moeinf.errors import UsageError
from moeinf.sampling.params import SamplingParams


def bytes_of(size: Size | None) -> int:
    """Of a thousand bytes in all."""
    assert size is not None
    return size.of(1000)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1073741824", 1 << 30),
        ("6GiB", 6 << 30),
        ("6G", 6 << 30),
        ("6GB", 6_000_000_000),
        ("512 MiB", 512 << 20),
        ("1.5kib", 1536),
        ("40%", 400),
        ("100%", 1000),
        ("0.5%", 5),
    ],
)
def test_sizes_are_bytes_units_or_percent(text: str, size: int) -> None:
    assert bytes_of(parse_size("--expert-cache", text)) == size


@pytest.mark.parametrize("text", ["1", "512", "1048575", "0.5"])
def test_a_small_number_alone_is_refused_with_both_of_its_readings(text: str) -> None:
    with pytest.raises(UsageError, match=rf"--ram '{text}' may mean {text} MiB or {text} bytes; write {text}MiB"):
        parse_size("--ram", text)
    assert parse_size("--ram", f"{text}B") == Bytes(int(float(text)))


@pytest.mark.parametrize("text", ["", "lots", "-1", "6 QB", "101%", "1e9", "%", "GiB"])
def test_a_size_that_cannot_be_meant_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="--expert-cache"):
        parse_size("--expert-cache", text)


@pytest.mark.parametrize("written", ["{}", '"{}"', "'{}'", " {} ", "{}\r", "{}\n", '" {} "\r\n'])
def test_what_files_of_variables_add_to_a_text_is_no_part_of_it(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As docker --env-file, files with line ends of Windows, and mounted secrets hand them on."""
    said = {"PORT": "81", "KEEP_ALIVE": "7m", "HOST": "[::1]", "API_KEY": "a b's", "HOME": "/models", "RAM": "2GiB"}
    for name, text in said.items():
        monkeypatch.setenv(f"MOEINF_{name}", written.format(text))
    assert variables_set(ServerOptions) == {"port": 81, "keep_alive": "7m", "host": "[::1]"}
    assert with_environment().memory.ram == Bytes(2 << 30)
    assert (server_address(), api_key(), str(store_home())) == ("[::1]:81", "a b's", "/models")


@pytest.mark.parametrize(("text", "meant"), [('"', '"'), ("'a\"", "'a\""), ('""', ""), ("  ", "")])
def test_quotes_that_are_no_pair_are_letters(text: str, meant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_API_KEY", text)
    assert (api_key() or "") == meant


def test_what_is_given_wins_over_the_environment_and_that_over_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_POLICY", "lru")
    monkeypatch.setenv("MOEINF_THREADS", "3")
    monkeypatch.setenv("MOEINF_PREFETCH", "off")
    config = with_environment(policy="lfu", threads=None)
    assert (config.experts.policy, config.compute.threads, config.experts.prefetch) == ("lfu", 3, False)
    assert config.memory.expert_cache == RuntimeConfig().memory.expert_cache


@pytest.mark.parametrize(
    ("name", "text"),
    [("MOEINF_THREADS", "many"), ("MOEINF_PREFETCH", "maybe"), ("MOEINF_NUM_CTX", "0"), ("MOEINF_READER", "mmap")],
)
def test_a_variable_that_cannot_be_meant_is_refused(monkeypatch: pytest.MonkeyPatch, name: str, text: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match="--num-ctx|--reader|" + name):
        with_environment()


def test_a_variable_is_called_as_the_flag_is_and_the_old_name_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_NUM_CTX", "100")
    assert with_environment().memory.context == 100
    monkeypatch.setenv("MOEINF_CONTEXT", "200")
    with pytest.raises(UsageError, match=r"MOEINF_CONTEXT is called MOEINF_NUM_CTX now"):
        with_environment()


def test_a_variable_that_nothing_reads_is_told_with_the_nearest_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MOEINF_NUM_CTX", "MOEINF_TEMPERATURE", "MOEINF_HOME"):
        monkeypatch.setenv(name, "1")
    assert unknown_variables(RuntimeConfig, SamplingParams, ServerOptions) == []
    monkeypatch.setenv("MOEINF_EXPERTCACHE", "6GiB")
    monkeypatch.setenv("MOEINF_QQ", "1")
    first, second = unknown_variables(RuntimeConfig, SamplingParams, ServerOptions)
    assert first == (
        "MOEINF_EXPERTCACHE is no variable of moeinf, and changes nothing; did you mean MOEINF_EXPERT_CACHE?"
    )
    assert second.startswith("MOEINF_QQ ") and "docs/reference/cli.md" in second


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"threads": 100_000}, "--threads must be from 1 to 1024, not 100000"),
        ({"queue_depth": 100_000}, "--queue-depth must be from 1 to 1024, not 100000"),
        ({"num_beams": 100_000}, "--num-beams must be from 1 to 1024"),
        ({"context": 0}, "--num-ctx must be at least 1, not 0"),
        ({"context": "4096"}, "context must be a whole number, not '4096'"),
        ({"threads": True}, "threads must be a whole number, not True"),
        ({"prefetch": "no"}, "prefetch must be True or False, not 'no'"),
        ({"expert_cache": 0.4}, "expert_cache must be text such as '6GiB' or '40%', or a number of bytes, not 0.4"),
        ({"ram": -1}, "--ram '-1B' is not a size"),
        ({"policy": 3}, "policy must be text, not 3"),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_by_name(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as caught:
        with_environment(**options)
    assert said in str(caught.value)


def test_a_whole_number_for_a_size_is_one_of_bytes() -> None:
    assert with_environment(expert_cache=8 << 30).memory.expert_cache == Bytes(8 << 30)
    assert RuntimeConfig.of(expert_cache=500).memory.expert_cache == Bytes(500)
    assert RuntimeConfig.of(expert_cache=Bytes(500)) == RuntimeConfig.of(expert_cache="500B")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reader": "pure", "queue_depth": 4}, "--queue-depth 4 means nothing to --reader pure"),
        ({"reader": "pure", "direct_io": True}, "--direct-io means nothing to --reader pure"),
        ({"prefetch": False, "predictor": "eamc"}, "--predictor eamc means nothing with --no-prefetch"),
    ],
)
def test_an_option_that_another_one_makes_meaningless_is_refused(options: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        with_environment(**options)
    assert with_environment(reader="pure", direct_io=False).reading.reader == "pure"


def test_an_unknown_option_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(UsageError, match=r"'expert_cash'.*expert_cache"):
        with_environment(expert_cash="1GiB")


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_devices_are_named_as_torch_names_them(device: str) -> None:
    assert with_environment(device=device).compute.device == device


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:x", "cuda0", "CUDA", "cpu:0", "cuda:-1"])
def test_another_device_is_refused_with_the_known_ones(device: str) -> None:
    with pytest.raises(UsageError, match=r"unknown device .*known: auto, cpu, cuda, cuda:0"):
        with_environment(device=device)


@pytest.mark.parametrize("option", ["vram", "ram", "expert_cache"])
def test_a_size_is_looked_at_before_anything_is_loaded(option: str) -> None:
    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')} 'much' is not a size"):
        with_environment(**{option: "much"})
    assert with_environment(**{option: "40%"}).value(option) == Share(40)
    assert with_environment(**{option: "auto"}).value(option) is None
    with pytest.raises(UsageError, match="is not a size"):
        with_environment(**{option: "9" * 400 + "GiB"})


def test_what_is_for_a_gpu_is_refused_beside_the_cpu_wherever_either_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"--vram 8GiB .*--device cpu"):
        with_environment(device="cpu", vram="8GiB")
    monkeypatch.setenv("MOEINF_DEVICE", "cpu")
    with pytest.raises(UsageError, match=r"--vram 8GiB .*--device cpu"):
        with_environment(vram="8GiB")
    assert with_environment(vram="8GiB", device="cuda").memory.vram == Bytes(8 << 30)
    with pytest.raises(UsageError, match=r"--cpu-experts .*--device cpu"):
        with_environment(cpu_experts=True)


def test_the_cpu_takes_no_part_on_a_gpu_unless_told(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not with_environment().compute.cpu_experts
    monkeypatch.setenv("MOEINF_CPU_EXPERTS", "on")
    assert with_environment().compute.cpu_experts and not with_environment(cpu_experts=False).compute.cpu_experts


def test_a_size_is_written_as_the_user_wrote_it() -> None:
    config = RuntimeConfig.of(vram="8 GiB", ram="12.5%", expert_cache=500)
    assert (str(config.memory.vram), str(config.memory.ram), str(config.memory.expert_cache)) == (
        "8 GiB",
        "12.5%",
        "500B",
    )


def test_a_flag_that_says_auto_goes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_RAM", "1GiB")
    assert with_environment().memory.ram == Bytes(1 << 30) and with_environment(ram="auto").memory.ram is None


def test_no_two_options_share_a_name_on_any_surface() -> None:
    every = [*options(RuntimeConfig), *options(SamplingParams)]
    for names in (
        [each.name for each in every],
        [flag for each in every for flag in each.flags],
        [each.variable for each in every],
        [each.ollama for each in every if each.ollama],
        [name for each in every for name in each.openai],
    ):
        assert len(names) == len(set(names))


def test_the_names_over_http_are_those_of_ollama_and_of_openai() -> None:
    ollama = http_options("ollama", RuntimeConfig, SamplingParams)
    assert {name for name, each in ollama.items() if name != each.name} == {
        "num_gpu", "num_ctx", "num_thread", "num_batch"
    }  # fmt: skip
    assert {"repeat_last_n", "stop", "seed"} < ollama.keys() and "expert_cache" not in ollama
    openai = http_options("openai", RuntimeConfig, SamplingParams)
    assert openai["max_tokens"] == openai["max_completion_tokens"] == ollama["num_predict"]
    assert {"temperature", "top_p", "stop", "seed", "presence_penalty", "frequency_penalty"} < openai.keys()


def test_a_zero_means_what_it_means_to_ollama() -> None:
    ollama = http_options("ollama", RuntimeConfig, SamplingParams)
    names = ("num_ctx", "num_thread", "num_batch", "num_predict", "repeat_penalty", "repeat_last_n", "seed", "top_k")
    assert [ollama_value(ollama[name], "0") for name in names] == [None, None, None, -1, 1.0, 0, 0, 0]


def test_texts_get_the_type_of_their_option() -> None:
    ollama = http_options("ollama", RuntimeConfig, SamplingParams)
    texts = {"top_k": "20", "top_p": "0.5", "stop": "a b", "num_gpu": "0", "num_ctx": "64", "seed": "-1"}
    values = [ollama_value(ollama[name], text) for name, text in texts.items()]
    assert values == [20, 0.5, ("a b",), "cpu", 64, -1]
    assert option_of(RuntimeConfig, "prefetch").parse("x", "off") is False
    with pytest.raises(UsageError, match=r"top_k must be a whole number, not '2.5'"):
        ollama_value(ollama["top_k"], "2.5")
    with pytest.raises(UsageError, match=r"num_ctx must be a whole number of at most 19 digits, not '9{40}'"):
        ollama_value(ollama["num_ctx"], "9" * 5000)
    with pytest.raises(UsageError, match="num_gpu cannot be '4'"):
        ollama_value(ollama["num_gpu"], "4")
