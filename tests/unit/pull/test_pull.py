"""pull and ensure, from folders and the embedded model."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from moeinf.config.pull_options import PullOptions
from moeinf.errors import CheckpointError, DiskSpaceError, ModelNotFoundError, StoreError, UsageError
from moeinf.pull.checkpoint import checkpoint_pull as steps
from moeinf.pull.checkpoint.convert import convert_shard
from moeinf.pull.coded.blocks import Losses
from moeinf.pull.events import SilentProgress
from moeinf.pull.origins import resolve
from moeinf.pull.pull import ensure, plan_pull, pull
from moeinf.pull.steps import PullPlan
from moeinf.store.library import Library
from moeinf.store.processes.partials import pull_lock
from moeinf.store.verify import verify
from moeinf.terminal.stored.listing import partial_lines
from tests.support.checkpoints import CONFIG, LICENSE, NUM_SHARDS, content, fused, random_tensors, write_checkpoint


class Recorder(SilentProgress):
    """Notes what a pull reports, and that the byte counts obey the protocol."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.files: list[tuple[str, str]] = []
        self.totals: dict[str, tuple[int, int]] = {}  # by verb: in all, and done before
        self.done: dict[str, int] = {}
        self._left: int | None = None

    def stage(self, text: str) -> None:
        self.lines.append(text)

    note = stage

    def total(self, verb: str, num_bytes: int, done_bytes: int) -> None:
        assert verb not in self.totals
        self.totals[verb] = num_bytes, done_bytes
        self.done[verb] = done_bytes

    def start(self, verb: str, file: str, num_bytes: int, done_bytes: int) -> None:
        assert self._left is None and verb in self.totals
        self.files.append((verb, file))
        self._left = num_bytes - done_bytes

    def advance(self, num_bytes: int) -> None:
        assert self._left is not None
        self._left -= num_bytes
        self.done[self.files[-1][0]] += num_bytes

    def finish(self) -> None:
        assert self._left == 0
        self._left = None

    def complete(self) -> bool:
        """Whether each step has done what was announced of it."""
        return self.done == {verb: total for verb, (total, _) in self.totals.items()}


class Inode(NamedTuple):
    number: int
    changed_ns: int


