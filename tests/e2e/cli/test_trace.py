"""`--trace` on the command line, with a server, and what `moeinf trace` makes of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import httpx
import numpy as np
import ollama
import pytest

from moeinf.config import RuntimeConfig
from moeinf.errors import UsageError
from moeinf.pull.pull import ensure
from moeinf.runtime.policy.eamc import ActivationCollection
from moeinf.store.library import StoredModel
from moeinf.terminal.traces.heat_map import heat_map
from moeinf.terminal.traces.trace_report import fitted
from moeinf.traces.trace import load_trace
from moeinf.types import MoeShape
from tests.support.cli.commands import Done
from tests.support.live_server import live_server

DEMO = Path(__file__).parents[2] / "support" / "traces" / "demo"
RUN = ("run", "demo", "The king said", "-n", "12", "--seed", "3", "-q")


def test_run_prints_the_same_with_trace_and_adds_a_request_each_time(
    command: Callable[..., Done], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "folder"
    plain = command(*RUN)
    assert [command(*RUN, "--trace", str(folder)) for _ in range(2)] == [plain, plain]
    trace = load_trace(folder)
    assert trace.num_requests == 2 and trace.prompt_tokens is not None
    assert (np.diff(trace.offsets) - trace.prompt_tokens).tolist() == [11, 11], "the last token is not fed"


def test_bench_records_its_requests(command: Callable[..., Done], tmp_path: Path) -> None:
    done = command("bench", "demo", "-p", "8", "-n", "4", "-r", "2", "-q", "--trace", str(tmp_path / "t"))
    assert done.code == 0
    trace = load_trace(tmp_path / "t")
    assert trace.num_requests == 3 and trace.prompt_tokens is not None and trace.passes is not None
    assert trace.prompt_tokens.tolist() == [8] * 3 and np.diff(trace.offsets).tolist() == [12] * 3
    assert np.diff(trace.passes).tolist() == [8, 1, 1, 1, 1] * 3


def test_the_variable_means_the_same(
    command: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_TRACE", str(tmp_path / "t"))
    assert command(*RUN).code == 0
    assert load_trace(tmp_path / "t").num_requests == 1


def test_a_server_records_what_it_answers_and_a_run_that_records_answers_itself(
    demo: StoredModel, command: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, own = tmp_path / "server", tmp_path / "own"
    with live_server(demo, config=RuntimeConfig.of(device="cpu", trace=str(folder))) as server:
        client = ollama.Client(server.url)
        for prompt in ("Once upon", "There was"):
            client.generate("demo", prompt, options={"num_predict": 5}, keep_alive=-1)
        monkeypatch.setenv("MOEINF_HOST", server.url)
        assert "using the server" in command(*RUN[:-1]).err
        assert load_trace(folder).num_requests == 3
        assert "using the server" not in command(*RUN[:-1], "--trace", str(own)).err
    assert load_trace(folder).num_requests == 3 and load_trace(own).num_requests == 1


def test_a_server_keeps_to_the_model_that_it_records(tmp_path: Path) -> None:
    home = tmp_path / "home"
    ensure("demo", home=home)
    stored = ensure("demo:chat", home=home)
    with live_server(stored, config=RuntimeConfig.of(device="cpu", trace=str(tmp_path / "t"))) as server:
        ollama.Client(server.url).generate("demo", "Once", options={"num_predict": 3})
        body = {"model": "demo:chat", "prompt": "Once", "stream": False}
        refused = httpx.post(f"{server.url}/api/generate", json=body, timeout=60)
        assert refused.status_code >= 400
        assert "holds a trace of demo:latest, not of demo:chat" in refused.json()["error"]
    assert load_trace(tmp_path / "t").num_requests == 1


def test_a_server_says_at_once_that_a_folder_cannot_be_recorded_in(demo: StoredModel, tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with (
        pytest.raises(UsageError, match="holds other files"),
        live_server(demo, config=RuntimeConfig.of(trace=str(tmp_path))),
    ):
        pass


def test_a_folder_of_other_files_is_one_line(command: Callable[..., Done], tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    done = command(*RUN, "--trace", str(tmp_path))
    said = f"Error: {tmp_path} holds other files, and no trace to go on with; name an empty folder\n"
    assert done == Done(2, "", said)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_trace_show_tells_what_was_recorded(command: Callable[..., Done], tmp_path: Path) -> None:
    done = command("trace", "show", str(DEMO))
    assert done.code == 0 and done.err == "" and "\x1b" not in done.out
    lines = done.out.splitlines()
    assert lines[0] == (
        "demo: demo:latest: 2 requests, 53 tokens (7 prefill, 46 decode), 6 layers x 32 experts, top-4, "
        "with passes, weights and guesses"
    )
    heat = lines[3:9]
    assert [line[:5] for line in heat] == [f"  {layer} |" for layer in range(6)]
    assert all(len(line) == 38 and set(line[5:-1]) <= set(" ░▒▓█") for line in heat)
    told = json.loads(command("trace", "show", str(DEMO), "--json").out)
    assert told["tokens"] == 53 and np.array(told["matrix"]).sum() == 53 * 6 * 4 == told["activations"]
    assert np.array(told["matrix"]).shape == (6, 32)


def test_a_wide_model_fits_the_terminal_and_colours_are_only_for_one() -> None:
    shape = MoeShape(2, 100, 2, (100, 60))
    matrix = np.zeros((2, 100), np.int64)
    matrix[0, 90:], matrix[1, 0] = 7, 1
    lines = heat_map(matrix, shape, 40, coloured=False)
    assert lines[:2] == ["  0 |" + " " * 30 + "████|", "  1 |█" + " " * 19 + "|"]
    coloured = heat_map(matrix, shape, 40, coloured=True)
    assert "\x1b[48;5;228m" in coloured[0] and "each column 3 experts" in coloured[2]


def test_text_is_broken_where_a_terminal_is_narrow() -> None:
    lines = ["", "  0 |" + "▒" * 30 + "|", "many words " * 9, "\x1b[48;5;54m" + " " * 60]
    broken = fitted(lines, 40)
    assert broken[:2] == lines[:2] and broken[-1] == lines[3]
    assert len(broken) == 6 and all(len(line) <= 40 for line in broken[:-1])


@pytest.mark.parametrize("name", ["a.svg", "a.PNG"])
def test_a_picture_is_drawn(command: Callable[..., Done], tmp_path: Path, name: str) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    assert command("trace", "show", str(DEMO), "--plot", str(tmp_path / name)).code == 0
    data = (tmp_path / name).read_bytes()
    assert data.startswith(b"\x89PNG") if name.endswith("PNG") else b"<svg" in data
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_picture_needs_matplotlib_and_a_known_form(
    command: Callable[..., Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command("trace", "show", str(DEMO), "--plot", "a.pdf")
    assert done == Done(2, "", "Error: --plot a.pdf: name a file that ends in .svg or .png\n")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = command("trace", "show", str(DEMO), "--plot", str(tmp_path / "a.svg"))
    assert done == Done(2, "", "Error: --plot needs matplotlib: pip install 'moeinf[plots]'\n")


def test_clusters_are_a_collection_that_a_run_loads(command: Callable[..., Done], tmp_path: Path) -> None:
    out = tmp_path / "eamc.npz"
    done = command("trace", "cluster", str(DEMO), "-k", "2", "-o", str(out))
    assert done.code == 0 and "mean distance to the centroid" in done.out
    assert len(ActivationCollection.loads(out.read_bytes(), load_trace(DEMO).shape)) == 2
    before = out.read_bytes()
    again = command("trace", "cluster", str(DEMO), "-k", "1", "-o", str(out))
    assert again == Done(2, "", f"Error: {out} is there already; name a new file\n") and out.read_bytes() == before
    done = command("trace", "cluster", str(DEMO), "-k", "3", "-o", str(tmp_path / "b"))
    assert done == Done(2, "", "Error: demo has 2 requests, too few for 3 clusters; lower -k\n")


def test_a_trace_of_one_file_is_imported(command: Callable[..., Done], tmp_path: Path) -> None:
    source = DEMO.parent / "gpt-oss-20b-short"
    done = command("trace", "import", str(source), str(tmp_path / "t"), "--model", "gpt-oss:20b")
    assert done.code == 0 and done.out == ("t: gpt-oss:20b: 4 requests, 551 tokens, 24 layers x 32 experts, top-4\n")
    refused = command(*RUN, "--trace", str(tmp_path / "t"))
    assert refused.code == 2 and "holds a trace that was imported" in refused.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("show", "/nowhere"), "no trace in /nowhere: it has no routing.npz, and no trace.json of a recording"),
        (("cluster", str(DEMO), "-o", "x"), "Missing option '-k'"),
        (("import", "/nowhere", "x"), "/nowhere: No such file or directory"),
        (("shew", "x"), "no such command: shew; did you mean show?"),
    ],
)
def test_wrong_use_is_one_line(command: Callable[..., Done], words: tuple[str, ...], said: str) -> None:
    done = command("trace", *words)
    assert done.code == 2 and done.out == "" and said in done.err and done.err.count("\n") == 1
