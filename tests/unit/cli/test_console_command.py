"""`weft console`: what it refuses, in one line."""

import socket
import sys

import pytest

from weft.cli import main


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


@pytest.mark.parametrize("words", [(), ("--demo", "--snapshot", "x.json")])
def test_it_wants_to_know_what_to_show(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "give it, or --demo, one of them" in refused(capsys, monkeypatch, *words)


def test_a_port_that_is_taken_and_an_address_of_others_are_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused(capsys, monkeypatch, "--demo", "--port", port)
        assert f"127.0.0.1:{port}: cannot be listened on" in said
    said = refused(capsys, monkeypatch, "--demo", "--address", "192.0.2.1", "--port", "0")
    assert "192.0.2.1:0: cannot be listened on" in said