def inodes(folder: Path) -> dict[str, Inode]:
    return {path.name: Inode(path.stat().st_ino, path.stat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "Tiny MoE")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_a_pulled_folder_is_complete_sound_and_leaves_no_work_behind(checkpoint: Path, home: Path) -> None:
    progress = Recorder()
    model = pull(str(checkpoint), home=home, progress=progress)
    assert model.name == "tiny-moe:latest" and verify(model) == []
    assert model.manifest.info.architecture == "qwen3_moe"
    assert (model.path / "LICENSE").read_bytes() == LICENSE
    assert json.loads((model.path / "config.json").read_text()) == CONFIG
    assert Library(home).partials() == [] and list((home / "partial").iterdir()) == []
    assert progress.complete() and progress.totals["pulling"] == (0, 0)
    assert progress.totals["verifying"][0] == sum(
        path.stat().st_size for path in (model.dense_path, *model.shard_paths)
    )
    assert [verb for verb, _ in progress.files] == ["converting"] * NUM_SHARDS + ["verifying"]


def test_sharded_single_and_fused_checkpoints_give_the_same_weights(tmp_path: Path) -> None:
    tensors = random_tensors()
    forms = {
        "sharded": write_checkpoint(tmp_path / "sharded", tensors),
        "single": write_checkpoint(tmp_path / "single", tensors, num_shards=0),
        "fused": write_checkpoint(tmp_path / "fused", fused(tensors)),
    }
    models = {form: pull(str(folder), home=tmp_path / "home") for form, folder in forms.items()}
    sums = {form: [model.manifest.shards, model.manifest.files] for form, model in models.items()}
    assert sums["sharded"] == sums["single"] == sums["fused"]


def test_the_same_source_gives_the_same_bytes_in_every_store(checkpoint: Path, tmp_path: Path) -> None:
    first, second = (pull(str(checkpoint), home=tmp_path / name) for name in ("a", "b"))
    assert first.id == second.id and content(first.path) == content(second.path)


def test_a_repeated_pull_writes_nothing(checkpoint: Path, home: Path) -> None:
    model = pull(str(checkpoint), home=home)
    before = inodes(model.path)
    progress = Recorder()
    assert pull(str(checkpoint), home=home, progress=progress) == model
    assert inodes(model.path) == before and progress.files == []
    assert "tiny-moe:latest is up to date" in progress.lines


def test_a_second_name_for_the_same_source_costs_no_disk(checkpoint: Path, home: Path) -> None:
    first = pull(str(checkpoint), home=home)
    second = pull(str(checkpoint), PullOptions(name="other:v1"), home=home)
    assert second.name == "other:v1" and second.path == first.path
    assert len(list((home / "models").iterdir())) == 1


def test_a_changed_source_replaces_the_model_and_the_old_one_goes(checkpoint: Path, home: Path) -> None:
    old = pull(str(checkpoint), home=home)
    write_checkpoint(checkpoint, random_tensors(seed=1))
    new = pull(str(checkpoint), home=home)
    assert new.id != old.id and verify(new) == []
    assert [path.name for path in (home / "models").iterdir()] == [new.id]


def test_an_interrupted_pull_goes_on_behind_the_shards_it_has(
    checkpoint: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), home=home)
    assert Library(home).list() == [] and len(Library(home).partials()) == 1
    monkeypatch.undo()
    progress = Recorder()
    model = pull(str(checkpoint), home=home, progress=progress)
    assert [verb for verb, _ in progress.files] == ["converting"] * (NUM_SHARDS - 2) + ["verifying"]
    assert progress.complete() and progress.totals["converting"][1] > 0
    assert content(model.path) == content(pull(str(checkpoint), home=tmp_path / "again").path)


def test_an_interrupted_pull_of_a_source_that_has_changed_starts_again_and_says_so(
    checkpoint: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), home=home)
    monkeypatch.undo()
    write_checkpoint(checkpoint, random_tensors(seed=1))
    progress = Recorder()
    model = pull(str(checkpoint), home=home, progress=progress)
    assert any("source has changed" in line for line in progress.lines)
    assert content(model.path) == content(pull(str(checkpoint), home=tmp_path / "again").path)


@pytest.mark.parametrize("damage", ["journal", "file missing", "file short"])
def test_a_damaged_work_folder_is_never_built_upon(
    damage: str, checkpoint: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), home=home)
    monkeypatch.undo()
    folder = Library(home).partials()[0].path
    if damage == "journal":
        (folder / "journal.json").write_text('{"version": 1, "conv')
    elif damage == "file missing":
        (folder / "model" / "experts-00000.bin").unlink()
    else:
        os.truncate(folder / "model" / "experts-00000.bin", 10)
    progress = Recorder()
    model = pull(str(checkpoint), home=home, progress=progress)
    assert any("starting again" in line for line in progress.lines)
    assert content(model.path) == content(pull(str(checkpoint), home=tmp_path / "again").path)


def test_a_source_that_changes_while_it_is_read_is_not_published(
    checkpoint: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = convert_shard

    def convert_then_touch(path: Path, *rest: Any) -> Losses:
        losses = real(path, *rest)
        os.utime(path, ns=(1, 1))
        return losses

    monkeypatch.setattr(steps, "convert_shard", convert_then_touch)
    with pytest.raises(CheckpointError, match="changed while it was converted"):
        pull(str(checkpoint), home=home)
    assert Library(home).list() == []


def test_too_little_disk_is_refused_before_anything_is_written_with_both_numbers(
    checkpoint: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 10**6))
    with pytest.raises(DiskSpaceError, match=r"1\.7 MB needed, 1\.0 MB free.*--force"):
        pull(str(checkpoint), home=home)
    assert not list(home.rglob("*.bin"))
    assert verify(pull(str(checkpoint), PullOptions(force=True), home=home)) == []


