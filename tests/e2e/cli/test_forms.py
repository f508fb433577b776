"""The forms of a known model: which is taken, what is shown and asked, and what each name and tag means."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import ollama
import pytest

import moeinf
from moeinf.engine.reporting import Reporting
from moeinf.errors import HubError
from moeinf.forecast import form_choice
from moeinf.pull.hub.repository import HubRepository
from moeinf.store.library import Library
from tests.support.cli.commands import Done
from tests.support.hub_server import REPO, Hub
from tests.support.known_models import FILES, NAME, keep_rates, published, write_forms
from tests.support.live_server import live_server

Command = Callable[..., Done]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("files"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty store."""
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def hub(files: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    keep_rates(home, monkeypatch)
    with published(files, tmp_path, monkeypatch) as served:
        yield served


def source_of(home: Path, name: str) -> tuple[str, str, str]:
    stored = Library(home).find(name)
    source = stored.manifest.source
    return stored.name, source.location, source.file


def test_a_name_means_the_best_form_that_is_quick_enough(command: Command, home: Path, hub: Hub) -> None:
    done = command("run", "story", "Once upon a time", "-n", "4")
    assert done.code == 0 and done.out.strip(), done
    rows = [line.split() for line in done.err.splitlines() if line.lstrip("> ").startswith(("q8_0", "q4_k_m", "bf16"))]
    assert [row[row[0] == ">"] for row in rows] == ["q8_0", "bf16", "q4_k_m"] and rows[0][0] == ">"
    assert "taking q8_0 of maker/Story-GGUF" in done.err and "the best that fits" in done.err
    assert "note: gone/Story-GGUF" in done.err and "`moeinf run story:bf16` takes another" in done.err
    assert source_of(home, "story") == ("story:latest", FILES, "Story-Q8_0.gguf")
    assert not any(seen.sent_bytes and seen.path.endswith("Q4_K_M.gguf") and not seen.range for seen in hub.seen)
    hub.seen.clear()
    assert command("run", "story", "Once", "-n", "4").code == 0 and hub.seen == []  # it is here now
    assert command("run", "STORY:latest", "Once", "-n", "4").code == 0 and hub.seen == []


def test_a_form_that_is_here_is_the_model_of_the_plain_name(command: Command, home: Path, hub: Hub) -> None:
    assert command("pull", "story:q4_K_M").code == 0
    assert source_of(home, "story:5m-q4_k_m")[1:] == (FILES, "Story-Q4_K_M.gguf")
    hub.seen.clear()
    for name in ("story:5m", "story:Q4_K_M", "story:5m-instruct-q4_k_m"):
        assert command("run", name, "Once", "-n", "4").code == 0 and hub.seen == [], name


@pytest.mark.parametrize(
    ("name", "stored", "source", "file"),
    [
        ("story:5m-q4_K_M", "story:5m-q4_k_m", FILES, "Story-Q4_K_M.gguf"),
        ("Story:IQ4_XS", "story:5m-iq4_xs", FILES, "Story-IQ4_XS.gguf"),
        ("story:5m-instruct-q8_0", "story:5m-q8_0", FILES, "Story-Q8_0.gguf"),
        ("story:bf16", "story:5m-bf16", REPO, ""),
        ("story:fp16", "story:5m-fp16", REPO, ""),
        ("story:iq4_nl", "story:5m-iq4_nl", REPO, ""),
    ],
)
def test_a_tag_names_one_form(
    name: str, stored: str, source: str, file: str, command: Command, home: Path, hub: Hub
) -> None:
    done = command("pull", name)
    assert done.code == 0, done
    assert source_of(home, stored) == (stored, source, file)
    assert ("iq4_nl" in Library(home).find(stored).manifest.formats.asked.tag) == name.endswith("iq4_nl")


def test_a_tag_that_there_is_not_is_told_with_those_that_there_are(command: Command, hub: Hub) -> None:
    done = command("run", "story:q5_K_M", "hi")
    assert done.code == 1 and "story:5m has no form 'q5_k_m'; its tags are bf16, iq4_xs, q4_k, q4_k_m, q8_0" in done.err


def test_a_format_that_is_asked_for_is_made_of_the_checkpoint(command: Command, home: Path, hub: Hub) -> None:
    assert command("pull", "story", "--quant", "q8_0").code == 0
    assert source_of(home, "story:q8_0")[1] == REPO


def test_fit_shows_the_forms_and_forecasts_the_usual_one(command: Command, home: Path, hub: Hub) -> None:
    before = sorted(home.rglob("*"))
    done = command("fit", "story")
    assert done.code == 0 and "taking q8_0" in done.out and "Speed (forecast)" in done.out, done
    told = json.loads(command("fit", "story", "--json").out)
    assert told["taken"] == "q8_0" and [each["tag"] for each in told["forms"]] == ["q8_0", "bf16", "q4_k_m"]
    for each in told["forms"]:
        assert each["decode_tokens_per_s"] > 0 and each["resident_share"] == 1 and each["fits_disk"]
    bits = {each["tag"]: each["bits_per_weight"] for each in told["forms"]}
    assert 4 < bits["q4_k_m"] < bits["q8_0"] < bits["bf16"] <= 16.1
    kl = {each["tag"]: each["kl_about"] for each in told["forms"]}
    assert kl["bf16"] == 0 < kl["q4_k_m"] and told["kl_measured_on"] in " ".join(done.out.split())
    assert "taking" not in command("fit", "story:q4_k_m").out
    assert sorted(home.rglob("*")) == before


def test_where_no_form_is_quick_the_fastest_is_taken(
    command: Command, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(form_choice, "LEAST_TOKENS_PER_S", 1e9)
    told = json.loads(command("fit", "story", "--json").out)
    fastest = max(told["forms"], key=lambda each: each["decode_tokens_per_s"])
    assert told["taken"] == fastest["tag"]
    assert "the fastest of those that fit" in command("fit", "story").out


def test_a_disk_that_is_too_full_is_told_with_the_least(
    command: Command, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {each["tag"]: each["needed_bytes"] for each in json.loads(command("fit", "story", "--json").out)["forms"]}
    monkeypatch.setattr(form_choice, "free_bytes", lambda home: sizes["q4_k_m"] * 2)
    done = command("pull", "story", "--dry-run")
    assert "taking q4_k_m" in done.err and "the disk is too full" in done.err
    monkeypatch.setattr(form_choice, "free_bytes", lambda home: sizes["q4_k_m"])
    done = command("pull", "story")
    assert done.code == 1 and "the disk has no room for any form of story: q4_k_m takes" in done.err


def test_memory_that_is_too_small_for_any_is_told_with_the_least(command: Command, home: Path, hub: Hub) -> None:
    done = command("run", "story", "hi", "--ram", "20MiB")
    assert done.code == 1 and "no form of story runs" in done.err and "at least; raise --ram, or take" in done.err
    assert not Library(home).list()


def test_a_hub_out_of_reach_is_told_with_what_is_here(
    command: Command, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    assert command("pull", "demo").code == 0
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    done = command("run", "story", "hi")
    assert done.code == 1 and "nothing of story can be fetched" in done.err and "models that are here: demo" in done.err
    done = command("run", "story:q4_k_m", "hi")
    assert done.code == 1 and "is out of reach" in done.err and "has no form" not in done.err
    for words in (("run", "story:q4_k_m", "hi"), ("pull", REPO), ("fit", REPO), ("run", "story", "--plan")):
        done = command(*words)
        assert done.code == 1 and done.err.strip().endswith("; models that are here: demo"), done
    assert "models that are here" not in command("pull", "gone/Story-GGUF@" + "a" * 300).err


def test_an_interrupted_pull_of_a_form_goes_on_with_it(
    command: Command, home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(*given: object) -> Path:
        raise HubError("the network is gone")

    with monkeypatch.context() as patch:
        patch.setattr(form_choice, "free_bytes", lambda home: 5 << 20)  # of the disk: room for the smallest alone
        patch.setattr(HubRepository, "fetch", cut)
        done = command("pull", "story")
        assert done.code == 1 and "taking q4_k_m" in done.err and "the network is gone" in done.err, done
    done = command("run", "story", "Once", "-n", "2")
    assert done.code == 0 and "taking" not in done.err and "was interrupted; going on with it" in done.err, done
    assert source_of(home, "story")[2] == "Story-Q4_K_M.gguf"


def test_a_model_without_experts_says_so(command: Command, hub: Hub) -> None:
    done = command("fit", "plain:5m")
    assert "plain:5m has no experts: every token uses all of it; mixtral:8x7b is about as large" in done.out, done


def test_programs_and_clients_take_the_usual_form_and_are_told(
    home: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOEINF_HOME", str(home))
    told = list[str]()
    moeinf.load("story", reporting=Reporting(notify=told.append)).close()
    assert source_of(home, "story")[2] == "Story-Q8_0.gguf"
    assert any("story: taking q8_0 of maker/Story-GGUF" in line for line in told)
    with live_server(Library(home)) as server:
        for name, stored in (("story:q4_K_M", "story:5m-q4_k_m"), ("plain", "plain:latest")):
            lines = [step.status or "" for step in ollama.Client(server.url).pull(name, stream=True)]
            assert lines[-1] == "success" and Library(home).find(stored)
        assert any("plain: taking" in line for line in lines)


def test_names_of_the_user_have_one_form(command: Command, home: Path, hub: Hub) -> None:
    (home / "aliases.json").write_text(json.dumps({"story": f"{FILES}:IQ4_XS"}))
    assert command("pull", "story").code == 0
    assert source_of(home, "story")[2] == "Story-IQ4_XS.gguf"


def test_the_name_is_that_of_the_catalogue(hub: Hub, command: Command) -> None:
    listed = command("list", "--available").out
    assert NAME in listed and "story" in listed
