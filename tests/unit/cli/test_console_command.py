"""`weft console`: what it refuses, in one line."""

import json
import socket
import sys
from pathlib import Path

import pytest

from weft.cli import main
from weft.cluster.snapshot.form import KIND


def refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    monkeypatch.setattr(sys, "argv", ["weft", "console", *words])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return said.err


@pytest.mark.parametrize(
    ("words", "way_out"),
    [
        (("--demo", "--snapshot", "x.json"), "remove --demo"),
        (("--demo", "--kubeconfig", "k"), "remove --kubeconfig, --context and --config"),
        (("--snapshot", "x.json", "--context", "c"), "--snapshot: does not read a cluster"),
        (("--kubeconfig", "no/such/file"), "no/such/file"),
        (("--demo", "--sign-in"), "remove --demo"),
        (("--audience", "x"), "requires --sign-in"),
        (("--policy", "x.py"), "requires --decisions"),
        (("--decisions", "no.jsonl"), "no.jsonl"),
        (("--decisions", "x.jsonl", "--demo"), "remove --demo"),
    ],
)
def test_what_it_shows_is_one_thing_that_is_there(
    words: tuple[str, ...],
    way_out: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert way_out in refused(capsys, monkeypatch, *words)


def test_a_cluster_that_does_not_answer_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster = {"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}
    context = {"name": "c", "context": {"cluster": "c"}}
    text = {"clusters": [cluster], "contexts": [context], "current-context": "c"}
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **text}))
    said = refused(capsys, monkeypatch, "--kubeconfig", str(path))
    assert "http://127.0.0.1:1" in said
    assert "run weft doctor" in said


def test_a_port_that_is_taken_and_an_address_of_others_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(capsys, monkeypatch, "--demo", "--port", port)
        assert f"127.0.0.1:{port}: cannot be listened on" in said
    said = refused(capsys, monkeypatch, "--demo", "--address", "192.0.2.1", "--port", "0")
    assert "192.0.2.1:0: cannot be listened on" in said


def test_a_snapshot_of_another_version_is_refused_with_the_way_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"apiVersion": "weft.dev/v0", "kind": KIND}))
    said = refused(capsys, monkeypatch, "--snapshot", str(path))
    assert f"{path}, field apiVersion: 'weft.dev/v0' is not " in said
    assert "take the snapshot again with this version of Weft" in said
