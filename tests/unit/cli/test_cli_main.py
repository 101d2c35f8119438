"""The commands as a shell sees them: version, help, policies, plugins, interrupted pipes."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from commands import Weft

import weft as package
from weft.cli.grouped_help import MOVED
from weft.cli.main import app
from weft.cli.progress import bar
from weft.core.policies.catalog import BUILT_IN

ROOT = Path(__file__).resolve().parents[3]


def shell(*arguments: str, path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(
        [sys.executable, "-m", "weft.cli.main", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_the_version_and_nothing_else(weft: Weft) -> None:
    assert weft("--version") == (0, f"weft {package.__version__}\n", "")


def test_words_that_are_no_text_are_one_error(weft: Weft) -> None:
    """As Python reads `\\xff.yaml` off the command line."""
    said = weft("parse", "\udcff.yaml")
    assert (said.code, said.out) == (1, "")
    assert said.err == (
        "weft: error: '\\udcff.yaml': is not UTF-8 text; give the file or pod another name\n"
    )


def test_help_lists_every_command_by_task_with_its_whole_sentence(
    weft: Weft, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = weft("--help")
    assert said.code == 0
    group = typer.main.get_command(app)
    assert "…" not in said.out
    assert "..." not in said.out.replace("[ARGS]...", "")
    assert max(map(len, said.out.splitlines())) <= 80
    words = " ".join(said.out.split())
    for name, command in group.commands.items():
        if command.hidden:
            continue
        assert f"\n  {name} " in said.out
        first = " ".join(command.help.partition("\n\n")[0].split()).partition(". ")[0]
        assert first in words
    tasks = [line for line in said.out.splitlines() if line.endswith(":") and line[0] != " "]
    assert len(tasks) == 5  # options, and four of commands
    assert "Commands:" not in tasks, "a command without a task: see `_register`"


@pytest.mark.parametrize("group", ["generate", "explain", "profile", "interference"])
def test_groups_list_theirs_untruncated_and_no_old_names(
    weft: Weft, monkeypatch: pytest.MonkeyPatch, group: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = weft(group, "--help")
    assert "..." not in said.out.replace("[ARGS]...", "")
    commands = typer.main.get_command(app).commands[group].commands
    listed = [line.split()[0] for line in said.out.splitlines() if line.startswith("  ")]
    assert [name for name in commands if name not in listed] == [
        name for name, command in commands.items() if command.hidden
    ]


def test_help_is_quick_because_it_imports_no_numpy() -> None:
    code = "import sys, weft.cli.main; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_command_is_wrong_use(weft: Weft) -> None:
    said = weft("simulat")
    assert (said.code, said.out) == (2, "")
    assert "No such command 'simulat'" in said.err


@pytest.mark.parametrize("words", MOVED)
def test_a_command_that_has_moved_says_where_to_and_it_is_there(weft: Weft, words: str) -> None:
    said, now = weft(*words.split(), "x"), MOVED[words]
    assert (said.code, f"write `{now}` instead" in " ".join(said.err.split())) == (2, True)
    command = [word for word in now.split()[1:] if not word.endswith(".yaml")]
    option = command.pop() if command[-1].startswith("--") else ""
    assert option in weft(*command, "--help").out
    assert all((ROOT / word).exists() for word in now.split() if word.endswith(".yaml"))


def test_policies_as_a_list_and_as_json(weft: Weft) -> None:
    names = sorted(policy.name for policy in BUILT_IN)
    said = weft("policies")
    lines = said.out.splitlines()
    assert [line.split()[0] for line in lines if line[0] != " "] == names
    unsafe = [
        before.split()[0]
        for before, line in itertools.pairwise(lines)
        if line.startswith(" ") and "unsafe: " in line
    ]
    assert unsafe == [policy.name for policy in BUILT_IN if policy.unsafe] == UNSAFE
    found = json.loads(weft("policies", "--output", "json").out)
    assert [item["name"] for item in found] == names
    assert all(item["summary"] and item["source"] for item in found)
    keys = {"name", "summary", "source", "reads", "options", "unsafe"}
    assert all(set(item) == keys for item in found)
    assert [item["name"] for item in found if item["unsafe"]] == UNSAFE


UNSAFE = ["ferikoglou", "genius"]


PLUGIN = """
from weft.core.framework import Policy

