"""The documents are true: links lead somewhere, lists are complete, and what a page shows runs.

How a page says what may be checked (docs/contributing/where-to-look.md tells its writers):
- ```python blocks run, top to bottom of a page, in one namespace; functions `test_*` are called.
  ```text printed is what the last one prints, where `…` stands for anything.
- A block with `file=NAME` behind its language is written to NAME in the page's own empty folder;
  a Python one is loaded as that module, `src/weft/core/policies/new.py` as
  `weft.core.policies.new`. - In ```console blocks every `$ weft …` must name commands and options
  that exist. In ```console run they run, must end with 0 (or what a following `$ echo $?` shows),
  and print what is shown below them.
"""

import contextlib
import importlib.util
import io
import os
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
import typer.main

import weft
from weft.cli import main as weft_cli
from weft.core.engine import Candidate, Event, Record
from weft.core.policies.catalog import built_in
from weft.core.record import DecisionLine, Header, PolicyUse, ProfileUse
from weft.dialects.catalog import ALL
from weft.model import Share
from weft.model.reason import TEXT, Code

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = {".venv", "build", "dist", "node_modules"}
PAGES = sorted(
    path
    for path in ROOT.rglob("*.md")
    if not any(part in SKIPPED or part.startswith(".") for part in path.relative_to(ROOT).parts)
)
DECISIONS = ROOT / "docs" / "decisions"


class Block(NamedTuple):
    """A fenced block: its language, the words behind it, its text, and the line it begins at."""

    language: str
    words: tuple[str, ...]
    text: str
    line: int

    @property
    def file(self) -> str:
        """NAME of `file=NAME`; "" without."""
        return next((word[5:] for word in self.words if word.startswith("file=")), "")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks_of(page: Path) -> list[Block]:
    found: list[Block] = []
    inside: list[str] | None = None
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if not line.startswith("```"):
            if inside is not None:
                inside.append(line)
        elif inside is None:
            inside, info, begin = [], line[3:].split(), number
        else:
            head, *words = info or [""]
            found.append(Block(head, tuple(words), "\n".join(inside) + "\n", begin))
            inside = None
    assert inside is None, f"{name(page)}: a block is never closed"
    return found


def prose_of(page: Path) -> str:
    """The page without its fenced blocks and code spans."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


def anchors_of(page: Path) -> set[str]:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ +(.*?)\s*$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- links -------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose_of(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        assert to.exists(), f"{target} leads nowhere"
        assert to.is_relative_to(ROOT), f"{target} leads out of the project"
        if anchor and to.suffix == ".md":
            assert anchor in anchors_of(to), f"{target}: {name(to)} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_source_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text()
    own = {block.file for block in blocks_of(page)}
    named = set(re.findall(r"`((?:src|tests|benchmarks)/[\w/.-]+\.py)`", text)) - own
    assert [file for file in sorted(named) if not (ROOT / file).exists()] == []
    if page == ROOT / "ARCHITECTURE.md":
        files = set(re.findall(r"`([a-z]+/[a-z_/]+\.py)`", text))
        assert len(files) > 5
        assert [file for file in sorted(files) if not (ROOT / "src/weft" / file).exists()] == []


def test_architecture_names_every_import_contract() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = [contract["name"] for contract in project["tool"]["importlinter"]["contracts"]]
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert [contract for contract in contracts if f"| {contract} |" not in text] == []


def test_every_page_of_docs_is_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text()
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    paths = [str(page.relative_to(ROOT / "docs")) for page in pages]
    assert [path for path in paths if path != "README.md" and f"({path})" not in index] == []


MOST_PAGES, MOST_WORDS = 60, 2_500
GENERATED = ("docs/reference/python-api.md",)


def test_the_documentation_stays_small() -> None:
    pages = [page for page in PAGES if page.is_relative_to(ROOT / "docs")]
    assert len(pages) <= MOST_PAGES, "merge pages that a reader would open together"
    words = {name(page): words_of(page) for page in pages if name(page) not in GENERATED}
    assert {page: count for page, count in words.items() if count > MOST_WORDS} == {}


def words_of(page: Path) -> int:
    """How many words a page has besides code blocks and addresses of links."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return sum(1 for word in text.split() if re.search(r"\w", word))


