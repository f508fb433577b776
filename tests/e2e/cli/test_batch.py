"""A batch from a file: every request has the answer that it has alone, once, whatever ends the command in between."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pexpect  # type: ignore[import-untyped]
import pytest

from moeinf.batch import batch_verb
from moeinf.batch.batch_lines import lines_of
from moeinf.batch.batch_run import BatchRow, answer_rows
from moeinf.config import RuntimeConfig
from moeinf.engine.model import Model
from moeinf.errors import StoreError
from moeinf.server.admission import admitted
from moeinf.server.question import Question
from moeinf.store.library import Library, StoredModel
from tests.support.cli.commands import COMMAND, Done, run_process
from tests.support.live_server import live_server

Command = Callable[..., Done]
WORDS = ["Once upon", "a time", "there was", "a little", "girl who", "lived in", "a big", "house with", "her dog"]


def requests(count: int, tokens: int, seed: int = 0) -> list[dict[str, Any]]:
    """Of very different lengths, many of which begin alike; some drawn, some greedy, some of a chat."""
    rng, found = random.Random(seed), list[dict[str, Any]]()
    for number in range(count):
        text = " ".join(WORDS * (number % 5) + rng.sample(WORDS, 3))
        body = {"max_tokens": rng.randint(1, tokens), "temperature": number % 2, "seed": number}
        if number % 3:
            found.append(body | {"prompt": text, "custom_id": f"mine-{number}"})
        else:
            line = {"custom_id": f"mine-{number}", "method": "POST", "url": "/v1/completions"}
            found.append(line | {"body": body | {"prompt": text}})
    return found


def written(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def answers(path: Path) -> dict[str, Any]:
    """By custom_id, each of which is there once: the answer's text, or what is wrong with the request."""
    found: dict[str, Any] = {}
    for line in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        assert line["custom_id"] not in found
        found[line["custom_id"]] = line["error"] or text_of(line["response"]["body"])
    return found


def text_of(body: dict[str, Any]) -> str:
    choice = body["choices"][0] if "choices" in body else {"text": body["error"]["message"]}
    text: str = choice["text"] if "text" in choice else choice["message"]["content"]
    return text


def alone(stored: StoredModel, lines: list[dict[str, Any]]) -> dict[str, list[int]]:
    """The tokens of each answer, by a model that makes one at a time and reuses nothing."""
    found = {}
    with Model(stored, RuntimeConfig.of(expert_cache="33%", context=512)) as model:
        for row in rows_of(stored, lines):
            prompt = row.ask.prompt if isinstance(row.ask.prompt, str) else row.ask.chat
            model.generator.sequences.last.clear()
            params = model.params(**row.ask.params)
            found[row.custom_id] = model.generate(prompt, params, raw=row.ask.raw).token_ids
    return found


def rows_of(stored: StoredModel, lines: list[dict[str, Any]]) -> list[BatchRow]:
    rows = []
    for line in lines_of("\n".join(map(json.dumps, lines)), "demo", "", raw=False):
        assert isinstance(line.what, Question) and line.custom_id is not None
        rows.append(BatchRow(line.id, line.custom_id, admitted(line.what.ask, stored), line.what.writer))
    return rows


@pytest.mark.parametrize("parallel, cache", [(1, "33%"), (7, "20%"), (32, "100%")])
def test_rows_have_the_tokens_that_each_has_alone(demo: StoredModel, parallel: int, cache: str) -> None:
    lines, found = requests(40, 24), dict[str, list[int]]()
    most = 0

    def ended(row: BatchRow, error: Exception | None) -> None:
        assert error is None
        found[row.custom_id] = row.answer.made.token_ids

    def stepped(running: Any) -> None:
        nonlocal most
        most = max(most, len(running))

    config = RuntimeConfig.of(expert_cache=cache, context=512).changed(parallel=parallel, in_bulk=True)
    with Model(demo, config) as model:
        answer_rows(model, rows_of(demo, lines), ended, stepped, lambda: False)
    assert found == alone(demo, lines) and min(parallel, 20) <= most <= parallel