def test_a_dry_run_tells_sizes_and_writes_nothing(checkpoint: Path, home: Path) -> None:
    plan = plan_pull(str(checkpoint), home=home)
    assert isinstance(plan, PullPlan) and not home.exists()
    assert (plan.name, len(plan.files), plan.fetch_bytes, plan.up_to_date) == ("tiny-moe:latest", NUM_SHARDS, 0, False)
    assert plan.store_bytes <= plan.needed_bytes <= 1.03 * plan.store_bytes
    pull(str(checkpoint), home=home)
    again = plan_pull(str(checkpoint), home=home)
    assert isinstance(again, PullPlan) and again.up_to_date and again.needed_bytes == 0


def test_files_that_a_checkpoint_must_not_bring_along_stay_behind(checkpoint: Path, home: Path) -> None:
    for name in ("manifest.json", "receipt.json", "eamc.npz", "modeling_evil.py", "README.md"):
        (checkpoint / name).write_text("{}")
    model = pull(str(checkpoint), home=home)
    names = {path.name for path in model.path.iterdir()}
    assert "tokenizer.json" in names and not names & {"modeling_evil.py", "README.md", "eamc.npz"}
    assert model.manifest.moe.num_experts == 8


@pytest.mark.parametrize("name", ["../x", "a/../b", "a b", "a:b:c", "x" * 81, "hf.co/a/b"])
def test_a_name_that_is_not_allowed_is_refused_before_work(name: str, checkpoint: Path, home: Path) -> None:
    with pytest.raises(UsageError, match=r"not a model name|address of the Hub"):
        pull(str(checkpoint), PullOptions(name=name), home=home)
    assert not home.exists()


def test_a_revision_of_what_has_none_is_refused(checkpoint: Path, home: Path) -> None:
    with pytest.raises(UsageError, match="--revision"):
        pull(str(checkpoint), PullOptions(revision="main"), home=home)


def test_a_store_that_is_a_file_is_one_line(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for home in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"file.*Not a directory"):
            pull(str(checkpoint), home=home)


def test_an_unknown_model_is_answered_with_what_is_known(home: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"model 'mixtrall' not found; did you mean mixtral"):
        pull("mixtrall", home=home)
    with pytest.raises(ModelNotFoundError, match=r"'zzz' not found; give org/repo.*--available") as raised:
        ensure("zzz", home=home)
    assert len(str(raised.value)) < 160, "one line on a wide terminal"
    assert not home.exists()


def test_the_embedded_model_is_made_at_its_first_use_and_found_at_the_second(home: Path) -> None:
    model = ensure("demo", home=home)
    assert model.name == "demo:latest" and verify(model) == []
    assert ensure("demo", home=home) == model and ensure("demo:latest", home=home) == model


def test_the_chat_tag_of_the_embedded_model_shares_its_weights_on_disk(home: Path) -> None:
    demo, chat = ensure("demo", home=home), ensure("demo:chat", home=home)
    assert (chat.name, chat.id != demo.id, verify(demo), verify(chat)) == ("demo:chat", True, [], [])
    assert not (demo.path / "chat_template.jinja").exists() and (chat.path / "chat_template.jinja").exists()
    for weights in (*chat.shard_paths, chat.dense_path):
        assert weights.samefile(demo.path / weights.name)
    assert Library(home).remove("demo") < 100_000, "only what the other does not have is freed"
    assert verify(chat) == []
    assert Library(home).remove("demo:chat") > demo.manifest.size_bytes
    assert not list((home / "models").iterdir())