# --- completeness --------------------------------------------------------------------------------


def first_cells(text: str) -> list[str]:
    """The words in backticks in the first column of the tables of `text`."""
    return re.findall(r"^\| *`([^`]+)` *\|", text, flags=re.MULTILINE)


def section(page: Path, title: str) -> str:
    """The text under this heading, up to the next of its level."""
    level = len(title) - len(title.lstrip("#"))
    rest = page.read_text().partition(f"\n{title}\n")[2]
    return re.split(rf"^#{{1,{level}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def test_readme_names_exactly_the_policies_there_are() -> None:
    named = re.findall(r"`([^`]+)`", section(ROOT / "README.md", "## Policies"))
    assert sorted(named) == list(built_in().names())


def test_reference_sums_up_exactly_the_policies_there_are() -> None:
    page = ROOT / "docs" / "reference" / "policies.md"
    listed = {
        policy: row
        for row in section(page, "## A worked example").splitlines()
        for policy in first_cells(row)
    }
    assert sorted(listed) == list(built_in().names())
    assert [d.name for d in built_in().describe() if d.summary not in listed[d.name]] == []


def test_reference_and_readme_name_every_dialect() -> None:
    for page in ("README.md", "docs/reference/dialects.md"):
        text = (ROOT / page).read_text()
        assert [dialect.name for dialect in ALL if dialect.name not in text] == [], page


def test_reference_explains_every_reason_in_order() -> None:
    text = (ROOT / "docs" / "reference" / "reasons.md").read_text()
    listed = re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \|", text, flags=re.MULTILINE)
    assert listed == [(code.name, TEXT[code]) for code in Code]


def test_reference_names_every_field_of_the_decisions_file() -> None:
    text = (ROOT / "docs" / "reference" / "decisions-file.md").read_text()
    kinds = (Header, ProfileUse, PolicyUse, DecisionLine, Record, Candidate, Share)
    fields = {field for kind in kinds for field in kind.__struct_encode_fields__}
    events = {
        event.__struct_config__.tag: event.__struct_encode_fields__ for event in Event.__args__
    }
    names = fields | set(events) | {field for found in events.values() for field in found}
    assert sorted(one for one in names if f"`{one}`" not in text) == []
    assert f"`{Header([]).schema}`" in text


def test_changelog_has_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## \[{re.escape(weft.__version__)}\]", changelog, flags=re.MULTILINE)


def test_decisions_are_numbered_without_gaps() -> None:
    text = "\n".join(path.read_text() for path in DECISIONS.glob("*.md"))
    decisions = re.split(r"^## (?=\d{4} )", text, flags=re.MULTILINE)[1:]
    numbers = sorted(decision[:4] for decision in decisions)
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    for decision in decisions:
        assert "### Rejected" in decision, f"{decision[:40]} must say what was rejected"


# --- commands and options -----------------------------------------------------------------------


def commands() -> dict[str, set[str]]:
    """Every command with its options, `--help` and completion left out."""
    found: dict[str, set[str]] = {}

    def walk(path: str, command: object) -> None:
        below = getattr(command, "commands", {})
        options = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
            if parameter.param_type_name == "option" and not parameter.hidden
        }
        if not below or path == "weft":
            found[path] = options - {"--help", "--install-completion", "--show-completion"}
        for word, one in below.items():
            if not one.hidden:  # a command's old name
                walk(f"{path} {word}", one)

    walk("weft", typer.main.get_command(weft_cli.app))
    return found


COMMANDS = commands()
COMMAND_PAGES = [ROOT / "docs" / "reference" / page for page in ("cli.md", "cli-cluster.md")]


