"""`weft agent`: what is wrong with its options is one line and exit 1."""

from pathlib import Path

import pytest
from commands import Weft
from inspected_cluster import served
from test_cli_config import HEAD, refused

from fakes.api_store import ApiRefusal

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
        (
            ("--listen", "9400"),
            "--listen: '9400' is not an address; write one such as 0.0.0.0:9400",
        ),
        (("--listen", "[::]:99999"), "--listen: '[::]:99999' is not an address"),
        (("--all-nodes",), "--all-nodes: requires --cleanup; add it or remove this option"),
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


def test_every_node_is_cleaned_from_anywhere_without_its_gpus(weft: Weft, tmp_path: Path) -> None:
    marks = {"weft.dev/agent": "{}", "weft.dev/advertises": "weft.dev/gpu-memory", "own": "1"}
    amounts = {"cpu": "4", "weft.dev/gpu-memory": "80000"}
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    (cdi / "weft-delivery-1.json").write_text("{}")
    with served(tmp_path) as (server, kubeconfig):
        for name in ("a", "b"):
            status = {"capacity": amounts, "allocatable": amounts}
            meta = {"name": name, "annotations": marks}
            server.add("nodes", {"metadata": meta, "spec": {}, "status": status})
        labels = {"app.kubernetes.io/name": "weft-agent"}
        lease = {"name": "weft-agent-a", "labels": labels}
        server.add("leases", {"metadata": lease, "spec": {}}, "weft-system")
        where = ("--kubeconfig", kubeconfig, "--cdi-folder", cdi)
        assert weft("agent", "--cleanup", "--node-name", "a", *where).out == "cleaned 1 node\n"
        assert server.get("nodes", "a")["status"]["capacity"] == {"cpu": "4"}
        assert server.get("nodes", "b")["status"]["capacity"] == amounts
        with pytest.raises(ApiRefusal):
            server.get("leases", "weft-agent-a", "weft-system")
        assert weft("agent", "--cleanup", "--all-nodes", *where).out == "cleaned 1 node\n"
        for name in ("a", "b"):
            found = server.get("nodes", name)
            assert found["status"]["allocatable"] == {"cpu": "4"}
            assert found["metadata"]["annotations"] == {"own": "1"}
        server.access.denied = {("patch", "nodes/status")}
        said = weft("agent", "--cleanup", "--all-nodes", *where)
        assert (said.code, "no permission to patch nodes/status" in said.err) == (1, True)
    assert list(cdi.iterdir()) == []
