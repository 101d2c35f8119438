"""Files that are none, never end, or mean to do harm: every command that reads one says so."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import Weft

from weft.files import reading

DEEP = b'{"a":' * 50_000
FILES: dict[str, bytes] = {
    "empty": b"",
    "no text": b"\x7fELF\x00\xff\xfe" * 100,
    "half a JSON text": b'{"apiVersion": "v1", "kind": "x',
    "half a character": b'{"apiVersion": "v1", "items": [], "x": "\xff"}',
    "deep JSON": DEEP,
    "deep list": b"[" * 50_000,
    "deep YAML": b"- " * 50_000,
    "not what was meant": b'{"a": 1}',
    "a list": b"[1, 2]",
    "a number": b"7",
    "a long number": b"9" * 5_000,
    "a long field": b"a," + b"x" * 200_000,
    "a broken gzip": b"\x1f\x8b\x08\x00rubbish",
}
SIMULATE = ("simulate", "--policy", "fgd")
TRACE = ("--nodes", "NODES", "--pods", "PODS")
COMMANDS: dict[str, tuple[str, ...]] = {
    "nodes": (*SIMULATE, "--pods", "PODS", "--nodes", "FILE"),
    "pods": (*SIMULATE, "--nodes", "NODES", "--pods", "FILE"),
    "order": (*SIMULATE, *TRACE, "--order", "FILE"),
    "slowdowns": (*SIMULATE, *TRACE, "--interference", "FILE"),
    "mystic": (*SIMULATE, *TRACE, "--mystic", "FILE"),
    "recorded day": (*SIMULATE, "--decisions-from", "FILE"),
    "snapshot": (*SIMULATE, "--snapshot", "FILE"),
    "replay": ("replay", "FILE"),
    "explain": ("explain", "pod", "a/b", "--decisions", "FILE"),
    "parse": ("parse", "FILE"),
    "config": ("config", "check", "FILE"),
    "import": ("config", "import", "FILE"),
    "experiment": ("experiment", "check", "FILE"),
    "results": ("experiment", "report", "FILE"),
    "reproduce": ("experiment", "reproduce", "FILE"),
    "train": ("interference", "train", "FILE", "--to", "TO"),
    "evaluate": ("interference", "evaluate", "FILE"),
    "model": ("interference", "predict", "FILE", "a", "b"),
    "profiles": ("profile", "list", "--file", "FILE"),
    "import profiles": ("profile", "import", "FILE", "--file", "TO"),
    "trace": ("trace", "from-cluster", "FILE"),
    "kubectl's": ("snapshot", "--from", "FILE", "TO"),
    "stranded": ("cluster", "stranded", "--snapshot", "FILE"),
    "defrag": ("defrag", "plan", "--stranded", "--snapshot", "FILE"),
    "kubeconfig": ("status", "--kubeconfig", "FILE"),
    "authority": ("admission", "--webhook", "a/b", "--ca-file", "FILE"),
    "policy": ("simulate", *TRACE, "--policy", "FILE:Mine"),
}


def refused(weft: Weft, command: str, file: Path) -> str:
    """The lines said of the file, which are no traceback; the exit code is 1 or 3."""
    paths = {"FILE": file, "NODES": weft.nodes, "PODS": weft.pods, "TO": weft.folder / "to"}
    words = [str(paths.get(word, word)).replace("FILE:", f"{file}:") for word in COMMANDS[command]]
    said = weft(*words)
    assert said.code in (1, 3), said
    assert all(line.startswith("weft: ") for line in said.err.splitlines()), said
    assert "error: " in said.err
    return said.err


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("what", FILES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_is_none_is_refused(weft: Weft, command: str, what: str) -> None:
    file = weft.folder / ("file.py" if command == "policy" else "file")
    file.write_bytes(FILES[what])
    refused(weft, command, file)


def folder(path: Path) -> Path:
    path.mkdir()
    return path


PLACES: dict[str, Callable[[Path], Path]] = {
    "absent": lambda path: path,
    "a folder": folder,
    "below a file": lambda path: path.parent / "nodes.csv" / path.name,
    "a long name": lambda path: path.parent / ("x" * 300),
}


@pytest.mark.parametrize("what", PLACES)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_without_a_file_is_refused(weft: Weft, command: str, what: str) -> None:
    refused(weft, command, PLACES[what](weft.folder / "file.py"))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_device_that_never_ends_is_refused(
    weft: Weft, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded memory: 4 MiB are the most here."""
    monkeypatch.setattr(reading, "MOST_BYTES", 4 << 20)
    endless = weft.folder / "endless.py"
    endless.symlink_to("/dev/zero")
    tracemalloc.start()
    try:
        refused(weft, command, endless)
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_that_one_may_not_read_is_refused(weft: Weft, command: str) -> None:
    file = weft.folder / "secret.py"
    file.write_bytes(b"{}")
    file.chmod(0)
    assert "Permission denied" in refused(weft, command, file)