def test_reference_has_exactly_the_commands_there_are() -> None:
    text = "\n".join(page.read_text() for page in COMMAND_PAGES)
    titles = re.findall(r"^## (weft\b.*)$", text, flags=re.MULTILINE)
    assert sorted(titles) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_reference_has_exactly_the_options_there_are(command: str) -> None:
    text = "".join(section(page, f"## {command}") for page in COMMAND_PAGES)
    rows = "\n".join(row.split("|")[1] for row in text.splitlines() if row.startswith("| `-"))
    listed = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rows))
    assert listed == COMMANDS[command]
    everywhere = set().union(*COMMANDS.values())
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text))
    assert named <= everywhere | {"--help"}, "options that no command has"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_shown_command_exists(page: Path) -> None:
    for block in blocks_of(page):
        if block.language != "console":
            continue
        text = block.text.replace("\\\n", " ")
        for words in re.findall(r"(?:^\$ |\| *)(?:\S*/)?(weft .*?)(?= \||$)", text, re.MULTILINE):
            command = max((c for c in COMMANDS if f"{words} ".startswith(f"{c} ")), key=len)
            known = COMMANDS[command] | {"--help"}
            used = {
                word.partition("=")[0]
                for word in shlex.split(words, comments=True)
                if re.match(r"--?[a-z]", word)
            }
            assert used <= known, f"line {block.line}: {command} has no {used - known}"
            assert command != "weft" or used, f"line {block.line}: no such command: {words}"


# --- what pages show, run -----------------------------------------------------------------------


def runs(block: Block) -> bool:
    return block.language == "python" or (block.language == "console" and "run" in block.words)


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder to be in; modules that a page brings are forgotten afterwards."""
    (tmp_path / "build" / "demo").mkdir(parents=True)  # what `make demo` leaves
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)  # one process: no worker needs these modules
    before = set(sys.modules)
    yield tmp_path
    for module in set(sys.modules) - before:
        file = getattr(sys.modules[module], "__file__", None) or ""
        if Path(file).is_relative_to(tmp_path):
            del sys.modules[module]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(map(runs, blocks_of(page)))], ids=name
)
def test_what_a_page_shows_runs(page: Path, page_folder: Path) -> None:
    namespace: dict[str, object] = {"__name__": "page"}
    printed = ""
    for block in blocks_of(page):
        if block.file:
            write(page_folder, block)
        elif block.language == "python":
            source = "\n" * block.line + block.text
            before, out = dict(namespace), io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(source, name(page), "exec"), namespace)  # it is our own page
            printed = out.getvalue()
            for title, value in list(namespace.items()):
                if title.startswith("test_") and value is not before.get(title) and callable(value):
                    value()
        elif block.language == "text" and "printed" in block.words:
            assert matches(block.text, printed), f"line {block.line}: prints\n{printed}"
        elif runs(block):
            run_console(f"{name(page)}, line {block.line}", block.text)


def write(folder: Path, block: Block) -> None:
    path = folder / block.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text)
    if block.language == "python":
        module = block.file.removeprefix("src/").removesuffix(".py").replace("/", ".")
        spec = importlib.util.spec_from_file_location(module, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])


def run_console(where: str, text: str) -> None:
    code = 0
    for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        if command == "echo $?":
            assert code == int(shown), f"{where}: it ended with {code}"
            code = 0
        elif command.startswith("weft "):
            assert code == 0, f"{where}: the command before ended with {code}"
            code, printed = run_weft(shlex.split(command, comments=True))
            assert not shown.strip() or matches(shown, printed), f"{where} prints\n{printed}"
    assert code == 0, f"{where}: it ended with {code}"


def run_weft(words: list[str]) -> tuple[int, str]:
    """Exit code, and stdout and stderr together, of a command run in this process."""
    out, code = io.StringIO(), 0
    old = sys.argv
    try:
        sys.argv = words
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            weft_cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = old
    return code, out.getvalue()


def matches(shown: str, printed: str) -> bool:
    def tidy(text: str) -> str:
        return "\n".join(line.rstrip() for line in text.strip().splitlines())

    pattern = ".*?".join(re.escape(part) for part in re.split("…", tidy(shown)))
    return re.fullmatch(pattern, tidy(printed), flags=re.DOTALL) is not None


def test_the_checks_of_this_file_find_something() -> None:
    """A typo in a pattern above must not pass for a true document."""
    assert len(PAGES) > 20
    assert any(map(runs, blocks_of(ROOT / "docs" / "howto" / "write-a-policy.md")))
    assert matches("a … c\n", "a b\nc c\n")
    assert not matches("a … c\n", "a b\nc d\n")
    assert "--nodes" in COMMANDS["weft simulate"]
    assert msgspec.structs.fields(Record)
