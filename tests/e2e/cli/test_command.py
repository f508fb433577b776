from __future__ import annotations

import errno
import json
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from moeinf import cli
from moeinf.config import RuntimeConfig
from moeinf.config.environment import unknown_variables
from moeinf.config.pull_options import PullOptions
from moeinf.config.server_options import ServerOptions
from moeinf.engine.model import Model
from moeinf.pull.pull import pull
from moeinf.sampling.params import SamplingParams
from moeinf.store.library import StoredModel
from moeinf.terminal.arguments.short_help import SHOWN
from tests.support.cli.commands import Done, run_process

Command = Callable[..., Done]
SHORT = ("-n", "12", "--seed", "1", "-t", "1")  # more threads only wait for each other here

GREEDY = ("-n", "24", "--temperature", "0", "-t", "1")


def test_piped_text_comes_before_the_words_and_both_streams_stay_apart(environment: dict[str, str]) -> None:
    done = run_process(environment, "run", "demo", "there was", *SHORT, "--verbose", input="Once upon a time\n")
    assert done.returncode == 0
    assert done.stdout.endswith("\n") and not done.stdout.endswith("\n\n") and len(done.stdout) > 10
    assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stderr
    assert "eval count:           12 token(s)" in done.stderr
    assert "base model" in done.stderr and "eval" not in done.stdout


