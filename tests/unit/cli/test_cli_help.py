"""Ways to help, examples, and what the shell offers after <TAB>."""

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from commands import Weft
from inspected_cluster import pod, served

from weft.cli.examples import EXAMPLES
from weft.cli.main import app

TREE: Any = typer.main.get_command(app)


def leaves(command: Any, path: str = "") -> list[str]:
    below = getattr(command, "commands", None)
    if below is None:
        return [path]
    shown = [(name, each) for name, each in below.items() if not each.hidden]
    return [leaf for name, each in shown for leaf in leaves(each, f"{path} {name}".strip())]


def test_every_command_has_an_example() -> None:
    assert sorted(EXAMPLES) == sorted(leaves(TREE))


@pytest.mark.parametrize("path", EXAMPLES)
def test_the_parser_takes_each_example(path: str) -> None:
    for example in EXAMPLES[path]:
        words = shlex.split(example[example.index("weft ") :], comments=False)
        end = next((at for at, word in enumerate(words) if word in ("|", ">", "<")), len(words))
        words, names = words[1:end], path.split()
        assert words[: len(names)] == names
        command = TREE
        for name in names:
            command = command.commands[name]
        command.make_context(path, words[len(names) :])  # a UsageError names what is wrong


def test_examples_end_the_help_line_by_line(weft: Weft) -> None:
    said = weft("explain", "pod", "-h")
    assert said.code == 0
    assert said.out.rstrip().endswith(
        "Examples:\n    weft explain pod team/train-0\n"
        "    weft explain pod train-0 --snapshot cluster.json"
    )


def test_help_and_version_are_commands_too(weft: Weft) -> None:
    assert weft("help", "explain", "pod").out == weft("explain", "pod", "--help").out
    assert weft("help").out == weft("--help").out
    assert weft("version").out == weft("--version").out
    assert weft("help", "nonsense").code == 2


def test_the_package_is_a_program() -> None:
    command = [sys.executable, "-m", "weft", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("weft ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("simulate",),
        ("simulate", "--policy", "fgd"),
        ("metrics",),
        ("trace", "from-prometheus"),
        ("defrag", "plan"),
        ("profile", "list"),
        ("profile", "collect"),
        ("admission", "--webhook", "weft-system/weft"),
    ],
    ids=" ".join,
)
def test_a_missing_option_is_exit_code_2_everywhere(weft: Weft, arguments: tuple[str, ...]) -> None:
    assert weft(*arguments).code == 2


def offered(weft: Weft, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """The lines that a shell gets that completes the last of these words."""
    monkeypatch.setenv("_WEFT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", shlex.join(["weft", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    return weft().out.split()


def test_policies_are_offered(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered(weft, monkeypatch, "simulate", "--policy", "elastic-") == [
        "elastic-binpack",
        "elastic-spread",
    ]


def test_namespaces_are_offered_and_then_their_pods(
    tmp_path: Path, weft: Weft, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(tmp_path) as (server, kubeconfig):
        for name in ("team", "test", "other"):
            server.add("namespaces", {"metadata": {"name": name}})
        for name in ("train-0", "train-1", "notebook"):
            server.add("pods", pod(name, "", {}, namespace="team"))
        server.add("pods", pod("train-9", "", {}, namespace="other"))
        asked = ("explain", "pod", "--kubeconfig", str(kubeconfig))
        assert offered(weft, monkeypatch, *asked, "te") == ["team/", "test/"]
        assert offered(weft, monkeypatch, *asked, "team/tr") == ["team/train-0", "team/train-1"]


def test_a_cluster_that_is_not_there_offers_nothing(
    weft: Weft, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("explain", "pod", "--kubeconfig", "/nowhere/at/all", "te")
    assert offered(weft, monkeypatch, *asked) == []
