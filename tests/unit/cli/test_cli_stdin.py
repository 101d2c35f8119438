"""`-` is standard input wherever a file is read."""

import io
import json
import sys
from pathlib import Path

import pytest
from commands import Said, Weft

from weft.interference.dataset import Dataset, SoloProfile, encode

TABLE = json.dumps({"a": {"a": 1.5, "b": 1.2}, "b": {"a": 1.3, "b": 1.1}})


@pytest.fixture
def piped(weft: Weft, monkeypatch: pytest.MonkeyPatch) -> "Piped":
    return Piped(weft, monkeypatch)


class Piped:
    """`weft` with something on standard input."""

    def __init__(self, weft: Weft, patch: pytest.MonkeyPatch) -> None:
        self.weft, self._patch = weft, patch

    def __call__(self, text: str | bytes, *words: object) -> Said:
        body = text.encode() if isinstance(text, str) else text
        self._patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(body)))
        return self.weft(*words)


def test_lists_of_a_simulation(piped: Piped) -> None:
    weft = piped.weft
    words = ("--policy", "fgd", "--jobs", 1, "--no-timing")
    plain = weft.simulate(*words).out
    nodes = piped(weft.nodes.read_text(), "simulate", "--nodes", "-", "--pods", weft.pods, *words)
    assert (nodes.code, nodes.out) == (0, plain)
    pods = piped(weft.pods.read_text(), "simulate", "--nodes", weft.nodes, "--pods", "-", *words)
    assert (pods.code, pods.out) == (0, plain)
    both = piped("", "simulate", "--nodes", "-", "--pods", "-", *words)
    problem = "can be read only once; specify files for all options but one"
    assert both.err == f"weft: error: standard input: {problem}\n"


def test_decisions_to_replay_and_explain(piped: Piped) -> None:
    path = piped.weft.folder / "decisions.jsonl"
    assert piped.weft.simulate("--policy", "fgd", "--decisions", path).code == 0
    assert piped(path.read_bytes(), "replay", "-").out.startswith("100 % identical: ")
    asked = ("explain", "pod", "0", "--decisions")
    assert piped(path.read_bytes(), *asked, "-").out == piped.weft(*asked, path).out
    broken = piped("{}", "replay", "-")
    assert broken.err.startswith("weft: error: standard input, line 1: not a decisions header")


def test_a_configuration(piped: Piped) -> None:
    text = piped.weft("config", "defaults").out
    assert piped(text, "config", "check", "-").code == 0
    said = piped("colour: red", "config", "check", "-")
    assert (said.code, said.err.count("\n")) == (1, 1)
    assert said.err.startswith("weft: error: standard input: ")


def test_profiles(piped: Piped, tmp_path: Path) -> None:
    body = encode(Dataset(solo=(SoloProfile("gan", "T4", "mps"),)))
    assert "gan" in piped(body, "profile", "list", "--file", "-").out
    kept = tmp_path / "kept.json"
    assert piped(body, "profile", "import", "-", "--file", kept).code == 0
    assert "gan" in piped.weft("profile", "show", "gan", "--file", kept).out
    said = piped(body, "profile", "import", kept, "--file", "-")
    assert (
        said.err == "weft: error: --file -: is only for reading; name a file to store profiles in\n"
    )


def test_tables_of_slowdowns(piped: Piped) -> None:
    path = piped.weft.folder / "table.json"
    path.write_text(TABLE)
    plain = piped.weft("interference", "predict", path)
    assert plain.code == 0
    assert piped(TABLE, "interference", "predict", "-") == plain
    words = ("--jobs", 1, "--interference", "-", "--policy", "interference")
    assert piped(TABLE, "simulate", *piped.weft.trace, *words).code == 0


def test_a_kubeconfig(piped: Piped) -> None:
    said = piped("contexts: []", "metrics", "--url", "http://127.0.0.1:1", "--kubeconfig", "-")
    problem = "standard input: current-context: is missing; set it or name a context"
    assert said.err == f"weft: error: {problem}\n"