def test_answers_are_those_of_the_server(command: Command, demo: StoredModel, tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    bodies: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 9, "logprobs": True, "top_logprobs": 2},
        {"messages": [{"role": "user", "content": "Once"}], "max_tokens": 20, "stop": [" "]},
        {
            "messages": [{"role": "user", "content": "Once"}],
            "response_format": {"type": "json_object"},
            "max_tokens": 9,
        },
        {
            "messages": [{"role": "user", "content": "Once"}],
            "response_format": {"type": "json_schema", "json_schema": {"schema": schema}},
        },
    ]
    bodies = [body | {"model": "demo", "seed": 1} for body in bodies]
    lines = [
        {"custom_id": str(number), "method": "POST", "url": "/v1/chat/completions", "body": body}
        for number, body in enumerate(bodies)
    ]
    out = tmp_path / "out.jsonl"
    assert command("run", "demo", "--batch", str(written(tmp_path / "in.jsonl", lines)), "--out", str(out)).code == 0
    found = {each["custom_id"]: each["response"]["body"] for each in map(json.loads, out.read_text().splitlines())}
    with live_server(demo) as server:
        for number, body in enumerate(bodies):
            told = posted(server.url, body)
            assert found[str(number)]["choices"] == told["choices"] and found[str(number)]["usage"] == told["usage"]


def posted(url: str, body: dict[str, Any]) -> dict[str, Any]:
    import urllib.request

    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def test_killed_at_any_moment_nothing_is_lost_or_doubled(
    demo: StoredModel, environment: dict[str, str], tmp_path: Path
) -> None:
    lines, rng = requests(32, 120), random.Random()
    batch, out = written(tmp_path / "in.jsonl", lines), tmp_path / "out.jsonl"
    words, part = ["run", "demo", "--batch", str(batch), "--out", str(out), "--rows", "4"], tmp_path / "out.jsonl.part"
    kept = ""
    for _ in range(3):
        child = subprocess.Popen([*COMMAND, *words], env=environment, stderr=subprocess.PIPE)
        deadline = time.monotonic() + 60
        before = len(kept)
        while child.poll() is None and not (part.exists() and part.stat().st_size > before):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(rng.random() / 10)
        child.kill()
        child.communicate()
        if not part.exists():
            break  # it was faster
        now = part.read_text(encoding="utf-8")
        assert now.startswith(kept[: kept.rfind("\n") + 1])
        kept = now
    done = run_process(environment, *words)
    assert done.returncode == 0, done.stderr
    assert out.read_text(encoding="utf-8").startswith(kept[: kept.rfind("\n") + 1])
    with Model(demo, RuntimeConfig()) as model:
        wanted = {name: model.tokenizer.decode(ids) for name, ids in alone(demo, lines).items()}
    assert answers(out).keys() == wanted.keys()
    again = run_process(environment, *words)
    assert again.returncode == 0 and "32 of 32 requests were answered before" in again.stderr
    assert answers(out).keys() == wanted.keys() and not part.exists()


def test_ctrl_c_says_how_to_go_on(environment: dict[str, str], tmp_path: Path) -> None:
    batch, out = written(tmp_path / "in.jsonl", requests(4000, 200)), tmp_path / "out.jsonl"
    words = ["run", "demo", "--batch", str(batch), "--out", str(out)]
    child = pexpect.spawn(COMMAND[0], [*COMMAND[1:], *words], env=environment, timeout=60, encoding="utf-8")
    child.expect(r"[1-9]\d*/4000 answered · [\dhms]+ left · [\d.]+ tokens/s · \d+ at once")
    child.kill(signal.SIGINT)
    child.expect("of 4000 requests are answered; the same command goes on with the others")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130 and not out.exists() and (tmp_path / "out.jsonl.part").stat().st_size


def test_what_is_wrong_with_a_request_is_its_answer(command: Command, tmp_path: Path) -> None:
    good = {"prompt": "Once", "max_tokens": 3}
    wrong = [
        good | {"model": "another"},
        good | {"prompt": "Once " * 900},
        good | {"max_tokns": 3},
        good | {"tools": [{"type": "function", "function": {"name": "f"}}]},
        good | {"logit_bias": {"99999999": 1}},
    ]
    batch = written(tmp_path / "in.jsonl", [good, *wrong])
    done = command("run", "demo", "--batch", str(batch), "--num-ctx", "512", "-q")
    found = {each["custom_id"]: each for each in map(json.loads, done.out.splitlines())}
    assert done.code == 1 and done.err == "Error: 5 of 6 requests have no answer; their lines say why\n"
    assert found.keys() == {f"line-{number}" for number in range(1, 7)}
    assert [found[f"line-{n}"]["response"]["status_code"] for n in range(1, 7)] == [200, 400, 400, 400, 400, 400]
    assert found["line-3"]["response"]["body"]["error"]["code"] == "context_length_exceeded"