def test_figures_begin_on_a_line_of_their_own_behind_the_answer(environment: dict[str, str]) -> None:
    words = [sys.executable, "-m", "moeinf", "run", "demo", "Once upon a time", *SHORT, "--verbose"]
    done = subprocess.run(
        words,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "\ntotal duration: " in done.stdout


def test_a_reader_that_goes_away_ends_the_command_without_a_word_about_it(environment: dict[str, str]) -> None:
    script = f'"{sys.executable}" -m moeinf run demo "Once upon a time" -n 200 --seed 1 | head -c1'
    done = subprocess.run(
        ["bash", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert len(done.stdout) == 1
    assert "Traceback" not in done.stderr and "Error" not in done.stderr and "Broken" not in done.stderr


def test_equal_seeds_give_equal_answers_on_stdout(command: Command) -> None:
    answers = {command("run", "demo", "Once", *SHORT).out for _ in range(2)}
    assert len(answers) == 1
    assert command("run", "demo", "Once", "-n", "12", "--seed", "2", "-t", "1").out not in answers


def test_json_holds_the_answer_and_its_figures(command: Command) -> None:
    done = command("run", "demo", "Once", *SHORT, "--json")
    answer = json.loads(done.out)
    assert answer["model"] == "demo:latest" and answer["finish_reason"] == "length"
    assert answer["cut_by"] == "num_predict" and "note: the answer was cut after 12 tokens" in done.err
    assert answer["stats"]["generated_tokens"] == 12 and answer["stats"]["seed"] == 1
    assert answer["response"] == command("run", "demo", "Once", *SHORT).out.removesuffix("\n")
    assert answer["stats"]["total_s"] > answer["stats"]["load_s"] > 0


def test_the_prompt_may_come_from_a_file_and_a_raw_prompt_is_the_same_for_a_base_model(
    command: Command, tmp_path: Path
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("Once upon\n")
    expected = command("run", "demo", "Once upon", *SHORT).out
    assert command("run", "demo", "-f", str(file), *SHORT).out == expected
    assert command("run", "demo", "--raw", "Once upon", *SHORT).out == expected


def test_an_answer_ends_at_a_stop_string_which_is_left_out(command: Command) -> None:
    whole = command("run", "demo", "Once upon a time", *GREEDY).out
    word = whole.split()[3]
    cut = command("run", "demo", "Once upon a time", *GREEDY, "--stop", word).out
    assert cut.rstrip("\n") == whole[: whole.index(word)].rstrip("\n")


def test_an_empty_prompt_word_loads_the_model_and_prints_nothing(command: Command) -> None:
    done = command("run", "demo", "")
    assert (done.code, done.out) == (0, "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "demo"), "no prompt given"),
        (("run", "demo", "x", "--policy", "best"), "known: lru, paper, next-use, tuned"),
        (("run", "demo", "x", "--policy", "lfu"), "--policy lfu is there to compare with, in `moeinf bench` and"),
        (("serve", "--predictor", "look-ahead+frequency"), "+frequency is there to compare with, in `moeinf bench`"),
        (("start", "--policy", "arc"), "known here: lru, paper, next-use, tuned"),
        (("run", "demo", "x", "--predictor", "oracle"), "known: "),
        (("run", "demo", "x", "--reader", "mmap"), "known: native, pure"),
        (("run", "demo", "x", "--expert-cache", "much"), "auto, bytes (6GiB, 500MB) or percent (40%)"),
        (("run", "demo", "x", "--expert-cache", "512"), "may mean 512 MiB or 512 bytes"),
        (("run", "demo", "x", "--expert-cache", "1KiB"), "at least"),
        (("run", "demo", "x", "--device", "gpu"), "known: auto, cpu, cuda, cuda:0"),
        (("run", "demo", "x", "--device", "cpu", "--vram", "8GiB"), "leave one of them out"),
        (("run", "nowhere", "x", "--vram", "lots"), "--vram 'lots' is not a size"),
        (("bench", "nowhere", "--ram", "101%"), "--ram '101%' is not a size"),
        (("bench", "demo", "--device", "cuda:one"), "unknown device 'cuda:one'"),
        (("run", "demo", "x", "--top-p", "2"), "top_p must be between 0 and 1"),
        (("run", "demo", "x", "--temperature", "hot"), "--temperature"),
        (("run", "demo", "x", "--temperature", "-1"), "temperature must be between 0 and 10000, not -1"),
        (("run", "demo", "x", "-o", "temperature=-1"), "temperature must be between 0 and 10000, not -1"),
        (("run", "demo", "x", "-t", "0"), "--threads must be from 1 to 1024, not 0"),
        (("run", "nowhere", "x", "-t", "100000"), "--threads must be from 1 to 1024, not 100000"),
        (("bench", "nowhere", "--queue-depth", "100000"), "--queue-depth must be from 1 to 1024, not 100000"),
        (("run", "nowhere", "x", "--reader", "pure", "--queue-depth", "4"), "means nothing to --reader pure"),
        (("run", "nowhere", "x", "--no-prefetch", "--predictor", "eamc"), "means nothing with --no-prefetch"),
        (("run", "demo", "x", "-c", "9999999"), "beyond the model's 2048"),
        (("run", "demo", "x", "-o", "heat=1"), "unknown option 'heat'; known: frequency_penalty, min_p, min_tokens"),
        (("run", "demo", "x", "-o", "top_k"), "NAME=VALUE"),
        (("run", "demo", "x", "-o", "top_k=many"), "top_k must be a whole number"),
        (("run", "demo", "x", "--file", "/nowhere/at/all"), "cannot be read"),
        (("run", "demo", "x", "--frobnicate"), "--frobnicate"),
        (("run", "demo", "", "--json"), "--json needs a prompt"),
        (("run",), "run needs the name of a model; stored here: demo; `moeinf run demo` opens a chat"),
        (("show",), "Missing argument 'MODEL' (see moeinf show --help)"),
        (("bench", "nowhere", "--prompt-file", "/nowhere/at/all"), "cannot be read"),
        (("bench", "demo", "-p", "5000"), "the context is 2048"),
        (("bench", "nowhere", "-n", "1"), "--num-decode must be at least 2, not 1"),
        (("bench", "nowhere", "--parallel", "1,x"), "--parallel must be numbers from 1 to 64"),
        (("bench", "nowhere", "--parallel", "4", "--policy", "all"), "--parallel is for one policy"),
        (("bench", "demo", "-o", "xml"), "known: table, md, csv, json, jsonl"),
        (("show", "demo", "--license", "--template"), "only one of"),
        (("show", "demo", "--json", "--verbose"), "only one of"),
        (("pull", "demo", "--quant", "q7_k"), "unknown --quant 'q7_k'; known: keep, q8_0, q6_k, q5_k"),
        (("simulate", "/nowhere"), "no trace in /nowhere"),
        (("dance",), "no such command: dance; see --help"),
        (("lst",), "did you mean list?"),
        (("help", "dance"), "no such command: dance"),
        (("serve", "--port", "65536"), "--port must be between 0 (any that is free) and 65535, not 65536"),
        (("serve", "--port", "x"), "--port"),
        (("create", "x", "--quantize", "q4_K_M"), "no such option: --quantize; `moeinf pull SOURCE --quant q8_0"),
        (("create", "x", "-q", "q4_K_M"), "q4_K_M is one word too many; -q is --quiet here: `moeinf pull SOURCE"),
        (("run", "demo", "x", "--keep-alive", "5m"), "no such option: --keep-alive; --keepalive TIME keeps the model"),
        (("pull", "demo", "--insecure"), "no such option: --insecure; `export HF_ENDPOINT=http://HOST`"),
        (("run", "demo", "x", "--dimensions", "5"), "no such option: --dimensions; `moeinf serve` makes embeddings"),
        (("run", "demo", "x", "--experimental"), "no such option: --experimental; the model runs no programs"),
        (("serve", "--ctx-size", "5"), "no such option: --ctx-size; --num-ctx N"),
        (("run", "demo", "x", "--n-gpu-layers", "9"), "no such option: --n-gpu-layers; --vram SIZE"),
        (("serve", "--max-model-len=9"), "no such option: --max-model-len; --num-ctx N"),
        (("serve", "--api-key", "x"), "no such option: --api-key; --key-file PATH or MOEINF_API_KEY"),
        (("list", "--ctx-size", "1"), "no such option: --ctx-size; see --help"),  # the cure is an option of serve
        (("serve", "--host", "ftp://here"), "--host 'ftp://here' is no address"),
        (("serve", "--host", "0.0.0.0:0"), "--no-auth-i-know"),
        (("serve", "--host", "[::]:0"), "--no-auth-i-know"),
        (("serve", "--host", "192.168.1.5:0"), "--no-auth-i-know"),
        (("serve", "--host", "my-machine:0"), "--no-auth-i-know"),
        (("serve", "--keep-alive", "soon"), "--keep-alive must be a time"),
        (("serve", "--key-file", "/nowhere/at/all"), "--key-file"),
        (("stop",), "Missing argument 'MODEL'"),
        (("cp", "a"), "Missing argument"),
        (("create",), "Missing argument"),
        (("push", "demo"), "uploads nothing"),
        (("launch",), "Missing argument 'AGENT'"),
        (("run", "demo", "x", "--temp", "1"), "no such option: --temp; did you mean --temperature or --template-var?"),
        (("run", "demo", "x", "--format", "yaml"), "--format"),
        (("run", "demo", "x", "--max-tokens", "9"), "no such option: --max-tokens; --num-predict N is the most tokens"),
        (("run", "demo", "x", "-ngl", "99"), "no such option: -ngl; --vram SIZE bounds"),
        (("run", "demo", "x", "-ncmoe", "9"), "no such option: -ncmoe; experts lie on the GPU, in RAM or on the disk"),
        (("run", "demo", "-p", "x"), "no such option: -p; the prompt stands behind the name of the model"),
        (("serve", "-m", "x"), "no such option: -m; the name of a model stands behind `run`"),
        (("run", "nowhere", "x", "-o", "num_gpu=99"), "--vram SIZE bounds what is used of a GPU"),
    ],
)
def test_a_wrong_use_is_one_line_with_what_is_allowed_and_exit_code_2(
    command: Command, words: tuple[str, ...], said: str
) -> None:
    done = command(*words)
    assert done.code == 2 and done.out == ""
    assert done.err.startswith("Error: ") and done.err.count("\n") == 1
    assert said in done.err


@pytest.mark.parametrize("words", [("rm", "dmo"), ("show", "dmo"), ("verify", "dmo"), ("run", "dmo", "x")])
def test_an_unknown_model_is_one_line_with_close_names(command: Command, words: tuple[str, ...]) -> None:
    done = command(*words)
    assert done.code == 1 and done.out == ""
    assert done.err.startswith("Error: model 'dmo' not found; did you mean demo") and done.err.count("\n") == 1


def test_what_is_known_and_not_stored_is_told_how_to_be_fetched(command: Command) -> None:
    assert command("show", "mixtral").err == "Error: model 'mixtral' not found; `moeinf pull mixtral` fetches it\n"
    assert "did you mean" not in command("run", "nope", "x").err
    assert command("run", "deme", "x").err.count("demo") == 1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mixtrall", "not found; did you mean mixtral or "),
        ("qwen3:31b", "not found; did you mean qwen3:30b or "),
        ("glm-9", "(`moeinf list --available` shows the names)"),
        ("no", "not found; give org/repo, the path of a folder, or a known name"),
    ],
)
def test_a_name_that_is_nearly_known_leads_somewhere(command: Command, name: str, said: str) -> None:
    done = command("run", name, "x")
    assert done.code == 1 and said in done.err and done.err.count("\n") == 1


def test_who_names_no_model_is_led_to_one(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, demo: StoredModel
) -> None:
    assert command().out.endswith("\n\nStored here: demo; `moeinf run demo` opens a chat.\n")
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    assert "nothing is stored yet: `moeinf run demo:chat` answers at once, a toy of" in command("run").err
    assert command().out.startswith("Usage: moeinf ") and "\n\nNothing is stored yet: " in command().out


def test_ollamas_word_for_no_gpu_is_the_cpu(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("MOEINF_DEVICE", "cuda")
    assert command("run", "demo", "", "-o", "num_gpu=-1").code == 0
    assert command("run", "demo", "", "-o", "num_gpu=0").code == 0
    assert "CUDA_VISIBLE_DEVICES" in command("run", "demo", "").err


def test_help_cuts_nothing_at_80_columns_and_takes_a_verb(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    done = command("help")
    assert done.code == 0 and done.out == command("--help").out
    assert "..." not in done.out.split("Commands:")[1]
    assert command("help", "run").out == command("run", "--help").out != ""


@pytest.mark.parametrize("verb", ["run", "bench", "serve", "start"])
def test_help_shows_what_is_asked_for_most_and_help_all_every_option(verb: str, command: Command) -> None:
    few, all_of_them = command(verb, "--help"), command(verb, "--help-all")
    assert few.code == all_of_them.code == 0 and few.err == all_of_them.err == ""
    shown, known = option_names(few.out), option_names(all_of_them.out)
    assert shown < known and len(shown) <= 15 and {"--help", "--help-all", "--num-ctx", "--ram"} <= shown
    assert f"{len(known) - len(shown)} more options: moeinf {verb} --help-all" in few.out
    assert "more options" not in all_of_them.out and {"--queue-depth", "--worker-key-file"} <= known - shown
    assert option_names(command(verb, "--help-all", "--help").out) == known, "the first that ends a command counts"


def test_help_fits_a_narrow_terminal(environment: dict[str, str]) -> None:
    every_help = (
        "from moeinf import cli; from typer.main import get_command\n"
        "for name in get_command(cli.app).commands: cli.run_command([name, '--help'])"
    )
    told = subprocess.run(
        [sys.executable, "-c", every_help],
        env=environment | {"COLUMNS": "40"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    lines = told.stdout.splitlines()
    assert told.stdout.count("Usage: moeinf") > 15 and max(map(len, lines)) <= 40


def test_the_short_help_names_options_that_there_are() -> None:
    from typer.main import get_command

    verbs = get_command(cli.app).commands  # type: ignore[attr-defined]
    for verb, names in SHOWN.items():
        assert set(names) <= {param.name for param in verbs[verb].params}


def option_names(text: str) -> set[str]:
    """The first long name of each option of a help text."""
    lines = re.findall(r"^  (?:-\w, )?(--[\w-]+)", text.split("Options:")[1], re.MULTILINE)
    return set(lines)


def test_a_prompt_beyond_the_context_is_one_line_with_both_numbers(command: Command) -> None:
    done = command("run", "demo", "word " * 700, "-c", "64")
    assert done.code == 1 and done.out == ""
    assert "the context 64" in done.err


def test_a_budget_for_the_process_binds_and_too_small_a_one_is_one_line(command: Command) -> None:
    assert command("run", "demo", "Once", *SHORT, "--ram", "200MiB").code == 0
    done = command("run", "demo", "Once", *SHORT, "--ram", "80MiB")
    assert done.code == 1 and done.out == "" and done.err.count("\n") == 1
    assert "(--ram 80MiB)" in done.err


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_a_gpu_that_is_asked_for_and_is_not_there_is_one_line_with_the_remedy(
    command: Command, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    words = ["Once"] if verb == "run" else []
    done = command(verb, "not-pulled-yet", *words, "--device", "cuda")
    assert done.code == 1 and done.out == ""
    assert done.err == "Error: CUDA_VISIBLE_DEVICES='' hides every GPU: unset it, or run with --device cpu\n"


def test_memory_of_a_gpu_is_refused_where_there_is_none(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = command("run", "demo", "Once", "--vram", "8GiB")
    assert done.code == 2 and done.err.count("\n") == 1 and "this run uses none" in done.err


def test_debug_anywhere_on_the_line_shows_the_traceback(command: Command) -> None:
    assert "Traceback" not in command("show", "dmo").err
    assert "Traceback" in command("show", "dmo", "--debug").err


def test_an_unexpected_error_is_one_line_that_asks_for_debug(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(home: Path) -> None:
        raise ZeroDivisionError("a fault\nof ours")

    monkeypatch.setattr("moeinf.store.library.Library", fail)
    done = command("list")
    assert done.code == 1
    assert done.err == "Error: unexpected ZeroDivisionError: a fault of ours; run again with --debug and report it\n"


@pytest.mark.parametrize(
    ("call", "number", "file"),
    [
        ("open", errno.EIO, "config.json"),
        ("open", errno.EACCES, "config.json"),
        ("open", errno.EACCES, "manifest.json"),
        ("stat", errno.EIO, "manifest.json"),
        ("stat", errno.EIO, "dense.safetensors"),
        ("open", errno.EIO, "names"),
        ("listdir", errno.EIO, "names"),
        ("scandir", errno.EIO, "models"),
        ("stat", errno.EMFILE, "partial"),
        ("open", errno.EMFILE, "names"),
    ],
)
def test_a_fault_of_the_disk_or_of_a_limit_is_one_line_about_the_file(
    command: Command, home: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, file: str
) -> None:
    real = getattr(os, call)

    def failing(path: object = ".", *rest: object, **options: object) -> object:
        text = os.fspath(path) if isinstance(path, str | os.PathLike) else ""
        if text.startswith(str(home)) and file in text:
            raise OSError(number, os.strerror(number), text)
        return real(path, *rest, **options)

    monkeypatch.setattr(os, call, failing)
    failed = 0
    for words in (["list", "--all"], ["show", "demo"], ["run", "demo", ""], ["verify", "demo"]):
        done = command(*words)
        lines = [line for line in done.err.splitlines() if line.startswith("Error: ")]
        assert len(lines) == (done.code != 0) and "unexpected" not in done.err and "Traceback" not in done.err, words
        said = done.out + done.err
        assert not lines or (os.strerror(number) in said and file in said), (words, said)
        failed += done.code != 0
    assert failed


def test_a_fault_that_names_no_file_is_said_as_it_is(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(home: Path) -> None:
        raise BlockingIOError(errno.EAGAIN, "cannot start a computing thread")

    monkeypatch.setattr("moeinf.store.library.Library", fail)
    done = command("list")
    assert done.code == 1
    assert done.err == (
        "Error: cannot start a computing thread; lower --threads, or raise the number of processes "
        "that a user may have (ulimit -u)\n"
    )


def test_ctrl_c_outside_of_an_answer_is_exit_code_130(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(home: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeinf.store.library.Library", interrupt)
    assert command("list").code == 130


def test_an_interrupted_pull_tells_how_to_go_on(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(source: str, *options: object, **others: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("moeinf.references.fetching.pull", interrupt)
    done = command("pull", "org/repo")
    assert done.code == 130
    assert done.err == "interrupted; `moeinf pull org/repo` goes on where this stopped\n"
    assert "`moeinf pull './a b' --quant q4_k`" in command("pull", "./a b", "--quant", "q4_k").err
    again = command("pull", "org/repo", "--revision", "v2", "--quant", "q4_k").err
    assert "`moeinf pull org/repo --quant q4_k --revision v2`" in again


def test_options_may_come_from_variables_and_flags_go_first(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_SEED", "5")
    monkeypatch.setenv("MOEINF_NUM_PREDICT", "3")
    stats = json.loads(command("run", "demo", "Once", "--json", "-t", "1").out)["stats"]
    assert (stats["seed"], stats["generated_tokens"]) == (5, 3)
    assert json.loads(command("run", "demo", "Once", "--json", "--seed", "6", "-t", "1").out)["stats"]["seed"] == 6
    monkeypatch.setenv("MOEINF_TOP_K", "many")
    assert command("run", "demo", "Once").code == 2
    monkeypatch.delenv("MOEINF_TOP_K")
    monkeypatch.setenv("MOEINF_TEMPERATURE", "-1")
    done = command("run", "demo", "Once")
    assert done.code == 2 and done.err.startswith("Error: MOEINF_TEMPERATURE: temperature must be between 0 and")


def test_every_option_about_memory_and_sampling_has_the_variable_of_its_flags_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from typer.main import get_command

    command_of_run = get_command(cli.app).commands["run"]  # type: ignore[attr-defined]
    options = [param.opts for param in command_of_run.params if param.opts[0].startswith("-")]
    flags = {next(name for name in names if name.startswith("--")) for names in options}
    variables = {f"MOEINF_{flag[2:].replace('-', '_').upper()}" for flag in flags}
    for name in variables:
        monkeypatch.setenv(name, "1")
    lines = unknown_variables(RuntimeConfig, SamplingParams, ServerOptions)
    without = {line.split()[0].removeprefix("MOEINF_") for line in lines}
    assert without == {
        "LORA",
        "SYSTEM",
        "YES",
        "OPTION",
        "HELP_ALL",
        "FILE",
        "FORMAT",
        "RAW",
        "JSON",
        "PLAN",
        "VERBOSE",
        "NOWORDWRAP",
        "QUIET",
        "THINK",
        "HIDETHINKING",
        "TEMPLATE_VAR",
        "QUANT",
        "BATCH",
        "OUT",
        "ROWS",
        "KEEPALIVE",
    }


def test_an_unknown_variable_is_noted_by_every_verb(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOEINF_TEMPERATUR", "0")
    done = command("list")
    assert done.code == 0 and done.err == (
        "note: MOEINF_TEMPERATUR is no variable of moeinf, and changes nothing; did you mean MOEINF_TEMPERATURE?\n"
    )


def test_list_has_five_columns_and_only_a_header_when_there_is_nothing(
    command: Command, demo: StoredModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, line = command("list").out.splitlines()
    assert header.split() == ["NAME", "ID", "SIZE", "FORMAT", "MODIFIED"]
    columns = f"demo:latest    {demo.id[:12]}    11 MB    bf16      "  # the age behind them goes on between two calls
    assert line.startswith(columns) and line.endswith(" ago")
    assert command("ls", "DEM").out.splitlines()[1].startswith(columns)
    assert command("list", "other").out.splitlines() == ["NAME    ID    SIZE    FORMAT    MODIFIED"]
    listed = json.loads(command("list", "--json").out)[0]
    assert (listed["id"], listed["format"]) == (demo.id, "bf16")
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "new"))
    empty = command("list")
    assert (empty.code, empty.out) == (0, "NAME    ID    SIZE    FORMAT    MODIFIED\n")


def test_a_store_that_is_no_folder_is_not_an_empty_one(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path / "file"))
    done = command("list")
    assert (done.code, done.out) == (2, "") and done.err.endswith("is no folder; set MOEINF_HOME to one\n")


def test_list_tells_of_interrupted_pulls_in_every_form(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    (tmp_path / "partial" / "abc").mkdir(parents=True)
    [pull] = json.loads(command("list", "--all", "--json").out)
    assert (pull["name"], pull["source"], pull["running"]) == ("abc", "", False)
    assert json.loads(command("list", "--all", "--json", "other").out) == []
    assert len(command("list", "--all", "other").out.splitlines()) == 1


def test_list_tells_the_names_that_can_be_pulled(command: Command) -> None:
    told = {each["name"]: each for each in json.loads(command("list", "--available", "--json", "Mix").out)}
    mixtral = told["mixtral:8x7b"]
    assert "mixtral" in mixtral["also"] and mixtral["checkpoint"].startswith("mistralai/") and mixtral["gguf"]
    assert mixtral["bytes_at_4_bits"] > 20e9 and 0 <= mixtral["resident_share"] <= 1
    lines = [line.split() for line in command("list", "--available", "dem").out.splitlines()]
    assert lines[1:3] == [["demo", "comes", "with", "moeinf"], ["demo:chat", "comes", "with", "moeinf"]]
    assert lines[0] == ["NAME", "ALSO", "PARAMETERS", "A", "TOKEN", "AT", "4", "BITS", "HERE"]
    assert "only one of --all and --available" in command("list", "--available", "--all").err


def test_show_tells_the_model_and_its_experts(command: Command) -> None:
    text = command("show", "demo").out
    for line in (
        "    architecture        qwen3_moe",
        "    experts per layer    32",
        "    active per token     4",
        "    quantization        BF16",
        "    top_p          0.95",
    ):
        assert line in text.splitlines()
    assert "needs at least" in text and re.search(r"on a GPU +\S+ GiB VRAM and \S+ GiB RAM\n", text)
    assert "gate" in command("show", "demo", "-v").out
    facts = json.loads(command("show", "demo", "--json").out)
    assert facts["moe"]["on_gpu_needs_at_least_bytes"]["vram"] > 1 << 30
    assert facts["moe"]["experts_per_layer"] == 32 and facts["context_length"] == 2048
    units = set(re.findall(r"\d ([KMGT]i?B)\b", text))
    assert units and all(unit[1] == "i" for unit in units), "one family of units"


def test_what_show_says_is_needed_is_where_a_run_begins_to_succeed(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    assert command("pull", "demo", "--quant", "q8_0", "-q").code == 0  # its embedding stays in the file
    match = re.search(r"needs at least +([\d.]+) (\w+) RAM", command("show", "demo:q8_0").out)
    assert match and match[2] == "MiB"
    assert command("run", "demo:q8_0", "", "--ram", match[1] + match[2]).code == 0
    done = command("run", "demo:q8_0", "", "--ram", f"{float(match[1]) - 1:.1f}MiB")
    assert done.code == 1 and f"{math.ceil(float(match[1]))} MiB needed" in done.err


def test_the_line_about_a_model_tells_the_formats_it_is_stored_in(tmp_path: Path) -> None:
    stored = pull("demo", PullOptions(quant_experts="q4_k", quant_dense="q8_0"), home=tmp_path)
    with Model(stored, RuntimeConfig.of(threads=1)) as model:
        assert " active) q5_0 experts, q8_0 dense · CPU, RAM " in model.describe()
        assert "dense 932 KB" in model.describe() and " 0.00" not in model.describe()


def test_verify_counts_what_it_read_and_names_a_flipped_expert(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    assert command("pull", "demo", "-q").code == 0
    assert "192 experts" in command("verify", "demo").out
    shard = next(tmp_path.glob("models/*/experts-00002.bin"))
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.chmod(0o644)
    shard.write_bytes(data)
    done = command("verify", "demo")
    assert done.code == 1 and done.out.splitlines() == ["experts-00002.bin: expert 16 does not match its checksum"]
    removed = command("rm", "demo")
    assert removed.out == "deleted 'demo' (11 MB freed)\n" and not list(tmp_path.glob("models/*"))
    assert command("rm", "demo").code == 1


def test_pull_prints_plain_lines_where_there_is_no_terminal(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    plan = command("pull", "demo", "--dry-run")
    assert plan.code == 0 and "to be pulled" in plan.out and not list(tmp_path.glob("models/*"))
    done = command("pull", "demo", "--name", "mine:v1")
    assert done.code == 0 and done.out == "" and "\x1b" not in done.err and "\r" not in done.err
    assert done.err.splitlines()[0] == "pulling manifest" and done.err.splitlines()[-1] == "success"
    assert command("list").out.splitlines()[1].startswith("mine:v1")


def test_formats_are_in_the_name_the_list_and_what_show_tells(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(tmp_path))
    done = command("pull", "demo", "--quant", "q8_0", "--quant-experts", "q4_k")
    assert done.code == 0
    notes = [line.removeprefix("note: ") for line in done.err.splitlines() if line.startswith("note: ")]
    said = "expert gate, expert up: rows of 128 are no whole number of q4_k blocks (256); stored as q5_0, 5.5 bits"
    assert notes[0].startswith(said)
    assert command("list").out.splitlines()[1].split()[:5:4] == ["demo:q4_k-q8_0", "q5_0"]
    lines = [line.strip() for line in command("show", "demo:q4_k-q8_0").out.splitlines()]
    assert "quantization        q5_0 experts, q8_0 dense" in lines and set(notes) <= set(lines)
    assert "demo:q4_k-q8_0: up to date" in command("pull", "demo:q4_k-q8_0", "--dry-run").out
    assert "demo:latest: to be pulled" in command("pull", "demo", "--dry-run").out


def test_bench_rows_parse_in_every_form(command: Command) -> None:
    done = command("bench", "demo", "-p", "8", "-n", "4", "-r", "1", "-o", "json", "-q", "-t", "1")
    rows = json.loads(done.out)
    assert {(row["test"], row["cold"]) for row in rows} >= {("pp8", True), ("pp8", False)}
    assert all(0 <= row["expert_hit_rate"] <= 1 for row in rows)


def test_bench_decodes_side_by_side(command: Command) -> None:
    words = ("bench", "demo", "-p", "8", "-n", "6", "-r", "2", "-o", "json", "-q", "--expert-cache", "33%")
    rows = {row["parallel"]: row for row in json.loads(command(*words, "--parallel", "1,4").out)}
    assert rows.keys() == {0, 1, 4} and rows[4]["test"] == "tg5 x 4" and len(rows[4]["samples_ts"]) == 2
    assert abs(rows[4]["each_ts"] - rows[4]["avg_ts"] / 4) < 0.01
    assert rows[1]["byte_gain"] == 1 < rows[4]["byte_gain"] < 4 and 0 < rows[4]["expert_hit_rate"] < 1


@pytest.mark.parametrize(
    "words",
    [["--help"], ["--version"], ["pull", "--help"], ["run", "--help"], ["list"], ["show", "demo"], ["rm", "--help"]],
)
def test_light_verbs_import_nothing_heavy(environment: dict[str, str], words: list[str]) -> None:
    heavy = ["torch", "huggingface_hub", "transformers", "tokenizers", "prompt_toolkit", "jinja2", "pydantic"]
    if "demo" not in words and words != ["list"]:
        heavy.append("numpy")
    script = (
        "import sys; from moeinf import cli; code = cli.run_command(sys.argv[2:]); "
        "print([name for name in sys.argv[1].split(',') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, ",".join(heavy), *words],
        env=environment,
        timeout=60,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_is_said_as_ollama_says_it(command: Command) -> None:
    from moeinf import __version__

    assert command("-v").out == f"moeinf version is {__version__}\n"


def test_the_command_alone_prints_its_help(command: Command) -> None:
    done = command()
    assert done.code == 0 and "Usage: moeinf" in done.out and "run" in done.out


def test_ctrl_c_while_the_command_line_is_imported_leaves_no_traceback() -> None:
    code = """
import importlib.abc, os, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "moeinf.cli":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from moeinf.__main__ import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    assert 'moeinf = "moeinf.__main__:main"' in project, "the console command goes the same way"