class Good(Policy):
    name = "my-policy"
    summary = "from a plugin"
    source = "here"

class Halves(Policy):
    name = "halves"
    summary = "scores that are no whole numbers"
    source = "here"

    def score_nodes(self, query):
        return query.idle / 2
"""


def installed(folder: Path, entries: str) -> Path:
    """A package with entry points, as pip would leave it."""
    (folder / "my_plugin.py").write_text(PLUGIN)
    meta = folder / "my_plugin-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text("[weft.policies]\n" + entries)
    return folder


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that this process, too, finds packages in; nothing was said yet of plugins."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr("weft.cli.policies._said", set())
    monkeypatch.delitem(sys.modules, "my_plugin", raising=False)
    return folder


def test_a_plugin_s_policy_works_and_a_broken_one_is_a_warning(weft: Weft, site: Path) -> None:
    installed(site, "my-policy = my_plugin:Good\nbroken = no_such_module:Policy\n")
    record = weft.folder / "decisions.jsonl"
    said = weft.simulate("--policy", "my-policy", "--output", "csv", "--decisions", record)
    assert said.code == 0
    assert said.err.splitlines() == [
        "weft: warning: plugin broken (no_such_module:Policy) is left out: "
        "ModuleNotFoundError: No module named 'no_such_module'"
    ]
    assert said.out.splitlines()[1].startswith("my-policy,42,")
    header = json.loads(record.read_text().splitlines()[0])
    (use,) = header["profiles"][0]["policies"]
    assert use["origin"] == {"version": "my-plugin 1.0"}


def test_a_broken_plugin_is_told_of_once(weft: Weft, site: Path, tmp_path: Path) -> None:
    """By a command that makes several registries, too."""
    config = tmp_path / "weft.yaml"
    config.write_text(weft("config", "defaults").out)
    installed(site, "broken = no_such_module:Policy\n")
    said = weft("config", "check", config)
    assert said.code == 0
    assert said.err.count("plugin broken") == 1


def test_a_plugin_s_wrong_answer_is_one_line_and_1(weft: Weft, site: Path) -> None:
    """In processes of its own, with those that run its cells."""
    installed(site, "halves = my_plugin:Halves\n")
    said = shell(
        *("simulate", *weft.trace, "--policy", "halves", "--seeds", "1", "--jobs", "2"), path=site
    )
    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr == (
        "weft: error: policy halves, score_nodes: returned 1.0 (float64) for node n2; return whole "
        "numbers (np.int64), such as (1000 * score).astype(np.int64)\n"
    )


FULL = "weft: error: standard output cannot be written: No space left on device; free space, or "


FORKED = """
import os, sys
import weft.core.policies.catalog  # once for all
from weft.cli.main import main

for words in sys.argv[1:]:
    if not (child := os.fork()):
        sys.argv = ["weft", *words.split()]
        sys.exit(main())
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=sys.stderr)
"""
"""Commands in processes of their own, which end as any does; then their exit codes."""


def test_a_full_disk_behind_standard_output_is_one_line_and_1() -> None:
    """Typer's own output, tables, JSON, and what is written piece by piece."""
    commands = ("--help", "policies", "policies -o json", "generate nodes")
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", FORKED, *commands],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert ended.stderr == f"{FULL}choose another disk\n1\n" * len(commands)


def test_absent_and_full_standard_streams() -> None:
    words = f"{sys.executable} -m weft.cli.main"
    closed = subprocess.run(
        f"{words} policies >&-; echo $? >&2; {words} parse none 2>/dev/full; echo $? >&2",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert closed.stderr == (
        "weft: error: standard output cannot be written: Bad file descriptor\n1\n1\n"
    )


def test_a_reader_that_leaves_is_no_traceback(weft: Weft) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "weft.cli.main", "policies"],
            stdout=writer,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_the_progress_bar_counts_runs_and_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bar(2) is None, "nobody is watching"
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert bar(1) is None, "there is nothing to wait for"
    update = bar(2)
    assert update is not None
    update("fgd", 42, 1)
    update("fgd", 43, 2)
    assert capsys.readouterr().out == ""