def test_a_pull_mends_the_weights_that_another_model_shares(home: Path) -> None:
    demo, chat = ensure("demo", home=home), ensure("demo:chat", home=home)
    weights = chat.shard_paths[0]
    weights.write_bytes(bytes(weights.stat().st_size))
    assert verify(chat) != [] and verify(demo) != []
    assert verify(pull("demo:chat", home=home)) == [] == verify(demo)


def test_the_name_of_a_stored_model_pulls_from_where_it_came(checkpoint: Path, home: Path) -> None:
    pull(str(checkpoint), PullOptions(name="mine"), home=home)
    write_checkpoint(checkpoint, random_tensors(seed=2))
    assert verify(pull("mine", home=home)) == []
    assert ensure("mine", home=home).id == pull(str(checkpoint), PullOptions(name="mine"), home=home).id


def test_a_stored_name_wins_over_an_alias_and_a_path_over_a_stored_name(
    checkpoint: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = pull(str(checkpoint), PullOptions(name="mixtral"), home=home)
    assert ensure("mixtral", home=home) == mine
    monkeypatch.chdir(checkpoint.parent)
    checkpoint.rename("demo")
    assert ensure("demo", home=home).manifest.info.vocab_size == CONFIG["vocab_size"]


@pytest.mark.parametrize(
    ("reference", "location", "revision", "name"),
    [
        ("hf.co/org/Repo-X", "org/Repo-X", "", "repo-x"),
        ("https://huggingface.co/org/repo/tree/v2", "org/repo", "v2", "repo:v2"),
        ("https://hf.co/org/repo/", "org/repo", "", "repo"),
        ("hf://org/repo@abc", "org/repo", "abc", "repo:abc"),
        ("org/Repo@main", "org/Repo", "", "repo"),
        ("hf.co/org/repo@refs/pr/1", "org/repo", "refs/pr/1", "repo:refs-pr-1"),
        ("org/repo@latest", "org/repo", "latest", "repo:revision-latest"),
        ("org/repo@" + "0123456789" * 4, "org/repo", "0123456789" * 4, "repo:012345678901"),
        ("org/repo:Model-Q8_0.gguf", "org/repo", "", "repo:model-q8_0"),
        ("hf.co/org/repo.gguf", "org/repo.gguf", "", "repo.gguf"),
        ("org/repo:Q8_0@v2", "org/repo", "v2", "repo:v2-q8_0"),
        ("mixtral", "mistralai/Mixtral-8x7B-Instruct-v0.1", "41bd4c9e7e4fb318ca40e721131d4933966c2cc1", "mixtral"),
        ("NLLB-moe", "facebook/nllb-moe-54b", "", "nllb-moe"),
        ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B", "ad44e777bcd18fa416d9da3bd8f70d33ebb85d39", "qwen3:30b-a3b"),
        ("deepseek-v2:latest", "deepseek-ai/DeepSeek-V2-Chat-0628", "", "deepseek-v2:latest"),
    ],
)
def test_references_to_the_hub(reference: str, location: str, revision: str, name: str, tmp_path: Path) -> None:
    origin = resolve(reference, Library(tmp_path))
    source = origin.source
    assert (source.kind, source.location, source.revision, origin.name) == ("hub", location, revision, name)


@pytest.mark.parametrize("reference", ["/x", "./x", "../x", "~/x", ".", "~"])
def test_references_in_the_form_of_a_path_are_paths(reference: str, tmp_path: Path) -> None:
    source = resolve(reference, Library(tmp_path)).source
    assert source.kind == "folder" and Path(source.location).is_absolute()


def test_a_model_of_another_origin_is_never_replaced(checkpoint: Path, home: Path, tmp_path: Path) -> None:
    stored = pull(str(checkpoint), home=home)
    before = inodes(stored.path)
    other = write_checkpoint(tmp_path / "other" / "Tiny MoE", random_tensors(seed=3))
    attempts: list[Callable[[], object]] = [
        lambda: pull(str(other), home=home),
        lambda: ensure(str(other), home=home),
        lambda: plan_pull(str(other), home=home),
        lambda: pull("demo", PullOptions(name="tiny-moe"), home=home),
    ]
    for attempt in attempts:
        with pytest.raises(UsageError, match=f"tiny-moe:latest is the name of a model of {checkpoint}.*--name OTHER"):
            attempt()
    assert Library(home).find("tiny-moe") == stored and inodes(stored.path) == before
    assert Library(home).partials() == []
    assert pull(str(other), PullOptions(name="second"), home=home).id != stored.id


def test_a_name_that_is_taken_while_a_pull_works_is_not_taken_away(
    checkpoint: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, other = convert_shard, write_checkpoint(tmp_path / "other" / "Tiny MoE", random_tensors(seed=3))

    def convert_beside(*args: Any) -> Losses:
        monkeypatch.setattr(steps, "convert_shard", real)
        pull(str(other), home=home)
        return real(*args)

    monkeypatch.setattr(steps, "convert_shard", convert_beside)
    with pytest.raises(UsageError, match="--name OTHER"):
        pull(str(checkpoint), home=home)
    assert Library(home).find("tiny-moe").manifest.source.location == str(other)
    progress = Recorder()
    assert verify(pull(str(checkpoint), PullOptions(name="second"), home=home, progress=progress)) == []
    assert [verb for verb, _ in progress.files] == ["verifying"], "what was converted is not lost"


def test_an_interrupted_pull_is_named_gone_on_with_and_removed_by_its_name(
    checkpoint: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(2, monkeypatch)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            pull(str(checkpoint), PullOptions(name="mine", quant="q8_0"), home=home)
    monkeypatch.undo()
    library = Library(home)
    [partial] = library.partials()
    [line] = partial_lines([partial])
    assert line.startswith(f"mine:q8_0    {checkpoint}    (") and "`moeinf rm mine:q8_0`" in line
    with pull_lock(partial.path, "mine:q8_0", print):
        assert library.partials()[0].running
        with pytest.raises(StoreError, match=rf"a pull of 'mine:q8_0' is running \(pid {os.getpid()}\)"):
            library.remove("mine:q8_0")
    assert library.remove("mine:q8_0") == partial.size_bytes > 0 and library.partials() == []
    with pytest.raises(ModelNotFoundError):
        ensure("mine:q8_0", home=home)

    interrupt_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), PullOptions(name="mine", quant="q8_0"), home=home)
    monkeypatch.undo()
    progress = Recorder()
    model = ensure("mine:q8_0", home=home, progress=progress)
    assert "the pull of mine:q8_0 was interrupted; going on with it" in progress.lines
    assert [verb for verb, _ in progress.files] == ["quantising"] * (NUM_SHARDS - 2) + ["verifying"]
    assert model.name == "mine:q8_0" and model.manifest.formats.asked.tag == "q8_0"


def test_only_a_pull_that_goes_on_is_called_interrupted(
    checkpoint: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt_after(2, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        pull(str(checkpoint), PullOptions(name="mine"), home=home)
    monkeypatch.undo()
    monkeypatch.setattr("moeinf.pull.pull.pull", lambda *args, **options: None)
    [partial] = Library(home).partials()
    progress = Recorder()
    with pull_lock(partial.path, "mine", print):
        ensure("mine", home=home, progress=progress)
    ensure("mine", PullOptions(quant="q8_0"), home=home, progress=progress)
    assert not progress.lines, "one is running, the other begins anew"
    for quant in (None, "keep"):
        ensure("mine", PullOptions(quant=quant), home=home, progress=progress)
    assert progress.lines == ["the pull of mine was interrupted; going on with it"] * 2


def interrupt_after(num_shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the shard that follows."""
    real, calls = convert_shard, []

    def convert(*args: Any) -> Losses:
        calls.append(1)
        losses = real(*args)
        if len(calls) > num_shards:
            raise KeyboardInterrupt
        return losses

    monkeypatch.setattr(steps, "convert_shard", convert)
