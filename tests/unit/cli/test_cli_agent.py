"""`weft agent`: what is wrong with its options is one line and exit 1."""

from pathlib import Path

import pytest
from commands import Weft
from test_cli_config import HEAD, refused

KUBECONFIG = """
apiVersion: v1
kind: Config
clusters: [{name: a, cluster: {server: "http://127.0.0.1:1"}}]
contexts: [{name: a, context: {cluster: a, user: a}}]
users: [{name: a, user: {}}]
current-context: a
"""


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--listen", "9400"), "--listen: '9400' is no address; write one such as 0.0.0.0:9400"),
        (("--listen", "[::]:99999"), "--listen: '[::]:99999' is no address"),
        (("--devices", "none.yaml"), "none.yaml: cannot be read: No such file or directory"),
        (("--config", "none.yaml"), "none.yaml: cannot be read: No such file or directory"),
    ],
)
def test_what_is_wrong_is_said(weft: Weft, words: tuple[str, ...], why: str) -> None:
    assert refused(weft, "agent", *words).startswith(why)


def test_a_file_of_gpus_that_is_wrong_is_named(weft: Weft, tmp_path: Path) -> None:
    file = tmp_path / "fake.yaml"
    file.write_text(
        "apiVersion: weft.dev/v1\nkind: FakeDevices\ngpus: [{model: A, memoryMiB: 0}]\n"
    )
    assert refused(weft, "agent", "--devices", file).startswith(f"{file}: gpus[0].memoryMiB: 0 ")


def test_settings_of_the_agent_are_checked(weft: Weft, tmp_path: Path) -> None:
    file = tmp_path / "weft.yaml"
    file.write_text(f"{HEAD}agent: {{isolation: mgi}}\n")
    assert refused(weft, "agent", "--config", file).startswith(f"{file}: agent.isolation: ")
    file.write_text(f"{HEAD}agent: {{exemptNamespace: [a]}}\n")
    assert "exemptNamespaces" in refused(weft, "agent", "--config", file)
