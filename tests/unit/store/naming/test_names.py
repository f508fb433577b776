"""Which stored model a name means, and names that differ in capitals alone, also on disks that ignore them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeinf.errors import ModelNotFoundError, UsageError
from moeinf.pull.origins import resolve
from moeinf.store.library import Library, StoredModel
from moeinf.store.naming.aliases import ALIAS_FILE
from moeinf.store.naming.names import MOST_CHARS, file_of, is_word, meant, parse_name, plain_name, word_of
from tests.support.checkpoints import content

OTHER = "0123456789ab"
WORDS = st.text("abCDZz09_.-", min_size=1, max_size=12).filter(is_word)
Bind = Callable[..., None]
NAMES = st.lists(WORDS, min_size=1, max_size=2).map("/".join)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path)


@pytest.fixture
def bind(library: Library, demo: StoredModel) -> Bind:
    """bind(x__tag=ID): names a copy of the demo's weights x:tag."""

    def bind(**names: str) -> None:
        with library.lock():
            for name, identifier in names.items():
                shutil.copytree(demo.path, library.home / "models" / identifier, dirs_exist_ok=True)
                library.bind(name.replace("__", ":"), identifier)

    return bind


@given(NAMES, NAMES)
def test_no_disk_takes_the_file_of_one_name_for_that_of_another(one: str, other: str) -> None:
    files = [file_of(name) for name in (one, other)]
    assert [word_of(file) for file in files] == [one, other]
    assert (files[0].lower() == files[1].lower()) == (one == other)
    assert not any("/" in file or file.startswith(".") for file in files)


@pytest.mark.parametrize(
    ("text", "plain", "parsed"),
    [
        ("library/demo:chat", "demo:chat", ("demo", "chat")),
        ("registry.ollama.ai/library/demo:chat", "demo:chat", ("demo", "chat")),
        ("https://Registry.Ollama.ai/library/demo", "demo", ("demo", "latest")),
        ("registry.ollama.ai/ns/demo", "ns/demo", ("ns/demo", "latest")),
        ("ns/name", "ns/name", ("ns/name", "latest")),
        ("host:5000/ns/name:tag", "host:5000/ns/name:tag", ("host:5000/ns/name", "tag")),
        ("example.com/library/name", "example.com/library/name", ("example.com/library/name", "latest")),
    ],
)
def test_a_name_may_have_a_host_and_a_namespace(text: str, plain: str, parsed: tuple[str, str]) -> None:
    assert plain_name(text) == plain and parse_name(text) == parsed


@pytest.mark.parametrize(
    "text",
    ["/x", "x/", "a//b", "a/b/c/d", "a:1/b", "a:b/c/d", "a:123456/b/c", "../a/b", "a/../b", ".a/b/c", "hf.co/a/b",
     "http://a/b", "a/b:c:d", "A" * 80 + "/" + "A" * 80],
)  # fmt: skip
def test_what_is_no_host_and_no_namespace_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_name(text)


@given(st.lists(st.tuples(NAMES, WORDS), max_size=6).map(lambda pairs: [":".join(pair) for pair in pairs]), NAMES)
def test_what_a_name_means_is_stored_and_alike(stored: list[str], asked: str) -> None:
    for reference in (asked, *stored, *[each.upper() for each in stored]):
        found = meant(reference, stored)
        wanted = reference.lower()
        assert all(each in stored and f"{each.lower()}:".startswith(f"{plain_name(wanted)}:") for each in found)
        assert reference not in stored or found == [reference]


def test_capitals_are_heeded_where_they_decide_and_only_there(library: Library, bind: Bind, demo: StoredModel) -> None:
    bind(Name=demo.id)
    assert library.find("name").name == library.find("NAME:latest").name == "Name:latest"
    bind(name=OTHER)
    assert (library.find("Name").id, library.find("name").id) == (demo.id, OTHER)
    with pytest.raises(ModelNotFoundError, match="did you mean Name or name"):
        library.find("NAME")
    files = [path.relative_to(library.home).as_posix() for path in library.home.glob("names/*/*")]
    assert len({file.lower() for file in files}) == 2
    library.remove("Name")
    assert [model.name for model in library.list()] == ["name:latest"]


def test_names_of_older_versions_are_found_and_not_mistaken(library: Library, bind: Bind, demo: StoredModel) -> None:
    shutil.copytree(demo.path, library.home / "models" / demo.id)
    for tag in ("latest", "Q8"):
        path = library.home / "names" / "Name" / tag
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(demo.id + "\n")
    assert {model.name for model in library.list()} == {"Name:latest", "Name:Q8"}
    bind(name=OTHER)
    assert {path.parent.name for path in library.home.glob("names/*/*")} == {"%4Eame", "name"}
    assert {model.name: model.id for model in library.list()} == {
        "Name:latest": demo.id, "Name:Q8": demo.id, "name:latest": OTHER
    }  # fmt: skip
    library.remove("Name:Q8")
    library.remove("Name")
    assert [model.name for model in library.list()] == ["name:latest"]


def test_the_only_tag_of_a_name_goes_without_saying(library: Library, bind: Bind, demo: StoredModel) -> None:
    bind(x__q8_0=demo.id)
    assert library.find("x").name == library.find("X").name == "x:q8_0"
    assert library.copy("x", "y").id == demo.id
    with pytest.raises(ModelNotFoundError, match="did you mean x:q8_0"):
        library.find("x:q4_k")
    bind(x__q4_k=OTHER)
    with pytest.raises(ModelNotFoundError, match=r"did you mean x:q4_k or x:q8_0"):
        library.find("x")
    bind(x=OTHER)
    assert library.find("x").name == "x:latest"
    library.remove("x")
    library.remove("x:q4_k")
    library.remove("x")
    assert [model.name for model in library.list()] == ["y:latest"]


def test_a_tagged_name_is_not_taken_for_a_known_name_of_other_weights(
    library: Library, bind: Bind, demo: StoredModel
) -> None:
    bind(demo__chat=demo.id, mine__q8_0=demo.id)
    (library.home / ALIAS_FILE).write_text('{"mine": "org/repo"}')
    assert library.find("demo").name == "demo:chat", "it holds the weights of demo here"
    with pytest.raises(ModelNotFoundError):
        library.find("mine")
    (library.home / ALIAS_FILE).unlink()
    assert library.find("mine").name == "mine:q8_0"


@pytest.mark.parametrize("name", ["ns/name", "host:5000/ns/Name:tag", "NS/name:Q4"])
def test_names_with_a_namespace_are_found_copied_and_removed(
    name: str, library: Library, bind: Bind, demo: StoredModel
) -> None:
    bind(demo=demo.id)
    full = ":".join(parse_name(name))
    assert library.copy("registry.ollama.ai/library/demo", name).name == full
    assert library.find(name).name == library.find(full.lower()).name == full
    assert full in {model.name for model in library.list()}
    assert content(library.find(name).path) == content(demo.path)
    library.remove("library/demo:latest")
    library.remove(name)
    assert library.list() == [] and not list((library.home / "names").iterdir())


@pytest.mark.parametrize("text", ["demo" + "/" * MOST_CHARS, "/a" * MOST_CHARS, "a/b@" + "c" * MOST_CHARS])
def test_what_is_longer_than_a_path_is_no_name_and_is_not_looked_at(library: Library, text: str) -> None:
    for find in (library.find, library.remove):
        with pytest.raises(ModelNotFoundError, match="is not a model name"):
            find(text)
    with pytest.raises(UsageError, match="is not a model name"):
        parse_name(text)
    with pytest.raises(ModelNotFoundError, match="too long"):
        resolve(text, library)