def test_faults_are_told_again_where_all_was_answered_before(command: Command, tmp_path: Path) -> None:
    batch = written(tmp_path / "in.jsonl", [{"prompt": "Once", "max_tokens": 3}, {"prompt": "Once", "model": "other"}])
    words = ("run", "demo", "--batch", str(batch), "--out", str(tmp_path / "out.jsonl"), "-q")
    for _ in range(2):
        done = command(*words)
        assert done.code == 1 and done.err == "Error: 1 of 2 requests has no answer; its line says why\n"


def test_a_fault_of_the_machine_is_no_answer_and_the_same_command_goes_on(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a request is read, before any model is opened."""
    batch = written(tmp_path / "in.jsonl", [{"prompt": "Once", "max_tokens": 3}, {"prompt": "Once", "model": "other"}])
    words = ("run", "demo", "--batch", str(batch), "--out", str(tmp_path / "out.jsonl"), "-q")
    stale = StoreError("manifest.json: Stale file handle; repeat the command")
    for place, name in ((batch_verb, "admitted"), (Library, "find")):

        def fail(*_: object) -> None:
            raise stale

        with monkeypatch.context() as sick:
            sick.setattr(place, name, fail)
            done = command(*words)
        assert done.code == 1 and done.err.endswith(f"Error: {stale}\n") and not (tmp_path / "out.jsonl").exists()
    done = command(*words)
    assert done.code == 1 and done.err == "Error: 1 of 2 requests has no answer; its line says why\n"


def test_options_are_those_of_requests_that_have_none(command: Command, tmp_path: Path) -> None:
    batch = written(tmp_path / "in.jsonl", [{"prompt": "Once"}, {"prompt": "Once", "max_tokens": 2}])
    words = ("run", "demo", "--batch", "-", "-n", "5", "--temperature", "0", "-q")
    done = command(*words, stdin=batch.read_text())
    usage = {each["custom_id"]: each["response"]["body"]["usage"] for each in map(json.loads, done.out.splitlines())}
    assert {name: each["completion_tokens"] for name, each in usage.items()} == {"line-1": 5, "line-2": 2}


def test_an_out_of_another_command_is_refused(command: Command, tmp_path: Path) -> None:
    batch, out = written(tmp_path / "in.jsonl", [{"prompt": "Once"}]), tmp_path / "out.jsonl"
    words = ("run", "demo", "--batch", str(batch), "--out", str(out), "-n", "2")
    assert command(*words).code == 0
    before = out.read_bytes()
    for other in (("--temperature", "0"), ("--system", "Be brief."), ("--raw",)):
        done = command(*words, *other)
        assert done.code == 2 and "answers to other requests, of another model or with other options" in done.err
    assert command(*words).code == 0 and out.read_bytes() == before


@pytest.mark.parametrize(
    "words, said",
    [
        (("--out", "x"), "--out is for --batch PATH"),
        (("--rows", "4"), "--rows is for --batch PATH"),
        (("--batch", "IN", "--rows", "65"), "--rows must be between 1 and 64"),
        (("--batch", "IN", "a prompt"), "leave a prompt out"),
        (("--batch", "IN", "--json"), "leave --json out"),
        (("--batch", "IN", "--verbose"), "leave one of them out"),
        (("--batch", "NONE"), "--batch NONE cannot be read"),
        (("--batch", "IN", "--out", "IN"), "is the file of --batch"),
        (("--batch", "PROSE"), "that is no batch: line 1 is no JSON object"),
        (("--batch", "EMPTY"), "there is no request"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path / "IN", [{"prompt": "a"}])
    (tmp_path / "PROSE").write_text("Dear all,\n")
    (tmp_path / "EMPTY").write_text("\n")
    done = command("run", "demo", *words)
    assert done.code == 2 and said in done.err and len(done.err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["EMPTY", "IN", "PROSE"]
