"""The command with streams that are closed, full or left by their reader."""

from __future__ import annotations

import subprocess
import sys

import pytest

MOEINF = f'"{sys.executable}" -m moeinf'
RUN = f"{MOEINF} run demo Once -n 4 --seed 1 -t 1"


def shell(environment: dict[str, str], line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )


def test_an_answer_does_not_need_anywhere_to_put_notes(environment: dict[str, str]) -> None:
    whole = shell(environment, RUN)
    assert whole.returncode == 0 and whole.stdout.strip()
    for way in ("2>/dev/full", "2>&- <&-"):
        done = shell(environment, f"{RUN} --verbose {way}")
        assert (done.returncode, done.stdout) == (0, whole.stdout), way


@pytest.mark.parametrize(
    ("words", "way", "reason"),
    [
        (f"{MOEINF} list", ">&-", "Bad file descriptor"),
        (RUN, ">&- <&-", "Bad file descriptor"),
        (RUN, ">/dev/full", "No space left on device"),
    ],
)
def test_an_answer_that_cannot_be_written_is_an_error_of_one_line(
    environment: dict[str, str], words: str, way: str, reason: str
) -> None:
    done = shell(environment, f"{words} {way}")
    assert done.returncode == 1 and done.stdout == ""
    errors = [line for line in done.stderr.splitlines() if not line.startswith("note: ")]
    assert errors == [
        f"Error: the output cannot be written to standard output: {reason}; check where it is sent, and "
        "repeat the command"
    ]


def test_with_nowhere_to_say_it_the_exit_code_tells(environment: dict[str, str]) -> None:
    assert shell(environment, f"{MOEINF} list >&- 2>&-").returncode == 1
    assert shell(environment, f"{MOEINF} show nothing 2>&-").returncode == 1
    assert shell(environment, f"{MOEINF} show 2>/dev/full").returncode == 2
    assert shell(environment, f"{MOEINF} pull demo >&- 2>&-").returncode == 0


def test_a_reader_that_has_gone_is_no_reason_for_a_line(environment: dict[str, str]) -> None:
    done = shell(environment, f"{MOEINF} list | true")
    assert done.returncode in (0, 1) and done.stderr == ""
    assert shell(environment, f"{RUN} 2>&1 >/dev/null | true").returncode == 0


def test_a_character_that_the_output_cannot_have_is_written_as_its_number(environment: dict[str, str]) -> None:
    words = "from moeinf.terminal.process.streams import open_streams; open_streams(); print('caf\u00e9')"
    done = shell(environment | {"PYTHONIOENCODING": "ascii"}, f'"{sys.executable}" -c "{words}"')
    assert (done.stdout, done.stderr) == ("caf\\xe9\n", "")


def test_a_prompt_that_does_not_end_on_standard_input_is_said_to_be_waited_for(environment: dict[str, str]) -> None:
    words = ["bash", "-c", f"exec {RUN}"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as waiting:
        assert waiting.stdin is not None and waiting.stderr is not None
        said = waiting.stderr.readline()  # standard input has told nothing, and has not ended
        waiting.stdin.close()
        waiting.wait(timeout=120)
    assert said.startswith("note: waiting for the prompt on standard input; where there is none, write </dev/null")
    assert waiting.returncode == 0
    assert "waiting" not in shell(environment, f"echo upon | {RUN}").stderr
