"""Logs: what a line is about is in its fields, whatever its text is."""

import json
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import Weft
from hypothesis import given
from hypothesis import strategies as st

from weft.cli import compat
from weft.cli.logs import LogFormat, LogLevel, daemon, set_up
from weft.kube.log_lines import JsonFormatter
from weft.model import BadInputError
from weft.model.log_fields import FIELDS, PodReference, about

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """The root logger and the hooks as they were."""
    root = logging.getLogger()
    kept = root.handlers[:], root.level, sys.unraisablehook
    yield
    root.handlers[:], root.level, sys.unraisablehook = kept
    logging.captureWarnings(capture=False)


def written(message: str, *args: object, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    """The line of this call, read back."""
    logger = logging.getLogger("weft.test")
    made = ("weft.test", logging.WARNING, "f", 1, message, args, None)
    line = JsonFormatter().format(logger.makeRecord(*made, extra=extra))
    assert "\n" not in line
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_has_time_level_logger_and_message() -> None:
    found = written("pod %s is gone", "team/a")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", found.pop("time"))
    assert found == {"level": "warning", "logger": "weft.test", "message": "pod team/a is gone"}


@given(st.text(), st.text(), st.text(), st.integers(0, 1 << 62))
def test_fields_are_what_was_given_whatever_the_names_hold(
    namespace: str, name: str, node: str, cycle: int
) -> None:
    fields = about(PodReference(namespace, name, "u"), node=node, cycle=cycle)
    found = written("%s", f"{namespace}/{name}", extra=fields)
    assert found["message"] == found["pod"] == f"{namespace}/{name}"
    assert (found["podUID"], found.get("node", ""), found["cycle"]) == ("u", node, cycle)


def test_half_a_character_is_shown_and_is_no_error() -> None:
    assert written("\ud83d \n", extra=about(node="\ud83d"))["node"] == "\\ud83d"


def test_what_is_not_known_is_left_out() -> None:
    assert about() == {}
    assert about(PodReference("d", "p")) == {"pod": "d/p"}
    assert about(node="n", cycle=0) == {"node": "n", "cycle": 0}


def test_an_agents_lines_all_have_its_node(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        set_up(LogFormat.JSON, node="gpu-1")
        logging.getLogger("weft.agent").info("ready")
        logging.getLogger("weft.agent").debug("too much")
        warnings.warn("old", stacklevel=1)
    try:
        raise OSError("no disk")
    except OSError:
        logging.getLogger("asyncio").exception("broke")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["node"] for line in lines] == ["gpu-1"] * 3
    assert "old" in lines[1]["message"]
    assert lines[2]["error"].endswith("OSError: no disk")


def test_the_error_that_ends_a_daemon_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    for error, said in ((BadInputError("f.yaml", "is empty"), "f.yaml"), (KeyError("k"), "'k'")):
        with pytest.raises(Exception, match="1"), daemon(LogFormat.JSON, LogLevel.INFO):
            raise error
        (line,) = capsys.readouterr().err.splitlines()
        found = json.loads(line)
        assert found["level"] == "critical"
        assert said in found["message"]


@pytest.mark.parametrize(
    "command",
    [
        *(f"{one} --config /nowhere.yaml" for one in ("scheduler", "extender serve", "agent")),
        "webhook --certificate-file /nowhere.yaml --key-file /nowhere.yaml",
    ],
)
def test_each_daemon_says_in_json_why_it_does_not_start(weft: Weft, command: str) -> None:
    said = weft(*command.split(), "--log-format", "json")
    assert said.code == 1
    (line,) = said.err.splitlines()
    assert "/nowhere.yaml" in json.loads(line)["message"]


def test_a_format_that_there_is_not_is_refused(weft: Weft) -> None:
    said = weft("scheduler", "--log-format", "xml")
    assert said.code == 2
    assert "'text', 'json'" in said.err


def test_an_original_started_with_json_logs_has_no_other_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["genius", "--logging-format=json", "--v=2", "-fresh=1", "-kubeconfig", "/nowhere"]
    monkeypatch.setattr(sys, "argv", ["weft-compat", *words])
    with pytest.raises(SystemExit):
        compat.main()
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["level"] for line in lines] == ["warning", "info", "critical"]
    assert "/nowhere" in lines[-1]["message"]


def test_the_reference_has_every_field() -> None:
    page = (ROOT / "docs" / "reference" / "processes.md").read_text()
    page = page.partition("\n## Logs\n")[2].partition("\n## ")[0]
    shown = json.loads(re.findall(r"^\{.*\}$", page, re.MULTILINE)[0])
    listed = set(re.findall(r"^\| `(\w+)`", page, re.MULTILINE))
    assert listed == {"error", *shown}
    assert set(FIELDS) < listed
