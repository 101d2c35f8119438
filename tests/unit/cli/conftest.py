"""Fixtures of every command's tests."""

from pathlib import Path

import pytest
from commands import Weft


@pytest.fixture
def weft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Weft:
    """The command, run in a folder of its own, its output no terminal and of no width."""
    return Weft(tmp_path, monkeypatch, capsys)
