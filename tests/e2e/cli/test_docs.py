"""The pages are short and lead somewhere, and what scripts of docs/ make is as the scripts make it now."""

from __future__ import annotations

import re
import runpy
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from moeinf.cli import app
from moeinf.config import RuntimeConfig
from moeinf.config.environment import OTHER_VARIABLES
from moeinf.config.option import options
from moeinf.config.server_options import ServerOptions
from moeinf.models.registry import FAMILIES
from moeinf.sampling.params import SamplingParams

DOCS = Path(__file__).parents[3] / "docs"
ROOT = DOCS.parent
PAGES = sorted((*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *ROOT.glob("examples/*.md")))
COLUMNS = 120
README_LINES = 150
# Of the README and the pages for users, which lie in docs/ itself. Those of its folders are for whoever looks something
# up (reference, which scripts write), changes moeinf (contributing) or checks what was measured (lab).
MOST_WORDS = 25_500
WORDS = {
    "README.md": 1_400,
    "agents.md": 950,
    "apis.md": 1_355,
    "approx.md": 1_330,
    "batch.md": 470,
    "benchmarks.md": 700,
    "first-minutes.md": 965,
    "formats.md": 2_189,
    "gpu.md": 655,
    "models.md": 3_308,
    "page.md": 1_000,
    "performance.md": 1_045,
    "prefixes.md": 650,
    "responses.md": 760,
    "sampling.md": 1_015,
    "scale-out.md": 1_000,
    "server.md": 2_100,
    "speculation.md": 590,
    "tools.md": 1_140,
    "traces.md": 1_745,
    "using.md": 1_130,
}


def test_the_page_about_the_command_line_is_what_help_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    rendered = runpy.run_path(str(DOCS / "generate_cli.py"))["render"]()
    written = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    # Versions of typer wrap lines differently.
    assert written.split() == rendered.split(), "run: python docs/generate_cli.py"


def test_the_page_about_the_command_line_has_every_verb_and_variable() -> None:
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    verbs: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    names = {name for name, verb in verbs.items() if not verb.hidden}
    names |= {f"trace {name}" for name in verbs["trace"].commands}
    assert set(re.findall(r"^## moeinf ([a-z ]+)$", page, re.MULTILINE)) == names
    groups = (RuntimeConfig, SamplingParams, ServerOptions)
    known = [*(each.variable for group in groups for each in options(group)), *OTHER_VARIABLES]
    assert sorted(re.findall(r"^\| `(MOEINF_\w+)` \|", page, re.MULTILINE)) == sorted(known)


def test_the_page_about_fields_is_what_the_server_does() -> None:
    written = (DOCS / "reference" / "fields.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(DOCS / "generate_fields.py"))["page"](), "run: python docs/generate_fields.py"


def test_the_pictures_are_those_of_the_script() -> None:
    for name, draw in runpy.run_path(str(DOCS / "generate_pictures.py"))["PICTURES"].items():
        written = (DOCS / "contributing" / name).read_text(encoding="utf-8")
        assert written == draw().svg(), "run: python docs/generate_pictures.py"


def prose(page: Path) -> str:
    """Without blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Those that GitHub gives to the headings of a page; a second heading of the same words gets a number."""
    found: dict[str, int] = {}
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        found[slug] = found.get(slug, 0) + 1
    return {slug if n == 0 else f"{slug}-{n}" for slug, times in found.items() for n in range(times)}


def test_tables_of_formats_are_those_of_the_records() -> None:
    made = runpy.run_path(str(ROOT / "benchmarks" / "quality" / "page_of_rows.py"))
    written = (DOCS / "lab" / "quantisation.md").read_text(encoding="utf-8")
    assert written == made["page_with_tables"](written), "run: python benchmarks/quality/page_of_rows.py"


def test_prose_is_wrapped_at_120_columns() -> None:
    for page in PAGES:
        long = [line for line in prose(page).splitlines() if len(line) > COLUMNS and not line.startswith("|")]
        assert not long, f"{page.relative_to(ROOT)}: wrap these lines, of which the first is {long[0]!r}"


def test_no_link_is_dead() -> None:
    for page in PAGES:
        for target, anchor in re.findall(r'(?:\]\(|src="|srcset=")([^)#"\s]*)(?:#([^)"\s]*))?[)"]', prose(page)):
            if "://" in target:
                continue
            there = page.parent / target if target else page
            assert there.exists(), f"{page.relative_to(ROOT)}: there is no {target}"
            dead = anchor and there.suffix == ".md" and anchor not in anchors(there)
            assert not dead, f"{page.relative_to(ROOT)}: {target} has no heading #{anchor}"


def test_what_a_user_is_offered_can_be_read() -> None:
    """A page that outgrows its row says less of its subject, or another page says less: the sum stays."""
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in pages}
    assert words.keys() == WORDS.keys(), "each page for users has a row in the table of words"
    assert not {name: count for name, count in words.items() if count > WORDS[name]}
    assert sum(WORDS.values()) <= MOST_WORDS
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= README_LINES


def test_the_readme_counts_the_families_that_run() -> None:
    """Those without experts are the last of the table, from llama on."""
    types = [family.model_type for family in FAMILIES]
    with_experts = types.index("llama")
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"moeinf runs {with_experts} families, among" in readme
    assert f" and {len(types) - with_experts} families without experts, among" in readme
    rows = re.findall(
        r"^\| \[([\w-]+)\]\(reference/families\.md", (DOCS / "models.md").read_text(encoding="utf-8"), re.M
    )
    assert rows == types


def test_each_page_says_for_whom_it_is() -> None:
    for page in DOCS.rglob("*.md"):
        title, _, rest = page.read_text(encoding="utf-8").partition("\n\n")
        assert title.startswith("# ") and "\n" not in title, page
        assert rest.startswith("This page is for "), f"{page.relative_to(ROOT)} does not say for whom it is"


def test_each_page_can_be_found() -> None:
    """The README leads to the pages for users and the reference, CONTRIBUTING.md to all others."""
    of_users, of_developers = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "CONTRIBUTING.md"))
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(ROOT).as_posix()
        found = of_users if page.parent.name in ("docs", "reference") else of_developers
        assert f"({name})" in found, f"nothing leads to {name}"


def test_commands_on_the_pages_for_users_exist() -> None:
    """Each verb and each option of the blocks of code; what follows them is not looked at."""
    verbs: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    verbs |= {f"trace {name}": verb for name, verb in verbs["trace"].commands.items()}
    for page in (ROOT / "README.md", *DOCS.glob("*.md")):
        blocks = "".join(re.findall(r"^```.*?^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE))
        for line in re.findall(r"(?<!\")\bmoeinf ([a-z][^#\n]*)", blocks):
            first, *words = shlex.split(line.partition(" -- ")[0])  # what follows is another program's
            name = f"trace {words[0]}" if first == "trace" else first
            assert name in verbs, f"{page.name}: there is no command moeinf {name}"
            known = {text for param in verbs[name].params for text in (*param.opts, *param.secondary_opts)}
            given = {word.partition("=")[0] for word in words if re.match("-[^0-9]", word)}
            assert given <= known, f"{page.name}: moeinf {line} has options that do not exist"
